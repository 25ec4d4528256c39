"""Draft lengths of the scheduler class: those of a file, else what is measured to be worth while."""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from pathlib import Path
from typing import Any

from .gain import GainMeter
from .harvest_cost import HarvestCost
from .options import draft_file, gain_file, write_whole
from .rest import DraftRest

log = logging.getLogger("osd.vllm")
POLL = 0.1
"""Seconds between two looks at the file."""
TELL = 2.0
"""Seconds between two writings of what was measured."""


def lookup(schedule: list[tuple[int, int, int]], rows: int, most: int) -> list[int]:
    """Return the draft length for 0 … ``rows`` running requests from (first, last, length) triples, as vLLM's
    ``num_speculative_tokens_per_batch_size`` has them: batches beyond the last triple get its length."""
    found = [0] * (rows + 1)
    for first, last, length in sorted(schedule):
        for size in range(first, (last if last < schedule[-1][1] else rows) + 1):
            if size <= rows:
                found[size] = max(0, min(length, most))
    return found


class LiveLengths:
    """vLLM's ``dynamic_sd_lookup``: the draft length of a step by its number of requests. Those of a file, while there
    is one, else what the meter finds worth while."""

    def __init__(self, path: Path, rows: int, most: int, top_k: int = 0) -> None:
        """``rows``: max_num_seqs; ``most``: num_speculative_tokens; ``top_k``: likeliest tokens that osd asks for."""
        self.meter = GainMeter(most)
        self._rest = DraftRest(self.meter)
        self._cost, self._harvested, self._top_k = HarvestCost(), set[str](), top_k
        self._path, self._rows, self._most = path, rows, most
        self._fixed: list[int] | None = None
        self._said = self._draft = b""
        self._failed = False
        self._look_at = self._tell_at = self._ended = 0.0
        self._begun: deque[tuple[Any, float]] = deque()

    def __getitem__(self, rows: int) -> int:
        if self._fixed:
            return self._fixed[min(rows, self._rows)]
        return self.meter.length(max(rows, 1)) if self._rest.ready else 0

    def look(self) -> None:
        """Look at the files now and then, and write what was measured."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + POLL
            self._read()
        if now >= self._tell_at:
            self._tell_at = now + TELL
            self._tell()

    @property
    def rests(self) -> bool:
        """Whether the draft rests, or nothing is to be drafted."""
        return not any(self._fixed) if self._fixed else self._rest.rests

    def admit(self, request: Any) -> None:
        """Take note of a request that comes. One that goes on with an earlier one's cache stays as it is."""
        if self._top_k and getattr(request.sampling_params, "logprobs", None) == self._top_k:
            self._harvested.add(request.request_id)
        if self.rests and not request.resumable:
            self._rest.admit(request)

    def begin(self, step: Any) -> None:
        """Note when a step was scheduled, and whether the draft rests in it."""
        self._rest.begin(step, self.rests)
        self._harvested -= step.finished_req_ids
        self._begun.append((step, time.perf_counter()))

    def note(self, step: Any, done: Any) -> None:
        """Note what a step took and brought. Whatever fails in here costs its measurement, and no answer."""
        try:
            self._end(step, done)
        except Exception as error:
            if not self._failed:
                log.warning("a step could not be measured (%s: %s)", type(error).__name__, error)
            self._failed = True

    def _end(self, step: Any, done: Any) -> None:
        while self._begun and (begun := self._begun.popleft())[0] is not step:
            pass
        now = time.perf_counter()
        since, self._ended = max(begun[1], self._ended), now
        drafted = step.scheduled_spec_decode_tokens
        emitted = {row: len(done.sampled_token_ids[place]) for row, place in done.req_id_to_index.items()}
        for row, tokens in drafted.items():
            if emitted.get(row):
                self.meter.accepted(len(tokens), emitted[row] - 1)
        lengths = {len(drafted.get(row, ())) for row in step.num_scheduled_tokens}
        decodes = all(count == 1 + len(drafted.get(row, ())) for row, count in step.num_scheduled_tokens.items())
        told = decodes and lengths == {step.num_spec_tokens_to_schedule} and all(emitted.values())
        rows, took, tokens = len(emitted), now - since, sum(emitted.values())
        if self._fixed is None:
            self._rest.count()
        if told:
            kind = rows, step.num_spec_tokens_to_schedule, step.osd_rests
            self._cost.note(kind, len(self._harvested.intersection(emitted)) / rows, took)
        if not told:
            self.meter.other_step(rows, took, tokens)
        elif step.osd_rests:
            self.meter.rested(rows, took, tokens)
        elif self._fixed is not None:
            self.meter.decoded(rows, took, tokens)
        elif not self._rest.ready:
            self.meter.waited(rows, took, tokens)
        else:
            self.meter.step(rows, lengths.pop(), took, tokens)

    def _read(self) -> None:
        said, draft = _bytes(self._path), _bytes(draft_file(self._path))
        if draft != self._draft:
            self._draft = draft
            self.meter.new_draft()
            self._rest.wake()
        if said == self._said:
            return
        self._said = said
        try:
            self._fixed = lookup(json.loads(said), self._rows, self._most) if said else None
        except (ValueError, TypeError) as error:
            log.warning("draft lengths in %s cannot be read: %s", self._path, error)

    def _tell(self) -> None:
        told = {**self.meter.told(), "fixed": self._fixed is not None, "at": time.time()}
        told["harvesting"] = self._cost.share()
        if self._fixed is not None:  # nothing is compared then
            told |= {"gain": None, "batches": [{**one, "length": self[one["rows"]]} for one in told["batches"]]}
        try:
            write_whole(gain_file(self._path), json.dumps(told))
        except OSError as error:
            log.warning("what drafting gains cannot be written beside %s: %s", self._path, error)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
