"""Which rule wins, what comes before rules, and how sure the router is."""

from __future__ import annotations

import itertools

import pytest

from router.base import Decision, LabelGuess
from router.classifier import ClassifierRouter
from router.fixed import FixedRouter
from storage.errors import BadPattern, BadSetting
from storage.records import DEFAULT_DRAFT, DEFAULT_ROUTE, Request, Route
from tests.router.words import LANGUAGES, TOPICS, Known, Words, classifier

GERMAN = "Wie geht es?"
SQL = "SELECT 1"


def ask(routes: list[Route], text: str | None, pins: dict[str, str] | None = None, **facts: str) -> tuple[str, float]:
    decision = classifier([Route(), *routes], pins=pins).route(Request((1,), text=text, **facts))  # type: ignore[arg-type]
    return decision.name, decision.confidence


def test_guesses_send_requests_to_routes() -> None:
    routes = [Route("sql", matches={"topic": ["sql", "db"]}), Route("german", matches={"language": ["de"]})]
    assert ask(routes, SQL) == ("sql", 0.8)
    assert ask(routes, GERMAN) == ("german", 0.9)
    assert ask(routes, "func main() {}")[0] == "default"


def test_an_unsure_guess_takes_the_default_and_says_how_sure() -> None:
    routes, asked = [Route(), Route("sql", matches={"topic": ["sql"]})], Request((1,), text="perhaps")
    decision = classifier(routes).route(asked)
    assert (decision.name, decision.confidence, decision.topic) == ("default", 0.6, None)
    assert decision.reason == "unsure: topic=sql at 0.40, 0.50 needed"
    assert classifier(routes, min_confidence=0.4).route(asked).name == "sql"


def test_how_sure_a_default_is() -> None:
    routes = [Route("sql", matches={"topic": ["sql"]})]
    assert ask(routes, "func") == ("default", 0.99)  # surely another topic
    assert ask(routes, "unclear") == ("default", 1.0)  # nothing speaks for the route
    assert ask([Route("german", matches={"language": ["de"]})], "unclear") == ("default", 0.7)
    assert ask([Route("acme", matches={"tenant": ["acme"]})], "func") == ("default", 1.0)


def test_metadata_comes_before_guessing() -> None:
    routes = [Route("german", matches={"language": ["de"]}), Route("finnish", matches={"language": ["fi"]})]
    assert ask(routes, GERMAN, language="fi") == ("finnish", 1.0)
    assert ask(routes, "Hyvää päivää", language="de-AT") == ("german", 1.0)
    assert ask(routes, GERMAN, language="sv") == ("default", 1.0)
    assert ask(routes, None, language="DE") == ("german", 1.0)


def test_a_name_comes_before_a_pin_and_a_pin_before_rules() -> None:
    routes = [Route("sql", matches={"topic": ["sql"]}), Route("a"), Route("b")]
    pins = {"acme": "a", "*": "b"}
    assert ask(routes, SQL, pins, tenant="acme", route="sql") == ("sql", 1.0)
    assert ask(routes, SQL, pins, tenant="acme") == ("a", 1.0)
    assert ask(routes, SQL, pins, tenant="other") == ("b", 1.0)
    assert ask(routes, SQL, {"acme": "gone"}, tenant="acme") == ("sql", 0.8)


def test_every_condition_must_hold() -> None:
    routes = [Route("both", matches={"topic": ["sql"], "tenant": ["acme"]})]
    assert ask(routes, SQL, tenant="acme") == ("both", 0.8)
    assert ask(routes, SQL, tenant="other") == ("default", 1.0)
    assert ask(routes, "func", tenant="acme") == ("default", 0.99)


@pytest.mark.parametrize(
    ("winner", "loser"),
    [
        ({"topic": ["sql"], "language": ["de"]}, {"tenant": ["acme"]}),  # more conditions
        ({"tenant": ["acme"]}, {"pattern": "SELECT"}),
        ({"pattern": "SELECT"}, {"topic": ["sql"]}),
        ({"topic": ["sql"]}, {"language": ["de"]}),
        ({"topic": ["sql"]}, {"topic": ["sql", "go"]}),  # the shorter list
        ({"tenant": ["acme"], "language": ["de"]}, {"tenant": ["acme"]}),
    ],
)
def test_the_more_specific_rule_wins_in_whatever_order(winner: dict[str, object], loser: dict[str, object]) -> None:
    routes = [Route("a", matches=loser), Route("z", matches=winner)]
    for order in (routes, routes[::-1]):
        assert ask(order, f"{SQL} {GERMAN}", tenant="acme")[0] == "z"


def test_equally_specific_rules_go_by_name() -> None:
    routes = [Route(name, matches={"topic": ["sql"]}) for name in "bca"]
    for order in itertools.permutations(routes):
        assert ask(list(order), SQL)[0] == "a"


def test_only_what_rules_ask_for_is_looked_at() -> None:
    class Refusing(Words):
        def predict(self, text: str) -> LabelGuess:
            raise AssertionError("nobody asked for this")

    def router(*routes: Route) -> ClassifierRouter:
        return classifier([Route(), *routes], Known(Refusing({}), Refusing({})))

    for routes in ([], [Route("acme", matches={"tenant": ["acme"]})], [Route("named")]):
        assert not router(*routes).reads_text
        assert router(*routes).route(Request((1,), text=SQL)).name == "default"
    pattern = router(Route("sql", matches={"pattern": "SELECT"}))
    assert pattern.reads_text and pattern.route(Request((1,), text=SQL)).name == "sql"


def test_looking_where_no_rule_asks() -> None:
    router = classifier([Route()], guess_all=True)
    decision = router.route(Request((1,), text=f"{SQL} {GERMAN}"))
    assert (decision.name, decision.language, decision.topic) == ("default", "de", "sql")


def test_a_former_name_leads_to_the_route() -> None:
    router = classifier([Route(), Route("new")], aliases={"old": "new"})
    assert router.route(Request((1,), route="old")).name == "new"


def test_patterns_are_found_in_any_text() -> None:
    routes = [Route("p", matches={"pattern": r"(?i)\bfunc\b"})]
    assert ask(routes, "a FUNC of x") == ("p", 1.0)
    assert ask(routes, "function") == ("default", 1.0)
    assert ask(routes, "\ud800 func \udfff") == ("p", 1.0)
    assert ask(routes, "x" * 30_000 + " func") == ("default", 1.0)  # beyond what is searched
    with pytest.raises(BadPattern):
        classifier([Route("p", matches={"pattern": "("})])


class CountedText(str):
    """A text, and the parts of it, that count how often they are encoded."""

    encoded = 0

    def __getitem__(self, key: object) -> CountedText:
        return CountedText(super().__getitem__(key))  # type: ignore[index]

    def encode(self, *arguments: str) -> bytes:  # type: ignore[override]
        CountedText.encoded += 1
        return super().encode(*arguments)


@pytest.mark.parametrize("count", [1, 2, 300])
def test_a_prompt_is_encoded_once_for_however_many_patterns(count: int) -> None:
    patterns = [Route(f"p{number}", matches={"pattern": f"ä{number}$"}) for number in range(count)]
    router, last = classifier([Route(), *patterns]), f"p{count - 1}"
    for text, found in (("ä" * 30_000, "default"), (f"ää{count - 1}", last), ("", "default")):
        CountedText.encoded = 0
        assert router.route(Request((1,), text=CountedText(text))).name == found
        assert CountedText.encoded <= 1


def test_a_pattern_that_would_stop_a_backtracking_engine_does_not_stop_this_one() -> None:
    """Python's re would take some 2^5000 steps here, so that this test ends is what it shows."""
    assert ask([Route("p", matches={"pattern": "^(a+)+$"})], "a" * 5_000 + "!") == ("default", 1.0)


def test_a_language_may_be_spelt_in_several_ways() -> None:
    for spelt in ("de", "deu"):
        assert ask([Route("german", matches={"language": [spelt]})], GERMAN) == ("german", 0.9)
        assert ask([Route("german", matches={"language": ["de"]})], None, language=spelt) == ("german", 1.0)


def test_a_rule_goes_by_the_model_that_a_request_names() -> None:
    router = classifier([Route(), Route("sql", matches={"model": ["sql-lora", "sql-2"]})])
    for model, route in (("sql-lora", "sql"), ("sql", "default"), ("", "default")):
        decision = router.route(Request((1,), model=model))
        assert decision.name == route and decision.confidence == 1.0
    assert router.route(Request((1,), model="sql-2")).reason == "model=sql-2"
    contest = router.contest(Request((1,), model="chat"))
    assert [(each.holds, each.why) for each in contest] == [(False, "model is chat, not sql-2 or sql-lora")]


def test_precedence_can_be_set() -> None:
    routes = [Route("sql", matches={"topic": ["sql"]}), Route("german", matches={"language": ["de"]})]
    text = f"{GERMAN} {SQL}"
    assert ask(routes, text)[0] == "sql"
    router = classifier([Route(), *routes], precedence=("tenant", "model", "pattern", "language", "topic"))
    assert router.route(Request((1,), text=text)).name == "german"


def test_a_contest_names_what_matched_and_lost_and_why() -> None:
    routes = [
        Route("sql", matches={"topic": ["sql"]}),
        Route("german", matches={"language": ["de"]}),
        Route("acme", matches={"tenant": ["acme"], "topic": ["sql"]}),
        Route("select", matches={"pattern": "SELECT [a-z]"}),
        Route("wide", matches={"topic": ["sql", "go"]}),
        Route("other", matches={"topic": ["sql"]}),
    ]
    router = classifier([Route(), *routes])
    contest = {each.route: (each.holds, each.why) for each in router.contest(Request((1,), text=f"{GERMAN} {SQL}"))}
    assert next(iter(contest)) == "other"
    assert contest == {
        "other": (True, "topic=sql"),
        "sql": (True, "topic=sql; but other comes first by name"),
        "wide": (True, "topic=sql; but other lists fewer values"),
        "german": (True, "language=de; but other goes by topic, which comes before language"),
        "acme": (False, "tenant is default, not acme"),
        "select": (False, "the pattern is not found"),
    }
    lost = router.contest(Request((1,), text="perhaps", tenant="acme"))
    assert {each.route: each.why for each in lost}["acme"] == "topic=sql at 0.40, 0.50 needed"
    won = router.contest(Request((1,), text=SQL, tenant="acme"))
    assert won[0].route == "acme" and won[1].why == "topic=sql; but acme has more conditions"


ENGLISH = frozenset({"en"})


@pytest.mark.parametrize(
    ("text", "sure", "route"),
    [
        ("The SELECT", 0.8, "sql"),
        ("Hyvää SELECT", 0.8 * 0.05, "finnish"),  # surely another language: nothing speaks for the topic
        ("maybe SELECT", 0.8 * 0.6, "default"),
        ("\u0905 SELECT", 0.0, "default"),  # no known language
        ("1 + 2", 0.9, "go"),  # no language at all
    ],
)
def test_a_language_that_was_not_taught_never_raises_a_topic(text: str, sure: float, route: str) -> None:
    topics = Words({**TOPICS.table, "1 + 2": ("go", 0.9)}, ENGLISH)
    languages = Words({**LANGUAGES.table, "The": ("en", 0.99)})
    routes = [Route("sql", matches={"topic": ["sql"]}), Route("finnish", matches={"language": ["fi"]})]
    router = classifier([Route(), *routes, Route("go", matches={"topic": ["go"]})], Known(languages, topics))
    assert router.traits(Request((1,), text=text)).topic.confidence == pytest.approx(sure)
    assert router.route(Request((1,), text=text)).name == route


def test_an_untaught_language_is_named_as_the_reason() -> None:
    routes = [Route("sql", matches={"topic": ["sql"]})]
    router = classifier([Route(), *routes], Known(LANGUAGES, Words(TOPICS.table, ENGLISH)))
    decision = router.route(Request((1,), text="Wie SELECT"))
    assert decision.reason == "unsure: topic=sql at 0.08, 0.50 needed (it was taught in en, and this is de)"
    assert decision.topic is None


def test_without_a_wish_the_first_route_is_taken() -> None:
    routes = (Route("sql", "sql-draft"), Route("chat", "chat-draft"))
    assert FixedRouter(routes).route(Request((1,))) == Decision(routes[0])
    decision = FixedRouter().route(Request((1, 2)))
    assert (decision.name, decision.draft, decision.confidence) == (DEFAULT_ROUTE, DEFAULT_DRAFT, 1.0)


@pytest.mark.parametrize("routes", [(), (Route("a"), Route("a", "other"))])
def test_no_route_or_two_of_one_name_is_refused(routes: tuple[Route, ...]) -> None:
    with pytest.raises(BadSetting):
        FixedRouter(routes)
