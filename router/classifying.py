"""The router that reads: the prompt's language and topic, and the rules that people wrote down for them.

In this order, and what comes first is final:

1. the route that the request names;
2. the route that its tenant, else everybody, is pinned to;
3. the most specific rule that holds (:mod:`router.rules`); the request's own language tag comes before guessing;
4. the default route, which is the first.

Only what some rule asks for is looked at: without rules no text is read and nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from router.base import Decision
from router.directory import Directory
from router.language_tags import primary
from router.rules import LabelGuess, Rules, Traits
from storage.records import Outcome, Request, Route

LEAST = 0.5
"""Confidence from which a guess counts, unless the settings say otherwise."""
UNKNOWN = LabelGuess(None, 0.0)


class Guess(Protocol):
    """What a classifier says."""

    @property
    def label(self) -> str | None:
        """None where it cannot tell."""

    @property
    def confidence(self) -> float:
        """Of the label, or of the best one where it cannot tell. In [0, 1]."""


class Languages(Protocol):
    """Guesses a text's language."""

    def detect(self, text: str) -> Guess:
        """ISO 639-1, else 639-3."""


class Topics(Protocol):
    """Guesses a text's topic."""

    def predict(self, text: str) -> Guess:
        """One of the topics that were taught."""


class ClassifierRouter:
    """Immutable but for what its classifiers do; several threads may ask it at once."""

    def __init__(
        self,
        routes: Sequence[Route],
        pins: Mapping[str, str] | None = None,
        aliases: Mapping[str, str] | None = None,
        *,
        languages: Languages | None = None,
        topics: Topics | None = None,
        least: float = LEAST,
        look: bool = False,
    ) -> None:
        """``least``: the confidence from which a guess counts. ``look``: guess language and topic even where no rule
        asks. Raises BadSetting for routes without a name of their own, BadPattern."""
        self._directory, self._rules = Directory(routes, pins, aliases), Rules(routes)
        self._least = least
        self._languages = languages if look or self._rules.look_at("language") else None
        self._topics = topics if look or self._rules.look_at("topic") else None
        guesses = self._languages is not None or self._topics is not None
        self.reads_text = guesses or self._rules.look_at("pattern")

    def route(self, request: Request) -> Decision:
        """See :meth:`router.base.Router.route`."""
        stated = self._directory.stated(request)
        if stated is not None or not (self._rules or self.reads_text):
            return stated or Decision(self._directory.default, reason="no rules")
        traits = self.traits(request)
        rule, sure, reason = self._rules.first(traits, self._least)
        route = self._directory.default if rule is None else rule.route
        return Decision(route, _share(sure), reason, language=traits.language.label, topic=traits.topic.label)

    def traits(self, request: Request) -> Traits:
        """What is known of a request, and what is guessed where some rule asks for it."""
        text = request.text or ""
        return Traits(request.tenant, text, self._language(request, text), self._topic(text))

    def observe(self, request: Request, decision: Decision, outcomes: Sequence[Outcome]) -> None:
        """See :meth:`router.base.Router.observe`. How drafting went says nothing about language or topic."""

    def _language(self, request: Request, text: str) -> LabelGuess:
        if request.language:
            return LabelGuess(primary(request.language), 1.0)
        return UNKNOWN if self._languages is None or not text.strip() else _seen(self._languages.detect(text))

    def _topic(self, text: str) -> LabelGuess:
        return UNKNOWN if self._topics is None or not text.strip() else _seen(self._topics.predict(text))


def _seen(guess: Guess) -> LabelGuess:
    return LabelGuess(guess.label, _share(guess.confidence))


def _share(value: float) -> float:
    return min(1.0, max(0.0, float(value)))
