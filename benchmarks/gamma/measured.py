"""What a job came to, and the same told by what rounds of its kinds usually take.

How fast a machine is changes from second to second, by more than controllers differ. But a round of so many rows, draft
passes and tokens is the same work whoever asked for it. So a measurement's seconds are told as the sum of what rounds
of its kinds usually take, over everybody who met in the setting, and the decisions' own time. What is left, reading
prompts above all, is the same for all who decode a turn's prompts: the median of theirs. Whoever was not decoded by
osd's engine is told by how much slower than usual the engine was in that turn.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from benchmarks.gamma.plan import GammaJob

KNOWN = 5
"""Rounds of a kind whose median is believed; rarer kinds are read off the plane through those that are."""

Usual = Mapping[str, float]
"""Milliseconds of a round, by kind: rows, draft passes, tokens verified, tokens that the drafter read first."""


@dataclass(slots=True, kw_only=True)
class DecodeCounts:
    """What decoding came to, in an engine or in a replay."""

    tokens: int = 0
    """Tokens that came out."""
    rounds: int = 0
    """Rounds of single requests: each is a request's share in one target pass (N_target)."""
    drafted: int = 0
    accepted: int = 0
    draft_passes: int = 0
    target_passes: int = 0
    """Passes over the batch, shared by its rows."""
    clock_ms: float = 0.0
    """Milliseconds inside drafting and verifying, prompts' prefill left out."""
    decisions: int = 0
    """Answers to single requests: how far to draft, and after each token whether to go on."""
    decision_ns: int = 0
    """Nanoseconds of processor time in them and in observing: what other processes take is left out."""

    def add_draft(self, passes: int, ms: float) -> None:
        """Add draft passes over the batch, and their milliseconds."""
        self.draft_passes, self.clock_ms = self.draft_passes + passes, self.clock_ms + ms

    def add_target(self, ms: float) -> None:
        """Add a target pass over the batch."""
        self.target_passes, self.clock_ms = self.target_passes + 1, self.clock_ms + ms

    def add_decisions(self, answers: int, ns: int) -> None:
        """Add answers to single requests, and what they took."""
        self.decisions, self.decision_ns = self.decisions + answers, self.decision_ns + ns

    def add_round(self, drafted: int, accepted: int) -> None:
        """Add a round of one request."""
        self.rounds, self.drafted = self.rounds + 1, self.drafted + drafted
        self.accepted += accepted


@dataclass(slots=True, kw_only=True)
class GammaMeasured(DecodeCounts):
    """What a job came to. The counts of transformers' modes are 0: they do not tell."""

    job: GammaJob
    seconds: float = 0.0
    """From the first prompt's submission to the last token."""
    digest: str = ""
    """Digest of all texts; empty where they are sampled or not osd's."""
    took_ms: dict[str, list[float]] = field(default_factory=dict)
    """Milliseconds of single rounds, by their kind: rows, draft passes, tokens verified, tokens that the drafter read
    first."""
    first: dict[str, int] = field(default_factory=dict)
    """Rounds in which a request came in, by kind."""
    texts: list[dict[str, int]] = field(default_factory=list)
    """Rounds by kind, of one text after another; of a batch of several, of those that ran between two arrivals."""
    texts_ms: list[float] = field(default_factory=list)
    """Milliseconds that those rounds usually take."""

    def add_kind(self, kind: str, ms: float | None) -> None:
        """Add a round over the batch; None where a request came in, whose prompt was read in it, too."""
        if ms is None:
            self.first[kind] = self.first.get(kind, 0) + 1
            self.texts.append({})
        else:
            self.took_ms.setdefault(kind, []).append(round(ms, 4))
        self.texts[-1][kind] = self.texts[-1].get(kind, 0) + 1


def told(measured: Sequence[GammaMeasured]) -> list[GammaMeasured]:
    """The measurements of one setting with other ``seconds`` and ``clock_ms``; as they are where no rounds were
    timed."""
    ours = [each for each in measured if each.took_ms]
    if not ours:
        return list(measured)
    usual = usual_ms(ours)
    outside = _by_turn([(each, _outside(each, usual)) for each in ours])
    found = {each.job: _told(each, usual, outside[_turn(each)]) for each in ours}
    pace = _by_turn([(each, found[each.job].seconds / each.seconds) for each in ours])
    return [found.get(each.job) or replace(each, seconds=each.seconds * pace[_turn(each)]) for each in measured]


def _turn(each: GammaMeasured) -> tuple[int, int]:
    return each.job.turn, each.job.part


def _by_turn(values: Iterable[tuple[GammaMeasured, float]]) -> dict[tuple[int, int], float]:
    """The median of each turn."""
    found: dict[tuple[int, int], list[float]] = defaultdict(list)
    for each, value in values:
        found[_turn(each)].append(value)
    return {turn: statistics.median(some) for turn, some in found.items()}


def usual_ms(ours: Sequence[GammaMeasured]) -> Usual:
    """What a round of each kind usually takes. Reading adds the same for each token, whatever else the round is: which
    late drafts a run happens to have hardly ever comes twice."""
    timed: dict[str, list[float]] = defaultdict(list)
    for each in ours:
        for kind, took in each.took_ms.items():
            timed[kind] += took
    kinds = {*timed, *(kind for each in ours for kind in each.first)}
    plain = _without_reading({kind: took for kind, took in timed.items() if not _read(kind)}, map(_base, kinds))
    late = [(_read(kind), ms - plain[_base(kind)]) for kind, took in timed.items() if _read(kind) for ms in took]
    squares = sum(read * read for read, _ in late)
    a_token = max(0.0, sum(read * more for read, more in late) / squares) if squares else 0.0  # least squares from 0
    return {kind: plain[_base(kind)] + a_token * _read(kind) for kind in kinds}


def draft_passes(kind: str) -> int:
    """Return the draft passes of a round of this kind."""
    return int(kind.split(",")[1])


def _read(kind: str) -> int:
    return int(kind.rpartition(",")[2])


def _base(kind: str) -> str:
    """The kind of a round that is the same but for what had to be read."""
    return kind.rpartition(",")[0] + ",0"


def _without_reading(timed: Mapping[str, Sequence[float]], kinds: Iterable[str]) -> dict[str, float]:
    """Medians where there are enough; the others from the plane through those."""
    medians = {kind: statistics.median(took) for kind, took in timed.items()}
    known = {kind: ms for kind, ms in medians.items() if len(timed[kind]) >= KNOWN} or medians
    return known | _on_the_plane(known, [kind for kind in {*kinds} if kind not in known])


def _on_the_plane(known: Usual, kinds: Sequence[str]) -> dict[str, float]:
    """Least squares over 1, whether there are drafts, rows, draft passes, tokens; never less than the cheapest
    known."""
    places = np.array([_numbers(kind) for kind in known])
    solution, *_ = np.linalg.lstsq(places, np.array(list(known.values())), rcond=None)
    least = min(known.values())
    return {kind: max(least, float(np.dot(_numbers(kind), solution))) for kind in kinds}


def _numbers(kind: str) -> list[float]:
    numbers = [float(number) for number in kind.split(",")[:3]]
    return [1.0, float(numbers[1] > 0), *numbers]


def _rounds_ms(each: GammaMeasured, usual: Usual) -> float:
    later = sum(len(took) * usual[kind] for kind, took in each.took_ms.items())
    return later + _first_ms(each, usual)


def _first_ms(each: GammaMeasured, usual: Usual) -> float:
    return sum(count * usual[kind] for kind, count in each.first.items())


def _outside(each: GammaMeasured, usual: Usual) -> float:
    """Seconds that were no round's; none where a request's first rounds were faster than usual."""
    rounds = sum(map(sum, each.took_ms.values())) + _first_ms(each, usual)
    return max(0.0, each.seconds - rounds / 1e3 - each.decision_ns / 1e9)


def _told(each: GammaMeasured, usual: Usual, outside: float) -> GammaMeasured:
    rounds = _rounds_ms(each, usual) + each.decision_ns / 1e6
    texts = [sum(count * usual[kind] for kind, count in text.items()) for text in each.texts]
    return replace(each, seconds=outside + rounds / 1e3, clock_ms=rounds, texts_ms=texts)
