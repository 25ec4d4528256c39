"""Digests of models' files, by which osd and vLLM's process name weights and targets; and a draft's folder on its way
into a running vLLM: read, checked against the draft that is loaded before anything of that is touched, loaded.

Runs in vLLM's workers; what SGLang is sent is checked by it too.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import safe_open

if TYPE_CHECKING:
    import torch
    from torch import nn

Shapes = dict[str, tuple[int, ...]]
SAME = (
    "architectures", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "intermediate_size", "vocab_size", "draft_vocab_size", "tie_word_embeddings", "rope_theta", "rope_parameters",
    "rms_norm_eps", "hidden_act", "eagle_aux_hidden_state_layer_ids", "truncated_vocab_size", "dflash_config",
    "ptd_token_id",
)  # fmt: skip
"""Fields of config.json in which a new version must be as the draft that the engine started with."""
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
"""Such fields of an EAGLE draft, which are false where they are not said."""
HEADS = re.compile(r"^(?:model\.)?mtp(?:_layers)?\.")
"""Names of MTP heads' tensors, which may stand in their target's own files."""
TARGET_FILES = (
    "*.safetensors", "*.json", "tokenizer*", "vocab*", "merges.txt", "*.model", "*.spm", "*.tiktoken", "chat_template*",
)  # fmt: skip
"""Files that may have a part in a model's texts; osd chooses among them."""


class Refused(ValueError):
    """A folder cannot be loaded; nothing was changed."""


class NotSeen(Refused):
    """This machine does not see what was to be published: that is no fault of the draft's."""


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def shapes(folder: Path) -> Shapes:
    """Return the names and shapes of a draft's tensors: of a folder with MTP heads, of these alone."""
    known: Shapes = {}
    for path in _files(folder):
        with safe_open(path, "pt") as file:
            known |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118  (it is no dictionary)
    heads = {name: shape for name, shape in known.items() if HEADS.match(name)}
    return heads or known


def read(folder: Path, shared: Iterable[str] = ()) -> dict[str, torch.Tensor]:
    """Read a draft's tensors, as :func:`shapes` names them, and those that go into ``shared`` parameters."""
    names, tensors = shapes(folder), dict[str, "torch.Tensor"]()
    for path in _files(folder):
        with safe_open(path, "pt") as file:
            wanted = [name for name in file.keys() if name in names or sharers(name, shared)]  # noqa: SIM118  (it is no dictionary)
            tensors |= {name: file.get_tensor(name) for name in wanted}
    return tensors


def check(
    folder: Path, sha256: str, config: Any, known: Shapes, shared: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Read a folder and check it: its digest, its configuration, names and shapes, finite numbers, and that no tensor
    would change a parameter that the target uses too.

    ``config`` is the loaded draft's, ``known`` what the folder had that it was loaded from, ``shared`` the draft's
    parameters that are the target's. Returns what is to be loaded: copies of the target's own are left out. Raises
    Refused.
    """
    if not _files(folder):
        raise NotSeen(f"{folder} holds no .safetensors file that this machine sees")
    if (found := weights_digest(folder)) != sha256:
        raise NotSeen(f"{folder} has the digest {found[:12]}…, and {sha256[:12]}… was to be published")
    _check_config(folder, config)
    tensors = _without_shared(read(folder, shared), shared)
    given = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    _check_shapes(given, {name: shape for name, shape in known.items() if not sharers(name, shared)})
    for name, tensor in tensors.items():
        if not bool(tensor.float().isfinite().all()):
            raise Refused(f"{name} holds numbers that are not finite")
    return tensors


def _check_config(folder: Path, config: Any) -> None:
    try:
        given = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise Refused(f"config.json cannot be read ({error})") from None
    eagle = any(name in str(given.get("architectures")) for name in ("Eagle", "DFlash"))
    head = bool(given.get("num_nextn_predict_layers"))
    for field in SAME:
        if head and field in ("architectures", "num_hidden_layers", "tie_word_embeddings"):
            continue  # vLLM rewrites them, and shares the target's output layer in any case
        ours = None if eagle and field == "tie_word_embeddings" else getattr(config, field, None)
        if field in given and _plain(field, given[field]) != _plain(field, ours) and ours is not None:
            raise Refused(f"{field} is {given[field]!r}, and the draft that is loaded has {ours!r}")
    if eagle:
        loaded = _unsaid(lambda name: getattr(config, name, None))
        for field, value in _unsaid(given.get).items():
            if value != loaded[field]:
                raise Refused(f"{field} is {value!r}, and the draft that is loaded has {loaded[field]!r}")


def _unsaid(said: Callable[[str], Any]) -> dict[str, Any]:
    """Return the fields of an EAGLE or DFlash draft that mean something where they are not said, too."""
    nested = said("eagle_config") or {}
    flags = {name: bool(nested.get(name, said(name))) for name in FLAGS}
    slides = "sliding_attention" in (said("layer_types") or ())
    return flags | {"sliding_window": said("sliding_window") if slides else None}


def _plain(field: str, value: Any) -> Any:
    """Return a field's value as it compares: vLLM calls published EAGLE heads by another architecture than they do, and
    positions in the whole of each head may be said or not, nor what DFlash does not do, and its block."""
    if field == "dflash_config" and isinstance(value, dict):
        return {name: each for name, each in value.items() if each not in (None, False) and name != "block_size"}
    if field == "rope_parameters" and isinstance(value, dict):
        return {name: each for name, each in value.items() if (name, each) != ("partial_rotary_factor", 1)}
    return [re.sub("P?[Ee]agle3?", "", str(name)) for name in value or ()] if field == "architectures" else value


def _check_shapes(given: Shapes, known: Shapes) -> None:
    """Raise Refused where they differ. An EAGLE-3 draft's layer has two names, which vLLM takes for one."""
    given, known = (
        {name.replace("midlayer.", "layers.0."): shape for name, shape in each.items()} for each in (given, known)
    )
    if given == known:
        return
    name = sorted(name for name in given.keys() | known.keys() if given.get(name) != known.get(name))[0]
    raise Refused(f"{name} is {given.get(name, 'missing')}, and the draft that is loaded has {known.get(name, 'none')}")


def sharers(name: str, shared: Iterable[str]) -> list[str]:
    """Return the shared parameters that a tensor goes into, told by the end of its name, whatever module is named
    before."""
    return [theirs for theirs in shared if name.endswith(".".join(theirs.split(".")[-2:]))]


def _without_shared(tensors: Mapping[str, torch.Tensor], shared: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Leave out what goes into shared parameters: some published EAGLE heads bring a copy of the target's. Raises
    Refused where it is none."""
    kept: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        for theirs in (found := sharers(name, shared)):
            if not tensor.to(shared[theirs]).equal(shared[theirs]):
                raise Refused(f"{name} would be written into the target's own {theirs}; publish the folder without it")
        if not found:
            kept[name] = tensor
    return kept


def shared_parameters(draft: nn.Module, target: nn.Module) -> dict[str, torch.Tensor]:
    """Return the draft's parameters that are the target's, by their names: the same object, or the same memory. (Where
    a kernel has packed a weight away its parameter is empty.)"""
    objects = {id(tensor) for tensor in target.parameters()}
    places = {tensor.data_ptr() for tensor in target.parameters() if tensor.numel()}
    return {
        name: tensor.detach() for name, tensor in draft.named_parameters()
        if id(tensor) in objects or (tensor.numel() and tensor.data_ptr() in places)
    }  # fmt: skip


def load_tensors(model: nn.Module, config: Any, tensors: Mapping[str, torch.Tensor]) -> int | None:
    """Load checked tensors into a model between two steps; return how many parameters took them, None where the model
    does not say.

    vLLM's layerwise reload puts values into the storage that kernels and graphs read, repacked where a kernel wants it;
    on a CPU it leaves out the packed copy of a tied output layer, which is packed again here. It puts back the
    vocabulary of Medusa heads too, which is no parameter until weights were loaded once, and P-EAGLE's masked columns,
    and what DFlash has made of its weights.
    """
    import torch
    from vllm.model_executor.model_loader.reload.layerwise import finalize_layerwise_reload, initialize_layerwise_reload

    with torch.no_grad():
        initialize_layerwise_reload(model)
        loaded = model.load_weights(iter(tensors.items()))  # type: ignore[operator]
        finalize_layerwise_reload(model, config)
        for name in ("token_map", "mask_hidden"):
            given, kept = tensors.get(name), getattr(model, name, None)
            if given is not None and kept is not None:
                kept.copy_(given.view(kept.shape))
        _fuse_again(getattr(model, "model", None), tensors)
        head = getattr(model, "lm_head", None)
        tied = getattr(config.hf_config, "tie_word_embeddings", False)
        if tied and head is not None and head.weight.device.type == "cpu":
            head.quant_method.process_weights_after_loading(head)
    return None if loaded is None else len(loaded)


def _fuse_again(layers: Any, tensors: Mapping[str, torch.Tensor]) -> None:
    """Have DFlash's layers make anew what they computed from their weights when those were loaded; where a kernel has
    packed those away, out of the tensors."""
    import torch

    build = getattr(layers, "_build_fused_kv_buffers", None)
    if build is None:
        return
    build()
    packed = [i for i, layer in enumerate(layers.layers) if not layer.self_attn.qkv_proj.weight.numel()]
    if packed:
        names = [f"layers.{i}.self_attn.{part}_proj.weight" for i in packed for part in "kv"]
        like = layers.norm.weight
        layers._fused_kv_weight = torch.cat([tensors[name] for name in names]).to(like.device, like.dtype)


def weights_digest(folder: Path) -> str:
    """Return the SHA-256 of a folder's weights: of each .safetensors file's name and contents, in order of names; where
    MTP heads stand in it, of their tensors alone."""
    digest = hashlib.sha256()
    if any(map(HEADS.match, shapes(folder))):
        from torch import uint8

        for name, tensor in sorted(read(folder).items()):
            digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
            digest.update(tensor.contiguous().flatten().view(uint8).numpy().tobytes())
        return digest.hexdigest()
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(path.name.encode() + b"\0")
        for piece in _pieces(path):
            digest.update(piece)
    return digest.hexdigest()


def target_digests(name: str, revision: str | None) -> dict[str, str]:
    """Return the SHA-256 of each file of a model's folder, or of its snapshot in Hugging Face's cache; empty where the
    files are not here."""
    folder = Path(name)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        try:
            folder = Path(snapshot_download(name, revision=revision, local_files_only=True))
        except (OSError, ValueError):
            return {}
    paths = {path for pattern in TARGET_FILES for path in folder.glob(pattern) if path.is_file()}
    return {path.name: _file_digest(path) for path in sorted(paths)}


def placeholders(said: Mapping[str, Any]) -> list[int]:
    """Return the ids that stand in texts for images, videos and sound, by a model's configuration."""
    kinds = [f"{kind}_token_{number}" for kind in ("image", "video", "audio") for number in ("id", "index")]
    return sorted({said[kind] for kind in kinds if isinstance(said.get(kind), int)})


def _file_digest(path: Path) -> str:
    digest = hashlib.sha256()
    for piece in _pieces(path):
        digest.update(piece)
    return digest.hexdigest()


def _pieces(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            yield piece
