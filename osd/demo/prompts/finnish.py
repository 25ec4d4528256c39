"""A second language: questions and small tasks in Finnish."""

from __future__ import annotations

import random

from osd.demo.prompts.words import words_of


def one(rng: random.Random) -> str:
    """Return one prompt."""
    kept = words_of("finnish")
    it, about = rng.choice(list(kept["topics"].items()))
    fillings = {"reader": rng.choice(kept["readers"]), "form": rng.choice(kept["forms"])}
    return str(rng.choice(kept["questions"]).format(it=it, about=about, **fillings))
