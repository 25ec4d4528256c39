"""The gate of acceptance heads: a candidate is published only if it is proven the better predictor.

As for drafts (:mod:`trainer.distil.gate`): both heads predict the same tokens of requests that neither was trained on,
the difference is clustered by request, and its lower limit decides. The measure is the binary KL of their estimates
(appendix D.3), less is better; each head's weight of rejections is undone first, so that heads trained with
different ones compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from osd.models.acceptance_head import AcceptanceHead
from storage.settings import GateSettings
from trainer.distil.gate import GateDecision, compare
from trainer.heads.examples import Examples
from trainer.heads.losses import binary_kl, calibration_error

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class HeadScores:
    """The predictions of two heads on the same tokens."""

    examples: Examples
    before: torch.Tensor
    """(N,) logits of the serving head, with its rejection weight undone."""
    after: torch.Tensor

    def sums(self, logits: torch.Tensor) -> Array:
        """Return the binary KL summed over each request's tokens, shape (requests,)."""
        return _by_request(self.examples, binary_kl(self.examples.chances, logits))

    @property
    def positions(self) -> Array:
        """(requests,) number of tokens of each."""
        return _by_request(self.examples, torch.ones_like(self.examples.chances))


@torch.inference_mode()
def hear(current: AcceptanceHead, other: AcceptanceHead, examples: Examples | None) -> HeadScores | None:
    """Score both heads on tokens that neither was trained on; None when there are none."""
    if examples is None or not len(examples):
        return None
    return HeadScores(examples, current.estimate(examples.embeddings), other.estimate(examples.embeddings))


def judge(heard: Sequence[HeadScores | None], gate: GateSettings) -> GateDecision:
    """Return whether the binary KL is lower, with ``gate.confidence``, over all scores pooled."""
    given = [each for each in heard if each is not None]
    if not given:
        return GateDecision(False, False, {"measure": "binary_kl", "reason": "nothing to judge on", "worse": False})
    positions = np.concatenate([each.positions for each in given])
    before = np.concatenate([each.sums(each.before) for each in given])
    after = np.concatenate([each.sums(each.after) for each in given])
    result = compare(positions, -before, -after, gate.confidence)
    better, worse = result.lower > 0, result.difference < -result.standard_error
    evidence = {
        "measure": "binary_kl",
        "requests": result.requests,
        "positions": result.positions,
        "kl_before": round(-result.before, 6),
        "kl_after": round(-result.after, 6),
        "gain": round(result.difference, 6),
        "lower": round(result.lower, 6) if np.isfinite(result.lower) else None,
        "standard_error": round(result.standard_error, 6) if np.isfinite(result.standard_error) else None,
        "confidence": result.confidence,
        "calibration_before": round(_calibration([(e.examples.chances, e.before) for e in given]), 6),
        "calibration_after": round(_calibration([(e.examples.chances, e.after) for e in given]), 6),
        "better": better,
        "worse": worse,
    }
    return GateDecision(better, worse, evidence)


def _calibration(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> float:
    chances, logits = (torch.cat(column) for column in zip(*pairs, strict=True))
    return calibration_error(chances, logits.sigmoid())


def _by_request(examples: Examples, values: torch.Tensor) -> Array:
    """Return sums by request, shape (requests,); requests without tokens do not count."""
    sums = np.bincount(examples.requests.numpy(), weights=values.double().numpy())
    return np.asarray(sums[np.unique(examples.requests.numpy())], np.float64)
