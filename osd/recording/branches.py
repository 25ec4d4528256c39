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


class BranchBlock(NamedTuple):
    """Branches of several requests, and what is kept at their n tokens, one after another."""

    branches: list[Branch]
    kept: TopKLogprobs


class PendingBranches(NamedTuple):
    """A block that the device may still be working on."""

    branches: list[Branch]
    kept: tuple[Tensor, Tensor, Tensor]
    """The target's top k, see :func:`osd.recording.topk.launched`."""

    def block(self) -> BranchBlock:
        """Wait for the device and return the block."""
        return BranchBlock(self.branches, on_host(*self.kept))


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


def gather_branches(
    taken: Sequence[RecordedRound], eos_ids: Collection[int], reducer: Reducer
) -> BranchBlock | None:  # fmt: skip
    """Extract what is kept behind refused tokens of these rounds; None where that is nothing."""
    found = [branch for number, one in enumerate(taken) for branch in branches_of(number, one, eos_ids)]
    if not found:
        return None
    numbers = np.repeat([branch.number for branch in found], [len(branch.tokens) for branch in found])
    return BranchBlock(found, reducer([one.scored.lines for one in taken], numbers, _lines(found)))


def launch_branches(taken: RecordedRound, eos_ids: Collection[int], k: int) -> PendingBranches | None:
    """Start the same of one round, on the device where its logits are."""
    found = list(branches_of(0, taken, eos_ids))
    return PendingBranches(found, launched(rows_at(taken.scored.lines, _lines(found)), k)) if found else None


def _lines(branches: Sequence[Branch]) -> Ints:
    return np.concatenate([np.arange(branch.line, branch.line + len(branch.tokens)) for branch in branches])


class BranchAssembler:
    """Collects branches by request until the request has ended. Used by one thread at a time."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Branches]] = defaultdict(list)

    def __len__(self) -> int:
        """Count the tokens that are held."""
        return sum(len(branches) for some in self._waiting.values() for branches in some)

    def add(self, block: BranchBlock | None) -> None:
        """Add a block; None adds nothing."""
        if block is None:
            return
        begin = 0
        for branch in block.branches:
            own = slice(begin, begin + len(branch.tokens))
            kept = TopKLogprobs(block.kept.ids[own], block.kept.logprobs[own], block.kept.outside[own])
            self._waiting[branch.owner].append(_branches(branch, kept))
            begin = own.stop

    def onto(self, samples: Sequence[RequestSamples], ended: Sequence[Completion]) -> list[RequestSamples]:
        """Return samples with the branches of their requests; those of all requests that ended are let go."""
        found = {each.request.id: self._waiting.pop(each.request.id, []) for each in ended}
        return [replace(each, branches=joined(found.get(each.request_id, []))) for each in samples]


class BranchRecorder:
    """What a recorder does about branches: nothing, unless ``serve.record_branches`` asks for them."""

    def __init__(self, serve: ServeSettings, eos_ids: Collection[int]) -> None:
        """Branches end with one of ``eos_ids``."""
        self._on = serve.record_branches and serve.record != "off"
        self._eos, self._assembler = frozenset(eos_ids), BranchAssembler()

    def launch(self, taken: RecordedRound, k: int) -> PendingBranches | None:
        """Start extracting those of a round whose logits do not wait."""
        return launch_branches(taken, self._eos, k) if self._on else None

    def take(
        self, rounds: Sequence[RecordedRound], launched: Iterable[PendingBranches], reducer: Reducer
    ) -> None:  # fmt: skip
        """Extract those of rounds that were handed over, and of those that were ``launched``."""
        if not self._on:
            return
        self._assembler.add(gather_branches(rounds, self._eos, reducer))
        for each in launched:
            self._assembler.add(each.block())

    def onto(self, samples: list[RequestSamples], ended: Sequence[Completion]) -> list[RequestSamples]:
        """Return samples with their branches, see :meth:`BranchAssembler.onto`."""
        return self._assembler.onto(samples, ended) if self._on else samples


def _branches(branch: Branch, kept: TopKLogprobs) -> Branches:
    return Branches(
        np.array([branch.begin], np.int32), np.array([len(branch.tokens)], np.int32),
        np.array(branch.tokens, np.int32), kept.ids.copy(), kept.logprobs.astype(np.float16), kept.outside.copy(),
    )  # fmt: skip
