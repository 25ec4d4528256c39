"""A second vLLM that reads texts and hands over its hidden states, by osd's connector (``osd_vllm.hidden_states``)."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from osd.attached.vllm.engine import COMPLETIONS, VllmEngine
from osd.models.features.target import FeatureTarget
from storage.errors import BadSetting
from storage.files.cipher import read_secret
from storage.settings import Settings

STATES, CONNECTOR = "extract_hidden_states", "osd_vllm.hidden_states"
PARTS = {"hidden_states", "token_ids", "layers"}
"""The tensors of a file that osd's connector wrote."""


@dataclass(frozen=True, slots=True)
class TextHiddenStates:
    """What a vLLM computed over a text of n tokens."""

    by_layer: dict[int, Tensor]
    """(n, H) by vLLM's numbers: i is the input of layer i, their count what the last one leaves to the norm."""
    next_token: int
    """What it found likeliest to follow."""


class HiddenStatesVllm(VllmEngine):
    """A vLLM that runs with osd's connector, and writes to a folder that this machine sees under the same path."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        """Raises BadInput for what is no URL."""
        super().__init__(url, "", api_key)

    def read(self, tokens: Sequence[int]) -> TextHiddenStates:
        """Return the hidden states of a text, and take them out of the folder. Raises EngineUnreachable, and
        EngineUnsuited where it does not hand them over."""
        answer = self._answer(tokens, 1, temperature=0, repetition_penalty=1.0)
        path = (answer.get("kv_transfer_params") or {}).get("hidden_states_path")
        if path is None:
            raise self._unsuited("it hands over no hidden states; `osd engines teacher` says how it is started")
        found = self._take(Path(path))
        if found["token_ids"].tolist() != list(tokens):
            raise self._unsuited(f"{path} is of another text than it was asked for")
        by_layer = dict(zip(found["layers"].tolist(), found["hidden_states"].unbind(1), strict=True))
        token = self._read(COMPLETIONS, lambda said: int(said["choices"][0]["token_ids"][0]), answer)
        return TextHiddenStates(by_layer, token)

    def _take(self, path: Path) -> dict[str, Tensor]:
        """Read a file once it is written, and delete it; what was not made by osd's connector is left where it is."""
        lock = path.with_name(path.name + ".lock")
        try:
            with lock.open() as held:
                fcntl.flock(held, fcntl.LOCK_SH)
                found = load_file(path)
            if found.keys() != PARTS:
                raise self._unsuited(f"{path} is not of osd's connector ({CONNECTOR}); start it with that")
            path.unlink()
            lock.unlink()
        except FileNotFoundError:
            with suppress(OSError):
                lock.unlink()
            reason = f"{path} is not there: this machine does not see that folder, or it is full (bound_mb)"
            raise self._unsuited(reason) from None
        except (OSError, SafetensorError) as error:
            raise self._unsuited(f"{path} cannot be read and deleted here: {error}") from None
        return found


def connect_hidden_states(settings: Settings) -> HiddenStatesVllm:
    """Return the vLLM that hands over hidden states. Raises BadSetting where none is named, BadInput."""
    if settings.learn.teacher_url is None:
        reason = "learn.teacher = engine needs the URL of a vLLM; `osd engines teacher` says how it is started"
        raise BadSetting(source="settings", key="learn.teacher_url", reason=reason)
    named = settings.attach.api_key
    key = read_secret(named, "attach.api_key", "the engine's API key").strip() if named else None
    return HiddenStatesVllm(settings.learn.teacher_url, key)


def start_options(layers: Sequence[int], folder: str, bound_mb: int) -> list[str]:
    """Return the options of a vLLM that hands over the hidden states ``layers``, by vLLM's numbers, in a folder."""
    draft = {"hf_config": {"eagle_aux_hidden_state_layer_ids": sorted(set(layers))}}
    speculative: dict[str, Any] = {"method": STATES, "num_speculative_tokens": 1, "draft_model_config": draft}
    extra = {"shared_storage_path": folder, "bound_mb": bound_mb}
    transfer = {
        "kv_connector": "HiddenStatesConnector", "kv_connector_module_path": CONNECTOR, "kv_role": "kv_producer",
        "kv_connector_extra_config": extra,
    }  # fmt: skip
    return ["--speculative-config", json.dumps(speculative), "--kv-transfer-config", json.dumps(transfer)]


def extracted_layers(layers: Sequence[int], count: int) -> list[int]:
    """Return vLLM's numbers of the hidden states ``layers``, by ours, of a target with ``count`` layers; what the last
    of them leaves is always among them, from which the final norm and the output layer make the rest."""
    return sorted({min(number, count) for number in layers} | {count})


def bytes_a_token(layers: Sequence[int], target: FeatureTarget) -> int:
    """Return what the hidden states ``layers``, by vLLM's numbers, of one token take."""
    return len(layers) * target.hidden_size * target.head.weight.dtype.itemsize
