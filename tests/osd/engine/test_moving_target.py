"""A target that is exchanged while requests run: each text is right by the rule that was chosen, and nothing is kept
under a wrong name."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from osd.engine.engine import Engine
from osd.engine.moving_target import MovingTarget, TargetRefused
from osd.models.pair import Pair, load_pair
from osd.sequence import Completion
from osd.server.core.target_move import TargetMove, UnderWay
from osd.server.errors import TargetMoved
from storage.records import Request
from storage.settings import Settings, load_settings
from storage.store import Store
from tests.support.decoding import decoding, ended, make_job
from tests.support.models import alone, noisy, prompts, random_module

LENGTH = 12


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    serve = {"max_batch": 3, "max_length": 96, "swap_poll_seconds": 0.05, "prefill_tokens": 64}
    return load_settings(storage={"directory": tmp_path / "data"}, serve=serve)


@pytest.fixture
def modules(tmp_path: Path) -> dict[str, object]:
    """Targets in folders, and a draft."""
    target = random_module("llama")
    noisy(target, 0.3).save_pretrained(tmp_path / "draft")
    modules = {"one": target, "two": noisy(target, 0.3, seed=2)}
    for name, module in modules.items():
        module.save_pretrained(tmp_path / name)
    return modules


@pytest.fixture
def session(store: Store, settings: Settings, modules: object, tmp_path: Path) -> Iterator[MovingTarget]:
    pair = load_pair(tmp_path / "one", tmp_path / "draft", device="cpu")
    with MovingTarget(pair, settings, store) as moving:
        yield moving


def test_sequences_go_on_in_another_engine_and_are_read_again(
    session: MovingTarget, modules: dict[str, object], tmp_path: Path
) -> None:
    """In whatever state they are: waiting, in prefill, decoding."""
    asked = [Request(prompt, LENGTH, ignore_eos=True) for prompt in prompts(5, seed=4, longest=60)]
    for request in asked:
        session.engine.submit(request)
    for _ in range(4):
        session.engine.step()
    rows = session.engine.hand_over()
    assert not session.engine.busy and len(rows) == 5
    had = {row.request.id: list(row.output) for row in rows}
    assert any(had.values()) and not all(had.values())
    engine = session.move(session.load(str(tmp_path / "two")))
    engine.take_over(rows)
    done = {one.request.id: one for one in finish(engine)}
    for request in asked:
        said = had[request.id]
        rest = alone(modules["two"], (*request.prompt_tokens, *said), LENGTH - len(said))
        assert list(done[request.id].tokens) == said + rest


def test_what_is_cancelled_before_it_was_read_again_ends_alone(session: MovingTarget, tmp_path: Path) -> None:
    asked = [Request(prompt, LENGTH, ignore_eos=True) for prompt in prompts(3, seed=4, longest=60)]
    for request in asked:
        session.engine.submit(request)
    while not all(row.rounds for row in session.engine.sequences):
        session.engine.step()
    rows = session.engine.hand_over()
    engine = session.move(session.load(str(tmp_path / "two")))
    engine.take_over(rows)
    engine.cancel(asked[0].id)
    reasons = {one.request.id: one.finish_reason for one in finish(engine)}
    assert reasons == {asked[0].id: "cancelled", asked[1].id: "length", asked[2].id: "length"}


def finish(engine: Engine) -> Iterator[Completion]:
    while engine.busy:
        yield from (each.completion for each in engine.step() if each.completion)


@pytest.mark.parametrize("requests", ["wait", "keep", "abort"])
def test_an_update_in_the_middle_of_streams(
    session: MovingTarget, modules: dict[str, object], store: Store, tmp_path: Path, requests: UnderWay
) -> None:
    """Random updates among running and waiting requests."""
    chance = random.Random(requests)

    async def serve() -> list[tuple[Request, list[int], str, str]]:
        answers = []
        async with decoding(session.engine, 64) as (client, thread):
            for name in ("two", "one"):
                pair = session.load(str(tmp_path / name))
                jobs = [make_job(LENGTH) for _ in range(5)]
                client.submit([job for job, _ in jobs])
                first = [await inbox.get() for _, inbox in jobs[: chance.randint(1, 3)]]
                move = TargetMove(lambda pair=pair: session.move(pair), lambda: session.engine, requests)  # type: ignore
                thread.move(move)
                engine = await asyncio.wrap_future(move.done)
                assert engine is session.engine and engine.swap.target == pair.target.digest  # type: ignore
                for number, (job, inbox) in enumerate(jobs):
                    pieces = first[number : number + 1]
                    pieces += [] if pieces and pieces[0].last else await ended(inbox)
                    tokens = [token for piece in pieces for token in piece.tokens]
                    answers.append((job.request, tokens, name, type(pieces[-1].error).__name__))
            session.engine.recorder.wait()  # type: ignore[union-attr]
        return answers

    order = {"two": "one", "one": "two"}
    for request, tokens, name, error in asyncio.run(serve()):
        old, new = modules[order[name]], modules[name]
        if error == TargetMoved.__name__:
            assert requests == "abort" and tokens == alone(old, request.prompt_tokens, LENGTH)[: len(tokens)]
            continue
        assert len(tokens) == LENGTH and error == "NoneType"
        cuts = range(LENGTH + 1) if requests == "keep" else (0, LENGTH)
        texts = (
            [*tokens[:cut], *alone(new, (*request.prompt_tokens, *tokens[:cut]), LENGTH - cut)]
            for cut in cuts
            if tokens[:cut] == alone(old, request.prompt_tokens, cut)
        )
        assert tokens in texts, "it is of neither target, nor of both"
    names = {pair_digest(tmp_path / name): module for name, module in modules.items()}
    for text in store.samples.read(store.samples.recent(limit=100)):
        assert store.targets.of_lines()[store.versions.get(text.draft_version).draft] == text.target
        said = text.tokens.tolist()
        for position, ids in zip(text.positions.tolist(), text.topk_ids[:, 0].tolist(), strict=True):
            assert [ids] == alone(names[text.target], tuple(said[:position]), 1), "a sample of another target"


def pair_digest(folder: Path) -> str | None:
    from osd.models.model_digest import model_digest

    return model_digest(str(folder))


def test_what_is_no_successor_is_refused_by_a_sentence(session: MovingTarget, tmp_path: Path) -> None:
    random_module("llama", vocabulary=60).save_pretrained(tmp_path / "words")
    random_module("qwen2").save_pretrained(tmp_path / "kind")
    shutil.copytree(tmp_path / "two", tmp_path / "ways")
    ways = json.loads((tmp_path / "ways" / "generation_config.json").read_text())
    (tmp_path / "ways" / "generation_config.json").write_text(json.dumps({**ways, "top_k": 5, "do_sample": True}))
    reasons = {
        "words": "its tokenizer is another", "kind": "it is a Qwen2ForCausalLM", "one": "it has the same files",
        "ways": "its generation_config.json is another",
    }  # fmt: skip
    for name, reason in reasons.items():
        with pytest.raises(TargetRefused, match=reason):
            session.load(str(tmp_path / name))
    assert session.engine.swap.target == session.pair.target.digest  # type: ignore[union-attr]


def test_what_passes_take_is_known_once_and_an_heir_is_expected_to_do_as_it_was_judged(
    session: MovingTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the engine before is gone, with its weights and caches."""
    costs, told, before = session.engine.costs, list[float](), weakref.ref(session.engine)
    monkeypatch.setattr("osd.gamma.planner.GammaPlanner.expect", lambda _, alpha: told.append(alpha))
    monkeypatch.setattr("osd.hotswap.drafts.Swap.judged_alpha", 0.4)
    monkeypatch.setattr("osd.engine.engine.probe", lambda *_: pytest.fail("these passes were timed"))
    assert session.move(session.load(str(tmp_path / "two"))).costs is costs and told == [0.4]
    gc.collect()
    assert before() is None


def test_what_does_not_begin_leaves_the_old_target(
    session: MovingTarget, modules: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, opened = session.load(str(tmp_path / "two")), session._open

    def failing(asked: Pair, before: Engine) -> Engine:
        if asked is pair:
            raise RuntimeError("no memory")
        return opened(asked, before)

    monkeypatch.setattr(session, "_open", failing)
    with pytest.raises(RuntimeError, match="no memory"):
        session.move(pair)
    (done,) = session.engine.run([Request((3, 5, 8), LENGTH, ignore_eos=True)])
    assert list(done.tokens) == alone(modules["one"], (3, 5, 8), LENGTH)
