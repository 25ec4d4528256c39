"""Extracts what is kept of rounds: every verified position, or those where a draft was corrected. Many rounds at once.

spans_of(taken, mode)            which positions, as arrays
gather(taken, mode, reducer)     those, with what is kept of the target's distribution there
launch(taken, mode, k)           the same of one round, on the device where its logits are
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from osd.logits import RaggedLogits
from osd.recording.topk import Reducer, TopKLogprobs, launched, on_host, rows_at
from osd.sequence import RequestOutput
from osd.verification.result import VerifyResult
from storage.records import TokenKind

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
HiddenStates = npt.NDArray[np.float16]
ACCEPTED, REJECTED, UNDRAFTED = (int(kind) for kind in (TokenKind.ACCEPTED, TokenKind.REJECTED, TokenKind.UNDRAFTED))


class RecordedRound(NamedTuple):
    """One round of B sequences, with its logits."""

    progress: Sequence[RequestOutput]
    """(B,) what the round brought each sequence."""
    verdict: VerifyResult
    scored: RaggedLogits
    """The target's logits, which must not be changed meanwhile."""


class Spans(NamedTuple):
    """n runs of consecutive positions, each from one request and one round; all but their last ones were accepted."""

    owners: list[str]
    """(n,) ids of the requests."""
    begins: Ints
    """(n,) the first position; see storage.records.RequestSamples.positions."""
    lengths: Ints
    """(n,) number of positions in each run, at least 1."""
    lasts: Ints
    """(n,) the TokenKind of the last one."""
    refused: Ints
    """(n,) the drafted token there, where it was rejected; else 0."""


class Origins(NamedTuple):
    """Which rounds and rows n spans come from."""

    rounds: Ints
    """(n,) index of the round, ascending."""
    rows: Ints
    """(n,) index of the row in it."""
    firsts: Ints
    """(n,) index of the span's first token among those that the round brought the row."""


class Places(NamedTuple):
    """Where m positions were decided: round, row and line of logits."""

    rounds: Ints
    """(m,) index of the round, ascending."""
    rows: Ints
    """(m,) index of the row in it."""
    within: Ints
    """(m,) index among the row's logits."""

    def lines(self, taken: Sequence[RecordedRound]) -> Ints:
        """Return the indices of the lines in their rounds' logits: (m,)."""
        sizes = _ints(len(one.scored.begins) for one in taken)
        begins = _ints(chain.from_iterable(one.scored.begins for one in taken))
        found: Ints = begins[(np.cumsum(sizes) - sizes)[self.rounds] + self.rows] + self.within
        return found


class Block(NamedTuple):
    """n spans, and what is kept of their m positions, one after another."""

    spans: Spans
    kept: TopKLogprobs
    chances: Floats
    """(m,) min(1, p/q) there; NaN where it follows from the kinds, as in a greedy batch."""
    hidden: HiddenStates | None = None
    """(m, D) the target's hidden states; None where they are not kept."""


class PendingBlock(NamedTuple):
    """A block that the device may still be working on."""

    spans: Spans
    kept: tuple[Tensor, Tensor, Tensor]
    """The target's top k, see :func:`osd.recording.topk.launched`."""
    chances: Tensor | None
    """(m,) min(1, p/q); None for NaN everywhere."""
    hidden: Tensor | None = None
    """(m, D) float16, see :class:`Block`."""

    def block(self) -> Block:
        """Wait for the device and return the block."""
        hidden = None if self.hidden is None else self.hidden.cpu().numpy()
        return Block(self.spans, on_host(*self.kept), _known(self.chances, int(self.spans.lengths.sum())), hidden)

    @property
    def bytes(self) -> int:
        """Memory on the device."""
        return sum(tensor.nbytes for tensor in (*self.kept, *([] if self.hidden is None else [self.hidden])))


def launch(taken: RecordedRound, mode: str, k: int) -> PendingBlock | None:
    """Start extracting what is kept of a round, without waiting for its device; None where that is nothing. A GPU's
    memory is not for logits that wait."""
    spans, origins = spans_of([taken], mode)
    if not spans.owners:
        return None
    places = _places([taken], spans, origins)
    lines, hidden = places.lines([taken]), taken.scored.hidden
    kept = launched(rows_at(taken.scored.lines, lines), k)
    states = None if hidden is None else rows_at(hidden, lines).half()
    return PendingBlock(spans, kept, _chances(taken.verdict, places.rows, places.within), states)


def gather(taken: Sequence[RecordedRound], mode: str, reducer: Reducer) -> Block | None:
    """Extract what is kept of these rounds; None where that is nothing."""
    spans, origins = spans_of(taken, mode)
    if not spans.owners:
        return None
    places = _places(taken, spans, origins)
    lines = places.lines(taken)
    kept = reducer([one.scored.lines for one in taken], places.rounds, lines)
    return Block(spans, kept, _known_of(taken, places), _hidden_of(taken, places.rounds, lines))


def _hidden_of(taken: Sequence[RecordedRound], rounds: Ints, lines: Ints) -> HiddenStates | None:
    """Return the hidden states (m, D) at lines of rounds; None where any round has none."""
    passes = [one.scored.hidden for one in taken]
    if any(hidden is None for hidden in passes):
        return None
    some = np.split(lines, np.searchsorted(rounds, np.arange(1, len(taken))))
    parts = [rows_at(hidden, index) for hidden, index in zip(passes, some, strict=True) if hidden is not None]
    found: HiddenStates = torch.cat(parts).half().numpy()
    return found


def spans_of(taken: Sequence[RecordedRound], mode: str) -> tuple[Spans, Origins]:
    """Return the spans that may be learned from: all that each round brought a row (``verified``), or its corrected
    token (``rejected``)."""
    steps = [step for one in taken for step in one.progress]
    ends, counts = _ints(step.length for step in steps), _ints(len(step.tokens) for step in steps)
    accepted = _ints(chain.from_iterable(one.verdict.accepted for one in taken))
    depths = _ints(chain.from_iterable(one.verdict.depths for one in taken))
    corrected = accepted < np.minimum(depths, counts)
    chosen = np.array([step.request.learn for step in steps], bool)
    if mode == "rejected":
        chosen &= corrected
    sizes = _ints(len(one.progress) for one in taken)
    rounds, begins = np.repeat(np.arange(len(taken)), sizes), np.cumsum(sizes) - sizes
    origins = Origins(
        rounds[chosen],
        (np.arange(len(steps)) - begins[rounds])[chosen],
        (accepted if mode == "rejected" else np.zeros_like(accepted))[chosen],
    )
    spans = Spans(
        [steps[i].request.id for i in np.flatnonzero(chosen).tolist()],
        (ends - counts)[chosen] + origins.firsts,
        (np.ones_like(counts) if mode == "rejected" else counts)[chosen],
        np.where(corrected, REJECTED, np.where(counts <= accepted, ACCEPTED, UNDRAFTED))[chosen],
        _refused(taken, origins, accepted[chosen], corrected[chosen]),
    )
    return spans, origins


def _ints(numbers: Iterable[int]) -> Ints:
    return np.array(list(numbers), np.int64)


def _refused(
    taken: Sequence[RecordedRound], origins: Origins, accepted: Ints, corrected: npt.NDArray[np.bool_]
) -> Ints:
    """Return the token that was drafted after the accepted ones, where one was refused; else 0: (n,)."""
    found = np.zeros_like(accepted)
    places = zip(*(column[corrected].tolist() for column in (origins.rounds, origins.rows, accepted)), strict=True)
    found[corrected] = [taken[number].verdict.drafted[row][place] for number, row, place in places]
    return found


def _places(taken: Sequence[RecordedRound], spans: Spans, origins: Origins) -> Places:
    """Return where each position of the spans was decided."""
    within = runs(origins.firsts, spans.lengths)
    ends = np.cumsum(spans.lengths)
    trees = np.array([one.verdict.paths is not None for one in taken])
    for i in np.flatnonzero(trees[origins.rounds]).tolist():
        number, row, first = (int(column[i]) for column in origins)
        length = int(spans.lengths[i])
        within[ends[i] - length : ends[i]] = taken[number].verdict.places(row, first, first + length)
    return Places(np.repeat(origins.rounds, spans.lengths), np.repeat(origins.rows, spans.lengths), within)


def runs(firsts: Ints, lengths: Ints) -> Ints:
    """Return first, first + 1, … of each run, one run after another: (m,)."""
    ends = np.cumsum(lengths)
    starts: Ints = np.repeat(firsts - ends + lengths, lengths)
    return np.arange(len(starts)) + starts


def _chances(verdict: VerifyResult, rows: Ints, within: Ints) -> Tensor | None:
    if verdict.chances is None:
        return None
    padded = F.pad(verdict.chances, (0, 1))
    return rows_at(padded.flatten(), rows * padded.shape[1] + within)


def _known_of(taken: Sequence[RecordedRound], places: Places) -> Floats:
    """Return min(1, p/q) at places of many rounds, NaN for greedy ones: (m,)."""
    numbers, rows, within = places
    known = np.full(len(numbers), np.nan, np.float32)
    sampled = [number for number, one in enumerate(taken) if one.verdict.chances is not None]
    begins, ends = np.searchsorted(numbers, sampled), np.searchsorted(numbers, sampled, side="right")
    for number, begin, end in zip(sampled, begins.tolist(), ends.tolist(), strict=True):
        chances = _chances(taken[number].verdict, rows[begin:end], within[begin:end])
        known[begin:end] = _known(chances, end - begin)
    return known


def _known(chances: Tensor | None, count: int) -> Floats:
    if chances is None:
        return np.full(count, np.nan, np.float32)
    known: Floats = chances.float().cpu().numpy()
    return known
