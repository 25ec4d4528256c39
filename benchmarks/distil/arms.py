"""Columns of Table 1: whose tokens a draft learns behind, and by which distance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from osd.bench.harness.prompts import choose

SAMPLINGS = {"TF": "teacher", "SF": "student", "MixF": "mixed"}
"""The paper's names, by learn.sampling."""
LOSSES = {"forward_kl": "forward KL", "reverse_kl": "reverse KL", "jsd": "JSD"}
ORIGINAL, FINE_TUNED = "Original", "FT"


@dataclass(frozen=True, slots=True)
class DistilArm:
    """One way to make a draft."""

    name: str
    """Original, FT, TF, SF or MixF."""
    loss: str = ""
    """A name of learn.loss; empty for the original draft."""

    @property
    def learns(self) -> bool:
        """Whether the draft is trained at all."""
        return bool(self.loss)

    @property
    def draws(self) -> bool:
        """Whether its texts are drawn with the draft's own part, anew in each epoch."""
        return self.name in ("SF", "MixF")

    @property
    def learn(self) -> dict[str, Any]:
        """``[learn]`` of this arm."""
        return {"loss": self.loss, "sampling": SAMPLINGS.get(self.name, "teacher"), "positions": "verified"}

    def __str__(self) -> str:
        return f"{self.name}, {LOSSES[self.loss]}" if self.name in SAMPLINGS else self.name


def arms_of(samplings: Sequence[str] | None, losses: Sequence[str] | None) -> list[DistilArm]:
    """Return the original draft, the fine-tuned one, and each sampling with each loss. Raises BadSetting for a name
    that is none of them."""
    by = choose(samplings or [*SAMPLINGS], SAMPLINGS, "--sampling")
    distances = choose(losses or [*LOSSES], LOSSES, "--loss")
    crossed = [DistilArm(name, loss) for name in by for loss in distances]
    return [DistilArm(ORIGINAL), DistilArm(FINE_TUNED, "cross_entropy"), *crossed]
