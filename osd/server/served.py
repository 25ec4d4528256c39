"""A job where it is decoded, with what has come of it that its caller has not been told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from osd.server.errors import ApiError
from osd.server.piece import Done, Piece
from osd.server.scores import Scores
from storage.records import Request


@dataclass(slots=True, eq=False)
class Served:
    """See the module. ``pause`` and ``top``: :class:`osd.server.job.Job`."""

    request: Request
    pause: float = 0.0
    top: int | None = None
    begun: bool = False
    """Whether anything has been told, or is about to be."""
    why: ApiError | None = None
    """Why it was ended."""
    done: Done | None = None
    _tokens: list[int] = field(default_factory=list)
    _scores: Scores | None = None
    _version: str | None = None
    _route: str | None = None

    def add(self, tokens: Sequence[int], version: str, route: str, scores: Scores | None) -> None:
        """What a round brought."""
        self._tokens += tokens
        self._version, self._route = version, route
        if scores is not None:
            self._scores = scores if self._scores is None else self._scores.then(scores)

    def take(self) -> list[Piece]:
        """All of it. Why it was ended is a piece of its own, for what came before is still shown."""
        done = None if self.why else self.done
        pieces = []
        if self._tokens or done:
            pieces.append(Piece(tuple(self._tokens), self._scores, self._version, self._route, done))
        if self.why:
            pieces.append(Piece(error=self.why))
        self._tokens, self._scores = [], None
        return pieces
