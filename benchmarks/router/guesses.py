"""Accuracy of the language guess: whole sentences, short ones, mixed ones, and ones among code; and of the topic guess,
and how well it knows what it was never taught."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.router.folder import BenchSides, Rows, fraction
from benchmarks.router.train_languages import train_languages
from router.language import LanguageModel
from router.language_text import primary
from router.topic import TopicModel
from router.topic_training import train_topics

OUTSIDE = "oos"
"""clinc150's topic of what belongs to none."""
SURE = 0.5
"""Confidence below which the product's answer is the default route."""


@dataclass(frozen=True, slots=True)
class IntentGuess:
    """One test prompt's outcome."""

    right: bool
    inside: bool
    confidence: float
    outside: float


def measure_intents(
    sides: BenchSides, key: str, *, negatives: bool = True, calibrate: bool = True
) -> tuple[TopicModel | None, list[IntentGuess]]:
    """Return a model of clinc150's topics or labels, and its guesses on the other side.

    ``negatives``: whether out-of-scope prompts of the training side are learned, as belonging to no topic.
    ``calibrate``: whether confidence is fitted; the scores and labels are the same without.
    """
    learned, tested = sides.split("clinc150")
    rows = [row for row in learned if negatives or row.facts["topic"] != OUTSIDE]
    if not rows or not tested:
        return None, []
    model = train_topics([row.text for row in rows], [_label(row.facts, key) for row in rows], calibrate=calibrate)
    return model, guesses(model, tested, key)


def measure_banking(sides: BenchSides) -> float | None:
    """Return the accuracy on banking77's 77 intents."""
    learned, tested = sides.split("banking77")
    if not learned or not tested:
        return None
    texts, labels = [row.text for row in learned], [row.facts["label"] for row in learned]
    return accuracy(guesses(train_topics(texts, labels, calibrate=False), tested, "label"))


def guesses(model: TopicModel, rows: Rows, key: str) -> list[IntentGuess]:
    """Return the best label for every row, however unsure."""
    found = []
    for row in rows:
        truth, best = _label(row.facts, key), model.best(row.text)
        found.append(IntentGuess(best.label == truth, truth is not None, best.confidence, best.outside))
    return found


def intent_figures(found: list[IntentGuess]) -> dict[str, float | None]:
    """Return all that guesses of intents show."""
    return {
        "intent_accuracy_clinc150": accuracy(found), "oos_auroc": auroc(found), "unsure_inside": unsure(found, True),
        "unsure_outside": unsure(found, False),
    }  # fmt: skip


def accuracy(found: list[IntentGuess]) -> float | None:
    """Return the share of prompts that belong to some topic, whose best label is theirs."""
    inside = [guess.right for guess in found if guess.inside]
    return sum(inside) / len(inside) if inside else None


def auroc(found: list[IntentGuess]) -> float | None:
    """Return the chance that a prompt outside scores higher as outside than one inside does; 0.5 is no better than a
    coin."""
    from sklearn.metrics import roc_auc_score

    if len({guess.inside for guess in found}) < 2:
        return None
    return float(roc_auc_score([not guess.inside for guess in found], [guess.outside for guess in found]))


def unsure(found: list[IntentGuess], inside: bool) -> float | None:
    """Return the share of prompts, inside or outside, that goes to the default route."""
    kind = [guess.confidence < SURE for guess in found if guess.inside == inside]
    return sum(kind) / len(kind) if kind else None


def _label(facts: dict[str, str], key: str) -> str | None:
    return None if facts.get("topic") == OUTSIDE else facts[key]


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
    return model, {f"language_accuracy_{name}": language_accuracy(model, each) for name, each in sets.items()}


def language_accuracy(model: LanguageModel, pairs: Pairs) -> float | None:
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
