"""Compiled sampling: argmax, a draw from logits, and rejection sampling of drafts.

PyTorch spends its time between operations here. By it a round of one row that samples took 190 µs more than a greedy
one, and each drafted token 100 µs, as much as its pass (docs/bench-log.md). The functions are compiled in the
background once a process has made some rounds; until then, on a GPU, in half precision and for large batches
:mod:`osd.verification.warping` and :mod:`osd.verification.rejection_sampling` go on, with the same uniforms and so,
but for rounding, the same tokens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from osd.kernels.code_cache import BackgroundCompile, apart
from osd.logits import RaggedLogits
from osd.models.llama_forward_compiled import WORTH_COMPILING, Acceptance
from osd.verification.rejection_sampling_trees import TreeBatch, TreeVerifyResult
from osd.verification.warping import Warp

MOST_NUMBERS = 1 << 20
"""Most logits of a call: over more, PyTorch's threads gain what it loses between operations."""


NO_ACCEPTANCE: Acceptance = (np.empty((0, 1, 1), np.float32), np.empty((0, 1), np.float32), np.empty(0, np.float32))


def compile_choosing() -> Any:
    """Import :mod:`osd.kernels.sampling` and call each of its functions over two tokens."""
    from osd.kernels import sampling as compiled

    apart(compiled.judge, "osd.verification.compiled_sampling:compile_choosing")
    logits, settings, chances = np.ones((2, 2), np.float32), np.ones((1, 4)), np.full((1, 3), 0.5)
    q, token, length = np.ones((1, 1, 2), np.float32), np.zeros((1, 1), np.int64), np.ones(1, np.int64)
    kept = np.empty((1, 1), np.float32)
    judged = kept, kept.copy(), length.copy(), length.copy()
    compiled.judge(logits, length, q, token, length, settings, chances, True, *judged)
    compiled.draw(logits[:1], settings, chances, 0, q[0], token[0])
    tests, path = np.full((1, 2, 1), 0.5), np.zeros((1, 2), np.int64)
    draws, numbers = np.full((1, 2), 0.5), np.empty((1, 2), np.float32)
    compiled.judge_trees(logits[None], q, token, token, token, settings, tests, draws, path, length.copy(), numbers)
    compiled.likeliest(logits, np.empty(2, np.int64))
    compiled.read_off(logits, logits, *NO_ACCEPTANCE, np.empty(2, np.int64), *np.empty((2, 2), np.float32))
    return compiled


CHOOSING = BackgroundCompile(
    compile_choosing, "osd-compile-choosing", "choosing tokens is not compiled: one that is sampled takes 0.1 ms more"
)
_ASKED = count(1)


class ReadOff(NamedTuple):
    """What one call reads off a draft's logits, of each row."""

    choices: Tensor
    """(B,) int64: its likeliest token, the first of several."""
    peaks: list[float]
    """That token's probability."""
    chances: list[float] | None
    """What the acceptance head says of the token that was read; None where there is no head."""


class SampledResult(NamedTuple):
    """Outcome of rejection sampling over the drafts of B rows."""

    accepted: list[int]
    follows: list[int]
    shared: list[list[float]]
    """(B, G) :func:`osd.verification.rejection_sampling.expected_acceptance` at each verified token."""
    chances: Tensor | None
    """(B, G) acceptance probabilities, where they were asked for."""


def takes(logits: Tensor) -> bool:
    """Return whether the compiled functions are ready and take logits of this device, dtype and size."""
    if logits.numel() > MOST_NUMBERS or logits.device.type != "cpu" or logits.dtype != torch.float32:
        return False
    if CHOOSING.ready is None and next(_ASKED) == WORTH_COMPILING:
        CHOOSING.start()
    return CHOOSING.ready is not None


def likeliest(logits: Tensor) -> list[int]:
    """Return the argmax of each line of logits (N, V): (N,), the first one where several are largest."""
    compiled: Any = CHOOSING.ready
    choices = np.empty(len(logits), np.int64)
    compiled.likeliest(logits.contiguous().numpy(), choices)
    found: list[int] = choices.tolist()
    return found


def read_off(logits: Tensor, embedding: Tensor | None, acceptance: Acceptance | None) -> ReadOff | None:
    """Return the greedy choices of a draft's logits (B, 1, V), their probabilities, and the chances that the acceptance
    head gives for ``embedding`` (B, 1, D), the input of the draft's output layer; None where :func:`takes` says no."""
    if not takes(logits):
        return None
    compiled: Any = CHOOSING.ready
    choices, numbers = np.empty(len(logits), np.int64), np.empty((2, len(logits)), np.float32)
    if embedding is None or acceptance is None:
        embedding, acceptance = logits, None
    lines = [each[:, 0].float().contiguous().numpy() for each in (logits, embedding)]
    compiled.read_off(*lines, *(acceptance or NO_ACCEPTANCE), choices, *numbers)
    peaks, chances = numbers.tolist()
    return ReadOff(torch.from_numpy(choices), peaks, chances if acceptance else None)


def draw(logits: Tensor, warp: Warp, chance: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """Draw a token from each line of logits (B, V) by the uniforms in column ``step`` of ``chance`` (B, …).

    Returns the tokens (B,) and the warped distributions that they were drawn from, (B, V).
    """
    compiled: Any = CHOOSING.ready
    q, chosen = torch.empty_like(logits), np.empty(len(logits), np.int64)
    compiled.draw(logits.contiguous().numpy(), warp.settings, chance.numpy(), step, q.numpy(), chosen)
    return torch.from_numpy(chosen), q


def judge(
    scored: RaggedLogits,
    q: Tensor | None,
    drafted: Tensor,
    lengths: Sequence[int],
    warp: Warp,
    chance: Tensor,
    *,
    keep: bool,
) -> SampledResult:
    """Apply rejection sampling as :func:`osd.verification.rejection_sampling.accept_sampled`, with ``chance`` (B, 2 G
    + 1 or more) from :func:`osd.verification.result.uniforms`; ``keep`` adds
    :func:`osd.verification.rejection_sampling.acceptance_chance`, NaN where nothing was drafted."""
    compiled: Any = CHOOSING.ready
    rows, size = drafted.shape
    accepted, follows = np.empty(rows, np.int64), np.empty(rows, np.int64)
    kept, shared = np.full((rows, size), np.nan, np.float32), np.empty((rows, size), np.float32)
    proposed = scored.lines.new_empty(rows, 0, scored.lines.shape[1]) if q is None else q
    compiled.judge(
        scored.lines.contiguous().numpy(), np.array(scored.begins, np.int64), proposed.contiguous().numpy(),
        drafted.contiguous().numpy(), np.array(lengths, np.int64), warp.settings, chance.numpy(), keep,
        kept, shared, accepted, follows,
    )  # fmt: skip
    return SampledResult(accepted.tolist(), follows.tolist(), shared.tolist(), torch.from_numpy(kept) if keep else None)


def judge_trees(logits: Tensor, forest: TreeBatch, tests: Tensor, draws: Tensor, warp: Warp) -> TreeVerifyResult:
    """Accept paths of trees as :func:`osd.verification.rejection_sampling_trees.accept_tree_sampled`, by the target's
    logits (B, N + 1, V) before ``warp``."""
    compiled: Any = CHOOSING.ready
    path, follows = np.full(draws.shape, -1, np.int64), np.empty(len(logits), np.int64)
    chances = np.full(draws.shape, np.nan, np.float32)
    drawn_from = logits.new_empty(len(logits), 0, logits.shape[2]) if forest.q is None else forest.q
    given = (logits, drawn_from, forest.tokens, forest.parents, forest.turns)
    compiled.judge_trees(
        *(each.contiguous().numpy() for each in given), warp.settings, tests.contiguous().numpy(),
        draws.contiguous().numpy(), path, follows, chances,
    )  # fmt: skip
    return TreeVerifyResult(*map(torch.from_numpy, (path, follows, chances)))
