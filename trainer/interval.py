"""When a run is due: after a fixed number of requests, or, with ``learn.interval_requests = "auto"``, when it pays.

The last runs gained g of acceptance from each request that they learned from, and a unit of acceptance saves s seconds
of a request's decoding (:mod:`storage.insights.statistics`). While n requests wait, m are served; the i-th of them
could have had the gain of those before it. So waiting has cost

    g n s · m ÷ 2   seconds of decoding,

and a run costs C seconds of the machine. With m = n, the cost a request of a run every n is C ÷ n + g s n ÷ 2, which is
least where both parts are equal: at n = √(2 C ÷ (g s)), where waiting has cost C. A run begun then saves the traffic
until the next one 2 C. (It is the economic order quantity: Harris, 1913.)

The last runs say nothing where there are none, nor where traffic has changed since: where the newest
``gate.watch_requests`` were accepted less than those before them, with ``gate.watch_confidence``, or discovery of
routes found drift. Then a run begins as soon as ``gate.min_requests`` wait, the fewest that can judge it, and gains are
counted anew after that. Where nothing is gained a run begins when ``learn.max_requests`` wait, the most that it takes.

With ``learn.follow = "successor"`` the same is reckoned in tokens, over the steps of a target that moves: what the last
runs gained about this target and those before it, and what a run saves until it is worth nothing. A target serves as
many tokens as those before it did, in the median; one that has served n more is expected to serve n more again. What is
learned goes over to the next target with the weight w that the last change left to old samples
(:func:`osd.hotswap.succession.weight_of`), and to those after it with w², w³, …: in all as if w ÷ (1 − w) targets more
were served. A run is due where it saves more than C, once waiting has cost C, or half of what it saves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from statistics import fmean, median

from osd.hotswap.succession import weight_of
from storage.insights.recent import judged_requests, traffic
from storage.insights.statistics import difference, rate, saved_share
from storage.names import draft_of
from storage.records import RunState, TrainingRun
from storage.routes.proposals import ProposalKind
from storage.runs import BEGAN, ClaimTerms, RunReason
from storage.settings import Settings
from storage.store import Store

RUNS = 50
"""Newest runs that are read."""
STEPS = 8
"""Targets before this one that tell how many tokens one serves, and what runs gain and cost."""
MOST_KEPT = 0.95
"""Most that is taken to be kept from one target to the next: what is learned lasts for 20 of them."""
Runs = Sequence[TrainingRun]


def as_it_pays(settings: Settings) -> Settings:
    """Return the settings with ``trainer.spare`` where the interval is "auto": serving comes first then."""
    auto = settings.learn.interval_requests == "auto"
    return settings.changed(trainer={"spare": True}) if auto else settings


def claim_terms(store: Store, settings: Settings, draft: str) -> ClaimTerms:
    """Return the terms on which a draft's run claims."""
    follows = settings.learn.follow == "successor"
    if settings.learn.interval_requests != "auto" and not follows:
        return _terms(settings, settings.learn.interval_requests)
    reason = (why_in_this_step if follows else why_now)(store, settings, draft)
    due = settings.learn.max_requests if reason is None else settings.gate.min_requests
    return replace(_terms(settings, due), reason=reason)


def head_terms(store: Store, settings: Settings, draft: str) -> ClaimTerms:
    """Return the terms on which a run of a draft's acceptance head claims."""
    return _terms(settings, head_interval(store, settings, draft))


def head_interval(store: Store, settings: Settings, draft: str) -> int:
    """Return the new requests that make a run of a draft's acceptance head due; "auto" follows the draft's last run."""
    if settings.learn.interval_requests != "auto":
        return settings.learn.interval_requests
    last = next(iter(_judged(store, draft)), None)
    return max(settings.gate.min_requests, len(last.request_ids) if last else 0)


def _terms(settings: Settings, min_requests: int) -> ClaimTerms:
    learn = settings.learn
    decides = learn.interval_requests == "auto" or learn.follow == "successor"
    max_age = math.inf if decides else learn.max_age_seconds
    lease = settings.trainer.lease_seconds
    return ClaimTerms(min_requests, max_age, lease, learn.max_requests, learn.model_dump())


def why_now(store: Store, settings: Settings, draft: str) -> RunReason | None:
    """Return why a run pays now; None where it does not, short of the most that may wait. Raises StoreError."""
    waiting = store.samples.waiting(draft).requests
    if waiting < settings.gate.min_requests:
        return None
    judged = _judged(store, draft)
    runs = list(takewhile(lambda run: not _began_for_drift(run), judged))
    if not runs:
        return RunReason("first", f"no run has been judged {'since traffic changed' if judged else 'yet'}")
    history = Learning.of(runs)
    return _drifted(store, settings, draft, history) or _pays(store, [draft], history, waiting)


def why_in_this_step(store: Store, settings: Settings, draft: str) -> RunReason | None:
    """Return why a run pays while a target moves; None where it does not. Raises StoreError."""
    waiting = store.samples.waiting(draft).requests
    if waiting < settings.gate.min_requests:
        return None
    before = store.targets.ancestors(store.versions.target_of(draft))[:STEPS]
    lines = [draft, *(one.draft for old in before if (one := store.versions.find(draft_of(draft), old)))]
    if not (runs := [run for line in lines for run in _judged(store, line)]):
        return RunReason("first", "no run has been judged yet")
    left = _left(store, draft, before, [traffic(store.db, line, 0.0).emitted for line in lines])
    return _pays(store, lines, Learning.of(runs), waiting, left)


def _left(store: Store, draft: str, before: Sequence[str], tokens: Sequence[int]) -> float:
    """Return for how many tokens what is learned now is worth something. ``tokens``: that this target served, and each
    of those before it."""
    usual = median(tokens[1:] or [0])
    found = store.targets.divergence(store.versions.target_of(draft)).get(before[0], {}) if before else {}
    kept = min(MOST_KEPT, weight_of(fmean(found.values()))) if found else 0.0
    return abs(usual - tokens[0]) + usual * kept / (1 - kept)


@dataclass(frozen=True, slots=True)
class Learning:
    """What runs gained and cost: the newest one that published, and those of its parent and since."""

    since: float
    """When the first of them began, in Unix seconds, as ``last``."""
    last: float
    """When the newest began."""
    gain: float
    """Acceptance gained by all; a candidate that did not pass counts, since training goes on from it."""
    requests: int
    seconds: float
    """Mean length of a run."""

    @classmethod
    def of(cls, runs: Runs) -> Learning:
        """Sum up judged runs, newest first."""
        published = next((run for run in runs if run.state is RunState.PUBLISHED), None)
        parents = [run.parent for run in runs[: runs.index(published)]] + [published.parent] if published else None
        runs = [run for run in runs if parents is None or run.parent in parents]
        newest = {run.parent: _difference(run) for run in reversed(runs)}
        seconds = [(run.finished_at or run.heartbeat_at) - run.started_at - _paused(run) for run in runs]
        return cls(
            runs[-1].started_at, runs[0].started_at, sum(max(0.0, gain) for gain in newest.values()),
            sum(len(run.request_ids) for run in runs), sum(seconds) / len(runs),
        )  # fmt: skip


def _judged(store: Store, draft: str) -> list[TrainingRun]:
    runs = store.runs.list(draft, limit=RUNS)
    return [run for run in runs if "difference" in run.result.get("evidence", {})]


def _began_for_drift(run: TrainingRun) -> bool:
    """Return whether a change of traffic began it: most that it learned from may be of before the change."""
    return bool(run.settings.get(BEGAN, {}).get("why") == "drift")


def _difference(run: TrainingRun) -> float:
    return float(run.result["evidence"]["difference"])


def _paused(run: TrainingRun) -> float:
    return float(run.result.get("paused_seconds", 0.0))


def _pays(
    store: Store, lines: Sequence[str], history: Learning, waiting: int, left: float = math.inf
) -> RunReason | None:
    """``lines``: whose traffic it is; ``left``: tokens for which what is learned is worth something."""
    served = [one for line in lines if (one := traffic(store.db, line, history.since)).alpha is not None]
    if not served or not history.requests or not history.gain:
        return None
    saving = fmean(
        one.seconds / one.emitted * saved_share(one.alpha or 0.0, one.drafted / one.rounds) for one in served
    )
    rate = history.gain / history.requests * waiting * saving
    lost = rate * sum(traffic(store.db, line, history.last).emitted for line in lines) / 2
    if rate * left <= history.seconds or lost < min(history.seconds, rate * left / 2):
        return None
    return RunReason("pays", f"waiting had cost {lost:.1f} s of decoding, and a run takes {history.seconds:.1f} s")


def _drifted(store: Store, settings: Settings, draft: str, history: Learning) -> RunReason | None:
    for proposal in store.proposals.list(limit=RUNS):
        if proposal.kind is ProposalKind.DRIFT and proposal.at > history.last:
            led = {route.name for route in store.routes.list() if draft_of(draft) in route.drafts}
            if led.intersection(proposal.facts.get("routes", ())):
                return RunReason("drift", f"discovery found drift (proposal {proposal.id})")
    newest = settings.gate.watch_requests
    found = judged_requests(store.db, draft, history.since, newest + settings.learn.max_requests)
    now = [bucket for at, bucket in found[:newest] if at >= history.last]
    before, after = rate([bucket for _, bucket in found[len(now) :]]), rate(now)
    span = difference(before, after, 2 * settings.gate.watch_confidence - 1)  # two-sided: its upper end alone counts
    if span is None or span.high >= 0:
        return None
    return RunReason("drift", f"acceptance fell from {before.value:.3f} to {after.value:.3f}")
