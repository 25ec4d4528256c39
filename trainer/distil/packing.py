"""Whether a model computes branches behind their text as it computes each as a text by itself: shown, not assumed."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from osd.models.proof import TOLERANCE, off, unit
from storage.branches import Branches
from storage.records import RequestSamples
from trainer.distil.branching import unfold
from trainer.distil.collate import collate, device_of, predict

TEXT, BEGINS, LENGTHS = 9, (3, 7), (2, 3)
"""Tokens of the text that is tried, and its branches."""


@torch.no_grad()
def packs(model: nn.Module) -> bool:
    """Return whether a row may hold a text and its branches: the model takes a mask and positions of a text's own, has
    no window that would count tokens of other branches, and says of a small text what it says of its parts."""
    if _has_window(model):
        return False
    was = model.training
    try:
        return _agrees(model.train(False))
    except (TypeError, ValueError, RuntimeError, IndexError):  # a pass that takes no such mask: then each by itself
        return False
    finally:
        model.train(was)


def _has_window(model: nn.Module) -> bool:
    config = model.config.get_text_config()  # type: ignore[union-attr,operator]
    windows = (getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size", "window_size"))
    return getattr(config, "use_sliding_window", True) is not False and any(map(bool, windows))


def _agrees(model: nn.Module) -> bool:
    samples = _example(int(model.get_output_embeddings().weight.shape[0]))  # type: ignore[operator]
    device, worst = device_of(model), 0.0
    whole = predict(model, collate([samples]).to(device))
    apart = torch.cat([predict(model, collate([each]).to(device)) for each in unfold(samples)])
    for one, other in zip(whole, apart, strict=True):
        worst = max(worst, off(one, other))
    return worst <= TOLERANCE * unit(model)  # type: ignore[arg-type]


def _example(vocabulary: int) -> RequestSamples:
    n = sum(LENGTHS)
    branches = Branches(
        np.array(BEGINS, np.int32), np.array(LENGTHS, np.int32), (np.arange(n, dtype=np.int32) * 5 + 1) % vocabulary,
        np.zeros((n, 1), np.int32), np.zeros((n, 1), np.float16), np.zeros(n, np.float32),
    )  # fmt: skip
    tokens = (np.arange(TEXT, dtype=np.int32) * 3 + 1) % vocabulary
    positions = np.array([2, TEXT - 1], np.int32)
    nothing = np.zeros(2, np.uint8), tokens[positions], np.zeros((2, 1), np.int32), np.zeros((2, 1), np.float16)
    return RequestSamples(
        "example", "", "", "", 0.0, 1, tokens, positions, *nothing, np.zeros(2, np.float32), branches=branches
    )
