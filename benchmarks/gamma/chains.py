"""A draft's passes over chains that begin at many positions of one text: rows of one batch, which read a token each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from osd.models.decoder import Decoder
from osd.models.features.decoder import FeatureDecoder, FeatureModel
from osd.models.pair import Pair
from storage.errors import BadInput


class ChainPasses(Protocol):
    """What a draft does along chains."""

    def begin(self, tokens: Sequence[int], lengths: Sequence[int]) -> None:
        """Let row i go on after the first ``lengths[i]`` tokens of a text, of which the last is still to be read; the
        last row is the longest."""

    def logits(self, fed: Tensor) -> Tensor:
        """Read a token of each row, (B,), and return the logits of the next one, (B, 1, V)."""

    def embeddings(self, fed: Tensor) -> Tensor:
        """Read G tokens of each row, (B, G), and return what an acceptance head reads of each, (B, G, D)."""


def passes_of(pair: Pair, rows: int, length: int) -> ChainPasses:
    """Return the passes of a pair's draft. Raises BadInput for one that drafts all tokens at once."""
    return (FeaturePasses if isinstance(pair.draft, FeatureModel) else ModelPasses)(pair, rows, length)


class ModelPasses:
    """The passes of a draft model, which reads its own text."""

    def __init__(self, pair: Pair, rows: int, length: int) -> None:
        self._decoder = pair.draft.decoder(rows, length)
        self._places: list[int] = []

    def begin(self, tokens: Sequence[int], lengths: Sequence[int]) -> None:
        """Read all but the last token of each row."""
        fork(self._decoder, tokens, lengths)
        self._places = [length - 1 for length in lengths]

    def logits(self, fed: Tensor) -> Tensor:
        """Read a token of each row."""
        found = self._decoder.logits(fed.unsqueeze(1), self._places)
        self._places = [place + 1 for place in self._places]
        return found

    def embeddings(self, fed: Tensor) -> Tensor:
        """Read all of them in one pass."""
        self._decoder.cache.want_embedding(True)
        self._decoder.logits(fed, self._places)
        assert self._decoder.cache.embedding is not None
        return self._decoder.cache.embedding.float().clone()


class FeaturePasses:
    """The passes of a draft that reads the target's hidden states: of n tokens, n − 1 columns, then its own features.

    The target reads the text here; that of the last column is read when the row's last token is fed.
    """

    def __init__(self, pair: Pair, rows: int, length: int) -> None:
        self._draft = cast(FeatureDecoder, cast(Any, pair.draft.decoder(rows, length)))
        if not self._draft.runs_on:
            reason = f"{pair.draft.name} drafts all tokens of a chain at once"
            raise BadInput(reason=f"{reason}; give a draft that reads what it drafted (EAGLE, EAGLE-3, MTP).")
        self._target = pair.target.decoder(1, length)
        self._target.cache.keep_features(self._draft.layers)
        self._places: list[int] = []
        self._hidden, self._last = torch.empty(0), torch.empty(0)

    def begin(self, tokens: Sequence[int], lengths: Sequence[int]) -> None:
        """Read all but the last column of each row."""
        longest = lengths[-1]
        self._target.prefill(0, tokens[: longest - 1])
        kept = self._target.cache.features
        features = torch.cat([kept[layer].read(0, 0, longest - 1) for layer in self._draft.layers], dim=-1)
        read = torch.tensor([tokens[1 : longest - 1]], device=features.device)
        self._draft.read([0], features[None, : longest - 2], read, [longest - 2])
        self._places = [length - 2 for length in lengths]
        for row, place in enumerate(self._places[1:], start=1):
            self._draft.cache.copy_row(0, row, place)
        self._last, self._hidden = features[self._places], torch.empty(0)

    def logits(self, fed: Tensor) -> Tensor:
        """Read a token of each row."""
        self._read(fed)
        return self._draft.logits(self._hidden).unsqueeze(1)

    def embeddings(self, fed: Tensor) -> Tensor:
        """Read them one after another."""
        found = []
        for token in fed.T:
            self._read(token)
            found.append(self._draft.embedding(self._hidden).float())
        return torch.stack(found, dim=1)

    def _read(self, fed: Tensor) -> None:
        if self._hidden.numel():
            self._hidden = self._draft.go_on(self._places, self._hidden, fed)
        else:
            ones = [1] * len(self._places)
            self._hidden = self._draft.read(self._places, self._last.unsqueeze(1), fed.unsqueeze(1), ones)
        self._places = [place + 1 for place in self._places]


def read_by(tokens: Sequence[int], lengths: Sequence[int], drafted: Tensor) -> Tensor:
    """Return what a model reads that says something of each drafted token: the text's last token and all but the last
    of the chain, (B, G)."""
    last = torch.tensor([[tokens[length - 1]] for length in lengths], device=drafted.device)
    return torch.cat([last, drafted[:, :-1]], dim=1)


def fork(decoder: Decoder, tokens: Sequence[int], lengths: Sequence[int]) -> None:
    """Let row i's cache hold all but the last of the first ``lengths[i]`` tokens; the last row is the longest."""
    decoder.prefill(0, tokens[: lengths[-1] - 1])
    for row, length in enumerate(lengths[1:], start=1):
        decoder.copy_row(0, row, length - 1)
