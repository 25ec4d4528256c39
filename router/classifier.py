"""The classifier router: matches the prompt's language and topic against the routes' rules.

In this order, the first that applies decides:

1. the route that the request names;
2. the route that its tenant, else everybody, is pinned to;
3. the most specific rule that holds (:mod:`router.rules`); the request's own language tag overrides detection;
4. the default route, which is the first.

Only traits that some rule uses are computed: without rules no text is read and nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from router.base import Decision, LabelGuess
from router.fixed import FixedRouter
from router.language_text import primary
from router.rules import Contestant, Rules, Traits
from storage.records import Outcome, Request
from storage.routes.matches import searched
from storage.routes.routes import RoutePlan
from storage.settings import RouterSettings

DEFAULTS = RouterSettings()
UNKNOWN = LabelGuess(None, 0.0)


class Languages(Protocol):
    """A language detector."""

    def predict(self, text: str) -> LabelGuess:
        """Detect a text's language, as ISO 639-1, else 639-3."""


class Topics(Protocol):
    """A topic classifier."""

    def predict(self, text: str) -> LabelGuess:
        """Predict one of the topics that were taught."""

    def taught_in(self, topic: str) -> frozenset[str]:
        """Return the languages in which a topic was taught; empty where that is not known."""


class Classifiers(Protocol):
    """The classifiers that there are, each loaded when it is asked for."""

    def languages(self) -> Languages | None:
        """Return the language detector. Raises ModelFileDamaged."""

    def topics(self) -> Topics | None:
        """Return the topic classifier; None where nothing was taught. Raises ModelFileDamaged."""


class ClassifierRouter:
    """A router by rules over language, topic, tenant and pattern. Immutable apart from its classifiers; thread-safe."""

    def __init__(
        self,
        plan: RoutePlan,
        classifiers: Classifiers | None = None,
        settings: RouterSettings = DEFAULTS,
        *,
        guess_all: bool = False,
    ) -> None:
        """Compile the routes' rules. Raises BadSetting for routes without a unique name, BadPattern, ModelFileDamaged.

        With ``guess_all`` language and topic are guessed even where no rule uses them.
        """
        self._fixed = FixedRouter(plan.routes, plan.pins, plan.aliases)
        self._rules, self._least = Rules(plan.routes, settings.precedence), settings.min_confidence
        self._languages: Languages | None = None
        self._topics: Topics | None = None
        if classifiers is not None and (guess_all or self._rules.use("topic")):
            self._topics = classifiers.topics()
        if classifiers is not None and (guess_all or self._topics is not None or self._rules.use("language")):
            self._languages = classifiers.languages()
        guesses = self._languages is not None or self._topics is not None
        self.reads_text = guesses or self._rules.use("pattern")

    def route(self, request: Request) -> Decision:
        """Return the route. See :meth:`router.base.Router.route`."""
        stated = self._fixed.stated(request)
        if stated is not None or not (self._rules or self.reads_text):
            return stated or Decision(self._fixed.default, reason="no rules")
        traits = self.traits(request)
        rule, sure, reason = self._rules.first(traits, self._least)
        route = self._fixed.default if rule is None else rule.route
        topic = traits.topic.label if traits.topic.confidence >= self._least else None
        return Decision(route, sure, reason, language=traits.language.label, topic=topic)

    def contest(self, request: Request) -> list[Contestant]:
        """Return what each rule makes of a request, the winner first; no names and pins, which come before rules."""
        return self._rules.contest(self.traits(request), self._least)

    def traits(self, request: Request) -> Traits:
        """Return what is known of a request, and what is guessed where some rule uses it."""
        text = request.text or ""
        language = self._language(request, text)
        return Traits(request.tenant, request.model, searched(text), language, self._topic(text, language))

    def observe(self, request: Request, decision: Decision, outcomes: Sequence[Outcome]) -> None:
        """Do nothing: outcomes say nothing about language or topic. See :meth:`router.base.Router.observe`."""

    def _language(self, request: Request, text: str) -> LabelGuess:
        if request.language:
            return LabelGuess(primary(request.language), 1.0)
        return UNKNOWN if self._languages is None or not text.strip() else self._languages.predict(text)

    def _topic(self, text: str, language: LabelGuess) -> LabelGuess:
        if self._topics is None or not text.strip():
            return UNKNOWN
        guess = self._topics.predict(text)
        if self._languages is None or guess.label is None or not any(map(str.isalpha, text)):
            return guess
        return within_languages(guess, self._topics.taught_in(guess.label), language)


def within_languages(topic: LabelGuess, taught: frozenset[str], language: LabelGuess) -> LabelGuess:
    """Return P(topic) P(its language is one that the topic was taught in).

    What a topic's examples say of a language that none of them was in is nothing: shared names and digits make any
    such text look alike. A language that cannot be told counts as one that was not taught.
    """
    if not taught or language.label in taught:
        return topic
    spoken = f"it was taught in {', '.join(sorted(taught))}, and this is {language.label or 'in no known language'}"
    rest = 0.0 if language.label is None else 1 - language.confidence
    return replace(topic, confidence=topic.confidence * rest, doubt=spoken)
