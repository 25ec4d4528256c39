"""Offline training data for a head: a prompt, the target's answer, and token mixing (section 4.4 of SpecDec++).

At every position of an answer X_1 … X_N the draft proposes Y_i ~ q(· | x_prompt, X_1 … X_{i−1}), which the target
accepts with probability P_i = min(1, p(Y_i | …) / q(Y_i | …)). Feeding each Y_i after its own prefix would take a pass
a token. So one sequence Z is fed that takes r % of its tokens from X and the others from Y, and only those from Y are
learned from: more tokens, after prefixes that differ slightly from the target's text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from osd.models.encoder_decoder import require_decoder_only
from osd.models.model import Model
from osd.models.pair import Pair
from osd.verification.warping import Warp, draw
from storage.sampling import Sampling
from trainer.heads.examples import Drafted


@dataclass(frozen=True, slots=True)
class Proposals:
    """The draft's proposals along an answer of N tokens."""

    drafted: Tensor
    """(N,) Y."""
    chances: Tensor
    """(N,) P, float32."""


@torch.inference_mode()
def propose(pair: Pair, prompt: Sequence[int], answer: Sequence[int], sampling: Sampling, chance: Any) -> Proposals:
    """Propose Y and compute P at every position of an answer. ``chance`` is a numpy generator. Raises DecoderOnly."""
    require_decoder_only(pair.draft.module, "an acceptance head", pair.draft.name)
    text = [*prompt, *answer]
    p, q = (_distributions(model, text, len(prompt), sampling, pair.vocab_size) for model in (pair.target, pair.draft))
    drafted = draw(q, torch.from_numpy(chance.random(len(answer))).to(q.device))
    index = drafted.unsqueeze(1)
    return Proposals(drafted.cpu(), (p.gather(1, index) / q.gather(1, index)).clamp(max=1).squeeze(1).cpu())


def mix(
    prompt: Sequence[int], answer: Sequence[int], proposals: Proposals, share: float, chance: Any
) -> Drafted | None:
    """Mix Z with ``share`` of its tokens from the answer, the rest being what is learned from; None if all are."""
    from_target = chance.random(len(answer)) < share
    drafted = proposals.drafted.numpy()
    mixed = np.where(from_target, np.asarray(answer, np.int64), drafted)
    if from_target.all():
        return None
    tokens = np.concatenate([np.asarray(prompt, np.int64), mixed])
    positions = len(prompt) + np.flatnonzero(~from_target)
    return Drafted(tokens, positions, drafted[~from_target], proposals.chances.numpy()[~from_target])


def _distributions(model: Model, text: list[int], start: int, sampling: Sampling, vocabulary: int) -> Tensor:
    """Return the distribution of each token from ``start`` on, shape (N, V); at temperature 0 all mass is on the
    likeliest."""
    read = torch.tensor([text], device=model.device)
    fed = read if model.shared is None else model.shared.stand_ins[read]
    logits = model.module(input_ids=fed, use_cache=False).logits[:, start - 1 : -1]
    missing = vocabulary - logits.shape[-1]
    logits = F.pad(logits, (0, missing), value=float("-inf")) if missing else logits
    # with a sampling row in it, as an all-greedy batch has no distributions
    warp = Warp.of([sampling, Sampling(1.0)], vocabulary, logits.device)
    assert warp is not None
    return warp(logits.expand(2, -1, -1))[0]
