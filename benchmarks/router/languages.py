"""Accuracy of the language guess: whole sentences, short ones, mixed ones, and ones among code."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.router.folder import BenchSides, Rows, fraction
from router.language import LanguageModel, train_languages
from router.language_text import primary

ENGLISH = 1500
"""English sentences learned from: tatoeba's translations, of which there are as many as sentences of all languages."""
MOST_SPOKEN = (
    "zh", "hi", "es", "ar", "fr", "bn", "pt", "ru", "ur", "id", "de", "ja", "arz", "mr", "vi", "te", "tr", "yue", "ta",
    "tl",
)  # fmt: skip
"""The 20 of tatoeba's 112 languages with most speakers, first and second language together (Ethnologue 2023; what
it has between them and tatoeba has not is left out, and English, which tatoeba has only as the translation)."""
Pairs = Sequence[tuple[str, str]]
"""Texts and their languages."""


def language_model(rows: Rows) -> LanguageModel:
    """Learn tatoeba's sentences, and some of their English translations."""
    english = sorted({row.facts["response"] for row in rows}, key=fraction)[-ENGLISH:]
    texts = [row.text for row in rows] + english
    return train_languages(texts, [row.facts["language"] for row in rows] + ["en"] * len(english))


def measure_languages(sides: BenchSides) -> tuple[LanguageModel | None, dict[str, float | None]]:
    """Return a model of the training side, and its accuracy on the other; None where the files for it are missing."""
    learned, tested = sides.split("tatoeba", "response")
    if not learned or not tested:
        return None, {}
    model = language_model(learned)
    pairs = [(row.text, row.facts["language"]) for row in tested]
    spoken = [pair for pair in pairs if primary(pair[1]) in MOST_SPOKEN]
    whole = [(row.text, row.facts["language"]) for row in sides.unlearned("xquad")]
    code = [row.facts["response"] for row in sides.unlearned("mbxp")]
    sets = {
        "all": pairs,
        "20": spoken,
        "xquad": whole,
        "xquad_question": [(text.rsplit("\n\n", 1)[-1], language) for text, language in whole],
        "short": [(short(text), language) for text, language in spoken],
        "mixed": mixed(spoken, tested),
        "code_fenced": among(code, spoken, "{text}\n\n```\n{code}\n```"),
        "code_bare": among(code, spoken, "{text}\n\n{code}"),
    }
    return model, {f"language_accuracy_{name}": accuracy(model, each) for name, each in sets.items()}


def accuracy(model: LanguageModel, pairs: Pairs) -> float | None:
    """Return the share that is guessed right; not to know is wrong."""
    if not pairs:
        return None
    return sum(model.predict(text).label == primary(language) for text, language in pairs) / len(pairs)


def short(text: str) -> str:
    """Return the first three words, or the first six characters where fewer words are written."""
    words = text.split()
    return " ".join(words[:3]) if len(words) > 2 else text[:6]


def mixed(pairs: Pairs, rows: Rows) -> Pairs:
    """Return each sentence with the first three words of another one's English translation in quotation marks after
    it."""
    return [
        (f'{text} "{short(rows[place * 7 % len(rows)].facts["response"])}"', language)
        for place, (text, language) in enumerate(pairs)
    ]


def among(code: list[str], pairs: Pairs, form: str) -> Pairs:
    """Return each sentence with a program after it. Nothing where there are no programs."""
    if not code:
        return []
    return [
        (form.format(text=text, code=code[place * 7 % len(code)]), language)
        for place, (text, language) in enumerate(pairs)
    ]
