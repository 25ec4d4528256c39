"""Runs a draft version over a text that it drafted for, to recover which tokens were refused."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch

from osd.attached.folders import servable_folder
from osd.models.weights import read_weights
from storage.errors import OsdError
from storage.store import Store
from storage.versions.feature_kinds import FEATURE_KINDS

KEPT = 2
"""Versions that are kept in memory: the one that serves, and the one before it whose answers are still under way."""


class DraftPass:
    """The drafts of a store, run one text at a time. Used by one thread."""

    def __init__(self, store: Store, device: str = "cpu") -> None:
        self._store, self._device = store, device
        self._loaded: OrderedDict[str, Any] = OrderedDict()

    @torch.inference_mode()
    def __call__(self, version: str, tokens: Sequence[int], positions: Sequence[int]) -> list[int] | None:
        """Return the draft's likeliest token at each position given the tokens before it; None where the version's
        weights are not to be had, or do not know the text, or read what the target has computed."""
        module = self._module(version)
        if module is None or max(tokens) >= module.get_input_embeddings().weight.shape[0]:
            return None
        last = positions[-1]
        fed = torch.tensor([tokens[:last]], device=module.device)
        logits = module(input_ids=fed, use_cache=False, logits_to_keep=last - positions[0] + 1).logits[0]
        places = [position - positions[0] for position in positions]
        return [int(token) for token in logits[places].argmax(-1).tolist()]

    def _module(self, version: str) -> Any:
        if version not in self._loaded:
            self._loaded[version] = self._load(version)
            while len(self._loaded) > KEPT:
                self._loaded.popitem(last=False)
        self._loaded.move_to_end(version)
        return self._loaded[version]

    def _load(self, version: str) -> Any:
        try:
            found = self._store.versions.get(version)
            if found.kind in FEATURE_KINDS:
                return None
            module: Any = read_weights(servable_folder(self._store, found), torch.float32)
        except OsdError:
            return None
        return module.to(self._device).eval().requires_grad_(False)
