"""A session whose target may be exchanged for its successor while a server runs: an RL loop's next weights.

    load     the successor, aside, checked whole: nothing changes where it is refused
    move     the old engine, which serves nothing any more, ends, and one over the successor begins

Each engine has a recorder, caches and beliefs of its own, so nothing of one target is kept, read or expected under the
name of another. Drafts go over by :mod:`osd.hotswap.succession`.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import replace
from types import TracebackType

from osd.engine.engine import Engine
from osd.engine.session import serving
from osd.models.features.decoder import FeatureModel
from osd.models.generation_config import generation_config
from osd.models.model import Model, eos_ids
from osd.models.model_digest import model_digest
from osd.models.pair import Pair, load_model
from osd.models.vocabulary import load_tokenizer, target_facts
from storage.errors import BadInput, PairError
from storage.settings import Settings
from storage.store import Store


class TargetRefused(BadInput):
    """{folder} cannot take the place of {target}: {reason}."""


class MovingTarget:
    """An engine over a target that moves. A context: at its end the engine ends."""

    engine: Engine
    """The engine that serves now."""

    def __init__(self, pair: Pair, settings: Settings, store: Store) -> None:
        self.pair, self._settings, self._store, self._stack = pair, settings, store, ExitStack()

    def __enter__(self) -> MovingTarget:
        self._open(self.pair)
        return self

    def __exit__(self, *error: TracebackType | object) -> None:
        self._stack.close()

    def load(self, folder: str) -> Pair:
        """Load a folder's model as the target of the pair. Raises TargetRefused."""
        old, serve, pair = self.pair.target, self._settings.serve, self.pair

        def refuse(reason: str) -> TargetRefused:
            return TargetRefused(folder=folder, target=old.name, reason=reason)

        if isinstance(pair.draft, FeatureModel):
            raise refuse("its draft reads the hidden states of the target that it was made for")
        if old.start:
            raise refuse("it has an encoder, and what was encoded cannot be read again")
        digest = model_digest(folder)
        if digest == old.digest:
            raise refuse("it has the same files")
        try:
            new = load_model(folder, pair.device, serve.dtype, serve.device_map, "all")
            reason = self._differs(new)
        except PairError as error:
            raise refuse(str(error).rstrip(".")) from None
        if reason:
            raise refuse(reason)
        if digest is None or not new.digest == digest == model_digest(folder):
            raise refuse("its files changed while they were read")
        return replace(pair, target=new)

    def _differs(self, new: Model) -> str | None:
        """Return what a successor would change beside its weights; None where that is nothing."""
        old, tokenizer, use = self.pair.target, self.pair.tokenizer, self._settings.serve.generation_config
        theirs = load_tokenizer(new.name)
        had, has = target_facts(old, tokenizer), target_facts(new, theirs)
        if had["vocabulary"] != has["vocabulary"] or old.vocab_size != new.vocab_size:
            return "its tokenizer is another"
        if had != has or old.limit != new.limit:
            return f"it is a {has['architecture']} of {new.limit} positions, not a {had['architecture']} of {old.limit}"
        ways = [generation_config(one, tokenizer, use) for one in (old, new)]
        same = ways[0] == ways[1] and eos_ids(old.module) == eos_ids(new.module)
        return None if same else "its generation_config.json is another"

    def move(self, pair: Pair) -> Engine:
        """Exchange the engine, which must be idle, for one over a pair that :meth:`load` returned. Where that does not
        begin, the old one does anew. Raises StoreError, PairError."""
        old, new = str(self.pair.target.digest), str(pair.target.digest)
        for target in (self.pair.target, pair.target):
            self._store.targets.arrive(str(target.digest), target.name, target_facts(target, pair.tokenizer))
        with suppress(BadInput):  # back to what served before: its lines go on
            self._store.targets.succeed(old, new)
        self._stack.close()
        try:
            return self._open(pair, self.engine)
        except Exception:  # whatever it is, the other target still serves
            self._open(self.pair, self.engine)
            raise

    def _open(self, pair: Pair, before: Engine | None = None) -> Engine:
        self.engine = self._stack.enter_context(serving(pair, self._settings, self._store, before=before))
        self.pair = pair
        return self.engine
