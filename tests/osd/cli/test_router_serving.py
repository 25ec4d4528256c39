"""`osd router` from another process, while this one serves with the pair that ships with osd."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from osd.engine.engine import Engine
from osd.engine.session import serving
from osd.models.pair import load_pair
from osd.prompts import encode
from osd.sequence import Completion
from osd.server.start import SHIPPED
from storage.errors import UnknownRoute
from storage.records import Request
from storage.settings import Settings, load_settings
from storage.store import Store, open_store
from tests.support.waiting import until


@pytest.fixture
def settings(data: Path) -> Settings:
    kept = {"directory": data, "holdout": 0.0, "flush_requests": 1, "flush_seconds": 0.05}
    return load_settings(storage=kept, router={"poll_seconds": 0.05}, serve={"swap_poll_seconds": 0.05})


@pytest.fixture
def engine(settings: Settings) -> Iterator[Engine]:
    pair = load_pair(SHIPPED / "target", SHIPPED / "draft")
    with open_store(settings) as store, serving(pair, settings, store) as running:
        yield running


def serve(engine: Engine, text: str, **facts: str) -> Completion:
    request = Request(tuple(encode(engine.pair.tokenizer, text)), 6, **facts)  # type: ignore[arg-type]
    return next(iter(engine.run([request])))


def done(osd_process, *arguments: str) -> str:
    finished = osd_process("router", *arguments)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def knows(engine: Engine, route: str) -> bool:
    try:
        return serve(engine, "hello", route=route).route == route
    except UnknownRoute:
        return False


def test_a_server_takes_up_what_an_admin_does(osd_process, engine: Engine, settings: Settings) -> None:
    """A route with a draft of its own, its topic, its new name, its end: no restart, and no request fails."""
    assert serve(engine, "count the rows of the table").route == "default"
    done(osd_process, "add", "sql", "--new-draft", "--topic", "sql")
    until(lambda: knows(engine, "sql"))
    for text in ("select the names", "join these tables", "count all rows of orders"):
        done(osd_process, "teach", "sql", text)
    for text in ("boil an egg", "bake some bread", "cook the soup"):
        done(osd_process, "teach", "cooking", text)
    until(lambda: serve(engine, "count the rows of the tables").route == "sql")
    assert serve(engine, "bake the bread").route == "default"

    drafted = lambda: {outcome.draft_version.split("-")[0] for outcome in serve(engine, "hi", route="sql").outcomes}  # noqa: E731
    until(lambda: drafted() == {"sql"})  # the draft is loaded aside; until then another one guesses

    done(osd_process, "rename", "sql", "queries")
    assert serve(engine, "hello", route="sql").route in ("sql", "queries")  # a client that has not heard of it
    until(lambda: serve(engine, "count the rows of the tables").route == "queries")
    done(osd_process, "remove", "queries", "--yes")
    until(lambda: serve(engine, "count the rows of the tables").route == "default")
    with open_store(settings) as store:
        until(lambda: {row.by["route"] for row in store.outcomes.acceptance(by=["route"])} <= {"default", "queries"})


def test_a_new_draft_starts_from_the_nearest(osd_process, data: Path, settings: Settings, tmp_path: Path) -> None:
    """The shipped draft and the target itself as drafts: nothing guesses better than the target."""
    with open_store(settings) as store:
        store.versions.register_root("perfect", SHIPPED / "target")
        pair = load_pair(SHIPPED / "target", SHIPPED / "draft")
        with serving(pair, settings, store) as engine:
            for text in ("count the rows", "bake the bread", "name a planet"):
                serve(engine, text)
    done(osd_process, "add", "best", "--draft", "perfect")
    added = json.loads(done(osd_process, "add", "new", "--new-draft", "--from", "nearest", "--json"))
    with open_store(settings) as store:
        assert added["draft"] == "new"
        assert store.versions.current("new").digest == store.versions.current("perfect").digest


def adapter_over(model: Path, folder: Path, base: str | None = None) -> Path:
    """A fresh LoRA adapter, which says that it was trained over ``base``."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(model), LoraConfig(r=2, target_modules="all-linear"))
    adapted.save_pretrained(str(folder))
    (folder / "README.md").unlink(missing_ok=True)
    config = folder / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": base}))
    return folder


@pytest.fixture
def shipped(data: Path) -> Iterator[Store]:
    with open_store(load_settings(storage={"directory": data})) as store:
        store.versions.register_root("default", SHIPPED / "draft")
        yield store


def test_an_adapter_s_folder_becomes_a_draft_over_the_same_base(osd, shipped: Store, tmp_path: Path) -> None:
    base = shipped.versions.current("default")
    folder = adapter_over(SHIPPED / "draft", tmp_path / "mine", f"osd:{base.digest}")
    done = osd("router", "add", "mine", "--new-draft", "--from", folder)
    assert done.exit_code == 0, done.stderr
    version = shipped.versions.current("mine")
    assert (version.kind, version.number) == ("lora", 1)
    assert shipped.versions.lineage(version.id)[-1].digest == base.digest


@pytest.mark.parametrize(
    ("model", "base", "words"),
    [
        ("target", None, "does not stand over its draft's number 0: at model.layers.0"),
        ("draft", "osd:" + "0" * 64, "it was trained over weights 00000000…"),
    ],
)
def test_an_adapter_for_another_base_is_refused(
    osd, shipped: Store, tmp_path: Path, model: str, base: str | None, words: str
) -> None:
    folder = adapter_over(SHIPPED / model, tmp_path / "other", base)
    done = osd("router", "add", "mine", "--new-draft", "--from", folder)
    assert (done.exit_code, done.stdout) == (4, "") and words in done.stderr, done.stderr
    assert [route.name for route in shipped.routes.list()] == ["default"] and shipped.routes.revision() == 0
    assert {version.draft for version in shipped.versions.list()} == {"default"}
    assert [path.name for path in shipped.versions.weights_folder.iterdir()] == ["default"]


def test_an_acceptance_head_is_no_draft(osd, shipped: Store, tmp_path: Path) -> None:
    (tmp_path / "head").mkdir()
    (tmp_path / "head" / "acceptance_head.json").write_text("{}")
    done = osd("router", "add", "mine", "--new-draft", "--from", tmp_path / "head")
    assert done.exit_code == 2 and "which is no draft" in done.stderr
    assert [route.name for route in shipped.routes.list()] == ["default"]


def test_without_samples_there_is_no_nearest_draft(osd_process, filled) -> None:
    filled.store.samples.purge(everything=True)
    refused = osd_process("router", "add", "new", "--new-draft", "--from", "nearest")
    assert refused.returncode == 2 and "The nearest draft was not found: There are no samples" in refused.stderr
    assert [route.name for route in filled.store.routes.list()] == ["default"]
    assert filled.store.versions.list("new") == []
