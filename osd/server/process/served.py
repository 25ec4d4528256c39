"""A job where it is decoded, with what has come of it that its caller has not been told."""

from __future__ import annotations

from dataclasses import dataclass

from osd.sequence import SequenceState
from osd.server.http.errors import ApiError
from osd.server.http.scores import Scores
from osd.server.process.piece import Done, Piece
from storage.records import Request


@dataclass(slots=True, eq=False)
class Served:
    """See the module. ``pause`` and ``top``: :class:`osd.server.process.job.Job`."""

    request: Request
    pause: float = 0.0
    top: int | None = None
    begun: bool = False
    """Whether anything has been told, or is about to be."""
    why: ApiError | None = None
    """Why it was ended."""
    done: Done | None = None
    row: SequenceState | None = None
    """Since its first round."""
    _told: int = 0
    """Tokens that its caller has been told of."""
    _scores: Scores | None = None

    def score(self, scores: Scores) -> None:
        """Log-probabilities of the tokens that a round brought."""
        self._scores = scores if self._scores is None else self._scores.then(scores)

    def take(self) -> list[Piece]:
        """All of it. Why it was ended is a piece of its own, for what came before is still shown."""
        pieces = [piece] if (piece := self._news()) else []
        if self.why:
            pieces.append(Piece(error=self.why))
        return pieces

    def _news(self) -> Piece | None:
        row, done = self.row, None if self.why else self.done
        if row is None:
            return Piece(done=done) if done else None
        tokens = tuple(row.tokens[row.prompt_len + self._told :])
        if not tokens and not done:
            return None
        self._told += len(tokens)
        scores, self._scores = self._scores, None
        return Piece(tokens, scores, row.rounds[-1].draft_version, row.route, done)
