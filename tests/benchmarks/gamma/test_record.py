"""Recording, against plain passes of the models; and replays of what was recorded, against the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from benchmarks.gamma.costs import CostCells, CostTable, Piece, Pieces
from benchmarks.gamma.heads import estimated, heads_of_halves
from benchmarks.gamma.oracle import OracleController
from benchmarks.gamma.record import RecordPlan, drawn_texts, fingerprint, record_file
from benchmarks.gamma.rounds import RecordedText, read_recording
from osd.bench.harness.watch import Watch
from osd.engine.engine import Engine
from osd.gamma.factory import CONTROLLERS, make_controller
from osd.gamma.planner import GammaPlanner
from osd.models.acceptance_head import AcceptanceHead, HeadConfig, HeadPass
from osd.models.pair import Pair
from storage.errors import BadBenchFile
from storage.records import Request
from storage.settings import LearnSettings, Settings
from tests.benchmarks.gamma.test_oracle import counted
from tests.support.models import prompts, random_pair
from tests.support.traces import simulate

PROMPTS = prompts(5, seed=3)
NEW_TOKENS, DEPTH = 24, 6
FLAT = CostTable("flat", "", Pieces((Piece(start_ms=1),)), Pieces((Piece(start_ms=4),)))
LOOK_AT_COSTS = {"analytic", "goodput"}
NEED_A_HEAD = {"specdecpp"}


@cache
def pair(eos: int | None = None) -> Pair:
    return random_pair(noise=0.15, eos=eos)


@cache
def traces(eos: int | None = None) -> list[RecordedText]:
    asked = RecordPlan(new_tokens=NEW_TOKENS, depth=DEPTH, batch=2, rows=7)
    return list(drawn_texts(pair(eos), "random", PROMPTS, 0.0, asked, Watch()))


@cache
def common_token() -> int:
    """A token at which many texts would end."""
    return int(np.bincount(np.concatenate([trace.text[3:] for trace in traces()])).argmax())


def plain(module: Any, before: list[int], chain: list[int], temperature: float = 1.0) -> torch.Tensor:
    """(G, V) the distributions that each of the chain's tokens is drawn from or judged by, in one whole pass."""
    tokens = torch.tensor([before + chain])
    with torch.inference_mode():
        logits = module(input_ids=tokens, use_cache=False).logits[0, len(before) - 1 : -1]
    return (logits / temperature).softmax(-1)


def settings(name: str, batch: int, initial: int = 3) -> Settings:
    gamma = {"rule": name, "initial": initial, "max": DEPTH}
    return Settings().changed(gamma=gamma, serve={"max_batch": batch, "record": "off"})


def decoded(engine: Engine) -> list[list[tuple[int, int, int]]]:
    """(γ, drafted, accepted) of each request's rounds, by the engine."""
    asked = [Request(prompt, max_new_tokens=NEW_TOKENS) for prompt in PROMPTS]
    done = {each.request.id: each.rounds for each in engine.run(asked)}
    return [[(r.gamma, r.drafted, r.judged_right) for r in done[request.id]] for request in asked]


def test_greedy_chains_are_those_of_plain_passes() -> None:
    recorded = traces()[1]
    for position in range(0, recorded.length, 2):
        before, chain = [*PROMPTS[1], *recorded.text[:position].tolist()], recorded.drafted[position].tolist()
        q, p = (plain(model.module, before, chain) for model in (pair().draft, pair().target))
        assert q.argmax(-1).tolist() == chain
        assert np.allclose(recorded.confidence[position], q.amax(-1), atol=1e-4)
        assert np.allclose(recorded.peak[position], q.amax(-1), atol=1e-4)
        agreed = (
            (p.argmax(-1) == q.argmax(-1)).long().cumprod(0)[: NEW_TOKENS - position]
        )  # past the limit none is drafted
        assert recorded.acceptance[position, : len(agreed)].tolist() == agreed.tolist()
        judged = min(int(agreed.sum()) + 1, len(agreed))
        assert recorded.overlap is not None and recorded.likeliest is not None
        shared = torch.minimum(p, q).sum(-1)[:judged]
        assert np.allclose(recorded.overlap[position, :judged], shared, atol=1e-4)
        assert recorded.likeliest[position].tolist() == chain


def test_sampled_chains_are_drawn_and_judged_as_by_plain_passes() -> None:
    """Each token's place in its own distribution, thrown within the token's share, is uniform if the token was drawn
    from it; a right recorder fails in one run of a million."""
    temperature, random, places = 0.7, np.random.default_rng(0), []
    asked = RecordPlan(new_tokens=16, depth=5, rows=5)
    (recorded,) = drawn_texts(pair(), "random", PROMPTS[:1], temperature, asked, Watch())
    for position in range(recorded.length):
        before, chain = [*PROMPTS[0], *recorded.text[:position].tolist()], recorded.drafted[position].tolist()
        q, p = (plain(model.module, before, chain, temperature) for model in (pair().draft, pair().target))
        unwarped = plain(pair().draft.module, before, chain)
        places += [float(q[i, :token].sum() + random.random() * q[i, token]) for i, token in enumerate(chain)]
        at = range(len(chain)), chain
        assert np.allclose(recorded.acceptance[position], (p[at] / q[at]).clamp(max=1), atol=1e-3)
        assert np.allclose(recorded.confidence[position], unwarped[at], atol=1e-4)
        assert np.allclose(recorded.peak[position], unwarped.amax(-1), atol=1e-4)
        first, second = unwarped.topk(2).values.T
        assert recorded.overlap is not None and recorded.margin is not None and recorded.entropy is not None
        assert recorded.likeliest is not None and recorded.likeliest[position].tolist() == q.argmax(-1).tolist()
        assert np.allclose(recorded.overlap[position], torch.minimum(p, q).sum(-1), atol=1e-4)
        assert np.allclose(recorded.margin[position], first - second, atol=1e-4)
        assert np.allclose(recorded.entropy[position], -(unwarped * unwarped.log()).sum(-1), atol=1e-3)
    assert kstest(places, "uniform").pvalue > 1e-6
    assert 0.05 < (recorded.acceptance < 0.99).mean() < 0.95


def test_top_k_cuts_what_is_drawn_and_judged() -> None:
    asked = RecordPlan(new_tokens=12, depth=3, top_k=2)
    (recorded,) = drawn_texts(pair(), "random", PROMPTS[:1], 1.0, asked, Watch())
    for position in range(recorded.length):
        before, chain = [*PROMPTS[0], *recorded.text[:position].tolist()], recorded.drafted[position].tolist()
        q, p = (plain(model.module, before, chain).topk(2, dim=-1) for model in (pair().draft, pair().target))
        for i, token in enumerate(chain):
            own, its = (
                float((each.values[i] * (each.indices[i] == token)).sum() / each.values[i].sum()) for each in (q, p)
            )
            assert recorded.acceptance[position, i] == pytest.approx(min(1, its / own), abs=1e-3)


def test_heads_of_halves_say_of_texts_that_they_have_not_seen() -> None:
    asked = RecordPlan(new_tokens=NEW_TOKENS, depth=DEPTH, top_k=8)
    texts = list(drawn_texts(pair(), "random", PROMPTS, 1.0, asked, Watch()))
    told, figures = heads_of_halves(pair(), texts, LearnSettings(head_epochs=2), Watch())
    assert figures.keys() == {"binary_kl_learned_t1", "binary_kl_constant_t1"}
    assert all(each.head is not None and each.head.shape == each.acceptance.shape for each in told)
    other = replace(texts[0], acceptance=1 - texts[0].acceptance)
    again, _ = heads_of_halves(pair(), [other, *texts[1:]], LearnSettings(head_epochs=2), Watch())
    assert [np.array_equal(a.head, b.head) for a, b in zip(told, again, strict=True)] == [
        True,
        False,
        True,
        False,
        True,
    ]


def test_a_heads_column_is_added_to_texts_recorded_before(tmp_path: Path) -> None:
    head = AcceptanceHead(HeadConfig(hidden_size=32, depth=1, reject_weight=1.0, draft="", trained_for=""))
    torch.nn.init.normal_(head.out.weight)
    path, sets = tmp_path / "rounds.parquet", {"a": PROMPTS[:2]}
    bare = record_file(path, pair(), sets, RecordPlan(new_tokens=6, depth=3), Watch()).traces
    passed = HeadPass(head.requires_grad_(False), torch.device("cpu"))
    asked = RecordPlan(new_tokens=6, depth=3, head=passed)
    for text, before in zip(record_file(path, pair(), sets, asked, Watch()).traces, bare, strict=True):
        assert before.head is None and text.head is not None and np.array_equal(text.peak, before.peak)
        for position in range(text.length):
            tokens = [*text.prompt.tolist(), *text.text[:position].tolist(), *text.drafted[position].tolist()]
            said = passed(hidden_of(tokens)[len(text.prompt) + position - 1 : -1])
            assert text.head[position] == pytest.approx(said.numpy(), abs=1e-4)


def hidden_of(tokens: list[int]) -> torch.Tensor:
    """(T, D) the draft's final hidden states."""
    with torch.inference_mode():
        module: Any = pair().draft.module
        states: torch.Tensor = module.model(input_ids=torch.tensor([tokens]), use_cache=False).last_hidden_state
    return states[0]


def test_sampled_recordings_repeat_by_seed() -> None:
    one, again, other = (
        list(drawn_texts(pair(), "random", PROMPTS[:2], 1.0, RecordPlan(new_tokens=6, depth=3, seed=seed), Watch()))
        for seed in (1, 1, 2)
    )
    assert all(np.array_equal(a.drafted, b.drafted) for a, b in zip(one, again, strict=True))
    assert not all(np.array_equal(a.text, b.text) for a, b in zip(one, other, strict=True))


def test_the_pair_agrees_at_some_positions_and_not_at_others() -> None:
    lengths = np.concatenate([trace.matches() for trace in traces()])
    assert len(set(lengths.tolist())) == DEPTH + 1


def test_texts_end_at_an_end_token_and_chains_go_on() -> None:
    ended = traces(common_token())
    assert any(trace.length < trace.end == NEW_TOKENS for trace in ended)
    for trace, whole in zip(ended, traces(), strict=True):
        n = trace.length
        assert trace.text.tolist() == whole.text[:n].tolist()
        inside = np.arange(n)[:, None] + np.arange(DEPTH) < NEW_TOKENS
        assert np.array_equal(trace.acceptance[inside], whole.acceptance[:n][inside])


@pytest.mark.parametrize(("batch", "ends"), [(1, False), (3, True)])
@pytest.mark.parametrize("name", sorted(CONTROLLERS.keys() - LOOK_AT_COSTS - NEED_A_HEAD))
def test_a_replay_counts_what_the_engine_counts(name: str, batch: int, ends: bool) -> None:
    eos = common_token() if ends else None
    serve = settings(name, batch)
    replayed = simulate(traces(eos), partial(make_controller, serve.gamma), FLAT, batch=batch)
    expected = decoded(Engine(pair(eos), serve))
    assert [[(r.gamma, r.drafted, r.accepted) for r in rounds] for rounds in replayed.by_request] == expected


@pytest.mark.parametrize("gamma", [0, 1, 6])
def test_a_replay_of_a_fixed_gamma_counts_what_the_engine_counts(gamma: int) -> None:
    serve = settings("fixed", 2, gamma)
    replayed = simulate(traces(), partial(make_controller, serve.gamma), FLAT, batch=2)
    expected = decoded(Engine(pair(), serve))
    assert [[(r.gamma, r.drafted, r.accepted) for r in rounds] for rounds in replayed.by_request] == expected


def test_a_replay_of_a_heads_estimates_counts_what_the_engine_counts() -> None:
    head = AcceptanceHead(HeadConfig(hidden_size=32, depth=1, reject_weight=1.0, draft="", trained_for=""))
    torch.manual_seed(0)
    torch.nn.init.normal_(head.out.weight)
    estimates = HeadPass(head.requires_grad_(False), torch.device("cpu"))
    asked = RecordPlan(new_tokens=NEW_TOKENS, depth=DEPTH, head=estimates)
    recorded = estimated(pair(), list(drawn_texts(pair(), "random", PROMPTS, 0.0, asked, Watch())), estimates, Watch())
    serve = settings("specdecpp", 3)
    engine = Engine(pair(), serve)
    engine.pool.head = estimates
    replayed = simulate(recorded, partial(make_controller, serve.gamma), FLAT, batch=3)
    rounds = [[(r.gamma, r.drafted, r.accepted) for r in rounds] for rounds in replayed.by_request]
    assert rounds == decoded(engine)
    assert len({drafted for each in rounds for _, drafted, _ in each[:-4]}) > 2  # the head ends rounds at many lengths


class Steady:
    """A clock by which drafting always takes 2 ms and verifying 4."""

    first_ms, second_ms = first_busy_ms, second_busy_ms = 2.0, 4.0

    def __enter__(self) -> Steady:
        return self

    def since_ms(self) -> float:
        return 0.0

    def split(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


@pytest.mark.usefixtures("compiled")  # an engine whose passes are compiled meanwhile forgets what they took
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", sorted(LOOK_AT_COSTS & CONTROLLERS.keys()))
def test_a_replay_decides_as_an_engine_with_the_tables_costs(name: str, batch: int) -> None:
    table = CostTable(
        "steady", "", CostCells([(1, n, 2.0 / n) for n in range(1, DEPTH + 1)]), Pieces((Piece(start_ms=4),))
    )
    serve = settings(name, batch)
    engine = Engine(pair(), serve)
    engine.clock = Steady()  # type: ignore[assignment]
    replayed = simulate(traces(), partial(make_controller, serve.gamma), table, batch=batch)
    assert [[(r.gamma, r.drafted, r.accepted) for r in rounds] for rounds in replayed.by_request] == decoded(engine)


@pytest.mark.usefixtures("compiled")
def test_goodput_with_a_head_decides_in_a_replay_as_in_an_engine() -> None:
    torch.manual_seed(0)
    head = AcceptanceHead(HeadConfig(hidden_size=32, depth=1, reject_weight=1.0, draft="", trained_for=""))
    torch.nn.init.normal_(head.out.weight)
    estimates = HeadPass(head.requires_grad_(False), torch.device("cpu"))
    told = estimated(pair(), traces(), estimates, Watch())
    table = CostTable(
        "steady", "", CostCells([(1, n, 2.0 / n) for n in range(1, DEPTH + 1)]), Pieces((Piece(start_ms=4),))
    )
    counted = []
    for listens in (False, True):
        serve = settings("goodput", 1).changed(gamma={"goodput": {"head": listens}})
        engine = Engine(pair(), serve)
        engine.pool.head, engine.clock = estimates, Steady()  # type: ignore[assignment]
        replayed = simulate(told, partial(make_controller, serve.gamma), table)
        counted.append([[(r.gamma, r.drafted, r.accepted) for r in rounds] for rounds in replayed.by_request])
        assert counted[-1] == decoded(engine)
    assert counted[0] != counted[1]


@pytest.mark.parametrize("ends", [False, True])
def test_the_oracle_runs_in_the_engine(ends: bool) -> None:
    eos = common_token() if ends else None
    engine = Engine(pair(eos), settings("fixed", 2))
    engine.planner = GammaPlanner(OracleController(traces(eos), DEPTH), {})
    rounds = [each for request in decoded(engine) for each in request]
    drafted = sum(drafted for _, drafted, _ in rounds)
    assert (sum(trace.length for trace in traces(eos)), len(rounds), drafted) == counted(traces(eos), DEPTH)
    assert sum(accepted for *_, accepted in rounds) == drafted


class Telling(Watch):
    """Remembers what is done."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def at(self, what: str) -> None:
        self.told.append(what)


def test_a_file_grows_by_what_it_lacks(tmp_path: Path) -> None:
    path, watch = tmp_path / "rounds.parquet", Telling()

    def record(sets: Mapping[str, Any], temperatures: tuple[float, ...] = (0.0,), **other: Any) -> None:
        asked = RecordPlan(temperatures=temperatures, depth=3, **({"new_tokens": 4} | other))
        record_file(path, pair(), sets, asked, watch)

    record({"a": PROMPTS[:2]})
    before = read_recording(path)
    record({"a": PROMPTS[:2], "b": PROMPTS[2:3]}, (0.0, 1.0))
    held = {name: [len(read_recording(path).of(name, t)) for t in (0.0, 1.0)] for name in "ab"}
    assert held == {"a": [2, 2], "b": [1, 1]}
    assert np.array_equal(read_recording(path).of("a", 0.0)[0].peak, before.traces[0].peak)
    parts = [("a, T=0", 2), ("a, T=1", 2), ("b, T=0", 1), ("b, T=1", 1)]
    assert watch.told == [f"recording {name}: {i + 1} of {n}" for name, n in parts for i in range(n)]
    with pytest.raises(BadBenchFile, match="new_tokens is 4, not 5"):
        record({"a": PROMPTS[:2]}, new_tokens=5)


def test_a_fingerprint_is_that_of_the_weights() -> None:
    assert fingerprint(pair().target.module) == fingerprint(random_pair(noise=0.3).target.module)
    assert fingerprint(pair().draft.module) != fingerprint(pair().target.module)
