"""Drafts with a feature draft: chains, or trees of what it thinks likeliest, from the target's own hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from osd.draft import Draft
from osd.drafters.base import DraftRequest
from osd.drafters.causal import CausalDrafter, Feed
from osd.drafters.chain import Chain
from osd.drafters.feature_tree import FeatureTrees
from osd.drafters.loaded_draft import DraftModel, loaded_draft_of
from osd.models.acceptance_head import heads_of
from osd.models.decoder import CHUNK, Decoder
from osd.models.features.decoder import FeatureDecoder
from osd.sequence import SequenceState
from storage.settings import ServeSettings

TOGETHER = 32
"""Columns of a row up to which it is read in the pass that all rows share."""


class FeatureDrafter(CausalDrafter):
    """Drafts from the hidden states that the target's passes left in its cache.

    A row of n tokens has n − 1 columns that the target computed; the draft reads those that it lacks, then goes on over
    its own features. Without a ``shape`` it drafts chains, as a draft model does.
    """

    trees: type[FeatureTrees] = FeatureTrees
    """How it grows trees."""

    def __init__(self, decoder: FeatureDecoder, vocabulary: int) -> None:
        super().__init__(cast(Decoder, decoder), vocabulary)
        self.source: Decoder | None = None
        """The target's decoder, whose cache keeps the hidden states."""
        self._columns: WeakKeyDictionary[SequenceState, int] = WeakKeyDictionary()
        """Columns that have been read, by row."""
        self._hidden = torch.empty(0)
        """(B, H) the newest features of the rows that draft, or of all that they draft."""

    def read_target(self, target: Decoder) -> None:
        """Read the hidden states of this target, whose cache keeps them from its next pass on."""
        target.cache.keep_features(self.features.layers)
        self.source = target

    @property
    def features(self) -> FeatureDecoder:
        """Its passes."""
        return cast(FeatureDecoder, cast(Any, self.decoder))

    def columns(self, row: SequenceState) -> int:
        """Return how many of a row's columns have been read; Medusa looks at the last one alone."""
        if not self.features.reads:
            return max(0, row.length - 2)
        return self._columns.get(row, 0) if row.drafter_seen else 0

    def propose(self, request: DraftRequest) -> Draft:
        """Draft chains or trees. What is raised ends them, and is ``failure``."""
        lengths = [min(gamma, self.features.most) for gamma in request.gammas]
        if request.tree is None:
            return super().propose(replace(request, gammas=lengths))
        trees = self.trees(self.features, request, request.tree, self.vocabulary, self.head)
        self.failure = None
        try:
            lengths = self._prefill(request, lengths, 0)
            if any(lengths):
                trees.grow(self._base(request, lengths, [length > 0 for length in lengths]), lengths)
        except Exception as error:  # what was drawn before it was raised is verified all the same
            self.failure = error
        return trees.draft()

    def commit(self, row: SequenceState, length_before: int, accepted: int, draft: Draft) -> None:
        """Note that the row went on; its new columns are the target's, and are read when it next drafts."""
        lag = row.length - 1 - self.columns(row)
        if row.drafter_seen:
            row.drafter_seen = row.length if lag <= TOGETHER else 1 + self.columns(row)

    def move_row(self, source: int, target: int, row: SequenceState) -> None:
        """Move a row in the cache."""
        if self.features.reads:
            self.features.move_row(source, target, self.columns(row))

    # chains, as CausalDrafter grows them

    def _prefill(self, request: DraftRequest, lengths: Sequence[int], size: int) -> list[int]:
        """Read what rows that go on after ``size`` tokens lack, up to what the pass that they share takes; rows that
        have more left, or no column yet, stop there."""
        left = list(lengths)
        for index, row in enumerate(request.rows):
            if left[index] <= size:
                continue
            if row not in self._columns:
                self._require_features(request.places[index], row)
            self._read_row(request, index)
            if row.length < 2 or row.length - 1 - self.columns(row) > TOGETHER:
                left[index] = min(size, left[index])
        return left

    def _read_row(self, request: DraftRequest, index: int) -> None:
        """Read a long row's columns in pieces, at most ``most_read`` of them, but for the last few."""
        row = request.rows[index]
        begin, end = self.columns(row), row.length - 1
        stop = min(end - 1, begin + (request.most_read or end))
        while end - begin > TOGETHER and begin < stop:
            count = min(CHUNK, stop - begin)
            features, tokens = self._inputs(request.places[index], row, begin, count)
            self.features.read([begin], features[None], tokens[None], [count], first=index)
            begin += count
            self._columns[row], row.drafter_seen = begin, max(1, begin)

    def _base(self, request: DraftRequest, lengths: Sequence[int], going: Sequence[bool]) -> Tensor:
        """Read the last columns of the rows that are going to draft so many tokens; return the features after them, as
        :meth:`osd.models.features.decoder.FeatureDecoder.read`."""
        rows, starts = request.rows, [self.columns(row) for row in request.rows]
        counts = [row.length - 1 - start if goes else 0 for row, start, goes in zip(rows, starts, going, strict=True)]
        features = torch.zeros(len(rows), max(counts), self.features.draft.feature_size,
                               dtype=self.features.cache_dtype, device=self.features.device)  # fmt: skip
        tokens = torch.zeros(features.shape[:2], dtype=torch.long, device=self.features.device)
        for index, (row, start, count) in enumerate(zip(rows, starts, counts, strict=True)):
            if count:
                inputs = self._inputs(request.places[index], row, start, count)
                features[index, :count], tokens[index, :count] = inputs
                self._columns[row], row.drafter_seen = row.length - 1, row.length
        return self.features.read(starts, features, tokens, counts, ahead=max(lengths))

    def _inputs(self, place: int, row: SequenceState, begin: int, count: int) -> tuple[Tensor, Tensor]:
        """Return the target's features (count, F) of a row's columns from ``begin`` on, and the tokens after them;
        ``place``: the row's in the target's cache."""
        assert self.source is not None
        kept, device = self.source.cache.features, self.features.device
        parts = [kept[number].read(place, begin, begin + count) for number in self.features.layers]
        features = torch.cat([part.to(device) for part in parts], dim=-1)
        return features, torch.tensor(row.tokens[begin + 1 : begin + 1 + count], device=device)

    def _require_features(self, place: int, row: SequenceState) -> None:
        """Have the target compute again what a row lacks that was prefilled before these hidden states were kept."""
        assert self.source is not None
        begin, count = self.columns(row), row.length - 1 - self.columns(row)
        kept = self.source.cache.features
        if not all(kept[number].has(place, begin, begin + count) for number in self.features.layers):
            for offset in range(0, row.length - 1, CHUNK):
                self.source.read(place, [row.tokens[:-1][offset : offset + CHUNK]], [offset])
        self._columns.setdefault(row, 0)

    def _feed(self, request: DraftRequest, chain: Chain) -> Feed:
        """Read the rows' columns before the first pass, and then the drafted tokens that were not read."""
        if not chain.passes:
            self._hidden = self._base(request, chain.lengths, chain.going)
        for index in range(chain.fed, chain.size):
            starts = [row.length - 1 + index for row in request.rows]
            self._hidden = self.features.go_on(starts, self._hidden, chain.tokens[index])
        return torch.tensor(chain.size), (), ()

    def _logits(self, fed: Feed) -> Tensor:
        """Return the logits (B, 1, V) of the token after those that were fed."""
        return self.features.logits(self._hidden, int(fed[0])).unsqueeze(1)

    def _embedding(self) -> Tensor | None:
        return None if self.head is None else self.features.embedding(self._hidden).unsqueeze(1)


class FeatureDraftModel(DraftModel):
    """A feature draft's weights and cache: it reads the hidden states that the target's passes leave in its cache."""

    drafter: FeatureDrafter

    @property
    def kind(self) -> str:  # type: ignore[override]
        """The kind of feature draft."""
        return self.drafter.features.draft.kind

    def read_target(self, target: Decoder) -> None:
        """Read the hidden states of this target."""
        self.drafter.read_target(target)

    def configure(self, serve: ServeSettings, *, keeps_prefixes: bool) -> None:
        """Do nothing: its layer attends by itself, and it reads no prompts."""

    def may_take(self, decoder: Decoder | FeatureDecoder) -> bool:
        """Return whether it may take a decoder's weights: those of a draft of its kind, which reads the same of the
        target."""
        return isinstance(decoder, FeatureDecoder) and self.drafter.features.alike(decoder)

    def exchange(self, decoder: Decoder, *, owned: bool) -> None:
        """Take another draft's weights."""
        self.drafter.features.adopt(cast(FeatureDecoder, decoder))

    def regroup(self) -> None:
        """Rows, or their acceptance heads, have changed; there are no adapters. Medusa's heads read nothing of what was
        drafted, so that no acceptance head judges them."""
        rows = self.rows if self.drafter.features.runs_on else ()
        self.drafter.use_heads(heads_of([loaded_draft_of(row).head for row in rows]))
