"""What a feature draft's chains were when they drafted: the embedding of each drafted token.

A round that began after n tokens is the chain of column n − 2 (:mod:`osd.models.features.base`). Its token number d,
from 0, stands at position n + d, and its embedding is what the output layer reads after the pass that was fed that
token: step d + 1 of the chain. A column sees in later steps itself alone, so all chains of a text run at once, and a
refused token, the last of its chain, is fed in the place of the text's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from osd.models.features.base import AHEAD, FeatureDraft
from osd.models.features.eagle import EagleDraft
from osd.models.features.target import Embed
from storage.records import RequestSamples, TokenKind
from trainer.distil.collate import collate
from trainer.distil.feature_losses import PickingHead
from trainer.distil.teacher import Teacher

Ints = npt.NDArray[np.int64]
Kept = npt.NDArray[np.bool_]
"""(m,) which of a request's positions are asked about."""


def depths_of(samples: RequestSamples) -> Ints:
    """Return how many tokens each position's round had drafted before it, (m,)."""
    found = np.zeros(len(samples), np.int64)
    goes_on = (np.diff(samples.positions) == 1) & (samples.kinds[:-1] == TokenKind.ACCEPTED)
    for place in np.flatnonzero(goes_on).tolist():
        found[place + 1] = found[place] + 1
    return found


class _Chains:
    """The n drafted tokens of a batch, by the chain that proposed them."""

    def __init__(self, samples: Sequence[RequestSamples], kept: Sequence[Kept], columns: Tensor) -> None:
        """``columns``: of all recorded positions, one request's after another's, the column before each."""
        pairs = list(zip(samples, kept, strict=True))
        self.counts = [int(some.sum()) for some in kept]
        rows, depths, tokens = (
            torch.from_numpy(np.concatenate(each)).to(columns.device, torch.long)
            for each in (
                [np.full(count, row) for row, count in enumerate(self.counts)],
                [depths_of(one)[some] for one, some in pairs],
                [one.drafted[some] for one, some in pairs],
            )
        )
        self.rows, self.depths, self.tokens = rows, depths, tokens
        at = torch.from_numpy(np.concatenate(kept)).to(columns.device)
        self.begins = columns[at] + 1 - AHEAD - depths
        """(n,) the column at which each one's chain begins."""
        self.first = int(self.begins.min())

    def read_in(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return which tokens are fed in a step, (k,), and where among its columns: their rows and columns."""
        which = (self.depths + 1 == step).nonzero().squeeze(1)
        return which, self.rows[which], self.begins[which] - self.first


class _Feeding:
    """A target's embeddings for step after step, of the drafted tokens where they are fed."""

    def __init__(self, embed: Embed, chains: _Chains) -> None:
        self._embed, self._chains, self._step = embed, chains, 0

    def __call__(self, tokens: Tensor) -> Tensor:
        which, *where = self._chains.read_in(self._step)
        self._step += 1
        fed = tokens.index_put(tuple(where), self._chains.tokens[which]) if len(which) else tokens
        return self._embed(fed)


def embed_chains(
    samples: Sequence[RequestSamples], kept: Sequence[Kept], draft: FeatureDraft, teacher: Teacher
) -> list[Tensor]:
    """Return the embeddings of the drafted tokens at the positions that are ``kept``, (n, H) float32 on the CPU, one
    tensor a request. Raises FeaturesNotKept."""
    assert isinstance(draft, EagleDraft)
    batch = teacher.complete(collate(samples), samples)
    assert batch.features is not None
    chains, shared = _Chains(samples, kept, batch.columns), teacher.shared
    steps, none = int(chains.depths.max()) + 2, chains.rows[:0]
    head = PickingHead(shared.head, [none] * steps)
    features = batch.features.to(next(draft.parameters()).dtype)
    with head.picking(draft):
        found = draft.unroll(features, batch.input_ids, _Feeding(shared.embed, chains), head, steps, chains.first)
    out = torch.empty(len(chains.rows), draft.hidden_size)
    for step, each in enumerate(found):
        which, *where = chains.read_in(step)
        assert each.features is not None
        out[which.cpu()] = draft.norm_out(each.features[tuple(where)]).float().cpu()
    return list(torch.split(out, chains.counts))
