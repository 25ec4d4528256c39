"""The demo's loop over the shipped pair: what is measured in turns, and what is counted."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import Any

import pytest

from osd.demo import DRAFT, TARGET
from osd.demo.prompts import prompts
from osd.demo.real.report import draw_gain, next_steps, summarise
from osd.demo.real.run import LEARNING
from osd.demo.real.turns import GainLoop, GainTurn, RealTrace, figures
from osd.engine.engine import Engine
from osd.models.pair import load_pair
from osd.prompts import encode
from storage.records import Request
from storage.settings import load_settings


def turn(at: float, seconds: float, **changes: Any) -> GainTurn:
    facts: dict[str, Any] = {
        "at": at, "answers": 5, "domain": "sql", "version": "v", "tokens": 12, "seconds": seconds, "plain_seconds": 3.0,
        "rounds": 6, "drafted": 10, "accepted": 6, "same": True,
    }  # fmt: skip
    return GainTurn(**{**facts, **changes})


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    settings = load_settings(serve={"max_batch": 4, "device": "cpu"}, gamma={"rule": "fixed", "initial": 3})
    yield Engine(load_pair(TARGET, DRAFT, device="cpu"), settings)


def test_a_question_is_answered_twice_and_accepted_tokens_are_marked(engine: Engine) -> None:
    trace = RealTrace(60.0)
    looked = []
    loop = GainLoop(engine, trace, 24, lambda: looked.append(trace.doing))
    loop._first = "random weights"
    for question in prompts("sql", 2):
        loop.measure(question)
    assert [one.same for one in trace.turns] == [True, True]
    assert all(one.accepted > 0 and one.seconds > 0 and one.plain_seconds > 0 for one in trace.turns)
    last = trace.turns[-1]
    marked = "".join(piece for piece, accepted in trace.spoken if accepted)
    own = [piece for piece, accepted in trace.spoken if not accepted]
    assert marked and len(own) <= last.rounds
    (plain,) = engine.run([Request(encode(engine.pair.tokenizer, prompts("sql", 2)[1]), 24, gamma=0)])
    assert "".join(piece for piece, _ in trace.spoken) == plain.text
    orders = [doing for i, doing in enumerate(looked) if i == 0 or looked[i - 1] != doing]
    assert [doing.rsplit(" ", 2)[-2] for doing in orders] == [
        "with",
        "without",
        "with",
    ]  # the second turn begins without


def test_random_weights_draft_nothing(engine: Engine) -> None:
    trace = RealTrace(60.0)
    GainLoop(engine, trace, 8, lambda: None).measure(prompts("sql", 1)[0])
    assert [(one.drafted, one.same) for one in trace.turns] == [(0, True)]
    assert trace.spoken and not any(accepted for _, accepted in trace.spoken)


def test_answers_are_gathered_at_all_rows_until_the_time_is_over(engine: Engine) -> None:
    trace, rows = RealTrace(60.0), []
    GainLoop(engine, trace, 8, lambda: rows.append(len(engine.rows))).gather(cycle(prompts("sql", 20)), trace.now + 0.5)
    assert trace.answers >= 4 and max(rows) == 4 and not engine.busy
    assert trace.gathered_tokens >= trace.answers and trace.gathered_seconds >= 0.5


def test_figures_are_ratios_of_sums() -> None:
    named = ("turns", "drafted_rate", "plain_rate", "gain", "acceptance", "tokens_a_round")
    assert figures([turn(1, 1.0), turn(2, 2.0)]) == dict(zip(named, (2, 24 / 3, 24 / 6, 2.0, 0.6, 2.0), strict=True))
    assert figures([]) == dict(zip(named, (0, *[None] * 5), strict=True))


def test_a_quarter_has_its_turns_and_the_last_one_what_came_late() -> None:
    trace = RealTrace(40.0, turns=[turn(at, 1.0 + at) for at in (1, 9, 11, 39, 41)])
    assert [[one.at for one in trace.quarter(n)] for n in range(4)] == [[1, 9], [11], [], [39, 41]]
    summary = summarise(trace)
    assert summary["gain_last_quarter"] == round(6 / 82, 4) and summary["quarters"][2] is None
    assert summary["lossless_checked"] == 5 and summary["lossless_failed"] == 0


def test_the_picture_of_a_run_that_had_just_begun_can_be_drawn() -> None:
    assert len(draw_gain(RealTrace(60.0)).axes) == len(draw_gain(RealTrace(60.0, turns=[turn(1, 1.0)])).axes) == 2


def test_what_to_do_next_is_what_osd_reads() -> None:
    import tomllib

    text = next_steps(LEARNING, "medusa")
    toml = text.split("\n\n")[1]
    settings = load_settings(**tomllib.loads(toml))
    assert settings.learn.draft_vocabulary == LEARNING["learn"]["draft_vocabulary"]
    assert settings.drafters.kind == "tree" and settings.serve.record_hidden_states
