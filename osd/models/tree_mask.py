"""Trees as tensors: depths and the tree attention mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from osd.draft import Tree


class Layout(NamedTuple):
    """Depths and mask of B trees of at most T − 1 drafted tokens, the root included."""

    depths: Tensor
    """(B, T) int64: tokens from the row's last one; 0 for padding."""
    seen: Tensor
    """(B, T, T) bool: whether node i sees node j: its ancestors and itself; padding sees the root."""


def lay_out(trees: Sequence[Tree], width: int, device: torch.device) -> Layout:
    """Return the layout of trees; ``width`` T is one more than the largest tree has tokens.

    Ancestors are a set of bits while they are gathered.
    """
    ancestors = b"".join(_ancestors(tree, width) for tree in trees)
    packed = np.frombuffer(ancestors, np.uint8).reshape(len(trees), width, -1)
    seen = np.unpackbits(packed, axis=2, count=width, bitorder="little").view(np.bool_)
    depths = [[*tree.depths(), *[0] * (width - 1 - len(tree))] for tree in trees]
    return Layout(torch.tensor(depths, device=device), torch.from_numpy(seen).to(device))


def _ancestors(tree: Tree, width: int) -> bytes:
    """Return bits (T, ⌈T / 8⌉): bit j of line i is whether node i sees node j."""
    lines = [1]
    for node, parent in enumerate(tree.parents, 1):
        lines.append(lines[parent] | 1 << node)
    lines += [1] * (width - len(lines))
    return b"".join(line.to_bytes((width + 7) // 8, "little") for line in lines)


def tables(trees: Sequence[Tree], width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return parents (B, N), −1 for padding, and turns (B, N), see :meth:`osd.draft.Tree.turns`; N = ``width``."""
    parents = [[*tree.parents, *[-1] * (width - len(tree))] for tree in trees]
    turns = [[*tree.turns(), *[-1] * (width - len(tree))] for tree in trees]
    both = torch.tensor([parents, turns], device=device)
    return both[0], both[1]
