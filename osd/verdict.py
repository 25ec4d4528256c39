"""What the target made of the drafts of a batch, brought to the host in one go."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from osd.acceptance import accept_greedy, accept_sampled, acceptance_chance
from osd.drafters import Draft
from osd.warp import Warp


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the target made of a draft."""

    accepted: list[int]
    """Drafted tokens kept, a row."""
    drafted: list[list[int]]
    """(B, G) the drafted tokens."""
    follows: list[int]
    """The target's own token after them, a row."""
    chances: Tensor | None = None
    """(B, G) min(1, p/q) of each drafted token; None where nobody keeps it, or where all rows are greedy."""


def judge(logits: Tensor, draft: Draft, warp: Warp | None, chance: Tensor | None, *, keep_chances: bool) -> Verdict:
    """Accept or reject, from the target's logits (B, G + 1, V).

    A batch that samples has a ``warp`` and uniforms ``chance`` (B, 2 G + 1 or more, as :meth:`Engine._chance` lays
    them out), and with ``keep_chances`` the verdict holds min(1, p/q).
    """
    lengths = torch.tensor(draft.lengths, device=logits.device)
    chances: Tensor | None = None
    if warp is None or chance is None:
        accepted, follows = accept_greedy(logits.argmax(-1), draft.tokens, lengths)
    else:
        p = warp(logits)
        q = p[:, :0] if draft.q is None else draft.q
        used = chance.shape[1] // 2
        tests, last = chance[:, used : used + draft.size], chance[:, -1]
        accepted, follows = accept_sampled(p, q, draft.tokens, lengths, tests, last)
        if keep_chances and draft.size:
            chances = acceptance_chance(p, q, draft.tokens)
    table = torch.cat([accepted.unsqueeze(1), follows.unsqueeze(1), draft.tokens], dim=1).tolist()  # the one sync
    return Verdict([line[0] for line in table], [line[2:] for line in table], [line[1] for line in table], chances)
