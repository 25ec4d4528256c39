"""Times of single requests on the machine that runs, arms by turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from benchmarks.figures import PaperFigure, mean_of
from benchmarks.papers.experiment import PapersBench
from osd.bench.contenders import Tokens, wait_for_compiled
from osd.bench.harness.turns import shifted
from osd.engine.engine import Engine
from osd.models.pair import Pair
from osd.sequence import Completion
from storage.records import Request
from storage.settings import Settings

Arm = TypeVar("Arm", bound=object)


class TimedAnswer(NamedTuple):
    """An answer, and what it took."""

    tokens: tuple[int, ...]
    seconds: float
    """From the request to its last token."""
    accepted: int
    rejected: int
    """Rounds that ended with a rejected token."""
    rounds: int
    first_tokens: int = 0
    """Tokens that the first step brought, which reads the prompt too."""
    first_seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return len(self.tokens) / self.seconds

    @property
    def later_rate(self) -> float:
        """Tokens a second once the prompt is read. Raises ZeroDivisionError where the first step brought all."""
        return (len(self.tokens) - self.first_tokens) / (self.seconds - self.first_seconds)

    @property
    def rounds_a_token(self) -> float:
        """Fewer are better."""
        return self.rounds / len(self.tokens)


class TimedEngine:
    """An engine that decodes one request at a time and records nothing."""

    def __init__(
        self, pair: Pair, settings: Settings, tokens: int, *, gamma: int, kind: str = "causal", whole: bool = False,
        wrap: Callable[[Any], Any] = lambda drafting: drafting,
    ) -> None:  # fmt: skip
        """``tokens``: of an answer at most; ``gamma``: its drafts' length, 0 for the target alone; ``whole``: whether
        answers go on past end tokens; ``wrap``: what is put around the drafter."""
        rule = {"rule": "fixed", "initial": gamma, "max": max(gamma, 1), "routes": {}}
        own = settings.changed(serve={"max_batch": 1, "record": "off"}, gamma=rule, drafters={"kind": kind})
        engine = Engine(pair, own)
        engine.drafting = wrap(engine.drafting)
        self.engine, self._tokens, self._whole = engine, tokens, whole

    def decode(self, prompt: Tokens, tokens: int | None = None) -> TimedAnswer:
        """Answer a prompt, with ``tokens`` at most where they are fewer than the engine's."""
        begun, first = time.perf_counter(), (0, 0.0)
        self.engine.submit(Request(prompt, max_new_tokens=tokens or self._tokens, ignore_eos=self._whole))
        while True:
            for output in self.engine.step():
                if not first[0] and output.tokens:
                    first = len(output.tokens), time.perf_counter() - begun
                if output.completion:
                    return _answer(output.completion, time.perf_counter() - begun, *first)

    def answers(self, prompts: Sequence[Tokens]) -> dict[Tokens, tuple[int, ...]]:
        """Return the answer to each prompt."""
        return {prompt: self.decode(prompt).tokens for prompt in prompts}


def _answer(done: Completion, seconds: float, first_tokens: int, first_seconds: float) -> TimedAnswer:
    accepted, rejected = sum(each.judged_right for each in done.rounds), sum(each.rejected for each in done.rounds)
    return TimedAnswer(done.tokens, seconds, accepted, rejected, len(done.rounds), first_tokens, first_seconds)


def by_turns(
    bench: PapersBench, arms: Mapping[Arm, TimedEngine], prompts: Sequence[Tokens], told: str, tokens: int | None = None
) -> dict[Arm, list[TimedAnswer]]:
    """Let every arm answer every prompt, prompt by prompt, after one that warms it up. ``told``: what is measured."""
    wait_for_compiled()
    for arm in arms.values():
        arm.decode(prompts[0], tokens)
    found: dict[Arm, list[TimedAnswer]] = {name: [] for name in arms}
    for turn, prompt in enumerate(prompts):
        bench.watch.at(f"{told}: text {turn + 1} of {len(prompts)}")
        for name in shifted([*arms], turn):
            found[name].append(arms[name].decode(prompt, tokens))
    return found


def ratios_of(some: Sequence[TimedAnswer], others: Sequence[TimedAnswer]) -> list[float]:
    """Return one arm's tokens a second ÷ another's, by prompt."""
    return [one.rate / other.rate for one, other in zip(some, others, strict=True)]


def speed_up_of(some: Sequence[TimedAnswer], others: Sequence[TimedAnswer]) -> PaperFigure:
    """Return the mean of them over prompts."""
    return mean_of(ratios_of(some, others))
