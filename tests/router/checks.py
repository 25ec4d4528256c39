"""What every router promises, whatever it is. ``check_<promise>(make)``; ``make`` builds a fresh router over ROUTES.

tests/router/test_checks.py runs the list over every router that there is; a new one is added there by one line.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from router.base import Decision, Router
from storage.errors import UnknownRoute
from storage.records import Outcome, Request, Route
from tests.storage.make import outcome

ROUTES = (
    Route("default", "base"),
    Route("sql", "sql-draft", {"topic": ["sql"]}, ("sql-small",)),
    Route("german", "german-draft", {"language": ["de"]}),
    Route("acme", "acme-draft", {"tenant": ["acme"], "pattern": r"\bticket\b"}),
)
NAMES = {route.name for route in ROUTES}
DRAFTS = {draft for route in ROUTES for draft in route.drafts}

TEXTS = {
    "none": None,
    "empty": "",
    "blank": " \n\t ",
    "sql": "SELECT name FROM people WHERE age > 30 ORDER BY name",
    "german": "Wie spät ist es, und wann fährt der nächste Zug nach Hause?",
    "long": "word and number 7, " * 50_000,
    "one word of a megabyte": "a" * 1_000_000,
    "controls": "\x00\x01\x1b[31m\x7f\ufeff",
    "lone surrogate": "bad \ud800 half",
    "mixed scripts": "सत्य ಸತ್ಯ 真実 حقيقة 🙂‍↔️ ǅ ﬀ",
    "combining": "e\u0301" * 3_000,
    "right to left": "\u202eabc\u202c",
}

Make = Callable[[], Router]


def request(text: str | None = "hello", **changes: object) -> Request:
    """The tokens do not say what the text does: no router may look at both."""
    return replace(Request(tuple(range(1, 12)), text=text), **changes)  # type: ignore[arg-type]


def outcomes(router: Router, asked: Request, decision: Decision) -> list[Outcome]:
    return [outcome(request_id=asked.id, route=decision.name, draft_version=f"{decision.draft}-000000-00000000")]


def is_sound(decision: Decision) -> bool:
    return (
        decision.name in NAMES
        and decision.draft in decision.route.drafts
        and 0.0 <= decision.confidence <= 1.0
        and isinstance(decision.reason, str)
        and bool(decision.reason)
        and all(0.0 <= each.alpha <= 1.0 and each.draft in DRAFTS for each in decision.estimates)
    )


def check_any_text_is_routed(make: Make) -> None:
    router = make()
    for name, text in TEXTS.items():
        assert is_sound(router.route(request(text))), name


def check_it_is_deterministic(make: Make) -> None:
    one, other = make(), make()
    for text in TEXTS.values():
        asked = request(text)
        assert one.route(asked) == one.route(asked) == other.route(asked)


def check_a_route_asked_for_by_name_is_taken(make: Make) -> None:
    for name in NAMES:
        decision = make().route(request(TEXTS["german"], route=name, tenant="acme", language="de"))
        assert (decision.name, decision.confidence, decision.reason) == (name, 1.0, "asked for by name")


def check_an_unknown_route_is_an_error_that_names_the_known(make: Make) -> None:
    with pytest.raises(UnknownRoute, match="'poetry'; known: acme, default, german, sql"):
        make().route(request(route="poetry"))


def check_what_says_nothing_takes_the_default(make: Make) -> None:
    for text in (None, "", "   "):
        decision = make().route(request(text))
        assert (decision.name, decision.draft) == ("default", "base")


def check_the_request_s_language_is_never_overruled(make: Make) -> None:
    """A router that looks at languages says the one given; none says another."""
    router = make()
    for tag, language in (("fi", "fi"), ("pt_BR", "pt"), ("yue", "yue")):
        assert router.route(request(TEXTS["german"], language=tag)).language in (None, language)
        assert router.route(request(TEXTS["german"], language=tag)).name != "german"


def check_tokens_decide_nothing(make: Make) -> None:
    router = make()
    short, long = request("hello"), replace(request("hello"), prompt_tokens=tuple(range(5_000)))
    assert router.route(short).name == router.route(long).name


def check_observing_answers_and_never_raises(make: Make) -> None:
    router = make()
    for text in TEXTS.values():
        asked = request(text)
        decision = router.route(asked)
        assert router.observe(asked, decision, outcomes(router, asked, decision)) is None
        assert router.observe(asked, decision, []) is None
    stranger = request("never routed")
    assert router.observe(stranger, Decision(), outcomes(router, stranger, Decision())) is None
    empty = replace(outcome(), drafted=0, accepted=0, rejections=0, emitted=0, rounds=0)
    assert router.observe(stranger, Decision(), [empty]) is None


def check_outcomes_do_not_change_routes_at_once(make: Make) -> None:
    """Routes are what people wrote; outcomes may choose among a route's drafts only."""
    router = make()
    asked = request(TEXTS["sql"])
    before = router.route(asked)
    for _ in range(50):
        router.observe(asked, before, outcomes(router, asked, before))
    assert router.route(asked).name == before.name


def check_threads_may_ask_at_once(make: Make) -> None:
    router = make()
    wanted = {name: router.route(request(text)).name for name, text in TEXTS.items()}
    wrong: list[object] = []

    def ask() -> None:
        try:
            for name, text in TEXTS.items():
                if (found := router.route(request(text)).name) != wanted[name]:
                    wrong.append((name, found))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def check_it_says_whether_it_reads_text(make: Make) -> None:
    """The engine decodes a prompt only for a router that reads it; one that does not must not care."""
    router = make()
    assert isinstance(router.reads_text, bool)
    if not router.reads_text:
        assert {router.route(request(text)).name for text in TEXTS.values()} == {"default"}


CHECKS = [check for name, check in sorted(globals().items()) if name.startswith("check_")]
