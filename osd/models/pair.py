"""Loading a target and a draft, and refusing what cannot serve together.

A pair is refused when it is loaded, with a sentence that helps, and never in the middle of a request:
a missing file, vocabularies that differ, a model that computes something else in a ragged batch.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import psutil
import torch
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerBase

from osd.models.encoder_decoder import start_of
from osd.models.features.decoder import FeatureModel, load_feature_model
from osd.models.features.keys import brief
from osd.models.gguf import is_gguf, read_gguf
from osd.models.limits import cut_short, named, position_limit
from osd.models.llama_forward import LlamaForward
from osd.models.llama_forward_compiled import CompiledPass
from osd.models.model import Model, TextDraft, eos_ids
from osd.models.model_digest import local_folder
from osd.models.products import RELEASE
from osd.models.proof import choose_forward
from osd.models.vocabulary import check_vocabularies, load_tokenizer
from osd.models.weights import LOAD_LOCK, auto_class, first_line, read_weights
from storage.errors import CannotServeRagged, ModelNotLoaded, NotEnoughMemory, OsdError
from storage.settings import ServeSettings, Settings
from storage.versions.feature_kinds import feature_kind, model_size, read_config, read_header

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pair:
    """A target, the draft model that proposes for it, and what they share."""

    target: Model
    draft: Model
    tokenizer: PreTrainedTokenizerBase | None
    """The target's; None when its folder has none (then there is no text, no stop strings and no chat)."""
    eos_ids: frozenset[int]
    """Tokens that end a text."""
    text_draft: TextDraft | None = None
    """What drafts beside a target alone, for ``drafters.kind = "universal"``."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids, which run from 0."""
        return self.target.vocab_size

    @property
    def device(self) -> torch.device:
        """The device that the target takes tokens on, and gives logits."""
        return self.target.device

    @property
    def limit(self) -> int:
        """Positions that a text may have: the target's. A draft that knows fewer stops drafting there."""
        return self.target.limit


def load_pair(
    target: str | Path, draft: str | Path, *, device: str = "auto", dtype: str = "auto", device_map: str | None = None,
    draft_device: str | None = None, once: bool = False,
) -> Pair:  # fmt: skip
    """Load both models and check that they can serve together. ``device_map`` spreads the target over several devices;
    the draft is on the target's, or on ``draft_device``. ``once``: see :func:`load_model`, of the target.

    ``dtype`` auto is float32 on the CPU, where it is as fast and free of rounding that could flip a
    greedy choice, and the checkpoint's own on a GPU. Raises ModelNotLoaded, KindMismatch, VocabularyMismatch,
    CannotServeRagged.
    """
    place = choose_device(device)
    if is_gguf(draft):
        raise ModelNotLoaded(path=draft, reason="A draft learns, and weights that are packed cannot.")
    folder = local_folder(str(draft))
    reads_target = folder is not None and feature_kind(folder) is not None
    release = ("layers" if reads_target else "all") if once else ""
    target_model = load_model(target, place, dtype, device_map, release)
    if folder is not None and reads_target:
        loaded = load_feature_model(folder, target_model)
        return Pair(target_model, loaded, load_tokenizer(target), eos_ids(target_model.module))
    draft_model = load_model(draft, place if draft_device is None else choose_device(draft_device), dtype)
    tokenizer = load_tokenizer(target)
    shared = check_vocabularies(target_model, draft_model, tokenizer, load_tokenizer(draft))
    return Pair(target_model, replace(draft_model, shared=shared), tokenizer, eos_ids(target_model.module))


def with_draft(pair: Pair, folder: Path, dtype: str) -> Pair:
    """Return the pair with a draft that was trained from its own, over the same target. Raises ModelNotLoaded,
    FeatureDraftNotLoaded, FeatureDraftMismatch."""
    if feature_kind(folder):
        return replace(pair, draft=load_feature_model(folder, pair.target))
    return replace(pair, draft=replace(load_model(folder, pair.device, dtype), shared=pair.draft.shared))


CHAINS = ("causal", "blended")
"""Drafters that draft chains."""


def row_limit(pair: Pair, serve: ServeSettings) -> int:
    """Return the most tokens of a row, prompt and output."""
    return min(serve.max_length, pair.limit)


def row_length(pair: Pair, settings: Settings) -> int:
    """Positions of a row in the caches: its padding may stand beyond its own end."""
    nodes = 0 if settings.drafters.kind in CHAINS else settings.drafters.tree_nodes
    return row_limit(pair, settings.serve) + len(pair.target.start) + max(settings.gamma.max, nodes) + 1


def choose_device(device: str) -> torch.device:
    """Return the device by name; ``auto`` is the first GPU if there is one, else the CPU.

    From then on the process goes without cuDNN's attention, which PyTorch prefers on some GPUs in half precision: it is
    made anew, in 60 ms, for each length that is read, which in decoding is every round. Other kernels take any length.
    """
    chosen = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
    if chosen.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)
    return chosen


def load_model(
    name: str | Path, device: torch.device, dtype: str = "auto", device_map: str | None = None, release: str = ""
) -> Model:
    """Load a model from a Hugging Face folder, a hub name or a GGUF file, in evaluation mode; with ``device_map`` over
    several devices. ``release``: which weights its module gives up (:data:`osd.models.products.RELEASE`): it computes
    the same, but slowly. Raises ModelNotLoaded, CannotServeRagged, NotEnoughMemory."""
    asked = RELEASE.set(release)
    try:
        return _loaded(name, device, dtype, device_map)
    except OsdError:
        raise
    except Exception as error:  # whatever a folder of another's holds
        raise ModelNotLoaded(path=name, reason=_blamed(name, error)) from error
    finally:
        RELEASE.reset(asked)


def load_reader(
    name: str | Path, device: torch.device, dtype: str = "auto", device_map: str | None = None
) -> PreTrainedModel:
    """Load a model that reads whole texts and decodes nothing, as :func:`load_model` does but for the proof: one that
    keeps a recurrent state is read, too. Raises ModelNotLoaded, CannotServeRagged, NotEnoughMemory."""
    try:
        return _module(name, device, dtype, device_map)
    except OsdError:
        raise
    except Exception as error:  # as above
        raise ModelNotLoaded(path=name, reason=_blamed(name, error)) from error


def _loaded(name: str | Path, device: torch.device, dtype: str, device_map: str | None) -> Model:
    module = _module(name, device, dtype, device_map)
    if reason := cut_short(module.config):
        log.warning("%s: %s", name, reason, extra={"action": "cut_short"})
    start_of(module, str(name))
    return Model(str(name), module, position_limit(module.config), choose_forward(module, str(name)))


def _module(name: str | Path, device: torch.device, dtype: str, device_map: str | None) -> PreTrainedModel:
    folder = Path(name)
    if is_gguf(name):
        computed = dtype_of(dtype, device)
        return read_gguf(folder, torch.bfloat16 if computed == "auto" else computed, device)
    if folder.exists() or str(name).startswith((".", "/", "~")):
        _check_folder(folder)
    _require_memory(folder, device, dtype_of(dtype, device))
    placed = device_map or ({"": str(device)} if _quantised(name) else None)  # such weights are packed where they stay
    loaded: Any = read_weights(name, dtype_of(dtype, device), placed)
    module: PreTrainedModel = (loaded if placed else loaded.to(device)).eval().requires_grad_(False)
    _require_exact(module, str(name))
    return module


def _require_exact(module: PreTrainedModel, name: str) -> None:
    """Check that quantised layers compute each token by itself. Raises CannotServeRagged."""
    found = getattr(module.config, "quantization_config", None)
    if getattr(found, "load_in_8bit", False) and getattr(found, "llm_int8_threshold", 0):
        reason = "Its 8-bit layers look for outliers in all tokens of a pass together, so texts hang on each other;"
        raise CannotServeRagged(model=name, reason=f"{reason} llm_int8_threshold = 0 in its config.json leaves that.")


def _quantised(name: str | Path) -> bool:
    """Return whether a model's files hold quantised weights."""
    try:
        config = AutoConfig.from_pretrained(str(name))
    except Exception:
        return False  # loading it will say what is wrong
    return getattr(config, "quantization_config", None) is not None


def serving_dtype(serve: ServeSettings, folder: Path) -> torch.dtype:
    """Return the type of number that a server with these settings computes the model in a folder in."""
    dtype = dtype_of(serve.dtype, choose_device(serve.device))
    if dtype == "auto":
        dtype = AutoConfig.from_pretrained(str(folder)).dtype or torch.float32
    return cast(torch.dtype, dtype)


def dtype_of(dtype: str, device: torch.device) -> Any:
    """Return the torch.dtype by name; for auto float32 on the CPU, elsewhere ``auto``: the files' own."""
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    return getattr(torch, dtype)


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise ModelNotLoaded(path=folder, reason="There is no such folder.")
    if not (folder / "config.json").is_file():
        raise ModelNotLoaded(path=folder, reason="config.json is missing.")
    if not any(folder.glob("*.safetensors")):
        raise ModelNotLoaded(path=folder, reason="There is no .safetensors file (pickled weights are never loaded).")
    try:
        held, config = model_size(folder), AutoConfig.from_pretrained(str(folder))
        claimed = _parameters(folder, config)
    except Exception as error:  # whatever a configuration of another's holds
        raise ModelNotLoaded(path=folder, reason=_blamed(folder, error)) from None
    if held is not None and claimed > 2 * held.parameters and not _quantised(folder):
        reason = f"By config.json it has {claimed:,} weights, and the files hold {held.parameters:,}."
        raise ModelNotLoaded(path=folder, reason=reason)


def _parameters(folder: Path, config: Any) -> int:
    """Return the number of weights that a configuration describes, without memory for them. Raises what transformers
    raises."""
    layers = named(config, "num_hidden_layers")
    most = sum(len(read_header(file)[1]) for file in folder.glob("*.safetensors"))
    if isinstance(layers, int) and layers > most:
        raise ValueError(f"num_hidden_layers = {layers}, and there are {most} tensors")
    with LOAD_LOCK, torch.device("meta"):
        return sum(each.numel() for each in auto_class(config).from_config(config).parameters())


def _blamed(name: str | Path, error: Exception) -> str:
    """Return what is wrong with a folder, with the field of config.json without which transformers could make such a
    model."""
    said = f"{first_line(error)[:-1]} ({type(error).__name__})."
    facts = read_config(Path(name))
    for key in facts if _makes(facts, name) is False else ():
        if _makes({other: value for other, value in facts.items() if other != key}, name):
            return f"config.json has {key} = {brief(facts[key])}, of which transformers makes no model: {said}"
    return said


def _makes(facts: dict[str, Any], name: str | Path) -> bool:
    try:
        return _parameters(Path(name), AutoConfig.for_model(**facts)) > 0
    except Exception:
        return False


def _require_memory(folder: Path, device: torch.device, dtype: Any) -> None:
    """Check that a model's weights fit into the memory that is free, and tell what they need."""
    if (size := model_size(folder)) is None or device.type != "cpu":
        return
    need = size.bytes if dtype == "auto" or _quantised(folder) else size.parameters * dtype.itemsize
    free = psutil.virtual_memory().available
    log.info("%s: reading %.2f GB of weights, %.2f GB in memory", folder, size.bytes / 1e9, need / 1e9)
    if need > free:
        raise NotEnoughMemory(path=folder, need=need / 1e9, dtype=str(dtype).removeprefix("torch."), free=free / 1e9)


def weights_in_memory(model: Model) -> int:
    """Return the bytes of all that the module and its pass hold of the weights."""
    if isinstance(model, FeatureModel):
        return model.draft.weight_bytes  # what else it needs is the target's
    forward, module, extra = model.build(model.module), model.module, 0
    tensors: list[Tensor] = [*module.parameters(), *module.buffers()]
    if isinstance(forward, LlamaForward):
        tensors += [each for product in forward.products for each in product.tensors]
        extra = forward.compiled.weight_bytes if isinstance(forward.compiled, CompiledPass) else 0
    packed = {id(each): each.numel() * each.element_size() for each in tensors if each.is_mkldnn}
    storages = [each.untyped_storage() for each in tensors if not each.is_mkldnn]
    plain: dict[int, int] = {each.data_ptr(): each.nbytes() for each in storages}
    return extra + sum(packed.values()) + sum(plain.values())


def files_bytes(model: Model) -> int | None:
    """Return the bytes of a model's weight files; None where it came from no folder."""
    folder = Path(model.name)
    if folder.is_file():
        return folder.stat().st_size
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) if folder.is_dir() else None
