"""Classifiers small enough to know by heart, for tests of what is made of their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from router.base import LabelGuess
from router.classifier import ClassifierRouter, Languages, Topics
from storage.records import Route
from storage.routes.routes import RoutePlan
from storage.settings import RouterSettings


@dataclass(frozen=True)
class Words:
    """The first word of the table that a text contains decides: word -> (label, confidence)."""

    table: dict[str, tuple[str | None, float]]
    taught: frozenset[str] = frozenset()
    """Languages in which topics were taught; nobody looked where it is empty."""

    def predict(self, text: str) -> LabelGuess:
        return next((LabelGuess(*said) for word, said in self.table.items() if word in text), LabelGuess(None, 0.0))

    def taught_in(self, topic: str) -> frozenset[str]:
        return self.taught


LANGUAGES = Words({"Wie": ("de", 0.9), "Hyvää": ("fi", 0.95), "maybe": ("de", 0.4), "unclear": (None, 0.3)})
TOPICS = Words({"SELECT": ("sql", 0.8), "func": ("go", 0.99), "perhaps": ("sql", 0.4)})


@dataclass(frozen=True)
class Known:
    """Both of them."""

    of_language: Languages | None = LANGUAGES
    of_topic: Topics | None = TOPICS

    def languages(self) -> Languages | None:
        return self.of_language

    def topics(self) -> Topics | None:
        return self.of_topic


def classifier(
    routes: Sequence[Route], classifiers: Known | None = Known(), *, pins: Mapping[str, str] | None = None,
    aliases: Mapping[str, str] | None = None, guess_all: bool = False, **settings: object,
) -> ClassifierRouter:  # fmt: skip
    """A router over routes, the first of which is the default."""
    plan = RoutePlan(tuple(routes), pins or {}, aliases or {})
    return ClassifierRouter(plan, classifiers, RouterSettings().model_copy(update=settings), guess_all=guess_all)
