"""What the decode thread tells of a job, a piece at a time."""

from __future__ import annotations

from typing import NamedTuple

from osd.sequence import Completion
from osd.server.http.errors import ApiError
from osd.server.http.scores import Scores


class Done(NamedTuple):
    """How a job ended."""

    length: int
    """Of the answer, in tokens."""
    text: str | None
    finish_reason: str
    route: str
    steps: tuple[tuple[int, int], ...]
    """(drafted, accepted) of each round."""

    @classmethod
    def of(cls, completion: Completion) -> Done:
        """What an answer says of it."""
        steps = tuple((r.drafted, r.accepted) for r in completion.rounds)
        return cls(len(completion.tokens), completion.text, completion.finish_reason, completion.route, steps)


class Piece(NamedTuple):
    """What one job is told: of one round, or of several."""

    tokens: tuple[int, ...] = ()
    scores: Scores | None = None
    version: str | None = None
    """The draft version that drafted."""
    route: str | None = None
    done: Done | None = None
    """Set when it is finished."""
    error: ApiError | None = None
    """Why it ended before its end."""

    @property
    def last(self) -> bool:
        """Whether nothing comes after it."""
        return self.done is not None or self.error is not None
