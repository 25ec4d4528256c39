"""The target's own answers, once a data set and temperature: to learn from, as recorded requests, and to test on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import Tensor

from osd.bench.contenders import run_in_order
from osd.bench.harness.prompts import Tokens
from osd.drafters.scoring import distributions, expected_hits, logits_of
from osd.engine.engine import Engine
from osd.models.decoder import Decoder
from osd.models.model import Model
from osd.models.pair import Pair
from osd.models.target_only import has_draft
from osd.recording.topk import reduce_plain
from storage.records import Request, RequestSamples, TokenKind
from storage.replay.exports import read_export, write_export
from storage.sampling import Sampling
from storage.settings import Settings

MADE_AT = 1.0
"""``created_at`` of what is learned from: when it was made is no part of it."""


@dataclass(frozen=True, slots=True)
class PromptSplit:
    """A data set's prompts."""

    learn: Sequence[Tokens]
    test: Sequence[Tokens]


@dataclass(frozen=True, slots=True)
class AnsweredSet:
    """A data set at one temperature."""

    learn: Path
    """File of requests to learn from, in the format of `osd replay export`."""
    test: list[RequestSamples]
    positions: int
    """Positions of ``learn``."""


def answered(
    pair: Pair, settings: Settings, split: PromptSplit, sampling: Sampling, most: int, positions: int, folder: Path
) -> AnsweredSet:
    """Let the target answer a data set's prompts with ``most`` tokens at most, or read what an earlier run kept in
    ``folder``. Requests to learn from are taken in order until they have ``positions``."""
    learn, test = folder / "learn.parquet", folder / "test.parquet"
    for path, prompts in ((learn, split.learn), (test, split.test)):
        if not path.exists():
            some = answers(pair, settings, prompts, sampling, most)
            kept = _up_to(some, positions) if path == learn else some
            path.parent.mkdir(parents=True, exist_ok=True)
            write_export(path, [kept], overwrite=True)
    both = [[each for batch in read_export(path) for each in batch] for path in (learn, test)]
    return AnsweredSet(learn, both[1], sum(map(len, both[0])))


def _up_to(samples: Sequence[RequestSamples], positions: int) -> list[RequestSamples]:
    ends = np.cumsum([len(each) for each in samples])
    return list(samples[: int(np.searchsorted(ends, positions)) + 1])


def answers(
    pair: Pair, settings: Settings, prompts: Sequence[Tokens], sampling: Sampling, most: int
) -> list[RequestSamples]:
    """Return the target's own answers as recorded requests. Whoever draws with a seed and without a draft says the same
    again."""
    kind = "causal" if has_draft(pair) else "lookup"
    alone = settings.changed(gamma={"rule": "fixed", "initial": 0, "routes": {}}, drafters={"kind": kind})
    asked = [
        Request(prompt, most, sampling if sampling.greedy else replace(sampling, seed=number))
        for number, prompt in enumerate(prompts)
    ]
    texts = [done.tokens for done in run_in_order(Engine(pair, alone), asked)]
    reader, k = pair.target.decoder(1, max(map(len, prompts)) + most), settings.storage.top_k
    said = enumerate(zip(prompts, texts, strict=True))
    return [_samples(reader, number, prompt, text, k) for number, (prompt, text) in said if text]


def _samples(reader: Decoder, number: int, prompt: Tokens, tokens: Tokens, k: int) -> RequestSamples:
    text, count = [*prompt, *tokens], len(tokens)
    kept = reduce_plain(logits_of(reader, text, count), k)
    return RequestSamples(
        f"prompt-{number}", "default", "default", "", MADE_AT, len(prompt), np.array(text, np.int32),
        np.arange(len(prompt), len(text), dtype=np.int32), np.full(count, TokenKind.UNDRAFTED, np.uint8),
        np.array(tokens, np.int32), kept.ids, kept.logprobs.astype(np.float16), kept.outside,
    )  # fmt: skip


class TextTest:
    """Test texts, and how often the target accepts what a draft says there."""

    def __init__(self, target: Model, texts: Sequence[RequestSamples], sampling: Sampling) -> None:
        """Read the texts with the target, where they are sampled."""
        self._texts, self._sampling = texts, sampling
        reader = target.decoder(1, self.length)
        self._drawn = [None if sampling.greedy else self._drawn_from(reader, text) for text in texts]

    @property
    def length(self) -> int:
        """Tokens of the longest text."""
        return max(len(text.tokens) for text in self._texts)

    @property
    def positions(self) -> list[int]:
        """Positions of each text."""
        return [len(text) for text in self._texts]

    def accepted(self, draft: Model) -> list[float]:
        """Return for each text the sum over its positions of the chance that what the draft says there is accepted:
        Σ min(p, q) after warping; of a greedy text whether the draft's likeliest token is the text's."""
        reader = draft.decoder(1, self.length)
        return [self._sum(reader, text, p) for text, p in zip(self._texts, self._drawn, strict=True)]

    def _sum(self, reader: Decoder, text: RequestSamples, p: Tensor | None) -> float:
        return float(sum(expected_hits(reader, text.tokens.tolist(), len(text), self._sampling, p)))

    def _drawn_from(self, reader: Decoder, text: RequestSamples) -> Tensor:
        return distributions(reader, text.tokens.tolist(), len(text), self._sampling)
