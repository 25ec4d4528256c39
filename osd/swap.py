"""Newer draft weights, and newer acceptance heads, for a running engine.

A thread looks for the version that should serve, checks its digest, loads it aside and builds its forward
pass; the engine takes it over between two steps by exchanging a reference. Damaged weights are refused
and quarantined, and the version before goes on serving. Going back is the same way: the store's current
version becomes the older one again.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, PreTrainedModel

from osd.decoder import Forward
from osd.drafters.head import HeadPass, load_head, require_fit
from osd.models import LOAD_ERRORS, Model
from storage.errors import HeadNotLoaded, OsdError, PairError, StoreError, UnknownDraft, WeightsDamaged
from storage.records import DraftVersion, VersionState, head_of
from storage.settings import Settings
from storage.store import Store

log = logging.getLogger(__name__)

T = TypeVar("T")


class Follower(Generic[T]):
    """Keeps one thing of an engine at the version that the store says should serve. Close it to stop looking."""

    def __init__(self, store: Store, draft: str, settings: Settings, worker: str, serving: DraftVersion | None) -> None:
        """``serving`` is the version that the engine has already, if it has one.

        Another that should serve is loaded, and the store told what serves here, before this returns.
        """
        self.store, self.draft, self.worker = store, draft, worker
        self._every = settings.serve.swap_poll_seconds
        self._next: tuple[DraftVersion, T] | None = None
        self._refused: set[str] = set()
        self._stop = threading.Event()
        self._serving = serving
        self._told: str | None = None
        self._thread = threading.Thread(target=self._work, name="osd-swap", daemon=True)
        if wanted := self._wanted():
            self._fetch(wanted)
            self._serving = self._loaded()  # the engine takes it before it drafts anything
            self._tell(wanted)
        self._thread.start()

    def load(self, version: DraftVersion) -> T:
        """What the engine takes of a version whose files are sound. Raises WeightsDamaged, PairError."""
        raise NotImplementedError

    @property
    def ready(self) -> bool:
        """Whether another version waits to be taken."""
        return self._next is not None

    def take(self) -> T:
        """What waits; from now on its version serves."""
        assert self._next is not None
        (self._serving, taken), self._next = self._next, None
        return taken

    def close(self) -> None:
        """Stop looking; a version that was taken since the last look is told to the store."""
        self._stop.set()
        self._thread.join()
        try:
            if wanted := self._wanted():
                self._tell(wanted)
            self.store.versions.end_serving(self.worker)
        except OsdError as error:
            log.warning("the store was not told of the end: %s", error, extra={"action": "swap_close_failed"})

    def _work(self) -> None:
        while not self._stop.wait(self._every):
            try:
                self._look()
            except OsdError as error:
                log.warning("no look at draft versions: %s", error, extra={"action": "swap_look_failed"})

    def _look(self) -> None:
        if wanted := self._wanted():
            self._tell(wanted)
            self._fetch(wanted)

    def _wanted(self) -> DraftVersion | None:
        try:
            return self.store.versions.current(self.draft)
        except UnknownDraft:
            return None

    def _tell(self, wanted: DraftVersion) -> None:
        """Note in the store what serves here: when it changed, and when it became current a second time, which it
        may without a change here if another server had gone on to a version that was then taken back."""
        serving = self._serving  # the engine's thread may exchange it meanwhile
        if serving is None:
            return
        came_back = wanted.id == serving.id and wanted.state is VersionState.READY
        if serving.id != self._told or came_back:
            self.store.versions.mark_serving(serving.id, self.worker)
            self._told = serving.id

    def _fetch(self, wanted: DraftVersion) -> None:
        loaded = self._loaded()
        if (loaded is None or wanted.id != loaded.id) and wanted.id not in self._refused:
            self._load(wanted)

    def _loaded(self) -> DraftVersion | None:
        """The version that waits, or the one that serves."""
        waiting = self._next  # read once: the engine's thread may take it meanwhile
        return waiting[0] if waiting else self._serving

    def _load(self, wanted: DraftVersion) -> None:
        try:
            self.store.versions.verify(wanted)
            self._next = (wanted, self.load(wanted))
        except (WeightsDamaged, PairError) as error:
            self._refused.add(wanted.id)
            log.error("%s", error, extra={"action": "swap_refused", "version": wanted.id})
            if isinstance(error, WeightsDamaged):
                self._quarantine(wanted, str(error))

    def _quarantine(self, version: DraftVersion, reason: str) -> None:
        try:
            self.store.versions.quarantine(version.id, reason)
        except StoreError as error:
            log.warning("%s", error, extra={"action": "quarantine_failed"})


class Swap(Follower[Forward]):
    """The weights that draft."""

    def __init__(self, store: Store, draft: str, model: Model, settings: Settings, worker: str) -> None:
        """``model`` is the draft that learning starts from: version 0, registered if it is new."""
        self.model = model
        super().__init__(store, draft, settings, worker, store.versions.register_root(draft, Path(model.name)))

    @property
    def version(self) -> str:
        """The version that drafts now."""
        assert self._serving is not None
        return self._serving.id

    def load(self, version: DraftVersion) -> Forward:
        """Its forward pass."""
        forward = self.model.build(load_version(self.store, version, self.model))
        assert forward is not None
        return forward


class HeadSwap(Follower[HeadPass]):
    """The acceptance head that the gamma rule asks. It may appear later: until then there is none."""

    def __init__(self, store: Store, draft: str, model: Model, settings: Settings, worker: str) -> None:
        """The draft is registered. ``serve.gamma_head`` is the head's version 0, registered if it is new.

        Raises HeadNotLoaded or HeadMismatch for that one, StoreError if the draft's head started from another.
        """
        self.model, self.root = model, store.versions.lineage(store.versions.current(draft).id)[-1]
        name, folder = head_of(draft), settings.serve.gamma_head
        if folder is not None:
            require_fit(load_head(folder), folder, model, self.root.digest)
            store.versions.register_root(name, folder)
        super().__init__(store, name, settings, f"{worker} head", None)

    def load(self, version: DraftVersion) -> HeadPass:
        """The head as the draft loop calls it. Raises WeightsDamaged, HeadMismatch."""
        try:
            head = load_head(self.store.versions.folder(version))
        except HeadNotLoaded as error:
            raise WeightsDamaged(version=version.id, reason=error.facts["reason"]) from None
        require_fit(head, version.id, self.model, self.root.digest)
        return HeadPass(head, self.model.device)


def load_version(store: Store, version: DraftVersion, like: Model) -> PreTrainedModel:
    """A version's weights as a module on the device and in the dtype of ``like``; a LoRA adapter is merged
    into the weights that learning started from. Raises WeightsDamaged when the files do not load."""
    weight, folder = next(like.module.parameters()), store.versions.folder(version)
    try:
        if version.kind == "lora":
            root = store.versions.folder(store.versions.lineage(version.id)[-1])
            module = PeftModel.from_pretrained(_read(root, weight.dtype), folder).merge_and_unload()
        else:
            module = _read(folder, weight.dtype)
    except LOAD_ERRORS as error:
        raise WeightsDamaged(version=version.id, reason=str(error).splitlines()[0]) from None
    module.config._attn_implementation = like.module.config._attn_implementation
    with torch.inference_mode(False):
        ready: PreTrainedModel = module.to(weight.device).eval().requires_grad_(False)
        return ready


def _read(folder: Path, dtype: torch.dtype) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, use_safetensors=True)
