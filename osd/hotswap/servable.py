"""Proves, before a version is READY, that servers load what was judged."""

from __future__ import annotations

from transformers import PreTrainedModel

from osd.hotswap.loader import Loader
from osd.models.pair import Pair, load_model
from osd.models.sanity_check import TOKENS, require_same
from storage.records import DraftVersion
from storage.store import Store


def require_servable(store: Store, version: DraftVersion, judged: PreTrainedModel) -> None:
    """Load a version as servers do, an adapter both ways, and compare a pass of each with the model that was judged.

    Raises as :meth:`Loader.load`.
    """
    root, like = store.versions.lineage(version.id)[-1], next(judged.parameters())
    model = load_model(store.versions.folder(root), like.device, "float32")
    loader = Loader(store, Pair(model, model, None, frozenset()), root.digest, TOKENS)
    for shares in (False, True) if version.kind == "lora" else (False,):
        loaded = loader.load(version, (), shares=shares)
        assert loaded.decoder
        require_same(loaded.decoder, loaded.adapter, judged, version.id)
