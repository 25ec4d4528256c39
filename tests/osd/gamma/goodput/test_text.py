"""What the engine tells a controller of a row's text."""

from __future__ import annotations

from osd.engine.engine import Engine
from osd.gamma.base import Observation
from osd.gamma.rules.fixed import FixedRow
from storage.records import Request
from tests.support.models import prompts, random_pair
from tests.support.settings import settings_of


class Listening(FixedRow):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(3)
        self.seen: list[tuple[int, list[int]]] = []

    def observe(self, seen: Observation) -> None:
        self.seen.append((seen.accepted, list(seen.text)))


def test_the_text_begins_with_the_prompt_and_grows_by_the_accepted_tokens_and_the_targets_own() -> None:
    engine = Engine(
        random_pair("llama", noise=0.05), settings_of(serve__max_length=96, gamma__rule="fixed", gamma__initial=3)
    )
    request = Request(prompts(1)[0], max_new_tokens=20)
    listening = Listening()
    engine.planner.controller(request.route).start = lambda: listening  # type: ignore[method-assign]
    engine.submit(request)
    [done] = [progress.completion for _ in range(20) for progress in engine.step() if progress.completion]
    before = list(request.prompt_tokens)
    for accepted, text in listening.seen:
        assert text[: len(before)] == before
        assert len(text) == len(before) + accepted + 1
        before = text
    assert before == [*request.prompt_tokens, *done.tokens]
    assert 0 < sum(accepted for accepted, _ in listening.seen) < 3 * len(listening.seen)
