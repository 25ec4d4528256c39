"""What a stream of requests showed: acceptance over time, before and after learning, and how fast it came back.

Two acceptance rates are kept of every request.

*Followed α* (``online_hits``, ``frozen_hits``): a draft reads the finished text and at every position of the output
says its likeliest token; α is the share of positions at which that is the target's token. Under greedy decoding
this is what Eq. 2 of on-the-fly adaptation counts, accepted ÷ (accepted + rejections), when a draft never stops
before its first mistake: every position of the text is then either accepted or rejected. It can be taken of any
draft on the same text, so the draft that served, the frozen one and the offline one are compared position by position.

*Counted α* (``accepted``, ``rejections``): what the engine counted while it served. It leaves out the positions that
nobody drafted (the target's own token after a fully accepted draft), so it lies somewhat below followed α. Of trees,
and of sampled texts where a table drafts too, it takes the place of the serving drafter's followed α.

Of sampled texts followed α is Σ min(p, q) in the mean over positions, p and q after temperature and top-p: the chance
that what the draft draws is accepted, with the target read once more over the text.

Where a table drafts with the draft (``drafters.kind = "blended"``) followed α is that of the two: what the table
guessed at each position, before the target had said it, was kept while the text was decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from storage.records import ratio

WINDOW = 50
"""Requests over which acceptance is averaged, as in section 5.2 of the OSD paper."""
RECOVERED = 0.9
"""Share of a segment's final acceptance at which the draft counts as having come back."""

Whose = Literal["online", "frozen", "offline"]


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """One finished request."""

    index: int
    """Its place in the stream, in the order of finishing, from 0."""
    segment: str
    request_id: str
    version: str
    """The draft version that served its last round."""
    prompt_tokens: int
    emitted: int
    """Tokens of output: the positions that are scored."""
    online_hits: float
    """Positions at which that version's likeliest token is the target's; of a sampled text Σ min(p, q) over them."""
    frozen_hits: float
    """The same for the draft that learning started from."""
    rounds: int
    drafted: int
    accepted: int
    rejections: int
    seconds: float
    """Its share of the time spent decoding: a step's time is divided among the rows in flight."""
    at: float
    """Seconds since the stream began."""
    offline_hits: float | None = None
    """The same as ``online_hits`` for the draft distilled offline on this segment, once there is one."""
    judged: int | None = None
    """Positions that ``online_hits`` are of; None: all of the output."""
    number: int = 0
    """Which of its segment's prompts it is, from 1."""

    def of(self, whose: Whose) -> int:
        """Positions that ``hits(whose)`` are of."""
        return self.judged if whose == "online" and self.judged is not None else self.emitted

    def hits(self, whose: Whose) -> float:
        """The hits of that draft."""
        hits = {"online": self.online_hits, "frozen": self.frozen_hits, "offline": self.offline_hits}[whose]
        if hits is None:
            raise ValueError(f"request {self.index} was not scored with the {whose} draft")
        return hits


@dataclass(frozen=True, slots=True)
class SwapSeen:
    """The moment at which serving went over to another draft version."""

    index: int
    """Requests that had finished."""
    version: str
    at: float
    """Seconds since the stream began."""


def alpha(served: Sequence[FinishedRequest], whose: Whose) -> float | None:
    """Followed α over these requests, every position weighing the same; None when there is none."""
    return ratio(sum(s.hits(whose) for s in served), sum(s.of(whose) for s in served))


def counted_alpha(served: Sequence[FinishedRequest]) -> float | None:
    """Counted α over these requests; None when nothing was drafted."""
    accepted = sum(s.accepted for s in served)
    return ratio(accepted, accepted + sum(s.rejections for s in served))


def moving(served: Sequence[FinishedRequest], whose: Whose, window: int = WINDOW) -> list[float]:
    """Followed α of the last ``window`` requests after each one; of as many as there are at the beginning."""
    return moving_share([s.hits(whose) for s in served], [s.of(whose) for s in served], window)


def moving_share(hits: Sequence[float], positions: Sequence[int], window: int = WINDOW) -> list[float]:
    """Hits ÷ positions of the last ``window`` requests after each one; of as many as there are at the beginning."""
    above, below = [0, *accumulate(hits)], [0, *accumulate(positions)]
    begins = [max(0, end - window) for end in range(1, len(above))]
    return [
        ratio(above[end] - above[begin], below[end] - below[begin]) or 0.0 for end, begin in enumerate(begins, start=1)
    ]


def recovered_after(curve: Sequence[float], share: float = RECOVERED, least: int = WINDOW // 2) -> int | None:
    """How many requests of a segment it took until acceptance was back at ``share`` of where it ends.

    ``curve`` is the moving average of the segment's own requests; averages over fewer than ``least`` of them do not
    count. None for an empty curve.
    """
    reached = (count for count, value in enumerate(curve, start=1) if value >= share * curve[-1] and count >= least)
    return next(reached, len(curve) or None)


def settled_after(curve: Sequence[float], share: float = RECOVERED) -> int | None:
    """The same for good: the smallest index from which on the curve never falls below ``share`` of its last value.

    0 when it never was below. Requests differ, so this is large even for a draft that never changes.
    """
    if not curve:
        return None
    below = [index for index, value in enumerate(curve) if value < share * curve[-1]]
    return below[-1] + 1 if below else 0


def rejections_gone(frozen: float, now: float) -> float | None:
    """Share of the frozen draft's rejections that no longer happen."""
    return ratio(now - frozen, 1 - frozen)


def tokens_per_second(served: Sequence[FinishedRequest]) -> float | None:
    """Tokens of output for each second of decoding."""
    return ratio(sum(s.emitted for s in served), sum(s.seconds for s in served))
