"""Verification: which drafted tokens of a batch the target accepts, brought to the host in one transfer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from osd.draft import Draft
from osd.logits import RaggedLogits
from osd.sequence import SequenceState
from osd.verification import compiled_sampling
from osd.verification.rejection_sampling import accept_greedy, accept_sampled, acceptance_chance, expected_acceptance
from osd.verification.warping import Warp

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """Result of verifying the drafts of B rows."""

    accepted: list[int]
    """Number of drafted tokens that were accepted, by row."""
    drafted: list[list[int]]
    """The drafted tokens by row, at least up to the first that was refused; in a tree, those along the path taken."""
    follows: list[int]
    """The target's own token after them, by row."""
    depths: Sequence[int]
    """Length of each row's draft in tokens; in a tree, how far it would have gone along the path taken. Greater than
    ``accepted`` if and only if a token was refused."""
    chances: Tensor | None = None
    """(B, G) min(1, p/q) of each drafted token, at the logits that verified it; None where it is not recorded, or where
    all rows are greedy. See :class:`osd.verification.rejection_sampling_trees.TreeVerifyResult` for trees."""
    shared: list[list[float]] | None = None
    """(B, G) Σ min(p, q) where each drafted token was verified: how often one drawn there is accepted. Meaningless
    beyond the first that was refused. None where all rows are greedy, and for trees."""
    paths: list[list[int]] | None = None
    """The nodes along each tree's path taken, the root first; None where all drafts are chains."""

    def acceptance(self, row: int) -> Sequence[float]:
        """Return ``shared`` for the verified tokens of a row's draft; empty where there is none."""
        return self.shared[row][: min(self.accepted[row] + 1, self.depths[row])] if self.shared else ()

    def places(self, row: int, begin: int, end: int) -> Sequence[int]:
        """Return the places among the row's logits (G + 1, V) where the round's tokens ``begin`` to ``end`` − 1 were
        decided."""
        return range(begin, end) if self.paths is None else self.paths[row][begin:end]


def uniforms(rows: Sequence[SequenceState], gammas: Sequence[int], device: torch.device) -> Tensor:
    """Return (B, 2 G + 1) uniforms, float64: to draw each drafted token, to accept it, and for the token that follows.

    A row uses as many as its own gamma asks for, so that its text does not depend on its neighbours'.
    """
    widest = max(gammas)
    lines = [_spread(row.chances(2 * gamma + 1), gamma, widest) for row, gamma in zip(rows, gammas, strict=True)]
    return torch.from_numpy(np.array(lines)).to(device)


def _spread(own: Doubles, gamma: int, widest: int) -> Doubles:
    """Place a row's uniforms in the wider table of a batch where another row drafts more."""
    if gamma == widest:
        return own
    unused = np.zeros(widest - gamma)
    return np.concatenate([own[:gamma], unused, own[gamma:-1], unused, own[-1:]])


def judge(
    scored: RaggedLogits, draft: Draft, warp: Warp | None, chance: Tensor | None, *, keep_chances: bool
) -> VerifyResult:
    """Accept or reject drafts, from the target's logits after each row's last token and after each drafted one.

    A batch that samples has a ``warp`` and uniforms ``chance`` (B, 2 G + 1 or more, as :func:`uniforms` lays
    them out), and with ``keep_chances`` the result holds min(1, p/q).
    """
    if warp is None or chance is None:
        return _judge_greedily(scored, draft)
    if compiled_sampling.takes(scored.lines):
        keep = keep_chances and draft.size > 0
        found = compiled_sampling.judge(scored, draft.q, draft.tokens, draft.lengths, warp, chance, keep=keep)
        return VerifyResult(
            found.accepted, draft.tokens.tolist(), found.follows, draft.lengths, found.chances, found.shared
        )
    p = warp(scored.table(draft.size + 1))
    q = p[:, :0] if draft.q is None else draft.q
    used = chance.shape[1] // 2
    tests, last = chance[:, used : used + draft.size], chance[:, -1]
    lengths = torch.tensor(draft.lengths, device=p.device)
    accepted, follows = accept_sampled(p, q, draft.tokens, lengths, tests, last)
    chances = acceptance_chance(p, q, draft.tokens) if keep_chances and draft.size else None
    columns = accepted.unsqueeze(1), follows.unsqueeze(1), draft.tokens, expected_acceptance(p[:, :-1], q)
    table = torch.cat([column.double() for column in columns], dim=1).tolist()  # the one sync
    whole = [[int(number) for number in line[: 2 + draft.size]] for line in table]
    shared = [line[2 + draft.size :] for line in table]
    return VerifyResult(
        [line[0] for line in whole], [line[2:] for line in whole], [line[1] for line in whole], draft.lengths,
        chances, shared,
    )  # fmt: skip


def _judge_greedily(scored: RaggedLogits, draft: Draft) -> VerifyResult:
    lines = scored.lines
    if compiled_sampling.takes(lines):
        choices, drafted = compiled_sampling.likeliest(lines), draft.tokens.tolist()
    else:
        both = torch.cat([lines.argmax(-1), draft.tokens.flatten()]).tolist()  # the one sync
        choices, flat, size = both[: len(lines)], both[len(lines) :], draft.size
        drafted = [flat[row * size : (row + 1) * size] for row in range(len(draft.lengths))]
    kept = [
        accept_greedy(choices[begin : begin + length + 1], own, length)
        for begin, own, length in zip(scored.begins, drafted, draft.lengths, strict=True)
    ]
    return VerifyResult([accepted for accepted, _ in kept], drafted, [follows for _, follows in kept], draft.lengths)
