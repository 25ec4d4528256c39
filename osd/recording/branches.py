"""Records what the target says behind refused tokens, and puts it with the samples of its request.

A chain's verify pass gives the target's logits after every drafted token. Those up to the first refusal become
positions of the text (:mod:`osd.recording.extract`); those behind it are given the draft's own tokens, and become
:class:`storage.branches.Branches`. A tree's other branches were verified too, but along no chain: trees leave none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from torch import Tensor

from osd.recording.extract import Ints, RecordedRound
from osd.recording.topk import Reducer, TopKLogprobs, launched, on_host, rows_at
from osd.sequence import Completion
from storage.branches import Branches, joined
from storage.records import RequestSamples
from storage.settings import ServeSettings


class Branch(NamedTuple):
    """One row's refused draft."""

    owner: str
    """The request's id."""
    begin: int
    """Index in its tokens of the refused one."""
    tokens: list[int]
    """The draft's tokens from the refused one on, at least one."""
    number: int
    """Index of the round."""
    line: int
    """Index in its logits of those after the refused token; those after the others follow."""


class PendingBranches(NamedTuple):
    """Branches of several requests, and what is kept at their n tokens; the device may still be working on that."""

    branches: list[Branch]
    kept: tuple[Tensor, Tensor, Tensor]
    """The target's top k, see :func:`osd.recording.topk.launched`."""


def branches_of(number: int, taken: RecordedRound, eos_ids: Collection[int]) -> Iterator[Branch]:
    """Yield a round's branches: of each chain that was refused within what was emitted, its tokens from there on, but
    none after an end token."""
    verdict = taken.verdict
    if verdict.paths is not None:
        return
    for row, step in enumerate(taken.progress):
        accepted, emitted = verdict.accepted[row], len(step.tokens)
        refused = accepted < verdict.depths[row] and emitted == accepted + 1
        tokens = verdict.drafted[row][accepted : verdict.depths[row]] if refused and step.request.learn else []
        ends = next((place for place, token in enumerate(tokens) if token in eos_ids), len(tokens))
        if ends:
            line = taken.scored.begins[row] + accepted + 1
            yield Branch(step.request.id, step.length - 1, tokens[:ends], number, line)


def _lines(branches: Sequence[Branch]) -> Ints:
    return np.concatenate([np.arange(branch.line, branch.line + len(branch.tokens)) for branch in branches])


class BranchRecorder:
    """Collects branches by request until the request has ended; none, unless ``serve.record_branches`` asks for them.
    Used by one thread at a time, but for :meth:`launch`."""

    def __init__(self, serve: ServeSettings, eos_ids: Collection[int]) -> None:
        """Branches end with one of ``eos_ids``."""
        self._on, self._eos = serve.record_branches and serve.record != "off", frozenset(eos_ids)
        self._waiting: dict[str, list[Branches]] = defaultdict(list)

    def __len__(self) -> int:
        """Count the tokens that are held."""
        return sum(len(branches) for some in self._waiting.values() for branches in some)

    def launch(self, taken: RecordedRound, k: int) -> PendingBranches | None:
        """Start extracting those of a round whose logits do not wait, on their device; None where there are none."""
        found = list(branches_of(0, taken, self._eos)) if self._on else []
        return PendingBranches(found, launched(rows_at(taken.scored.lines, _lines(found)), k)) if found else None

    def add(self, rounds: Sequence[RecordedRound], launched: Iterable[PendingBranches], reducer: Reducer) -> None:
        """Extract those of rounds that were handed over, and of those that were ``launched``."""
        if not self._on:
            return
        found = [branch for number, one in enumerate(rounds) for branch in branches_of(number, one, self._eos)]
        if found:
            numbers = np.repeat([branch.number for branch in found], [len(branch.tokens) for branch in found])
            self._keep(found, reducer([one.scored.lines for one in rounds], numbers, _lines(found)))
        for each in launched:
            self._keep(each.branches, on_host(*each.kept))

    def _keep(self, found: Sequence[Branch], kept: TopKLogprobs) -> None:
        """Keep branches by request; ``kept`` holds their tokens, one branch after another."""
        begin = 0
        for branch in found:
            own = slice(begin, begin + len(branch.tokens))
            logprobs = kept.logprobs[own].astype(np.float16)
            self._waiting[branch.owner].append(Branches(
                np.array([branch.begin], np.int32), np.array([len(branch.tokens)], np.int32),
                np.array(branch.tokens, np.int32), kept.ids[own].copy(), logprobs, kept.outside[own].copy(),
            ))  # fmt: skip
            begin = own.stop

    def onto(self, samples: list[RequestSamples], ended: Sequence[Completion]) -> list[RequestSamples]:
        """Return samples with the branches of their requests; those of all requests that ended are let go."""
        if not self._on:
            return samples
        found = {each.request.id: self._waiting.pop(each.request.id, []) for each in ended}
        return [replace(each, branches=joined(found.get(each.request_id, []))) for each in samples]
