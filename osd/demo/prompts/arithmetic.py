"""Arithmetic word problems of two to four steps."""

from __future__ import annotations

import random

from osd.demo.prompts.words import words_of


def one(rng: random.Random) -> str:
    """Return one prompt."""
    kept = words_of("arithmetic")
    fillings = {
        "kin": "relatives", "goods": "goods", "box": "boxes", "place": "places", "beasts": "beasts", "day": "days",
        "share": "shares", "times": "times",
    }  # fmt: skip
    drawn = {key: rng.choice(kept[words]) for key, words in fillings.items()}
    people = dict(zip("pqr", rng.sample(kept["people"], 3), strict=True))
    return str(rng.choice(kept["stories"]).format(**drawn, **people, **_numbers(rng)))


def _numbers(rng: random.Random) -> dict[str, int]:
    return {
        "a": rng.randint(24, 96),
        "b": rng.randint(3, 22),
        "b0": rng.choice((20, 25, 40, 50)),
        "c": rng.randint(6, 30),
        "s": rng.randint(3, 12),
        "n": rng.randint(2, 6),
        "d": rng.randint(2, 9),
        "pc": rng.choice((5, 10, 20, 25, 50)),
        "big": rng.randint(20, 60) * 10,
    }
