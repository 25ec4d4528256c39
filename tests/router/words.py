"""Classifiers small enough to know by heart, for tests of what is made of their answers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Said:
    """A guess."""

    label: str | None
    confidence: float


@dataclass(frozen=True)
class Words:
    """The first word of the table that a text contains decides: word -> (label, confidence)."""

    table: dict[str, tuple[str | None, float]]

    def detect(self, text: str) -> Said:
        return next((Said(*said) for word, said in self.table.items() if word in text), Said(None, 0.0))

    predict = detect

    def taught_in(self, topic: str) -> frozenset[str]:
        """Return nothing: nobody looked in which languages."""
        return frozenset()


LANGUAGES = Words({"Wie": ("de", 0.9), "Hyvää": ("fi", 0.95), "maybe": ("de", 0.4), "unclear": (None, 0.3)})
TOPICS = Words({"SELECT": ("sql", 0.8), "func": ("go", 0.99), "perhaps": ("sql", 0.4)})
