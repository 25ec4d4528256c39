"""Tokens in, logits out, for rows of different length: one model with a ragged cache of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from operator import add
from typing import Any

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from osd.logits import RaggedLogits, Scores, score
from osd.models import llama_forward
from osd.models.attention_metadata import Layout
from osd.models.captured_pass import CapturedDraft
from osd.models.encoder_decoder import layers_of
from osd.models.fixed_pass import Chooser, PassInput
from osd.models.forward import Builder, CompiledForward, ForwardPass
from osd.models.kv_blocks import BLOCK, blocks_for
from osd.models.kv_cache import RaggedCache
from osd.models.lora.adapter import Adapter, LowRank, Site, Sizes
from osd.models.lora.bank import AdapterBatch
from osd.models.vocabulary import SharedIds
from storage.errors import BadSetting

CHUNK = 512
"""Prompt tokens of one prefill pass: bounds the mask's memory on long prompts."""
LOGPROBS_CHUNK = 64
"""Prompt tokens of one prefill pass whose logits are all wanted: bounds those, 39 MB of a vocabulary of 152,000."""
SCORED = 32
"""Last prompt tokens whose logits give its perplexity: those of all would add a quarter to a prefill."""

PACKED = 0.9
"""Largest share of real tokens (not padding) in a pass up to which it is packed."""


class Decoder:
    """One model with its KV cache. Rows are numbered from 0; the caller knows their lengths."""

    def __init__(self, module: PreTrainedModel, forward: ForwardPass, rows: int, length: int, limit: int) -> None:
        """Allocate ``length`` positions a row; the model knows the first ``limit`` (only padding goes beyond)."""
        weight = next(module.parameters())
        self.cache = RaggedCache(layers_of(module.config), rows, length, weight.device, module.dtype, limit)
        self.device = weight.device
        self.adapters: Callable[[int, int], AdapterBatch | None] | None = None
        """What the adapters of the rows ``first`` … ``first + count − 1`` add; None where no row has one."""
        self.shared: SharedIds | None = None
        """What a draft whose vocabulary is another in some places is fed for the target's ids."""
        self.quicker = False
        """Whether its passes over few tokens have become quicker since :meth:`became_quicker` was asked."""
        self.forward = forward
        """The forward pass. Other weights' may replace it between two calls; cached keys are then only stale."""

    def use_adapters(self, adapters: Callable[[int, int], AdapterBatch | None] | None) -> None:
        """Let these adapters add to the rows' passes from now on."""
        self.adapters = adapters

    def take_weights(self, other: Decoder, *, over_own: bool) -> bool:
        """Take another decoder's weights in place of these; what is cached is only stale. Where graphs were captured
        and these weights may be written ``over``, the others are copied there; return whether they were."""
        own, its = self.forward.compiled, other.forward.compiled
        copied = over_own and own is not None and own.adopt(its)
        if copied:
            other.forward.compiled = None  # it refers to the pass that it belongs to, which would keep the weights
        else:
            self.forward = other.forward
        self.shared = other.shared
        return copied

    def became_quicker(self) -> bool:
        """Return whether its passes over few tokens have become quicker since this was last asked."""
        quicker, self.quicker = self.quicker, False
        return quicker

    @property
    def packs(self) -> bool:
        """Whether a pass costs only its real tokens, however they are spread over the rows."""
        return self.forward.packs

    @property
    def encodes(self) -> bool:
        """Whether an encoder reads what is fed from position 0 on, in one piece."""
        return self.forward.encode is not None

    @property
    def drafts(self) -> bool:
        """Whether it may draft several tokens in one go."""
        return self.forward.compiled is not None and self.forward.compiled.drafts and self.shared is None

    def logits(
        self,
        tokens: torch.Tensor,
        starts: Sequence[int],
        *,
        first: int = 0,
        last: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Feed tokens (B, T) to rows ``first`` … at positions ``starts[i]`` … and return the logits (B, T, V).

        With ``last`` (B,) int64 only each row's logits after its token ``last[i]`` are computed: (B, 1, V).
        """
        self._mix(first, len(starts))
        return self._pass(tokens, PassInput(first, starts, [tokens.shape[1]] * len(starts)), last)

    def scored(
        self, tokens: torch.Tensor, starts: Sequence[int], counts: Sequence[int], layout: Layout | None = None
    ) -> RaggedLogits:
        """Feed the first ``counts[i]`` of tokens (B, T) to each of the first rows, from position ``starts[i]`` on, and
        return their logits; with a layout they are trees, whose roots stand there."""
        self._mix(0, len(starts))
        scored = _scored(self._pass(tokens, PassInput(0, starts, counts, layout), None), tokens.shape[1], counts)
        hidden = self.cache.embedding if self.cache.wants_embedding else None
        return scored if hidden is None else scored._replace(hidden=hidden.flatten(0, 1))

    def _pass(self, tokens: torch.Tensor, fed: PassInput, last: torch.Tensor | None) -> torch.Tensor:
        """Return the logits, (1, N, V) where it is packed, by the compiled pass where there is one that takes these
        tokens; until that is trusted, run it beside ``forward`` and compare."""
        if self.forward.alone and len(fed.counts) > 1:
            return self._row_by_row(tokens, fed, last)
        tokens = self._known(tokens)
        self.cache.extend(fed.first, map(add, fed.starts, fed.counts))
        compiled = self._compiled(fed)
        if compiled and compiled.trusted:
            return compiled(tokens, self.cache, fed, last)
        said = compiled(tokens, self.cache, fed, last) if compiled else None  # first: what is cached is forward's
        self._aim(fed, tokens.shape[1])
        logits = self.forward(tokens, self.cache, last)
        if compiled and said is not None:
            width, counts = (tokens.shape[1], fed.counts) if last is None else (1, [1] * len(fed.counts))
            trusted = compiled.compare(_scored(said, width, counts), _scored(logits, width, counts), counts)
            self.quicker = trusted and compiled.waited
        return logits

    def draft(
        self, tokens: torch.Tensor, starts: Sequence[int], counts: Sequence[int], most: int, chooser: Chooser | None
    ) -> CapturedDraft | None:
        """Feed the first ``counts[i]`` of tokens (B, T) to the first rows from ``starts[i]`` on, and draft at most
        ``most`` tokens after them in one go, chosen by ``chooser`` or the likeliest; None where no graph does that now.
        To be asked where it ``drafts``."""
        assert self.forward.compiled is not None
        self._mix(0, len(starts))
        self.cache.extend(0, [start + count + most for start, count in zip(starts, counts, strict=True)])
        return self.forward.compiled.draft(tokens, starts, counts, self.cache, most, chooser)

    def prepare(self) -> bool:
        """Let the compiled pass make something ready, between two steps; return whether it did."""
        return self.forward.compiled is not None and self.forward.compiled.prepare()

    def _row_by_row(self, tokens: torch.Tensor, fed: PassInput, last: torch.Tensor | None) -> torch.Tensor:
        """Return the logits of a pass a row, without padding behind the positions that the model knows."""
        if fed.layout is not None:
            raise NotImplementedError("it computes row by row, and chains alone")
        parts: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        for row, (start, count) in enumerate(zip(fed.starts, fed.counts, strict=True)):
            start = min(start, self.cache.limit - 1)  # a draft's rows that go on beyond what it knows are padding
            line = tokens[row : row + 1, : self.cache.limit - start]
            self._mix(fed.first + row, 1)
            own = None if last is None else last[row : row + 1]
            part = self._pass(line, PassInput(fed.first + row, [start], [count]), own)
            parts.append((part, self.cache.embedding))
        width = tokens.shape[1] if last is None else 1
        if self.cache.wants_embedding:
            self.cache.embedding = _stacked([embedding for _, embedding in parts if embedding is not None], width)
        return _stacked([logits for logits, _ in parts], width)

    def _mix(self, first: int, rows: int) -> AdapterBatch | None:
        """Let the adapters of these rows add to the next pass; return what they add."""
        self.cache.mix = self.adapters(first, rows) if self.adapters else None
        return self.cache.mix

    def _known(self, tokens: torch.Tensor) -> torch.Tensor:
        """Put stand-ins in the place of ids that the model does not know."""
        return tokens if self.shared is None else self.shared.stand_ins[tokens]

    def _compiled(self, fed: PassInput) -> CompiledForward | None:
        """Return the compiled pass, where there is one that takes these."""
        compiled = self.forward.compiled
        return compiled if compiled and compiled.takes(fed, self.cache) else None

    def _aim(self, fed: PassInput, width: int) -> None:
        packed = self._packed(fed.counts, width)
        if fed.layout is None:
            self.cache.aim(fed.first, fed.starts, width, fed.counts, packed)
        else:
            self.cache.aim_tree(fed.starts, *fed.layout, fed.counts, packed)

    def _packed(self, counts: Sequence[int], width: int) -> torch.Tensor | None:
        """Return the indices of the tokens to compute, where leaving out the padding is worth its overhead."""
        if not self.packs or sum(counts) > PACKED * width * len(counts):
            return None
        chosen = [row * width + i for row, count in enumerate(counts) for i in range(count)]
        return torch.tensor(chosen, device=self.device)

    def read(self, first: int, pieces: Sequence[Sequence[int]], starts: Sequence[int]) -> None:
        """Fill the caches of rows ``first`` … with these tokens, from positions ``starts[i]`` on, in one pass. The
        widest piece must fit behind every start: padding is written, too, where no row looks. With an encoder, what
        begins at 0 is its whole text, and the decoder's begins behind it."""
        if self.encodes and not all(starts):
            for row, (piece, start) in enumerate(zip(pieces, starts, strict=True), first):
                self.read(row, [piece], [start]) if start else self._encode(row, piece)
            return
        width = max(map(len, pieces))
        padded = [[*piece, *[0] * (width - len(piece))] for piece in pieces]
        tokens = self._known(torch.tensor(padded, device=self.device))
        counts = [len(piece) for piece in pieces]
        if self.forward.alone and len(pieces) > 1:
            for row, (piece, start) in enumerate(zip(pieces, starts, strict=True), first):
                self.read(row, [piece], [start])
            return
        mix = self._mix(first, len(starts))
        fed = PassInput(first, starts, counts)
        self.cache.extend(first, map(add, starts, counts))
        compiled = self._compiled(fed)
        if compiled and compiled.trusted:
            compiled.fill(tokens, self.cache, fed)
            return
        self.cache.aim(first, starts, width, counts, None if mix else self._packed(counts, width))
        self.forward.fill(tokens, self.cache)

    def _encode(self, row: int, tokens: Sequence[int]) -> None:
        """Let the encoder read a row's prompt: its keys and values take the row's first positions."""
        assert self.forward.encode is not None
        self._mix(row, 1)
        self.cache.extend(row, [len(tokens)])
        self.cache.encoded[row] = len(tokens)
        self.cache.aim(row, [0], len(tokens), [len(tokens)])
        self.forward.encode(self._known(torch.tensor([list(tokens)], device=self.device)), self.cache)

    def read_whole(self, tokens: torch.Tensor) -> torch.Tensor:
        """Feed tokens (1, T) to row 0 from the beginning and return their logits (1, T, V); an encoder reads the same
        ones before, and they take 2 T positions."""
        if self.encodes:
            self.read(0, tokens.tolist(), [0])
        return self.logits(tokens, [tokens.shape[1] if self.encodes else 0])

    def bound(self, memory: int) -> None:
        """Let the cache's rows hold blocks of so many bytes at most. Raises BadSetting where that is too little for one
        row. Before the first pass."""
        beside = self.beside(1, 1)
        beside.cache.keep_features(self.cache.features)
        beside.read(0, [[0]], [0])
        size = beside.cache.slot_bytes * BLOCK
        total, least = memory // size - 1, blocks_for(self.cache.length)  # one is nobody's
        if total < least:
            needed = -(-(least + 1) * size >> 20)
            reason = f"{memory >> 20} MB do not hold a row of {self.cache.length} positions; give {needed} or more"
            raise BadSetting(source="settings", key="serve.cache_mb", reason=f"{reason}, or lower serve.max_length")
        self.cache.bound(total)

    def beside(self, rows: int, length: int) -> Decoder:
        """Return a decoder with the same forward pass over a cache of its own, without adapters."""
        other = copy.copy(self)
        other.cache, other.adapters = self.cache.like(rows, length), None
        return other

    def prefill(self, row: int, tokens: Sequence[int], start: int = 0) -> None:
        """Fill a row's cache with tokens from position ``start`` on, in chunks; an encoder reads them in one."""
        if self.encodes and not start:
            self.read(row, [tokens], [0])
            return
        for offset in range(0, len(tokens), CHUNK):
            self.read(row, [tokens[offset : offset + CHUNK]], [start + offset])

    def prefill_scored(self, row: int, tokens: Sequence[int], begin: int = 0) -> float | None:
        """Fill a row's cache with all but the last of the tokens, from position ``begin`` on, and return the mean of
        −ln p(token | those before it) over at most the last SCORED tokens; None for a single token."""
        if len(tokens) < 2:
            return None
        scored = min(len(tokens) - 1, max(begin, len(tokens) - 1 - SCORED))
        self.prefill(row, tokens[begin:scored], begin)
        fed = torch.tensor([tokens[scored:]], device=self.device)
        logprobs = self.logits(fed[:, :-1], [scored], first=row).log_softmax(-1, dtype=torch.float32)
        return -float(logprobs.gather(2, fed[:, 1:].unsqueeze(2)).mean())

    def prefill_logprobs(self, row: int, tokens: Sequence[int], start: int, top: int) -> Scores:
        """Fill a row's cache with all but the last of the tokens, from position ``start`` on, and return the scores of
        all but the first, with the ``top`` likeliest at each."""
        found = Scores([], [], [], [])
        for at in range(0, len(tokens) - 1, LOGPROBS_CHUNK):
            piece = tokens[at : at + LOGPROBS_CHUNK + 1]
            logits = self.logits(torch.tensor([piece[:-1]], device=self.device), [start + at], first=row)
            found = found.then(score(logits[0], piece[1:], top))
        return found

    def copy_row(self, source: int, target: int, length: int) -> None:
        """Copy a row's first ``length`` positions over another row."""
        self.cache.copy_row(source, target, length)

    def move_row(self, source: int, target: int, length: int) -> None:
        """Move a row with its first ``length`` positions to the place of another."""
        self.cache.move_row(source, target, length)

    def release_row(self, row: int) -> None:
        """Give back what a row holds of the cache: it has ended."""
        self.cache.release_row(row)

    def swap_rows(self, one: int, other: int, length: int) -> None:
        """Exchange two rows, with their first ``length`` positions."""
        self.cache.swap_rows(one, other, length)


def _stacked(lines: Sequence[torch.Tensor], width: int) -> torch.Tensor:
    """Stack lines (1, up to ``width``, D), padded."""
    return torch.cat([F.pad(line, (0, 0, 0, width - line.shape[1])) for line in lines])


def _scored(logits: torch.Tensor, width: int, counts: Sequence[int]) -> RaggedLogits:
    """Wrap the logits of a pass over B rows of ``width`` tokens: (B, T, V) or, packed, (1, N, V)."""
    whole = logits.shape[:2] == (len(counts), width)
    return RaggedLogits.of(logits) if whole else RaggedLogits.packed(logits[0], counts)


def lay_out(build: Builder, parts: Mapping[str, LowRank], sizes: Sizes) -> Adapter:
    """Arrange an adapter's modules as the forward passes that ``build`` makes add them."""
    if build is llama_forward.llama_forward:
        return llama_forward.lay_out(parts, sizes)
    return Adapter({name: Site.of([(0, part)], is_table=part.is_table) for name, part in parts.items()})


def vocabulary_size(module: PreTrainedModel) -> int:
    """Return the width of the model's logits."""
    head: Any = module.get_output_embeddings()  # type: ignore[no-untyped-call]
    return int(head.weight.shape[0])
