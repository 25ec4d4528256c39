"""Cost and savings of speculation and training: FLOPs, memory traffic, seconds.

FLOPs as in appendix A.4 of online speculative decoding: 2 a parameter and token, 6 for a token that is trained on; in
every round the target reads the drafted tokens and one more. Memory traffic as in A.5: a model is read once a pass by a
request that is alone in its batch; requests in one batch share the read, so there the saving is an upper bound.
Training against serving as in A.9.2. Prompts cost the same with and without a draft and are left out.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from storage.insights.plain_round import UndraftedRound
from storage.insights.runs import RunTotals
from storage.insights.sizes import ModelSize
from storage.outcomes.outcomes import AcceptanceRow
from storage.records import ratio

FORWARD, TRAINED = 2, 6
"""FLOPs a parameter and token, for a forward pass and for training (Kaplan et al., 2020)."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """FLOPs, or bytes read from memory, by part."""

    draft: float
    target: float
    training: float
    without: float
    """Amount that the target alone would have taken for the same tokens."""

    @property
    def saved(self) -> float:
        """``without`` minus everything spent. FLOPs are seldom saved; bytes are."""
        return self.without - self.draft - self.target - self.training


@dataclass(frozen=True, slots=True)
class CostRow:
    """The costs and savings of one draft."""

    draft: str
    rounds: int
    drafted: int
    emitted: int
    flops: Arithmetic | None
    """FLOPs spent and saved; None, like ``bytes``, where a model's size is unknown."""
    bytes: Arithmetic | None
    decode_seconds: float
    """Seconds of drafting and verifying, counting each request's share of its batch's time."""
    without_seconds: float | None
    """emitted × b(0); None where b(0) is unknown."""
    training_seconds: float
    """Seconds of training runs, gates included."""
    training_runs: int

    @property
    def saved_seconds(self) -> float | None:
        """Decode seconds that speculation saved; negative where it cost time."""
        return None if self.without_seconds is None else self.without_seconds - self.decode_seconds

    @property
    def net_gain_seconds(self) -> float | None:
        """Decode seconds saved − training seconds."""
        return None if self.saved_seconds is None else self.saved_seconds - self.training_seconds

    @property
    def update_share(self) -> float | None:
        """Training seconds ÷ decode seconds (A.9.2 gives the inverse: 208 and 82)."""
        return ratio(self.training_seconds, self.decode_seconds)

    def as_dict(self) -> dict[str, Any]:
        """Return the row as one flat dictionary."""
        facts = asdict(self)
        for name in ("flops", "bytes"):
            account: Arithmetic | None = getattr(self, name)
            del facts[name]
            for part in ("draft", "target", "training", "without", "saved"):
                facts[f"{name}_{part}"] = None if account is None else getattr(account, part)
        names = ("saved_seconds", "net_gain_seconds", "update_share")
        return facts | {name: getattr(self, name) for name in names}


def cost_row(
    draft: str,
    served: AcceptanceRow,
    trained: RunTotals | None,
    target: ModelSize | None,
    small: ModelSize | None,
    plain: UndraftedRound | None,
) -> CostRow:
    """Compute a draft's costs from its summed outcomes, its training runs, both models' sizes and b(0)."""
    known = target is not None and small is not None
    return CostRow(
        draft=draft,
        rounds=served.rounds,
        drafted=served.drafted,
        emitted=served.emitted,
        flops=_flops(served, trained, target, small) if known and target and small else None,
        bytes=_bytes(served, trained, target, small) if known and target and small else None,
        decode_seconds=(served.draft_ms + served.verify_ms) / 1000,
        without_seconds=None if plain is None else served.emitted * plain.ms / 1000,
        training_seconds=trained.seconds if trained else 0.0,
        training_runs=trained.runs if trained else 0,
    )


def _flops(served: AcceptanceRow, trained: RunTotals | None, target: ModelSize, small: ModelSize) -> Arithmetic:
    """Compute Equation 6: drafted · F_q + (drafted + rounds) · F_p + trained · 3 F_q."""
    return Arithmetic(
        draft=FORWARD * float(small.parameters) * served.drafted,
        target=FORWARD * float(target.parameters) * (served.drafted + served.rounds),
        training=TRAINED * float(small.parameters) * (trained.positions if trained else 0),
        without=FORWARD * float(target.parameters) * served.emitted,
    )


def _bytes(served: AcceptanceRow, trained: RunTotals | None, target: ModelSize, small: ModelSize) -> Arithmetic:
    """Compute Table 5: rounds · M + drafted · m + steps · m, against emitted · M."""
    return Arithmetic(
        draft=float(small.bytes) * served.drafted,
        target=float(target.bytes) * served.rounds,
        training=float(small.bytes) * (trained.steps if trained else 0),
        without=float(target.bytes) * served.emitted,
    )
