"""A running SGLang, over its published routes. Experimental: written from the source of 0.5.23, never run against it.

It is published to by ``/begin_weight_update {"selector": "draft"}``, ``/update_weights_from_tensor`` and
``/end_weight_update``, paused in place meanwhile: running requests wait and go on. ``/update_weights_from_disk`` knows
no selector and would load the draft into the target; it is never asked. What the draft is stands in SGLang's label of
weights, which a restart resets.

``/update_weights_from_tensor`` knows pickled lists of (name, tensor) alone, which SGLang reads by an unpickler of its
own that allows tensors and little else (``SafeUnpickler`` in srt/utils/common.py). They are written here and never
read.
"""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from osd.attached.base import (
    SGLANG,
    EngineError,
    EngineFacts,
    EngineRefused,
    RankVersion,
    ServingEngine,
    detail,
)
from osd.attached.vllm.plugin.osd_vllm.weights import NotSeen, Refused, check, shapes, weights_digest
from osd.models.model_digest import model_digest

if TYPE_CHECKING:
    import torch

SINGLE = "STANDALONE"
"""The speculative algorithm whose draft is a model of its own, which shares nothing with the target."""
KNOWN = "0.5."
LABEL, LOADING = "osd:", "osd-loading"
"""What SGLang's label of weights begins with where a draft was published; what it is while one is being loaded."""
CHUNK = 256 << 20
"""Bytes of tensors in one request, but for a tensor that is larger."""


class SglangEngine(ServingEngine):
    """An SGLang at a URL."""

    def __init__(self, url: str, api_key: str | None, target: str | None = None, draft: str | None = None) -> None:
        """``api_key``: SGLang's admin key, where it has one, else its API key. ``target``, ``draft``: their folders,
        where SGLang's own names of them are not seen from here."""
        super().__init__(url, {}, api_key)
        self._target, self._draft = target, draft
        self._launched: Path | None = None
        self._tp = 1

    def probe(self) -> EngineFacts:
        """Return what it is. Raises EngineUnreachable, and EngineUnsuited with what to do about it."""
        return self._read("/server_info", self._facts, self._ask("GET", "/server_info"))

    def _facts(self, found: Mapping[str, Any]) -> EngineFacts:
        self._require_suited(found)
        target = self._target or str(found["model_path"])
        digest = model_digest(target)
        if digest is None:
            raise self._unsuited(
                f"its target {target!r} is neither a folder here nor in the cache; give --target FOLDER"
            )
        self._launched, self._tp = self._launch_folder(found), int(found["tp_size"])
        return EngineFacts(
            self.name, SGLANG, str(found["version"]), target, digest, SINGLE, str(self._launched),
            int(found["speculative_num_draft_tokens"] or 1) - 1, found["speculative_eagle_topk"] == 1, 0,
            found["max_running_requests"], False, tuple(self.served()), {},
        )  # fmt: skip

    def served(self) -> Sequence[RankVersion]:
        """Return what it drafts with, by SGLang's label of weights: one entry, for all ranks have one label. Where a
        publication broke off, SGLang is let go on, and the draft is not known."""
        said = self._ask("GET", "/model_info")
        label = self._read("/model_info", lambda said: str(said["weight_version"]), said)
        if label == LOADING:
            self._go_on(ends_session=True)
            return [RankVersion(0, label, None, None)]
        if label.startswith(LABEL):
            version, _, sha256 = label.removeprefix(LABEL).rpartition("@")
            return [RankVersion(0, label, version, sha256)]
        return [RankVersion(0, label, None, weights_digest(self._launch_folder()))]

    def publish(self, folder: Path, sha256: str, version: str) -> Sequence[RankVersion]:
        """Load a folder as the draft on every rank; where SGLang refuses, put back what was there."""
        try:
            ready = list(payloads(checked(folder, sha256, self._launch_folder())))
        except NotSeen as error:
            raise self._unsuited(str(error)) from None
        except Refused as error:
            raise EngineRefused(engine=self.name, reason=str(error)) from None
        self._label(LOADING)
        self._ask("POST", "/pause_generation", {"mode": "in_place"})
        try:
            self._load(ready)
        except EngineRefused:
            launched = self._launch_folder()  # whatever was loaded in part is overwritten
            self._load(list(payloads(checked(launched, weights_digest(launched), launched))))
            self._label("default")
            raise
        finally:
            self._go_on()
        self._require_draft_role()
        self._label(f"{LABEL}{version}@{sha256}")
        return self.served()

    def _load(self, ready: Sequence[str]) -> None:
        try:
            self._ask("POST", "/begin_weight_update", {"selector": "draft"})
        except EngineRefused:  # a session of somebody's who broke off is open
            self._ask("POST", "/end_weight_update", {})
            self._ask("POST", "/begin_weight_update", {"selector": "draft"})
        try:
            for payload in ready:
                body = {"serialized_named_tensors": [payload] * self._tp, "selector": "draft", "flush_cache": False}
                self._ask("POST", "/update_weights_from_tensor", body)
        finally:
            self._ask("POST", "/end_weight_update", {})

    def _go_on(self, *, ends_session: bool = False) -> None:
        if ends_session:
            with suppress(EngineRefused):  # there was no session
                self._ask("POST", "/end_weight_update", {})
        self._ask("POST", "/continue_generation", {"torch_empty_cache": False})

    def _label(self, label: str) -> None:
        self._ask("POST", "/update_weight_version", {"new_version": label, "abort_all_requests": False})

    def _require_draft_role(self) -> None:
        """Raise EngineRefused unless every rank has a draft that can be read back."""
        said = self._ask("POST", "/weights_checker", {"action": "checksum", "selector": "draft"})
        found = self._read("/weights_checker", lambda said: [one["checksums"] for one in said["ranks"] or ()], said)
        if len(found) != self._tp or not all(found):
            reason = f"{len(found)} of its {self._tp} ranks have a draft to read back"
            raise EngineRefused(engine=self.name, reason=reason)

    def _require_suited(self, found: Mapping[str, Any]) -> None:
        version, algorithm = str(found.get("version")), found.get("speculative_algorithm")
        if not version.startswith(KNOWN):
            raise self._unsuited(f"it is version {version}; this is written for {KNOWN}23")
        if algorithm != SINGLE:
            reason = f"it drafts by {algorithm}, and osd trains drafts of the algorithm {SINGLE}"
            raise self._unsuited(f"{reason} (--speculative-algorithm {SINGLE} --speculative-draft-model-path DRAFT)")
        if found.get("dp_size") != 1:
            raise self._unsuited("it does not update the weights of data-parallel replicas; start it with --dp-size 1")

    def _launch_folder(self, found: Mapping[str, Any] | None = None) -> Path:
        """Return the folder of the draft that it was started with. Raises EngineUnsuited where that is not seen."""
        if self._launched is None:
            if found is None:
                return self._read("/server_info", self._launch_folder, self._ask("GET", "/server_info"))
            folder = Path(self._draft or found["speculative_draft_model_path"] or "")
            if not any(folder.glob("*.safetensors")):
                raise self._unsuited(
                    f"its draft {str(folder)!r} is no folder that is seen here; give --draft-folder FOLDER"
                )
            self._launched, self._tp = folder, int(found["tp_size"])
        return self._launched

    def _refusal(self, status: int, said: str, path: str) -> EngineError:
        if status in (401, 403):
            return self._unsuited("it wants its admin key, or its API key where it has no other (attach.api_key)")
        if status == 404:
            return self._unsuited(f"it has no {path}; this is written for SGLang {KNOWN}23")
        if status == 400:
            return EngineRefused(engine=self.name, reason=detail(said))
        return super()._refusal(status, said, path)


def checked(folder: Path, sha256: str, launched: Path) -> dict[str, torch.Tensor]:
    """Read a folder's tensors, checked against the draft that SGLang was started with: an error while it loads would
    end SGLang's scheduler. Raises Refused."""
    try:
        config = SimpleNamespace(**json.loads((launched / "config.json").read_text()))
    except (OSError, ValueError) as error:
        raise Refused(f"config.json of {launched}, with which it was started, cannot be read ({error})") from None
    return check(folder, sha256, config, shapes(launched), {})


def payloads(tensors: dict[str, torch.Tensor]) -> Iterator[str]:
    """Yield the tensors in base64, some at a time."""
    some: list[tuple[str, torch.Tensor]] = []
    size = 0
    for name, tensor in tensors.items():
        if some and size + tensor.nbytes > CHUNK:
            yield _packed(some)
            some, size = [], 0
        some.append((name, tensor.contiguous()))
        size += tensor.nbytes
    yield _packed(some)


def _packed(tensors: list[tuple[str, torch.Tensor]]) -> str:
    return base64.b64encode(pickle.dumps(tensors)).decode()
