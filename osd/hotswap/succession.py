"""Succession: what drafts have learned about an earlier target is judged on its successor, before it serves there.

The successor reads the newest texts of the earlier target again, and so does the heir. That measures two things:

    expected α of the heir      it goes on if it is no worse than number 0, which would serve instead
    divergence of both targets  by it the earlier one's samples weigh less, or nothing (:func:`weight_of`)

An heir may be better than number 0 and still lose to not drafting. Then the line rests: it learns on from the heir,
and nothing is drafted (:func:`rests`) until a version of it was judged to pay. Rules that weigh what passes cost find
that out round by round, and are left to.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sqlalchemy import or_, select
from torch import Tensor

from osd.hotswap.loader import Loader
from osd.models.decoder import Decoder
from osd.models.pair import Pair
from osd.verification.rejection_sampling import expected_acceptance
from storage.errors import PairError, WeightsDamaged
from storage.insights.recent import summed
from storage.insights.statistics import tokens_per_round
from storage.names import LINE, draft_of
from storage.records import DraftVersion, RequestSamples
from storage.sql.outcome_tables import OutcomeRow
from storage.sql.tables import VersionRow
from storage.store import Store
from storage.versions.heirs import offer_heir

log = logging.getLogger(__name__)

TEXTS = 16
"""Newest texts of each earlier target that are read again."""
ANCESTORS = 3
"""Earlier targets whose texts are."""
CHUNK = 256
"""Positions whose distributions are in memory at once."""
COSTS = ("drafted", "rounds", "draft_ms", "verify_ms")


@dataclass(frozen=True, slots=True)
class HeirJudgement:
    """What is known of an heir on the new target."""

    requests: int
    positions: int
    before: float
    """Expected α of number 0."""
    after: float
    """Expected α of the heir."""
    break_even: float
    """α from which drafting does not lose."""

    @property
    def good(self) -> bool:
        """Whether the line goes on from it."""
        return self.after >= self.before


def judge_heir(
    heir: Sequence[float], root: Sequence[float], positions: Sequence[int], pays_from: float
) -> HeirJudgement | None:
    """Judge an heir by the sums of Σ min(p, q) over each text's positions, of it and of number 0. None for fewer than
    two texts."""
    if len(positions) < 2:
        return None
    total = sum(positions)
    return HeirJudgement(len(positions), total, sum(root) / total, sum(heir) / total, pays_from)


def break_even(store: Store, line: str) -> float:
    """Return α from which drafting with a line's draft does not lose, by what rounds that drafted took about any
    target: with g tokens a round and a draft pass of c of a target's, where (1 − α^{g+1}) ÷ (1 − α) = 1 + g c. 0 where
    fewer than every second round drafted, which are tries of single rows, and tell nothing of drafts for all; above 1
    where none pays."""
    draft = draft_of(line)
    lines = or_(VersionRow.draft == draft, VersionRow.draft.startswith(f"{draft}{LINE}", autoescape=True))
    served = OutcomeRow.draft_version.in_(select(VersionRow.id).where(lines))
    drafted, rounds, draft_ms, verify_ms = summed(store.db, COSTS, served, OutcomeRow.drafted > 0)
    if not verify_ms or 2 * drafted < rounds:
        return 0.0
    length, taken = drafted / rounds, 1 + draft_ms / verify_ms
    return bisect_left(range(1001), taken, key=lambda alpha: tokens_per_round(alpha / 1000, length)) / 1000


def rests(store: Store, version: DraftVersion) -> bool:
    """Return whether drafting with a version loses, as far as it was judged on a target that moved."""
    held = VersionRow.evidence["break_even"].as_float().is_not(None)
    judged = store.db.scalars(select(VersionRow.evidence).where(VersionRow.draft == version.draft, held).limit(1))
    if not judged:
        return False
    alpha = version.evidence.get("after") if version.number else judged[0]["before"]
    return alpha is not None and alpha < judged[0]["break_even"]


def weight_of(divergence: float) -> float:
    """Return what an earlier target's samples weigh: 1 where both targets say the same, 0 from a total variation
    distance of 1/2 on, where most of what one says the other does not."""
    return max(0.0, 1.0 - 2.0 * divergence)


class Succession:
    """Carries what drafts learned over to the pair's target. Used by one thread, before anything is served."""

    def __init__(self, store: Store, pair: Pair, loader: Loader, length: int) -> None:
        """``length``: positions of a row."""
        self._store, self._pair, self._loader = store, pair, loader
        self._length = min(length, pair.target.limit)

    @torch.inference_mode()
    def carry_over(self, drafts: Iterable[str]) -> None:
        """Measure how far the target is from those before it, and let these drafts' lines go on from good heirs."""
        target = self._pair.target.digest
        if self._pair.target.start or not (ancestors := self._store.targets.ancestors(target)[:ANCESTORS]):
            return
        for draft in drafts:
            line = self._store.versions.current(draft, target).draft
            heir, kept = offer_heir(self._store, line), {old: self._texts(draft, old) for old in ancestors}
            decoders = self._decoders(heir if sum(map(len, kept.values())) > 1 else None)
            texts = list[_ReadText]()
            for old, some in kept.items():
                read = [read_text(one, *decoders) for one in some]
                self._store.targets.note_divergence(str(target), old, _by_route(read))
                texts += read
            if heir and len(decoders) > 1:
                self._judge(heir, texts)

    def _decoders(self, heir: DraftVersion | None) -> list[Decoder]:
        """Return the target's decoder, and the heir's and number 0's where an heir can be loaded; one that cannot is
        rejected."""
        models = [self._pair.target.decoder(1, self._length)]
        if heir is None:
            return models
        try:
            loaded = self._loader.load(heir, frozenset(), shares=False).decoder
        except (WeightsDamaged, PairError) as error:
            self._store.versions.settle_heir(heir.id, {"reason": str(error)}, good=False)
            return models
        assert isinstance(loaded, Decoder)
        return [*models, loaded, self._pair.draft.decoder(1, self._length)]

    def _texts(self, draft: str, old: str) -> list[RequestSamples]:
        """Return the newest texts of a draft's routes that an earlier target wrote, as far as both can read them."""
        known = self._store.versions.find(draft, old)
        if known is None or self._store.versions.target_of(known.draft) != old:
            return []
        found = self._store.samples.read(self._store.samples.recent(known.draft, limit=TEXTS))
        longest = min(self._length, self._pair.draft.limit)
        return [one for one in found if len(one) and one.k and len(one.tokens) <= longest]

    def _judge(self, heir: DraftVersion, texts: Sequence[_ReadText]) -> None:
        own, before = zip(*(text.expected for text in texts), strict=True)
        counts = [len(text.samples) for text in texts]
        found = judge_heir(own, before, counts, break_even(self._store, heir.draft))
        assert found is not None
        settle(self._store, heir, found, self._pair.target.digest)


def settle(store: Store, heir: DraftVersion, found: HeirJudgement, target: str | None) -> DraftVersion:
    """Let the line go on from a good heir, or reject it, and keep the evidence; return what is current there then."""
    current = store.versions.settle_heir(heir.id, evidence_of(found, target), good=found.good)
    words = "is inherited" if current.id == heir.id else "is not inherited"
    log.info(
        "%s %s: expected α %.3f on %d texts, number 0 %.3f; drafting pays from %.3f on", draft_of(heir.draft), words,
        found.after, found.requests, found.before, found.break_even, extra={"action": "heir_judged"},
    )  # fmt: skip
    return current


def evidence_of(found: HeirJudgement, target: str | None) -> dict[str, Any]:
    """Return what is kept with the version, under the names of the gate's evidence."""
    facts = {name: getattr(found, name) for name in HeirJudgement.__dataclass_fields__}
    return {"measure": "expected_acceptance", "judged_on": target, "better": found.good, **facts}


@dataclass(slots=True)
class _ReadText:
    """A text of an earlier target as its successor and drafts read it: sums over the positions that were kept."""

    samples: RequestSamples
    expected: list[float]
    """Σ_v min(p(v), q(v)) of each draft."""
    divergence: float = 0.0
    """1 − Σ_v min(p_old(v), p_new(v)) ÷ Σ_v p_old(v) over the tokens v that were kept: the total variation distance, if
    both agree on the others as much as on these."""


def read_text(samples: RequestSamples, target: Decoder, *drafts: Decoder) -> _ReadText:
    """Let a target and drafts read a text together, so that distributions of CHUNK positions are in memory at once."""
    text, begin = _ReadText(samples, [0.0] * len(drafts)), 0
    for p, *others in zip(*(read(one, samples) for one in (target, *drafts)), strict=True):
        here = slice(begin, begin := begin + len(p))
        ids = torch.from_numpy(samples.topk_ids[here]).long().to(p.device)
        old = torch.from_numpy(samples.topk_logprobs[here]).float().exp().to(p.device)
        shared = expected_acceptance(old, p.gather(1, ids)) / old.sum(1).clamp(min=1e-6)
        text.divergence += float((1 - shared).clamp(min=0).sum())
        for number, q in enumerate(others):
            width = min(q.shape[1], p.shape[1])
            text.expected[number] += float(expected_acceptance(p[:, :width], q[:, :width].to(p.device)).sum())
    return text


def _by_route(texts: Sequence[_ReadText]) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    for text in texts:
        sums[text.samples.route] += text.divergence
        counts[text.samples.route] += len(text.samples)
    return {route: sums[route] / counts[route] for route in sums}


def read(decoder: Decoder, samples: RequestSamples) -> Iterator[Tensor]:
    """Yield what a model says at a text's positions, in row 0 of its cache: (m, V) probabilities, float32, of those
    among CHUNK tokens each time."""
    tokens = samples.tokens.tolist()
    wanted = torch.from_numpy(samples.positions).long() - 1
    first, last = int(wanted[0]), int(wanted[-1]) + 1
    decoder.prefill(0, tokens[:first])
    for begin in range(first, last, CHUNK):
        end = min(begin + CHUNK, last)
        logits = decoder.logits(torch.tensor([tokens[begin:end]], device=decoder.device), [begin])[0]
        inside = wanted[(wanted >= begin) & (wanted < end)] - begin
        yield logits[inside.to(logits.device)].float().softmax(-1)
