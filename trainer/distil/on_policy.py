"""Texts drawn from target and draft together, for offline distillation by student and mixed sampling.

Each token is drawn from β p(· | x, y_<j) + (1 − β) q(· | x, y_<j) (Online Speculative Decoding, section 4.1): β = 0 is
student sampling, and ``learn.mix`` mixed sampling. At each of them the target's distribution is kept, as when serving,
and nothing is differentiated through the draws (Eq. 4). The texts are drawn anew before each epoch, by the draft as it
is then: from the prompts of recorded requests, each as long as the target's own answer was, or up to an end token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from osd.models.decoder import Decoder
from osd.models.encoder_decoder import own_forward
from osd.models.model import Model
from osd.recording.topk import reduce_plain
from osd.verification.warping import Warp, draw
from storage.records import RequestSamples, TokenKind
from storage.sampling import Sampling

ROWS = 32
"""Texts that are drawn together."""
Between = Callable[[], None]


class _Texts:
    """Some texts while they are drawn: their tokens, and what the target said at each."""

    def __init__(self, prompts: Sequence[Sequence[int]], rooms: Sequence[int], eos_ids: frozenset[int]) -> None:
        self.tokens = [list(prompt) for prompt in prompts]
        self.open = list(range(len(prompts)))
        self._ends = [len(prompt) + room for prompt, room in zip(prompts, rooms, strict=True)]
        self._eos_ids = eos_ids
        self.said: list[list[Tensor]] = [[] for _ in prompts]
        self.disagreed: list[list[bool]] = [[] for _ in prompts]

    def add(self, drawn: Sequence[int], logits: Tensor, disagreed: Sequence[bool]) -> None:
        """Append each row's token, (B,), where its text is open; ``logits`` (B, V) are the target's."""
        for row in self.open:
            self.tokens[row].append(drawn[row])
            self.said[row].append(logits[row])
            self.disagreed[row].append(disagreed[row])
        self.open = [
            row for row in self.open
            if self.tokens[row][-1] not in self._eos_ids and len(self.tokens[row]) < self._ends[row]
        ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class TextMixer:
    """Draws texts from a target and the draft that is trained."""

    target: Model
    eos_ids: frozenset[int]
    share: float
    """β: the target's share of each token's chances."""
    sampling: Sampling
    """How p and q are warped before they are mixed."""
    draft: Model
    """The draft as it was loaded: how far it reads, and which ids it takes."""
    k: int
    """Tokens of the target's distribution that are kept at a position."""

    def __call__(
        self, module: nn.Module, samples: Sequence[RequestSamples], seed: int, between: Between = lambda: None
    ) -> list[RequestSamples]:
        """Return a text for each request, in order, drawn with ``module`` as the draft; ``between`` is called after
        each token of a batch, and may raise."""
        was = module.training
        module.train(False)
        chance = np.random.default_rng(seed)
        found: list[RequestSamples] = []
        for begin in range(0, len(samples), ROWS):
            found += self._drawn(module, samples[begin : begin + ROWS], chance, between)
        module.train(was)
        return found

    @torch.inference_mode()
    def _drawn(
        self, module: nn.Module, samples: Sequence[RequestSamples], chance: np.random.Generator, between: Between
    ) -> list[RequestSamples]:
        texts = _Texts(
            [s.tokens[: s.prompt_len].tolist() for s in samples], [len(s.tokens) - s.prompt_len for s in samples],
            self.eos_ids,
        )  # fmt: skip
        length = max(len(s.tokens) for s in samples)
        readers = self.target.decoder(len(samples), length), self._reader(module, len(samples), length)
        warp = Warp([self.sampling] * len(samples), self.target.vocab_size, self.target.device)
        for row, text in enumerate(texts.tokens):
            for reader in readers:
                reader.prefill(row, text[:-1])
        while texts.open:
            logits, proposed = (_next(reader, texts.tokens, self.target.vocab_size) for reader in readers)
            p, q = warp(logits[:, None])[:, 0], warp(proposed.to(logits.device)[:, None])[:, 0]
            mixed = self.share * p + (1 - self.share) * q
            tokens = draw(mixed, torch.from_numpy(chance.random(len(samples))).to(mixed.device))
            texts.add(tokens.tolist(), logits, (p.argmax(-1) != q.argmax(-1)).tolist())
            between()
        return [self._samples(s, texts, row) for row, s in enumerate(samples)]

    def _reader(self, module: nn.Module, rows: int, length: int) -> Decoder:
        """Return a decoder over the weights as they are now: the module's own pass holds no copy of any."""
        draft = replace(self.draft, module=module, build=own_forward)  # type: ignore[arg-type]
        return draft.decoder(rows, length)

    def _samples(self, asked: RequestSamples, texts: _Texts, row: int) -> RequestSamples:
        tokens = np.array(texts.tokens[row], np.int32)
        kept = reduce_plain(torch.stack(texts.said[row]), self.k)
        positions = np.arange(asked.prompt_len, len(tokens), dtype=np.int32)
        kinds: npt.NDArray[np.uint8] = np.where(texts.disagreed[row], TokenKind.REJECTED, TokenKind.ACCEPTED)
        return replace(
            asked, tokens=tokens, positions=positions, kinds=kinds.astype(np.uint8), drafted=tokens[positions],
            topk_ids=kept.ids, topk_logprobs=kept.logprobs.astype(np.float16), outside=kept.outside, acceptance=None,
            branches=None, hidden_states=None,
        )  # fmt: skip


def _next(reader: Decoder, texts: Sequence[Sequence[int]], vocabulary: int) -> Tensor:
    """Return the logits after each text's last token, cut or padded to ``vocabulary``: (B, V). Texts that have ended
    are read again: they cost their row."""
    last = torch.tensor([[text[-1]] for text in texts], device=reader.device)
    logits = reader.logits(last, [len(text) - 1 for text in texts])[:, 0].float()
    return F.pad(logits, (0, vocabulary - logits.shape[1]), value=-torch.inf)
