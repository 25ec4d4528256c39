"""The classifiers that routes' rules need: languages from a file, topics from taught examples.

Topics are learned anew from all taught examples, in their order, so every server gets the same model. Whoever
learned it first saves it in the data directory, under a name that identifies its examples, and the others load it.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from router.classifier import DEFAULTS, UNKNOWN, Languages
from router.features import Buckets
from router.topic import TopicModel
from storage.errors import ModelFileDamaged, StoreWriteFailed
from storage.files.files import make_folder, writing
from storage.routes.examples import Pairs
from storage.settings import RouterSettings
from storage.store import Store

if TYPE_CHECKING:
    from router.language import LanguageModel

FORMAT = 2
"""Version of the training, raised when the same examples would make another model."""
HEARD = 200
"""Examples of a topic whose language is looked at; each takes a tenth of a millisecond."""
SPOKEN = 0.02
"""Share of a topic's examples from which a language counts as taught: the detector errs in about one of a hundred."""


class ClassifierModels:
    """The classifiers of a store, each loaded when a plan first needs it and cached until its sources change."""

    def __init__(self, store: Store, settings: RouterSettings) -> None:
        self._store, self._settings = store, settings
        self._languages: LanguageModel | None = None
        self._topics: TopicModel | None = None
        self._taught = -1

    def languages(self) -> LanguageModel:
        """Return the language model that the settings name. Raises ModelFileDamaged."""
        from router.language import load_languages, shipped

        if self._languages is None:
            file = self._settings.language_model
            self._languages = shipped() if file is None else load_languages(file)
        return self._languages

    def topics(self) -> TopicModel | None:
        """Return the topic model; None where nothing was taught. Topics are taught in languages, which are looked at
        too. Raises ModelFileDamaged."""
        if self._taught != (taught := self._store.examples.revision()):
            self._topics = self._learned(self._store.examples.list(), self._store.background.list())
            self._taught = taught
        return self._topics

    def _learned(self, examples: Pairs, background: Sequence[Buckets]) -> TopicModel | None:
        if not examples:
            return None
        model = learned_topics(model_folder(self._store), examples, background)
        model.languages = spoken(examples, self.languages())
        return model


def model_folder(store: Store) -> Path:
    """Return the folder of learned models."""
    return store.directory / "router"


def learned_topics(folder: Path, examples: Pairs, background: Sequence[Buckets] = ()) -> TopicModel:
    """Return the model of (topic, text) pairs: loaded from ``folder`` if it is there, else learned and saved.

    ``background`` are features of prompts that may belong to no topic.
    """
    path = folder / f"topics-{digest_of(examples, background)[:16]}.npz"
    try:
        return TopicModel.load(path)
    except ModelFileDamaged:  # missing or damaged: the examples are at hand
        model = learn_topics(examples, background)
    try:
        with writing(folder):
            make_folder(folder, 0o700)
        model.save(path)
        remove_models(folder, but=path)
    except StoreWriteFailed:
        pass  # the next server learns it again
    return model


def prepare(store: Store, examples: Pairs) -> None:
    """Learn and save the model of examples about to be taught, so that no server has to while it serves."""
    if examples:
        learned_topics(model_folder(store), examples, store.background.list())
    else:
        remove_models(model_folder(store))


def learn_topics(examples: Pairs, background: Sequence[Buckets] = ()) -> TopicModel:
    """Learn a topic model; the same examples and background in the same order make the same model."""
    from router.topic_training import train_topics

    return train_topics([text for _, text in examples], [topic for topic, _ in examples], background)


def spoken(examples: Pairs, languages: Languages) -> dict[str, list[str]]:
    """Return topic -> the languages in which it was taught, most examples first, by its first HEARD examples.

    An example whose language is hard to tell counts for none.
    """
    found: dict[str, Counter[str]] = defaultdict(Counter)
    heard: Counter[str] = Counter()
    for topic, text in examples:
        heard[topic] += 1
        guess = languages.predict(text) if heard[topic] <= HEARD else UNKNOWN
        if guess.label is not None and guess.confidence >= DEFAULTS.min_confidence:
            found[topic][guess.label] += 1
    return {topic: [label for label, n in counts.most_common() if n >= SPOKEN * counts.total()]
            for topic, counts in found.items()}  # fmt: skip


def digest_of(examples: Pairs, background: Sequence[Buckets] = ()) -> str:
    """Compute the SHA-256 of what a model is made of, hexadecimal."""
    digest = hashlib.sha256(json.dumps([FORMAT, examples]).encode())
    for features in background:
        digest.update(features.tobytes() + b"\n")
    return digest.hexdigest()


def remove_models(folder: Path, but: Path | None = None) -> None:
    """Delete models of examples taught before, which hold traces of them; servers have theirs in memory."""
    for path in folder.glob("topics-*.npz"):
        if path != but:
            path.unlink(missing_ok=True)
