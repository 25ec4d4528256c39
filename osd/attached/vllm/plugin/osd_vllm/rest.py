"""Lets the draft rest while it is not used.

At length 0 vLLM runs one pass of the draft a step, prompts included, to keep the draft's cache in step with the text.
A resting draft reads nothing of the requests that come. It wakes now and then, and for new weights, so that it can be
tried: once those requests have ended, for it could not draft for them. Nor can it for what later requests would find of
them in the prefix cache, so they have a part of that cache for themselves.
"""

from __future__ import annotations

from typing import Any

from .gain import TURN, GainMeter

FIRST = 16 * TURN
"""Steps of rest at the very start, which tell what a step takes then."""
SALT = "osd-rest"
"""What is put behind the cache salt of a request that the draft does not read."""
RESTS = 20
"""Steps of rest for each step that the draft was awake for nothing."""
PATIENCE = 24
"""Turns after which a draft rests that was neither proven to pay nor not to."""


class DraftRest:
    """Says of each step whether the draft rests. Used by one thread."""

    def __init__(self, meter: GainMeter) -> None:
        self._meter = meter
        self.rests = True
        self._unread: set[str] = set()
        """Requests that came while the draft rested."""
        self._left, self._awake, self._turns = FIRST, 0, 0
        """Steps until it wakes; steps since it woke, and the meter's turns by then."""

    @property
    def ready(self) -> bool:
        """Whether the draft may be tried: it is awake, and has read all that the requests say."""
        return not self.rests and not self._unread

    def wake(self) -> None:
        """Wake, for there is something to try."""
        self._awake, self._turns = 0, self._meter.turns
        if self.rests:
            self.rests = False
            self._meter.woke()

    def admit(self, request: Any) -> None:
        """Leave a request that comes now unread, and apart in the prefix cache."""
        self._unread.add(request.request_id)
        request.cache_salt = (request.cache_salt or "") + SALT
        request.block_hashes.clear()
        request.update_block_hashes()

    def begin(self, step: Any, rests: bool) -> None:
        """Mark a scheduled step as one in which the draft rests, where it ``rests`` and reads none of the requests."""
        self._unread -= step.finished_req_ids
        step.osd_rests = rests and self._unread.issuperset(step.num_scheduled_tokens)

    def count(self) -> None:
        """Count a step, and wake or rest after it."""
        if self.rests:
            self._left -= 1
            if self._left <= 0:
                self.wake()
            return
        self._awake += 1
        tried = self._meter.turns - self._turns
        if not self._meter.drafts and tried and (tried >= PATIENCE or not self._meter.promising):
            self.rests, self._left = True, RESTS * self._awake
