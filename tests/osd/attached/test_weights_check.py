"""What may be loaded into an engine's draft, where that shares parameters with the target."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from osd.attached.vllm.plugin.osd_vllm.digests import weights_digest
from osd.attached.vllm.plugin.osd_vllm.weights import Refused, check, shapes

EMBEDDINGS = torch.arange(12.0).view(6, 2)
SHARED = {"model.embed_tokens.weight": EMBEDDINGS}
OWN = {"fc.weight": torch.ones(2, 4)}


def head(folder: Path, tensors: dict[str, torch.Tensor], **config: Any) -> Path:
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"architectures": ["EagleLlamaForCausalLM"], **config}))
    return folder


def checked(folder: Path, loaded: Path, **config: Any) -> dict[str, torch.Tensor]:
    ours = SimpleNamespace(architectures=["EagleLlamaForCausalLM"], **config)
    return check(folder, weights_digest(folder), ours, shapes(loaded), SHARED)


@pytest.mark.parametrize("first", [True, False])
def test_a_copy_of_the_target_s_parameter_may_be_there_or_not(tmp_path: Path, first: bool) -> None:
    more, less = head(tmp_path / "more", OWN | {"embed_tokens.weight": EMBEDDINGS}), head(tmp_path / "less", OWN)
    given, loaded = (more, less) if first else (less, more)
    assert checked(given, loaded).keys() == OWN.keys()


def test_another_tensor_in_its_place_is_refused(tmp_path: Path) -> None:
    other = head(tmp_path / "other", OWN | {"embed_tokens.weight": 3 * EMBEDDINGS})
    with pytest.raises(Refused, match=r"embed_tokens\.weight would be written into the target's own"):
        checked(other, head(tmp_path / "loaded", OWN))


def test_published_heads_call_themselves_otherwise(tmp_path: Path) -> None:
    """vLLM puts Eagle before the architecture that their config.json names."""
    loaded = head(tmp_path / "loaded", OWN, architectures=["LlamaForCausalLM"])
    assert checked(loaded, loaded)
    with pytest.raises(Refused, match="architectures is"):
        checked(head(tmp_path / "other", OWN, architectures=["EagleQwen2ForCausalLM"]), loaded)


def test_a_head_that_reads_other_hidden_states_is_refused(tmp_path: Path) -> None:
    other = head(tmp_path / "other", OWN, eagle_aux_hidden_state_layer_ids=[1, 2, 3])
    with pytest.raises(Refused, match="eagle_aux_hidden_state_layer_ids"):
        checked(other, other, eagle_aux_hidden_state_layer_ids=[2, 4, 5])
