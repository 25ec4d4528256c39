"""A connector that hands over hidden states, for osd's trainer (``learn.teacher = "engine"``): vLLM's example of one,
with a bound on what lies on disk, on any device, and with the numbers of the layers in each file.

A second vLLM runs with it; `osd engines teacher` says how it is started.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from vllm.distributed.kv_transfer.kv_connector.v1 import example_hidden_states_connector as example

log = logging.getLogger("osd.vllm")
BOUND_MB = 1024
"""Megabytes that may wait in the folder to be read, where ``bound_mb`` of the extra config says nothing else."""
COPIED = SimpleNamespace(query=lambda: True)
"""Takes the place of the event that tells when a copy is done: it is when this connector goes on."""


class HiddenStatesConnector(example.ExampleHiddenStatesConnector):  # type: ignore[misc]
    """Writes each request's hidden states to a file, while there is room."""

    def _submit_async_write(self, pending: Any) -> None:
        if not self._is_tp_rank_zero:
            return
        lock = self._lock_fds.pop(pending.req_id, None)
        self._req_copy_events[pending.req_id] = COPIED
        future = self._executor.submit(self._write, self._tensors(pending), pending.filename, lock)
        self._req_futures[pending.req_id] = future
        future.add_done_callback(lambda done: self._on_write_done(pending.req_id, done))

    def _tensors(self, pending: Any) -> dict[str, torch.Tensor]:
        """Return ``token_ids`` (n,), their ``hidden_states`` (n, k, H), and the numbers of those ``layers`` (k,)."""
        blocks = torch.tensor(pending.block_ids, dtype=torch.long)[:, None] * self._block_size
        slots = (blocks + torch.arange(self._block_size)).flatten().to(self._kv_cache.device)
        states = example.extract_from_kv_cache(self._kv_cache, slots, len(pending.token_ids))
        config = self._vllm_config.speculative_config.draft_model_config.hf_config
        layers = torch.tensor(sorted(set(config.eagle_aux_hidden_state_layer_ids)))
        return {"hidden_states": states.cpu().contiguous(), "token_ids": pending.token_ids, "layers": layers}

    def _write(self, tensors: dict[str, torch.Tensor], filename: str, lock: int | None) -> None:
        """Write a file unless there is no room, and let whoever waits for it go on."""
        try:
            bound = self._kv_transfer_config.get_from_extra_config("bound_mb", BOUND_MB) << 20
            waiting = sum(map(_size, Path(filename).parent.glob("*.safetensors")))
            if waiting + tensors["hidden_states"].nbytes > bound:
                log.warning("hidden states are not written: %d MB wait to be read already", waiting >> 20)
                return
            save_file(tensors, filename)
        finally:
            if lock is not None:
                os.close(lock)


def _size(path: Path) -> int:
    """Return a file's bytes; none where whoever read it has deleted it meanwhile."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
