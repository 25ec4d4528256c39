"""A real vLLM drafts nothing until that pays, and its answers are the same whatever it drafts."""

from __future__ import annotations

import json

import pytest

from osd.attached.vllm.engine import PAUSED
from osd.attached.vllm.plugin.osd_vllm.options import draft_file
from tests.integration.vllm.conftest import Reply, Serving, ids_of, some_prompts, steps_of
from tests.support.waiting import until

pytestmark = pytest.mark.vllm


def drafted(replies: list[Reply]) -> list[int]:
    """How many tokens each step of the answers drafted."""
    return [length for one in replies for length in steps_of(one)[1]]


def test_lengths_follow_what_is_measured_and_texts_stay(vllm: Serving) -> None:
    """A random draft is tried in short turns alone; what it costs, and from where it would pay, is told."""
    asked = some_prompts("sql", 24)
    try:
        vllm.engine.set_gamma(PAUSED)
        until(lambda: not any(drafted(vllm.ask(asked[:1]))), "it is paused")
        plain = vllm.ask(asked)
        assert not any(drafted(plain))
        vllm.engine.set_gamma(None)
        draft_file(vllm.folder / "gamma.json").write_text("another")  # it may rest long after what came before
        measured = [reply for _ in range(4) for reply in vllm.ask(asked)]
        assert ids_of(measured) == ids_of(plain) * 4
        until(lambda: (said := vllm.engine.gain()) and any(batch.turns for batch in said.batches), "turns are told")
        said = vllm.engine.gain()
        assert said is not None and said.gain == 1.0 and not said.fixed, "nothing is drafted"
        tried = drafted(measured)
        assert 0 < len([length for length in tried if length]) < sum(map(len, ids_of(measured))) / 10
        assert all(batch.length == 0 for batch in said.batches) and (said.accepted or 0) < 0.1
        assert said.harvesting is None or 0 <= said.harvesting < 0.5
        print(f"harvesting takes {said.harvesting} of its time")
    finally:
        vllm.engine.set_gamma([(1, 4, 4)])
    assert json.loads((vllm.folder / "gamma.json").read_text()) == [[1, 4, 4]]
