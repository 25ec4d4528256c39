"""Which tokens a draft learned: precision and recall of the target's most frequent ones, before and after.

Section 5.5 of online speculative decoding (Figure 7, Table 6): a token's precision is how often it was accepted
divided by how often it was proposed; its recall is how often it was accepted divided by how often it appears in the
answers.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from storage.errors import BadInput
from storage.insights.judged import Ints, JudgedPositions, count
from storage.records import TokenKind, ratio

TOP = 100
"""Number of most frequent tokens examined, as in the paper."""


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Counts of one token in one set of requests."""

    proposed: int
    accepted: int
    appeared: int

    @property
    def precision(self) -> float | None:
        """Accepted ÷ proposed."""
        return ratio(self.accepted, self.proposed)

    @property
    def recall(self) -> float | None:
        """Accepted ÷ appeared."""
        return ratio(self.accepted, self.appeared)


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One token's counts before and after."""

    rank: int
    """1 for the token that appears most often in both sets together."""
    token: int
    before: TokenCounts
    after: TokenCounts

    @property
    def precision_gain(self) -> float | None:
        """Precision after − before; None where one side never proposed the token."""
        return _gain(self.before.precision, self.after.precision)

    @property
    def recall_gain(self) -> float | None:
        """Recall after − before; None where the token never appeared on one side."""
        return _gain(self.before.recall, self.after.recall)

    def as_dict(self) -> dict[str, Any]:
        """Return the row as one flat dictionary."""
        facts: dict[str, Any] = {"rank": self.rank, "token": self.token}
        for measure in ("precision", "recall"):
            for side in ("before", "after"):
                facts[f"{measure}_{side}"] = getattr(getattr(self, side), measure)
            facts[f"{measure}_gain"] = getattr(self, f"{measure}_gain")
        for side in ("before", "after"):
            facts |= {f"{name}_{side}": value for name, value in asdict(getattr(self, side)).items()}
        return facts


def tokens(before: JudgedPositions, after: JudgedPositions, top: int = TOP) -> list[TokenRow]:
    """Return the ``top`` most frequent tokens of both sets together, most frequent first.

    Raises BadInput where a set has no requests, or rejections alone, which do not show what was accepted.
    """
    for name, side in (("before", before), ("after", after)):
        _require(name, side)
    return ranked(before, after, top)


def ranked(before: JudgedPositions, after: JudgedPositions, top: int = TOP) -> list[TokenRow]:
    """Return :func:`tokens` of positions that are known to be whole, also where a draft was never right."""
    size = 1 + max(int(column.max(initial=0)) for side in (before, after) for column in (side.drafted, side.emitted))
    one, other = _counted(before, size), _counted(after, size)
    appeared = one[2] + other[2]
    order = np.argsort(-appeared, kind="stable")[:top]
    order = order[appeared[order] > 0]
    return [
        TokenRow(rank, int(token), TokenCounts(*map(int, one[:, token])), TokenCounts(*map(int, other[:, token])))
        for rank, token in enumerate(order, start=1)
    ]


def _require(name: str, side: JudgedPositions) -> None:
    if not side.requests:
        raise BadInput(reason=f"There are no kept requests {name}; ask for a longer time, or another version.")
    if not side.whole:
        raise BadInput(
            reason=f"Of the requests {name} only refused tokens were kept: set serve.record to 'verified' for this."
        )


def _counted(side: JudgedPositions, size: int) -> Ints:
    """Return how often each token was proposed, accepted and emitted, shape (3, size)."""
    accepted = side.kinds == TokenKind.ACCEPTED
    proposed = side.kinds != TokenKind.UNDRAFTED
    everything = np.ones(len(side), bool)
    return np.stack(
        [
            count(side.drafted, proposed, size),
            count(side.emitted, accepted, size),
            count(side.emitted, everything, size),
        ]
    )


def _gain(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before
