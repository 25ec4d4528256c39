"""LoRA adapters that a vLLM serves beside its model: what they answer has a route of its own, and teaches as such."""

from __future__ import annotations

from pathlib import Path

import pytest

from osd.attached.intake import AnswerRoutes
from osd.attached.samples import HarvestedAnswer
from storage.records import Route
from storage.settings import Settings
from storage.store import Store
from tests.osd.attached.conftest import Attached, ask, attached
from tests.support.fake_vllm import FakeEngine
from tests.support.waiting import until


def answer(adapter: str | None, route: str | None = None) -> HarvestedAnswer:
    facts = {"id": "12345678", "prompt": [3], "choices": [{"tokens": [4]}], "began": 0.0, "ended": 1.0}
    return HarvestedAnswer.model_validate({**facts, "adapter": adapter, "route": route})


def test_an_adapter_has_a_route_as_soon_as_it_answers(store: Store, folders: dict[str, Path]) -> None:
    for draft in ("sql", "other"):
        store.versions.register_root(draft, folders["draft"])
    store.routes.add(Route("sql", "sql"))
    store.routes.add(Route("tables", "other", {"model": ["org/tables"]}))
    store.routes.add(Route("narrow", "sql", {"model": ["poet v1"], "language": ["de"]}))
    routes = AnswerRoutes(store, "sql")
    assert routes.of(answer(None)) == "sql" and routes.of(answer(None, "narrow")) == "narrow"
    assert routes.of(answer("org/tables", "narrow")) == "tables", "though another draft is meant for it"
    assert [routes.of(answer(name)) for name in ("poet v1", "poet v1", "sql", "../..")] == [
        "poet-v1", "poet-v1", "sql", "adapter",
    ]  # fmt: skip
    made = store.routes.get("poet-v1")
    assert made.draft == "sql" and made.matches == {"model": ["poet v1"]}
    assert AnswerRoutes(store, "sql").of(answer("poet v1")) == "poet-v1"


def test_adapters_whose_names_make_one_routes_name_stay_apart(store: Store, folders: dict[str, Path]) -> None:
    store.versions.register_root("sql", folders["draft"])
    store.routes.add(Route("sql", "sql"))
    names = ("a/b", "a-b", "a b", "..", "//")
    routes = AnswerRoutes(store, "sql")
    made = [routes.of(answer(name)) for name in names]
    assert len(set(made)) == len(names) and made[0] == "a-b"
    assert [store.routes.get(route).matches for route in made] == [{"model": [name]} for name in names]
    assert [AnswerRoutes(store, "sql").of(answer(name)) for name in names] == made


def test_what_an_adapter_answers_is_kept_apart(home: Attached, fake: FakeEngine) -> None:
    fake.adapters["poet"] = "a LoRA request"
    home.attend()
    for model, prompt in (("poet", [7, 30, 41]), (None, [8, 30, 41]), ("target", [9, 30, 41])):
        ask(home.vllm, prompt, **({"model": model} if model else {}))
    until(lambda: len(home.request_ids()) == 3)
    until(lambda: sum(one.requests for one in home.store.samples.stats()) == 3)
    kept = {one.tokens[0]: one.route for one in home.store.samples.read(home.request_ids())}
    assert kept == {7: "poet", 8: "sql", 9: "sql"}
    assert {one.route for one in home.store.outcomes.recent()} == {"poet", "sql"}


def test_the_target_does_not_read_what_an_adapter_wrote(
    store: Store, settings: Settings, fake: FakeEngine, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.adapters["poet"] = "a LoRA request"
    reads = settings.changed(learn={"teacher": "recompute"})
    with attached(store, reads, fake, folders, monkeypatch) as home:
        home.attend()
        for model, prompt in (("poet", [7, 30, 41]), ("target", [9, 30, 41])):
            ask(home.vllm, prompt, model=model)
        until(lambda: len(home.request_ids()) == 2)
        until(lambda: sum(one.requests for one in store.samples.stats()) == 1)
        assert [one.tokens[0] for one in store.samples.read(home.request_ids())] == [9]
