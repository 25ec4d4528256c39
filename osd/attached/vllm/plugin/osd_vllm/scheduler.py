"""``--scheduler-cls osd_vllm.scheduler.OsdScheduler``: drafts while that pays, by what it measures, or with lengths
that can be changed while vLLM runs. Opt-in.

vLLM calls this interface no public one. Where it lacks what the class needs, or its lengths cannot change
(:mod:`osd_vllm.needs`), the class leaves them as vLLM has them.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from .lengths import LiveLengths
from .needs import LIVE_GAMMA, REST, fixed_lengths, lacking
from .options import options


def let_core_ask_for_drafts_alone() -> None:
    """Have vLLM's core ask its workers for drafts after those steps alone that drafted: it takes a round trip, some
    hundredths of a step on a CPU. With asynchronous scheduling vLLM asks never."""
    if lacking(REST):
        return
    from vllm.v1.engine.core import EngineCore

    ask = EngineCore.post_step

    def asked(self: Any, model_executed: bool) -> None:
        ask(self, model_executed and getattr(self.scheduler, "osd_drafted", True))

    EngineCore.post_step = asked


let_core_ask_for_drafts_alone()


def _with_live_gamma(base: Any) -> Any:
    class LiveGamma(base):  # type: ignore[misc]
        """vLLM's own scheduler, with other draft lengths."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            path, fixed = options().gamma, fixed_lengths(self.vllm_config) or lacking(LIVE_GAMMA)
            self._osd: LiveLengths | None = None
            if path and not fixed and self.num_spec_tokens:
                asked, rows = options().top_k, self.scheduler_config.max_num_seqs
                allowed = self.vllm_config.model_config.max_logprobs
                asked = asked if allowed < 0 else min(asked, allowed)
                self._osd = LiveLengths(path, rows, self.num_spec_tokens, asked)
                self.dynamic_sd_lookup = self._osd

        def add_request(self, request: Any) -> None:
            """Take a request; see vLLM."""
            if self._osd is not None:
                self._osd.admit(request)
            super().add_request(request)

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            """Schedule a step; see vLLM."""
            if self._osd is None:
                return super().schedule(*args, **kwargs)
            self._osd.look()
            step = super().schedule(*args, **kwargs)
            self._osd.begin(step)
            self.osd_drafted = step.num_spec_tokens_to_schedule > 0
            return step

        def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
            """Take what a step brought; see vLLM."""
            if self._osd is not None:
                self._osd.note(scheduler_output, model_runner_output)
            return super().update_from_output(scheduler_output, model_runner_output)

    LiveGamma.__name__ = LiveGamma.__qualname__ = f"Osd{base.__name__}"
    return LiveGamma


OsdScheduler = _with_live_gamma(Scheduler)
OsdAsyncScheduler = _with_live_gamma(AsyncScheduler)
"""For engines with asynchronous scheduling, as on GPUs."""
