"""POST /admin/target: the target that is served is exchanged for its successor, as an RL loop does at every step."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import wait
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict

from osd.engine.engine import Engine
from osd.engine.moving_target import MovingTarget
from osd.server.core.target_move import TargetMove, UnderWay
from osd.server.errors import Draining
from osd.server.http.app import ERRORS
from storage.errors import BadInput

log = logging.getLogger(__name__)


class NewTarget(BaseModel):
    """The body of POST /admin/target."""

    model_config = ConfigDict(extra="forbid")

    target: str
    """A folder, of the architecture and with the tokenizer of the target that is served."""
    requests: UnderWay = "wait"


class TargetMover:
    """Exchanges targets, one after another. ``hand_over`` gives a move to the decode thread, ``alive`` says whether
    that lives."""

    def __init__(
        self, session: MovingTarget, hand_over: Callable[[TargetMove], None], alive: Callable[[], bool], *, alone: bool
    ) -> None:
        """``alone``: whether no other process serves behind the same port."""
        self._session, self._hand_over, self._alive, self._alone = session, hand_over, alive, alone
        self._turn = threading.Lock()

    def move(self, wanted: NewTarget) -> dict[str, Any]:
        """Exchange the target, and return what serves then. Raises BadInput, StoreError; the old target
        serves on then."""
        if not self._alone:
            reason = "several processes serve here (fleet.processes), and each would have to move: start osd serve anew"
            raise BadInput(reason=f"{reason} with the new target.")
        with self._turn:
            pair = self._session.load(wanted.target)
            move = TargetMove(lambda: self._session.move(pair), lambda: self._session.engine, wanted.requests)
            self._hand_over(move)
            while not wait([move.done], timeout=1.0).done:
                if not self._alive():
                    raise Draining(retry_after=5)
            engine = move.done.result()
        log.info("the target is %s now", wanted.target, extra={"action": "target_moved"})
        return {"target": wanted.target, "digest": pair.target.digest, **_draft_of(engine)}


def _draft_of(engine: Engine) -> dict[str, Any]:
    """Return what drafts, and by which evidence."""
    if (swap := engine.swap) is None:
        return {"draft_version": None, "divergence": {}, "alpha": None}
    divergence = swap.store.targets.divergence(swap.target)
    return {"draft_version": swap.version, "alpha": swap.judged_alpha, "divergence": divergence}


moves = APIRouter(prefix="/admin", responses=ERRORS)


@moves.post("/target")
def move_target(http: Request, body: NewTarget) -> dict[str, Any]:
    """Exchange the target for one of the same architecture and tokenizer. Answers once the new one serves; requests
    that run end on the old one (wait), are read again (keep), or end now (abort)."""
    host = http.app.state.service
    mover: TargetMover = host.mover
    moved = mover.move(body)
    host.store.trail.note("target move", moved["digest"], {"target": body.target, "requests": body.requests})
    return moved
