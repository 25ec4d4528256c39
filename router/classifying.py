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
from router.rules import LabelGuess, Rules, Traits
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
        look: bool = False,
    ) -> None:
        """Compile the routes' rules. Raises BadSetting for routes without a unique name, BadPattern.

        ``least`` is the minimum confidence of a guess. ``look`` guesses language and topic even where no rule uses
        them.
        """
        self._directory, self._rules = Directory(routes, pins, aliases), Rules(routes)
        self._least = least
        self._languages = languages if look or self._rules.look_at("language") else None
        self._topics = topics if look or self._rules.look_at("topic") else None
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
        return Decision(route, _share(sure), reason, language=traits.language.label, topic=traits.topic.label)

    def traits(self, request: Request) -> Traits:
        """Return what is known of a request, and what is guessed where some rule uses it."""
        text = request.text or ""
        return Traits(request.tenant, text, self._language(request, text), self._topic(text))

    def observe(self, request: Request, decision: Decision, outcomes: Sequence[Outcome]) -> None:
        """Do nothing: outcomes say nothing about language or topic. See :meth:`router.base.Router.observe`."""

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
