"""The models that routes' rules ask for: languages from a file, topics from what was taught.

Topics are learned anew from all taught examples, in their order, so every server comes to the same model. Whoever
learned it first leaves it in the data directory, under a name that says what it was learned from, and the rest read it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from router.classifying import Languages, Topics
from router.topic import TopicModel
from storage.errors import ModelFileDamaged, StoreWriteFailed
from storage.files.files import make_folder, writing
from storage.routes.examples import Pairs
from storage.routes.routes import RoutePlan
from storage.settings import Settings
from storage.store import Store

FORMAT = 1
"""Counted up when the same examples would make another model."""


class Classifiers:
    """Models, each loaded when a plan first asks for it and kept until what it was made of changes."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store, self._settings = store, settings
        self._languages: Languages | None = None
        self._topics: Topics | None = None
        self._taught = -1

    def languages(self, plan: RoutePlan, look: bool = False) -> Languages | None:
        """The language model, where some route asks for languages. Raises ModelFileDamaged."""
        if not (look or _asks(plan, "language")):
            return None
        if self._languages is None:
            self._languages = _languages(self._settings.router.language_model)
        return self._languages

    def topics(self, plan: RoutePlan, look: bool = False) -> Topics | None:
        """The taught topics, where some route asks for topics; None where nothing was taught."""
        if not (look or _asks(plan, "topic")):
            return None
        if self._taught != (taught := self._store.examples.revision()):
            self._topics = self._learned(self._store.examples.list())
            self._taught = taught
        return self._topics

    def _learned(self, examples: Pairs) -> TopicModel | None:
        return learned_topics(model_folder(self._store), examples) if examples else None


def _languages(file: Path | None) -> Languages:
    from router.language_file import load_languages, shipped

    return shipped() if file is None else load_languages(file)


def model_folder(store: Store) -> Path:
    """Where learned models are left."""
    return store.directory / "router"


def learned_topics(folder: Path, examples: Pairs) -> TopicModel:
    """The model of (topic, text) pairs: read from ``folder`` if somebody left it there, else learned and left."""
    path = folder / f"topics-{digest_of(examples)[:16]}.npz"
    try:
        return TopicModel.load(path)
    except ModelFileDamaged:  # not there, or not whole: what it was made of is at hand
        model = learn_topics(examples)
    try:
        with writing(folder):
            make_folder(folder, 0o700)
        model.save(path)
        remove_models(folder, but=path)
    except StoreWriteFailed:
        pass  # the next server learns it again
    return model


def prepare(store: Store, examples: Pairs) -> None:
    """Leave the model of examples that are about to be taught, so that no server has to learn it beside serving."""
    if examples:
        learned_topics(model_folder(store), examples)
    else:
        remove_models(model_folder(store))


def learn_topics(examples: Pairs) -> TopicModel:
    """The same examples in the same order make the same model."""
    from router.topic_training import train_topics

    return train_topics([text for _, text in examples], [topic for topic, _ in examples])


def digest_of(examples: Pairs) -> str:
    """SHA-256 over what a model is made of, hexadecimal."""
    return hashlib.sha256(json.dumps([FORMAT, examples]).encode()).hexdigest()


def _asks(plan: RoutePlan, key: str) -> bool:
    return any(route.matches.get(key) for route in plan.routes)


def remove_models(folder: Path, but: Path | None = None) -> None:
    """Models of examples that were taught before: they hold traces of them. Who uses one has it in memory."""
    for path in folder.glob("topics-*.npz"):
        if path != but:
            path.unlink(missing_ok=True)
