"""What stands between the products of a Llama-type pass over a few tokens, for a pass whose products are not its own.

Shapes as in :mod:`osd.compiled.passes`.
"""

from __future__ import annotations

import numpy as np

from osd.compiled.arithmetic import Floats
from osd.compiled.passes import Index, Weights, attend, holding, norm, remember, sigmoid


@holding
def look_back(
    mixed: Floats, bases: Index, positions: Index, rotary: Weights, norms: Weights, eps: np.float32,
    scale: np.float32, keys: Floats, values: Floats, out: Floats,
) -> None:  # fmt: skip
    """Keeps each line's key and value, and out (n, H · W) ← what its queries see: as
    :func:`osd.compiled.passes.remember` and :func:`osd.compiled.passes.attend`."""
    remember(mixed, bases, positions, rotary, norms, eps, keys, values)
    attend(mixed, bases, positions, scale, keys, values, out)


@holding
def add_and_norm(hidden: Floats, part: Floats, weight: Floats, eps: np.float32, out: Floats) -> None:
    """hidden (n, D) grows by ``part``, and out (n, D) ← its RMSNorm."""
    for n in range(len(hidden)):
        for i in range(hidden.shape[1]):
            hidden[n, i] += part[n, i]
        norm(hidden[n], weight, eps, out[n])


@holding
def gate(both: Floats, out: Floats) -> None:
    """out (n, F) ← silu(gate) · up of ``both`` (n, 2 F)."""
    size = out.shape[1]
    for n in range(len(out)):
        for i in range(size):
            out[n, i] = both[n, i] * sigmoid(both[n, i]) * both[n, size + i]
