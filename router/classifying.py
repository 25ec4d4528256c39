"""The classifier router: matches the prompt's language and topic against the routes' rules.

In this order, the first that applies decides:

1. the route that the request names;
2. the route that its tenant, else everybody, is pinned to;
3. the most specific rule that holds (:mod:`router.rules`); the request's own language tag overrides detection;
4. the default route, which is the first.

Only traits that some rule uses are computed: without rules no text is read and nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from router.base import Decision
from router.directory import Directory
from router.language_tags import primary
from router.rules import PRECEDENCE, Contestant, LabelGuess, Rules, Traits
from storage.records import Outcome, Request, Route

LEAST = 0.5
"""Minimum confidence of a guess, unless the settings say otherwise."""
UNKNOWN = LabelGuess(None, 0.0)


class Guess(Protocol):
    """The result of a classifier."""

    @property
    def label(self) -> str | None:
        """The label; None where it is undecided."""

    @property
    def confidence(self) -> float:
        """Probability of the label, or of the best one where it is undecided, in [0, 1]."""


class Languages(Protocol):
    """A language detector."""

    def detect(self, text: str) -> Guess:
        """Detect a text's language, as ISO 639-1, else 639-3."""


class Topics(Protocol):
    """A topic classifier."""

    def predict(self, text: str) -> Guess:
        """Predict one of the topics that were taught."""

    def taught_in(self, topic: str) -> frozenset[str]:
        """Return the languages in which a topic was taught; empty where that is not known."""


class ClassifierRouter:
    """A router by rules over language, topic, tenant and pattern. Immutable apart from its classifiers; thread-safe."""

    def __init__(
        self,
        routes: Sequence[Route],
        pins: Mapping[str, str] | None = None,
        aliases: Mapping[str, str] | None = None,
        *,
        languages: Languages | None = None,
        topics: Topics | None = None,
        least: float = LEAST,
        precedence: Sequence[str] = PRECEDENCE,
        look: bool = False,
    ) -> None:
        """Compile the routes' rules. Raises BadSetting for routes without a unique name, BadPattern.

        ``least`` is the minimum confidence of a guess. ``precedence`` orders rules of as many conditions. ``look``
        guesses language and topic even where no rule uses them.
        """
        self._directory, self._rules = Directory(routes, pins, aliases), Rules(routes, precedence)
        self._least = least
        self._topics = topics if look or self._rules.look_at("topic") else None
        heard = look or self._topics is not None or self._rules.look_at("language")
        self._languages = languages if heard else None
        guesses = self._languages is not None or self._topics is not None
        self.reads_text = guesses or self._rules.look_at("pattern")

    def route(self, request: Request) -> Decision:
        """Return the route. See :meth:`router.base.Router.route`."""
        stated = self._directory.stated(request)
        if stated is not None or not (self._rules or self.reads_text):
            return stated or Decision(self._directory.default, reason="no rules")
        traits = self.traits(request)
        rule, sure, reason = self._rules.first(traits, self._least)
        route = self._directory.default if rule is None else rule.route
        topic = traits.topic.label if traits.topic.confidence >= self._least else None
        return Decision(route, _share(sure), reason, language=traits.language.label, topic=topic)

    def contest(self, request: Request) -> list[Contestant]:
        """Return what each rule makes of a request, the winner first; no names and pins, which come before rules."""
        return self._rules.contest(self.traits(request), self._least)

    def traits(self, request: Request) -> Traits:
        """Return what is known of a request, and what is guessed where some rule uses it."""
        text = request.text or ""
        language = self._language(request, text)
        return Traits(request.tenant, text, language, self._topic(text, language))

    def observe(self, request: Request, decision: Decision, outcomes: Sequence[Outcome]) -> None:
        """Do nothing: outcomes say nothing about language or topic. See :meth:`router.base.Router.observe`."""

    def _language(self, request: Request, text: str) -> LabelGuess:
        if request.language:
            return LabelGuess(primary(request.language), 1.0)
        return UNKNOWN if self._languages is None or not text.strip() else _seen(self._languages.detect(text))

    def _topic(self, text: str, language: LabelGuess) -> LabelGuess:
        if self._topics is None or not text.strip():
            return UNKNOWN
        guess = _seen(self._topics.predict(text))
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
    return LabelGuess(topic.label, topic.confidence * rest, spoken)


def _seen(guess: Guess) -> LabelGuess:
    return LabelGuess(guess.label, _share(guess.confidence))


def _share(value: float) -> float:
    return min(1.0, max(0.0, float(value)))
