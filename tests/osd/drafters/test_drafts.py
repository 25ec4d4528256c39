"""Many drafts from a store: they come while requests run, are exchanged, share weights, and leave when they should."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from osd.engine.engine import Engine
from osd.engine.session import serving
from osd.hotswap.drafts import Swap
from osd.models.pair import Pair
from osd.sequence import Completion
from router.fixed import FixedRouter
from storage.records import DraftVersion, Request, Route, VersionState
from storage.settings import Settings, load_settings
from storage.store import Store
from tests.support.adapters import LINEAR, adapt, lora, save
from tests.support.models import alone, model_of, noisy, prompts, random_module


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    serve = {"max_batch": 3, "max_length": 96, "swap_poll_seconds": 0.02}
    gamma = {"rule": "fixed", "initial": 3}
    return load_settings(storage={"directory": tmp_path / "data"}, serve=serve, gamma=gamma)


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    target = random_module("llama")
    draft = noisy(target, 0.3)
    draft.save_pretrained(tmp_path / "draft")
    return Pair(model_of(target), model_of(draft, str(tmp_path / "draft")), None, frozenset())


def add_full(store: Store, draft: str, module: Any, tmp_path: Path) -> DraftVersion:
    """A draft whose number 0 is this module, on a route of its name."""
    module.save_pretrained(tmp_path / f"{draft}-root")
    root = store.versions.register_root(draft, tmp_path / f"{draft}-root")
    return route_to(store, draft, root)


def route_to(store: Store, draft: str, version: DraftVersion) -> DraftVersion:
    if draft not in {route.name for route in store.routes.list()}:
        store.routes.add(Route(draft, draft=draft))
    return version


def add_adapter(store: Store, draft: str, pair: Pair, seed: int, size: float = 0.1) -> DraftVersion:
    """A draft whose number 0 is the pair's draft, with a random adapter over it that serves."""
    root = store.versions.register_root(draft, Path(pair.draft.name))
    version = stage_adapter(store, root, pair, seed, size)
    return route_to(store, draft, version)


def stage_adapter(store: Store, parent: DraftVersion, pair: Pair, seed: int, size: float = 0.1) -> DraftVersion:
    peft = adapt(pair.draft.module, lora(LINEAR["llama"]), seed, size)
    staged = store.versions.stage(parent.draft, parent.id, "lora", lambda folder: save(peft, folder))
    return store.versions.promote(staged.id)


@contextmanager
def by_hand(store: Store, settings: Settings, pair: Pair) -> Iterator[Engine]:
    """An engine whose swap looks when the test says so."""
    swap = Swap(store, "default", pair, settings, "test")
    swap.close()
    yield Engine(pair, settings, router=FixedRouter(routes(store)), swap=swap)


def routes(store: Store) -> list[Route]:
    return sorted(store.routes.list(), key=lambda route: route.name != "default")


def look(engine: Engine) -> None:
    """One look of the swap's thread, and a step that takes what it found."""
    assert engine.swap is not None
    engine.swap._poll()
    engine.step()


def serve(engine: Engine, names: list[str], tokens: int = 16) -> list[Completion]:
    """A request for each route; every text is the target's own."""
    texts = prompts(len(names), seed=len(names))
    done = {c.request.id: c for c in engine.run(Request(p, tokens, route=n) for p, n in zip(texts, names, strict=True))}
    for c in done.values():
        assert list(c.tokens) == alone(engine.pair.target.module, c.request.prompt_tokens, tokens)
    return list(done.values())


def versions(done: list[Completion]) -> dict[str, set[str]]:
    return {c.route: {o.draft_version for o in c.outcomes} for c in done}


def test_a_draft_that_is_not_here_is_fetched_while_the_default_one_serves(
    store: Store, settings: Settings, pair: Pair, tmp_path: Path
) -> None:
    sql = add_full(store, "sql", noisy(pair.target.module, 0.02, seed=5), tmp_path)
    german = add_adapter(store, "german", pair, 1)
    with by_hand(store, settings, pair) as engine:
        root = store.versions.current("default")
        found = versions(serve(engine, ["sql", "german", "default"]))
        assert list(found.values()) == [{root.id}] * 3
        assert engine.stats.stood_in == 2
        look(engine)
        found = versions(serve(engine, ["sql", "german", "default"]))
        assert found == {"sql": {sql.id}, "german": {german.id}, "default": {root.id}}
        assert engine.stats.stood_in == 2 and len(engine.stats.swap_pause_ms) == 1
        look(engine)
        assert store.versions.served_by("test") == {"sql": sql.id, "german": german.id}  # default: closed by hand


def test_each_draft_goes_on_to_its_own_newer_versions_in_the_midst_of_requests(
    store: Store, settings: Settings, pair: Pair, tmp_path: Path
) -> None:
    sql, german = (
        add_full(store, "sql", noisy(pair.target.module, 0.5), tmp_path),
        add_adapter(store, "german", pair, 1),
    )
    with by_hand(store, settings, pair) as engine:
        look(engine)
        asked = [Request(p, 40, route=n) for p, n in zip(prompts(3), ("sql", "german", "default"), strict=True)]
        for request in asked:
            engine.submit(request)
        for _ in range(3):
            engine.step()
        better = store.versions.stage("sql", sql.id, "full", noisy(pair.target.module, 0.01).save_pretrained)
        store.versions.promote(better.id)
        newer = stage_adapter(store, german, pair, 7)
        look(engine)
        done = list(engine.run([]))
        for c in done:
            assert list(c.tokens) == alone(pair.target.module, c.request.prompt_tokens, 40)
        assert {c.route: [o.draft_version for o in c.outcomes] for c in done} == {
            "sql": [sql.id, better.id],
            "german": [german.id, newer.id],
            "default": [store.versions.current("default").id],
        }


def test_drafts_forked_from_one_base_hold_it_once(store: Store, settings: Settings, pair: Pair) -> None:
    names = ["a", "b", "c"]
    for seed, name in enumerate(names):
        add_adapter(store, name, pair, seed)
    bare = store.versions.register_root("bare", Path(pair.draft.name))
    route_to(store, "bare", bare)
    with by_hand(store, settings, pair) as engine:
        before = engine.draft_manager.residence.bytes()
        look(engine)
        memory = engine.draft_manager.memory()
        own = memory["default"]
        full = sum(p.numel() * 4 for p in pair.draft.module.parameters())
        assert (own.kind, own.weight_bytes, own.shared_bytes) == ("full", full, 0)
        assert {loaded.body for loaded in engine.pool.loaded_drafts.values()} == {engine.pool.default.body}
        assert engine.draft_manager.residence.bytes() == before + sum(memory[name].weight_bytes for name in names)
        assert all(memory[n].kind == "lora" and memory[n].shared_bytes >= full for n in names)
        assert versions(serve(engine, ["bare", "a"]))["bare"] == {bare.id}


def test_a_base_that_learns_leaves_its_weights_to_the_adapters(store: Store, settings: Settings, pair: Pair) -> None:
    """The default draft's next version is other weights: it gets a body of its own, the adapters keep the old one."""
    german = add_adapter(store, "german", pair, 1)
    with by_hand(store, settings, pair) as engine:
        look(engine)
        root = store.versions.current("default")
        learnt = store.versions.stage("default", root.id, "full", noisy(pair.target.module, 0.01).save_pretrained)
        store.versions.promote(learnt.id)
        look(engine)
        assert versions(serve(engine, ["german", "default"])) == {"german": {german.id}, "default": {learnt.id}}
        bodies = [engine.pool.loaded_drafts[name].body for name in ("german", "default")]
        assert bodies[0] is not bodies[1] and engine.pool.default is engine.pool.loaded_drafts["default"]
        back = store.versions.rollback("default", "test")
        look(engine)
        assert versions(serve(engine, ["default"])) == {"default": {back.id}}
        assert engine.pool.default.body is bodies[0]


def test_an_adapter_for_another_base_is_refused_and_the_old_version_serves(
    store: Store, settings: Settings, pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    german = add_adapter(store, "german", pair, 1)
    with by_hand(store, settings, pair) as engine:
        look(engine)
        wrong = stage_adapter(store, german, replace(pair, draft=model_of(wide_module())), 2)
        with caplog.at_level(logging.ERROR):
            look(engine)
        assert f"The adapter {wrong.id} does not stand over its draft's number 0" in caplog.text
        assert versions(serve(engine, ["german"])) == {"german": {german.id}}
        look(engine)
        assert caplog.text.count(wrong.id) == 1 and store.versions.get(wrong.id).state is VersionState.QUARANTINED
        assert store.versions.current("german").id == german.id


def wide_module() -> Any:
    """A llama of another width."""
    import transformers as tf

    from tests.support.models import LLAMA

    return tf.AutoModelForCausalLM.from_config(tf.LlamaConfig(**{**LLAMA, "hidden_size": 48})).requires_grad_(False)


def test_a_draft_of_another_vocabulary_is_refused(
    store: Store, settings: Settings, pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add_full(store, "other", random_module("llama", vocabulary=50), tmp_path)
    with by_hand(store, settings, pair) as engine:
        look(engine)
        assert "do not share a vocabulary" in caplog.text and "other" not in engine.pool.loaded_drafts
        assert versions(serve(engine, ["other"])) == {"other": {store.versions.current("default").id}}


def test_the_budget_evicts_who_served_longest_ago_never_who_serves_nor_the_default(
    store: Store, settings: Settings, pair: Pair, tmp_path: Path
) -> None:
    names = ["a", "b", "c"]
    for seed, name in enumerate(names):
        add_full(store, name, noisy(pair.target.module, 0.1 + seed / 10), tmp_path)
    with by_hand(store, settings, pair) as engine:
        draft_manager = engine.draft_manager
        look(engine)
        serve(engine, ["a"])
        serve(engine, ["c", "default"])
        serve(engine, ["b"])
        whole = draft_manager.residence.bytes()
        draft_manager.residence.budget = whole  # from now on one too many
        add_full(store, "d", noisy(pair.target.module, 0.7), tmp_path)
        engine.admission.router = FixedRouter(routes(store))
        look(engine)
        assert sorted(engine.pool.loaded_drafts) == ["b", "c", "d", "default"]  # a was idle the longest
        assert draft_manager.residence.bytes() <= whole
        look(engine)
        assert sorted(store.versions.served_by("test")) == ["b", "c", "d"]
        request = Request(prompts(1)[0], 30, route="b")
        engine.submit(request)
        engine.step()
        draft_manager.residence.budget = draft_manager.residence._bytes(
            [engine.pool.default, engine.pool.loaded_drafts["b"]]
        )
        draft_manager.want("a")
        look(engine)
        assert sorted(engine.pool.loaded_drafts) == ["b", "default"]  # all idle ones left, and still a found no room
        draft_manager.want("a")
        assert "a" not in engine.swap.names()  # it is not fetched again and again while nothing changes
        (done,) = engine.run([])
        assert {o.draft_version for o in done.outcomes} == {store.versions.current("b").id}
        draft_manager.want("a")
        look(engine)
        assert sorted(engine.pool.loaded_drafts) == ["a", "default"]
        draft_manager.residence.budget = 1
        draft_manager.want("b")
        look(engine)
        draft_manager.want("b")
        look(engine)
        assert "b" not in engine.pool.loaded_drafts and store.versions.current("b").id in engine.swap._refused


def test_a_draft_that_no_route_names_leaves_and_its_rows_keep_it_to_their_end(
    store: Store, settings: Settings, pair: Pair
) -> None:
    german = add_adapter(store, "german", pair, 1)
    with by_hand(store, settings, pair) as engine:
        look(engine)
        request = Request(prompts(1)[0], 30, route="german")
        engine.submit(request)
        engine.step()
        adapter = weakref.ref(engine.pool.loaded_drafts["german"].adapter)
        store.routes.remove("german")
        look(engine)
        assert "german" not in engine.pool.loaded_drafts and adapter() is not None
        (done,) = engine.run([])
        assert {r.draft_version for r in done.rounds} == {german.id} and len(done.tokens) == 30
        gc.collect()
        assert adapter() is None
        look(engine)
        assert "german" not in store.versions.served_by("test")


def test_ten_adapters_come_are_exchanged_and_leave_under_load_and_memory_is_where_it_was(
    store: Store, settings: Settings, pair: Pair
) -> None:
    """The real thread, requests all the while, each text the target's own."""
    names = [f"a{i}" for i in range(10)]
    with serving(pair, settings, store) as engine:
        assert len(serve(engine, ["default"] * 3)) == 3
        before = engine.draft_manager.residence.bytes()
        kept: dict[str, weakref.ref[Any]] = {}
        for seed, name in enumerate(names):
            add_adapter(store, name, pair, seed)
        engine.admission.router = FixedRouter(routes(store))
        first = served_until(engine, names, store)
        for name in names:
            kept[name] = weakref.ref(engine.pool.loaded_drafts[name].adapter)
        assert engine.draft_manager.residence.bytes() > before
        for seed, name in enumerate(names):
            stage_adapter(store, store.versions.current(name), pair, 20 + seed)
        second = served_until(engine, names, store)
        assert first.isdisjoint(second) and len(first) == len(second) == 10
        for name in names:
            store.routes.remove(name)
        engine.admission.router = FixedRouter(routes(store))
        for _ in range(400):
            serve(engine, ["default"])
            if list(engine.pool.loaded_drafts) == ["default"]:
                break
        gc.collect()
        assert engine.draft_manager.residence.bytes() == before
        assert not any(ref() for ref in kept.values())
        assert [len(body.rows) for body in engine.pool.busy] == []


def served_until(engine: Engine, names: list[str], store: Store) -> set[str]:
    """Requests for all of them, until each is served by its current version from the first token on."""
    wanted = {name: {store.versions.current(name).id} for name in names}
    for _ in range(100):
        if versions(serve(engine, names, 6)) == wanted:
            break
    else:
        raise AssertionError("the versions never came")
    return {version for (version,) in wanted.values()}


def test_a_draft_whose_route_goes_while_it_is_fetched_does_not_come(
    store: Store, settings: Settings, pair: Pair
) -> None:
    add_adapter(store, "german", pair, 1)
    with by_hand(store, settings, pair) as engine:
        assert engine.swap is not None
        engine.swap._poll()
        store.routes.remove("german")
        engine.swap._poll()
        assert engine.swap.gone == {"german"}
        engine.step()
        look(engine)
        assert list(engine.pool.loaded_drafts) == ["default"] and list(engine.swap.names()) == ["default"]


def test_a_model_that_fails_in_a_way_of_its_own_is_refused_and_the_others_are_followed(
    store: Store, settings: Settings, pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    odd = add_adapter(store, "odd", pair, 1)
    german = add_adapter(store, "sound", pair, 2)
    with by_hand(store, settings, pair) as engine:
        assert engine.swap is not None
        load = engine.swap.load

        def breaks(version: DraftVersion) -> Any:
            return load(version) if version.draft == "sound" else [][0]

        monkeypatch.setattr(engine.swap, "load", breaks)
        look(engine)
        look(engine)
        assert caplog.text.count(f"{odd.id} could not be loaded") == 1
        assert versions(serve(engine, ["odd", "sound"]))["sound"] == {german.id}
