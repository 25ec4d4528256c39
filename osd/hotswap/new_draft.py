"""Makes number 0 of a draft where there is none: a small draft, cut from the target, or a feature draft of random
weights."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import PreTrainedModel

from osd.models.features.checkpoint import take_heads
from osd.models.features.files import load_feature_draft, save_feature_draft
from osd.models.features.new import Kind, first_vocabulary, new_feature_draft
from osd.models.features.target import FeatureTarget
from osd.models.model_digest import local_folder, model_digest
from osd.models.pair import load_model
from osd.models.sanity_check import TOKENS, require_same
from osd.models.small_draft import cut
from osd.models.weights import read_weights, write_full
from storage.errors import BadInput
from storage.files.files import writing
from storage.records import DraftVersion
from storage.sql.ledger import require_name
from storage.store import Store
from storage.versions.feature_kinds import MTP


def new_small_draft(store: Store, draft: str, target: str, layers: int | None = None) -> DraftVersion:
    """Cut a small draft from a target, a folder or hub name, and enter it as number 0 of the draft's line for it.

    What is entered has been loaded as servers load it, and gives the logits of what was cut. Raises BadInput for a
    name that is taken or cannot be one, CannotCut, ModelNotLoaded, CannotServeRagged, StoreWriteFailed.
    """
    module, digest, folder = _read(store, draft, target)
    small, kept = cut(module, target, layers)
    layers_before = module.config.get_text_config().num_hidden_layers
    facts = {"cut_from": target, "target": digest, "layers": kept, "of": layers_before}
    with TemporaryDirectory(prefix="osd-draft-") as made:
        with writing(Path(made)):
            write_full(small, Path(made), folder)
        served = load_model(made, torch.device("cpu"), "float32")
        small.float()  # type: ignore[no-untyped-call]
        require_same(served.decoder(1, TOKENS), None, small, draft)
        return store.versions.register_root(draft, Path(made), facts, target=digest)


def new_feature_version(
    store: Store, draft: str, target: str, kind: Kind, heads: int | None = None, vocabulary: int | None = None,
    layers: int | None = None,
) -> DraftVersion:  # fmt: skip
    """Make a feature draft of random weights for a target, or take its own MTP head, and enter it as number 0 of the
    draft's line for it.

    ``heads``: of Medusa; ``layers``: of P-EAGLE and DFlash; ``vocabulary``: how many of the target's tokens it
    proposes, None for all. Number 0 has as many as the versions after it, for an engine takes no version of another
    form than it has. What is entered has been loaded as servers load it. Raises BadInput for a name that is taken or
    cannot be one, FeatureDraftMismatch, ModelNotLoaded, StoreWriteFailed.
    """
    module, digest, checkpoint = _read(store, draft, target)
    read = FeatureTarget(module, target, digest)
    with TemporaryDirectory(prefix="osd-draft-") as folder:
        with writing(Path(folder)):
            taken = kind == MTP and take_heads(checkpoint, Path(folder))
            if not taken:
                ids = first_vocabulary(read, vocabulary)
                made = new_feature_draft(kind, read, heads=heads, token_map=ids, layers=layers)
                save_feature_draft(made, folder, read)
        size = sum(map(torch.numel, load_feature_draft(folder, read).parameters()))
        facts = {"made_for": target, "target": digest, "kind": kind, "parameters": size, "taken": taken}
        return store.versions.register_root(draft, Path(folder), facts, target=digest)


def _read(store: Store, draft: str, target: str) -> tuple[PreTrainedModel, str, Path]:
    """Read the target of a draft that is to be new: its weights, digest and folder. Raises BadInput, ModelNotLoaded."""
    require_name(draft)
    module = read_weights(target, "auto")
    digest, folder = model_digest(target), local_folder(target)
    assert digest and folder  # it was just read
    if taken := store.versions.find(draft, digest):
        raise BadInput(reason=f"The draft {draft} has a number 0 for this target ({taken.id}); give another name.")
    return module, digest, folder
