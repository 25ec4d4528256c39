"""``--scheduler-cls osd_vllm.scheduler.OsdScheduler``: draft lengths that can be changed while vLLM runs. Opt-in.

vLLM calls this interface no public one, so the class is for versions that were tried (``KNOWN``); with another one
it leaves draft lengths as vLLM has them.
"""

from __future__ import annotations

import json
import logging
import time
from typing import Any

from vllm import __version__
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from . import KNOWN
from .options import options

log = logging.getLogger("osd.vllm")
POLL = 0.1
"""Seconds between two looks at the file."""


def lookup(schedule: list[tuple[int, int, int]], rows: int, most: int) -> list[int]:
    """Return the draft length for 0 … ``rows`` running requests from (first, last, length) triples, as vLLM's
    ``num_speculative_tokens_per_batch_size`` has them: batches beyond the last triple get its length."""
    found = [0] * (rows + 1)
    for first, last, length in sorted(schedule):
        for size in range(first, (last if last < schedule[-1][1] else rows) + 1):
            if size <= rows:
                found[size] = max(0, min(length, most))
    return found


def _with_live_gamma(base: Any) -> Any:
    class LiveGamma(base):  # type: ignore[misc]
        """vLLM's own scheduler, which looks for other draft lengths now and then."""

        _osd_next, _osd_known = 0.0, b""

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            """Schedule a step; see vLLM."""
            if (now := time.monotonic()) >= self._osd_next:
                self._osd_next = now + POLL
                self._osd_look()
            return super().schedule(*args, **kwargs)

        def _osd_look(self) -> None:
            path = options().gamma
            try:
                said = path.read_bytes() if path and __version__.startswith(KNOWN) else b""
                if said and said != self._osd_known:
                    rows = self.scheduler_config.max_num_seqs
                    self.dynamic_sd_lookup = lookup(json.loads(said), rows, self.num_spec_tokens)
                    self._osd_known = said
            except FileNotFoundError:
                pass
            except (OSError, ValueError, TypeError) as error:
                log.warning("draft lengths in %s cannot be read: %s", path, error)
                self._osd_known = said

    LiveGamma.__name__ = LiveGamma.__qualname__ = f"Osd{base.__name__}"
    return LiveGamma


OsdScheduler = _with_live_gamma(Scheduler)
OsdAsyncScheduler = _with_live_gamma(AsyncScheduler)
"""For engines with asynchronous scheduling, as on GPUs."""
