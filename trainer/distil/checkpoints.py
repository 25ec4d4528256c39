"""Loading of a draft version as a model, and writing of a trained model as a folder.

Full weights are stored in the checkpoint's own type. Where that has fewer bits than float32 the weights that were
trained lie beside them (:mod:`storage.versions.weights`): a run moves most weights by less than bfloat16 can represent,
and runs build on each other. An adapter (``lora``) is float32, and always based on the draft's number 0.
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_model
from torch import nn
from transformers import PreTrainedModel

from osd.models.encoder_decoder import require_decoder_only
from osd.models.features.base import FeatureDraft, FeatureDraftNotLoaded
from osd.models.features.files import load_feature_draft, save_feature_draft
from osd.models.features.target import FeatureTarget
from osd.models.limits import position_limit
from osd.models.lora.adapter import BASE_MARK
from osd.models.lora.merging import adapted, merged, quiet_peft, tie, ties
from osd.models.weights import LOAD_ERRORS, LOAD_LOCK, first_line, read_weights, stored_dtype, write_full
from storage.errors import BadInput, ModelNotLoaded, WeightsDamaged, WrongState
from storage.files.files import TemporaryPath, writing
from storage.records import DraftVersion
from storage.settings import LearnSettings
from storage.store import Store
from storage.versions.feature_kinds import FEATURE_KINDS
from storage.versions.weights import MASTER

log = logging.getLogger("osd.trainer")


def load_current(
    store: Store, version: DraftVersion, device: torch.device, shared: FeatureTarget | None = None
) -> nn.Module:
    """Load a version as plain weights that will not be trained; an adapter is merged. ``shared``: the target, which
    feature drafts need. Raises WeightsDamaged, and BadInput for a feature draft without it."""
    return _load(store, version, shared, merge=True).to(device).requires_grad_(False).train(False)


def load_trainable(
    store: Store, version: DraftVersion, learn: LearnSettings, device: torch.device, shared: FeatureTarget | None = None
) -> nn.Module:
    """Load a version for training: all weights, or an adapter over the draft's number 0. ``shared``: the target, which
    feature drafts need.

    A new adapter starts as no change; an existing one is trained on, with its own rank. Full training
    of an adapter's version merges it first. Raises WeightsDamaged, and WrongState when an adapter is asked
    for over full weights that were trained already: it could not be stored over number 0.
    """
    require_method(version, learn)
    model = _load(store, version, shared, merge=learn.method == "full")
    if learn.method == "full":
        _go_on_from_master(store, version, model)
        return model.to(device).requires_grad_(True)
    adapter = (model if isinstance(model, PeftModel) else _with_adapter(model, learn)).to(device)
    tie(adapter)
    return adapter


def require_method(version: DraftVersion, learn: LearnSettings) -> None:
    """Raise WrongState when ``learn.method`` cannot continue from this version."""
    if learn.method == "lora" and version.kind == "full" and version.number > 0:
        needed = "number 0 or an adapter (`osd drafts promote` one), or learn.method = full"
        raise WrongState(version=version.id, state="trained full weights", action="learn.method = lora", needed=needed)


def vocab_size(model: nn.Module) -> int:
    """Return the width of the model's logits."""
    if isinstance(model, FeatureDraft):
        return model.vocab_size
    head: nn.Module = model.get_output_embeddings()  # type: ignore[operator]
    return int(cast(torch.Tensor, head.weight).shape[0])


def positions_of(model: nn.Module) -> int:
    """Return the positions that the model knows."""
    return position_limit(cast(PreTrainedModel, model).config)


def stored_as(model: nn.Module, parent: Path) -> nn.Module:
    """Return the model with its weights rounded to what a version stores of them: itself for adapters, and where
    the parent's folder is float32; else a copy, whose weights stay float32."""
    dtype = stored_dtype(parent)
    if isinstance(model, PeftModel) or dtype is torch.float32:
        return model
    rounded = copy.deepcopy(model)
    with torch.no_grad():
        for weight in rounded.parameters():
            weight.copy_(weight.to(dtype))
    return rounded


def write_model(
    model: nn.Module, folder: Path, parent: Path, base: str | None = None, shared: FeatureTarget | None = None
) -> None:
    """Write a candidate: a Hugging Face folder with the parent's tokenizer and number type, a PEFT folder, or that of a
    feature draft for the target ``shared``.

    ``base`` is the digest of the adapter's number 0, stored with the adapter, which fits no other weights.
    """
    if isinstance(model, PeftModel):
        _write_adapter(model, folder, base)
        return
    dtype = stored_dtype(parent)
    stored = model if dtype is torch.float32 else copy.deepcopy(model).to(dtype)
    if isinstance(stored, FeatureDraft):
        assert shared is not None
        save_feature_draft(stored, folder, shared)
    else:
        write_full(stored, folder, parent)
    if stored is not model:
        save_model(model, str(folder / MASTER))


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a folder aside that becomes ``path`` once all is written. Raises StoreWriteFailed."""
    with TemporaryPath(path.absolute().parent, path.name, folder=True) as aside:
        with writing(aside.path):
            yield aside.path
        aside.rename(path.absolute())


def _go_on_from_master(store: Store, version: DraftVersion, model: nn.Module) -> None:
    """Put a version's float32 weights into the model that was read from its own, if rounded they are the same."""
    path = store.versions.master(version)
    if path is None:
        return
    dtype, served = stored_dtype(store.versions.folder(version)), model.state_dict()
    with _damage(version):
        master = load_file(path)
    if master.keys() <= served.keys() and all(torch.equal(t.to(dtype), served[n].to(dtype)) for n, t in master.items()):
        model.load_state_dict(master, strict=False)
        if isinstance(model, PreTrainedModel):
            model.tie_weights()
    else:
        log.warning(
            "the float32 weights beside %s are not those that it serves; training goes on from what it serves",
            version.id, extra={"action": "master_refused", "version": version.id},
        )  # fmt: skip


def _write_adapter(model: PeftModel, folder: Path, base: str | None) -> None:
    """Write the adapter without PEFT's local path of the base, and without the whole of an adapted output layer.

    A tied output layer is named among what is adapted: PEFT leaves it out, and then finds it again only under
    embeddings that are called ``embed_tokens``.
    """
    model.save_pretrained(str(folder), save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)
    config = folder / "adapter_config.json"
    facts = json.loads(config.read_text("utf-8"))
    facts["base_model_name_or_path"] = None if base is None else BASE_MARK + base
    if ties(model):
        facts["target_modules"] = sorted({*facts["target_modules"], _name_of_head(model.get_base_model())})
    config.write_text(json.dumps(facts, indent=2) + "\n", "utf-8")


def _load(store: Store, version: DraftVersion, shared: FeatureTarget | None, *, merge: bool) -> nn.Module:
    """Load a version; an adapter over its base, ready to be trained, or merged into it."""
    store.versions.verify(version)
    if version.kind in FEATURE_KINDS:
        if shared is None:
            reason = f"{version.id} reads the target's hidden states: without the target it is compared with no other."
            raise BadInput(reason=reason)
        with _damage(version):
            return load_feature_draft(store.versions.folder(version), shared).float()
    if version.kind != "lora":
        return _read(version, store.versions.folder(version))
    root = store.versions.lineage(version.id)[-1]
    store.versions.verify(root)
    base = _read(root, store.versions.folder(root))
    folder = store.versions.folder(version)
    with _damage(version):
        return merged(base, folder) if merge else adapted(base, folder)


def _read(version: DraftVersion, folder: Path) -> PreTrainedModel:
    with _damage(version):
        return read_weights(folder, torch.float32)


@contextmanager
def _damage(version: DraftVersion) -> Iterator[None]:
    try:
        yield
    except (ModelNotLoaded, FeatureDraftNotLoaded) as error:
        raise WeightsDamaged(version=version.id, reason=f"they do not load: {error.facts['reason']}") from error
    except LOAD_ERRORS as error:
        raise WeightsDamaged(version=version.id, reason=f"they do not load: {first_line(error)}") from error


def _with_adapter(model: nn.Module, learn: LearnSettings) -> PeftModel:
    """Put LoRA on every linear layer, scaled by 2 as is usual; the same seed gives the same start.

    The output layer holds most of what a small draft has to learn, so it is adapted too, with a rank of its own, and
    the embeddings with the same factors where they are tied to the output layer (docs/training.md has the
    measurements).
    """
    require_decoder_only(model, "learn.method = lora", "the draft")
    head, rank = _name_of_head(model), learn.lora_head_rank
    words = [head, *_names_of_tied(model)] if rank else []
    layers = {name.rpartition(".")[2] for name, part in model.named_modules() if _is_linear(part) and name != head}
    config = LoraConfig(
        r=learn.lora_rank, lora_alpha=2 * learn.lora_rank,
        task_type="CAUSAL_LM",
        target_modules=sorted(layers | set(words)), ensure_weight_tying=len(words) > 1,
        rank_pattern=dict.fromkeys(words, rank), alpha_pattern=dict.fromkeys(words, 2 * rank),
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]), LOAD_LOCK, quiet_peft():
        torch.manual_seed(learn.seed)
        adapted: PeftModel = get_peft_model(cast(PreTrainedModel, model), config)
        return adapted


def _is_linear(part: nn.Module) -> bool:
    return isinstance(part, nn.Linear) or type(part).__name__ == "Conv1D"


def _name_of_head(model: nn.Module) -> str:
    head = cast(PreTrainedModel, model).get_output_embeddings()  # type: ignore[no-untyped-call]
    return str(next(name for name, part in model.named_modules() if part is head))


def _names_of_tied(model: nn.Module) -> list[str]:
    """Return the names of the embeddings that are tied to the output layer."""
    head, embeddings = cast(Any, model).get_output_embeddings(), cast(Any, model).get_input_embeddings()
    return [name for name, part in model.named_modules() if part is embeddings and part.weight is head.weight]
