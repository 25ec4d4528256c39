"""Models for routes: made when a rule asks for them, learned once from what was taught, and heard of like routes."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.base import Router
from router.classifier_models import ClassifierModels, learned_topics, model_folder, prepare
from router.live import builder, make_router
from storage.errors import ModelFileDamaged, UnknownRoute
from storage.records import Request, Route
from storage.routes.routes import RoutePlan
from storage.settings import Settings, load_settings
from storage.store import Store
from tests.router.test_live import ask
from tests.support.waiting import until

SQL = [("sql", text) for text in ("select all names", "join the two tables", "count rows by city", "drop that column")]
SOUP = [("soup", text) for text in ("boil the leeks", "add salt and pepper", "chop some carrots", "stir it gently")]
QUESTION = "count the rows of both tables by name"
TOPICS = RoutePlan((Route(), Route("sql", matches={"topic": ["sql"]})))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(storage={"directory": tmp_path / "data"}, router={"poll_seconds": 0.02})


def files(store: Store) -> list[str]:
    return sorted(path.name for path in model_folder(store).glob("*"))


def knows(router: Router, route: str) -> bool:
    try:
        return ask(router, route=route) == route
    except UnknownRoute:
        return False


def test_nothing_is_made_that_no_rule_asks_for(store: Store, settings: Settings) -> None:
    store.examples.teach(SQL + SOUP)
    for plan in (RoutePlan(), RoutePlan((Route(), Route("acme", matches={"tenant": ["acme"]})))):
        assert not builder(store, settings.router)(plan).reads_text
    assert files(store) == []


def test_topics_are_learned_once_and_again_when_more_is_taught(store: Store, settings: Settings) -> None:
    models = ClassifierModels(store, settings.router)
    assert models.topics() is None
    store.examples.teach(SQL + SOUP)
    model = models.topics()
    assert model is not None and model.predict(QUESTION).label == "sql"
    store.routes.pin("acme", "default")
    assert models.topics() is model
    first = files(store)
    store.examples.teach([("soup", "peel the potatoes")])
    assert models.topics() is not model
    assert len(files(store)) == 1 and files(store) != first
    for topic in ("sql", "soup"):
        store.examples.forget(topic)
    assert models.topics() is None


def test_the_same_examples_make_the_same_model(tmp_path: Path) -> None:
    one, other = learned_topics(tmp_path / "a", SQL + SOUP), learned_topics(tmp_path / "b", SQL + SOUP)
    read = learned_topics(tmp_path / "a", SQL + SOUP)
    for _, text in SQL + SOUP:
        assert one.predict(text) == other.predict(text)
        assert read.predict(text).label == one.predict(text).label
    assert learned_topics(tmp_path / "a", (SQL + SOUP)[1:]).labels == one.labels


def test_one_example_of_each_topic_is_enough_to_begin_with(tmp_path: Path) -> None:
    model = learned_topics(tmp_path, [SQL[0], SOUP[0]])
    assert (model.predict(SQL[0][1]).label, model.predict(SOUP[0][1]).label) == ("sql", "soup")


def test_a_damaged_or_unwritable_file_is_learned_anew(store: Store) -> None:
    prepare(store, SQL + SOUP)
    (path,) = model_folder(store).glob("*")
    path.write_bytes(path.read_bytes()[:-40])
    assert learned_topics(model_folder(store), SQL + SOUP).predict(QUESTION).label == "sql"
    assert learned_topics(Path("/proc/nowhere"), SQL + SOUP).predict(QUESTION).label == "sql"


def test_preparing_nothing_removes_what_was_there(store: Store) -> None:
    prepare(store, SQL)
    assert len(files(store)) == 1
    prepare(store, [])
    assert files(store) == []


def test_a_running_router_learns_what_is_taught(store: Store, settings: Settings) -> None:
    router = make_router(store, settings.router)
    store.routes.add(Route("sql", matches={"topic": ["sql"]}))
    until(lambda: knows(router, "sql"))
    assert (ask(router, QUESTION), router.reads_text) == ("default", False)  # nothing is taught yet
    store.examples.teach(SQL + SOUP)
    until(lambda: ask(router, QUESTION) == "sql")
    assert router.reads_text
    store.examples.forget("sql")
    until(lambda: ask(router, QUESTION) == "default")
    router.close()


@pytest.mark.parametrize(
    ("kind", "pinned", "by_rule"),
    [
        ("auto", "sql", "acme"),
        ("classifier", "sql", "acme"),
        ("pinned", "sql", "default"),
        ("fixed", "default", "default"),
    ],
)
def test_the_settings_choose_the_router(store: Store, settings: Settings, kind: str, pinned: str, by_rule: str) -> None:
    store.routes.add(Route("sql"))
    store.routes.add(Route("acme", matches={"tenant": ["acme"]}))
    store.routes.pin("beta", "sql")
    router = make_router(store, settings.router.model_copy(update={"kind": kind}))
    asked = ask(router, route="sql"), ask(router, tenant="beta"), ask(router, tenant="acme"), ask(router)
    assert asked == ("sql", pinned, by_rule, "default")
    router.close()


def test_languages_come_from_the_file_that_is_named(store: Store, settings: Settings, tmp_path: Path) -> None:
    plan = RoutePlan((Route(), Route("german", matches={"language": ["de"]})))
    router = builder(store, settings.router)(plan)
    decision = router.route(Request((), text="Wie spät ist es gerade, und wann fährt der nächste Zug nach Hause?"))
    assert (decision.name, decision.language) == ("german", "de")
    mine = settings.router.model_copy(update={"language_model": tmp_path / "nowhere.npz"})
    with pytest.raises(ModelFileDamaged, match=r"nowhere\.npz"):
        builder(store, mine)(plan)
