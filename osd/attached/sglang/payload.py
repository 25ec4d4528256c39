"""A draft's weights as SGLang's /update_weights_from_tensor takes them.

That route knows pickled lists of (name, tensor) alone, which SGLang reads by an unpickler of its own that allows
tensors and little else (``SafeUnpickler`` in srt/utils/common.py). They are written here and never read.
"""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import torch

from osd.attached.vllm.weights_check import Refused, check, shapes

CHUNK = 256 << 20
"""Bytes of tensors in one request, but for a tensor that is larger."""


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
