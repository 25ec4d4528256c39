"""What the recorder is handed, what it makes of it, and how that becomes samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from osd.row import Completion
from storage.records import RequestSamples, TokenKind, now


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive positions of one request that one step hands over."""

    request_id: str
    begin: int
    """The first position; see storage.records.Sample.position."""
    kinds: list[int]
    drafted: list[int]


@dataclass(frozen=True, slots=True)
class Parcel:
    """What one step hands over."""

    spans: list[Span]
    logits: Tensor
    """(m, V): the spans' positions one after another."""
    completions: list[Completion]
    chances: Tensor | None = None
    """(m,) min(1, p/q) there; None where it follows from what was kept: in a greedy batch."""

    @property
    def bytes(self) -> int:
        """Memory that the parcel holds while it waits."""
        return self.logits.numel() * self.logits.element_size()


@dataclass(frozen=True, slots=True)
class Part:
    """A span with what was kept of the target there: ids and log-probabilities (m, k), the mass outside (m,)."""

    span: Span
    ids: Tensor
    logprobs: Tensor
    outside: Tensor
    chances: Tensor
    """(m,) NaN where it follows from the span's kinds."""


def reduce_logits(logits: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits (m, V) → token ids (m, k) likeliest first, their log-probabilities (m, k), and the mass outside (m,)."""
    # on the CPU log_softmax takes a third of logsumexp's time
    logprobs, ids = logits.log_softmax(-1, dtype=torch.float32).topk(min(k, logits.shape[1]), dim=-1)
    return ids, logprobs, (1 - logprobs.exp().sum(-1)).clamp_(min=0)


def bundle(completion: Completion, parts: list[Part]) -> RequestSamples:
    spans = [part.span for part in parts]
    columns = ([getattr(p, name) for p in parts] for name in ("ids", "logprobs", "outside", "chances"))
    ids, logprobs, outside, chances = (torch.cat(column).numpy() for column in columns)
    kinds = np.array([kind for s in spans for kind in s.kinds], dtype=np.uint8)
    return RequestSamples(
        request_id=completion.request.id,
        route=completion.route,
        tenant=completion.request.tenant,
        draft_version=completion.rounds[-1].draft_version,
        created_at=now(),
        prompt_len=len(completion.request.prompt_tokens),
        tokens=np.array([*completion.request.prompt_tokens, *completion.tokens], dtype=np.int32),
        positions=np.concatenate([np.arange(s.begin, s.begin + len(s.kinds), dtype=np.int32) for s in spans]),
        kinds=kinds,
        drafted=np.array([token for s in spans for token in s.drafted], dtype=np.int32),
        topk_ids=ids.astype(np.int32),
        topk_logprobs=logprobs.astype(np.float16),
        outside=outside.astype(np.float32),
        acceptance=acceptance_of(kinds, chances.astype(np.float32)),
    )


def acceptance_of(kinds: npt.NDArray[np.uint8], chances: npt.NDArray[np.float32]) -> npt.NDArray[np.float16]:
    """(m,) min(1, p/q) of what was drafted and judged: at temperature 0, 1 where the target agreed and 0 where not.
    NaN where nothing was drafted."""
    known = np.where(np.isnan(chances), kinds == TokenKind.ACCEPTED, chances)
    return np.where(kinds == TokenKind.UNDRAFTED, np.nan, known).astype(np.float16)
