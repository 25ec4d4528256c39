"""Keeps what can be learned from decoding: a bounded buffer between the decode loop and the store.

Where the target's logits at the positions worth keeping lie is noted, a few rounds at a time (:mod:`osd.gather`), and
handed to a thread of the recorder's own. It reduces them to top-k log-probabilities (:mod:`osd.reduce`) and writes
those, with the totals of finished requests, to storage (:mod:`osd.handover`). When the buffer is full, positions are
dropped and counted; decoding never waits.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from osd.buffer import Buffer
from osd.drafters.base import Draft
from osd.gather import BYTES, ROUNDS, Gathering, Taken
from osd.handover import Handover
from osd.parcels import Parcel, Part, Span, bundle, by_request
from osd.redaction import Redactor, load_hook
from osd.reduce import Kept, Reducer
from osd.row import Completion, Progress, Row
from osd.tracing import make_tracing
from osd.verdict import Verdict
from storage.records import Outcome, RequestSamples, TokenKind
from storage.settings import Settings
from storage.store import Store

SWITCH_SECONDS = 2e-5
"""How soon a thread of this process must let another have the interpreter."""
ACCEPTED, REJECTED, UNDRAFTED = TokenKind.ACCEPTED, TokenKind.REJECTED, TokenKind.UNDRAFTED


class Recorder:
    """Writes samples and outcomes to a store, from a thread of its own. Close it to flush."""

    def __init__(self, store: Store, settings: Settings, worker: str, tokenizer: Any = None) -> None:
        """``worker`` names this process in the counters; ``tokenizer`` gives the redaction hook text. Raises BadSetting
        for a hook that cannot be loaded, and for traces without their library."""
        self.redactor = Redactor(load_hook(settings.privacy.redact), tokenizer)
        self.store, self.worker = store, worker
        self.mode = settings.serve.record
        self.reducer = Reducer(settings.storage.top_k, compiled=self.mode != "off")
        self.tracing = make_tracing(settings.trace, "osd-server")
        self.handover = Handover(store, settings, worker, *([self.tracing.samples] if self.tracing else []))
        self._overflowed = 0
        self.buffer = Buffer(
            settings.serve.record_queue_mb << 20, settings.storage.flush_requests, settings.storage.flush_seconds
        )
        self._gathered = Gathering()
        self._taken: list[Taken] = []
        self._held = 0
        """Bytes of their logits."""
        self._open: dict[str, list[Part]] = {}
        self._samples: list[RequestSamples] = []
        self._outcomes: list[Outcome] = []
        # decoding gives up the interpreter at every product, and by default waits 5 ms for this thread, or one that
        # serves HTTP, to give it back
        sys.setswitchinterval(min(SWITCH_SECONDS, sys.getswitchinterval()))
        self._on_the_spot = self._aside = 0.0
        self._thread = threading.Thread(target=self._work, name="osd-recorder", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Positions lost: the buffer was full, or neither the store nor this machine's disk took them."""
        return self._overflowed + self.handover.lost_positions

    @property
    def seconds(self) -> float:
        """What recording has taken so far of the decode loop."""
        return self._on_the_spot

    @property
    def seconds_beside(self) -> float:
        """CPU seconds of the recorder's own thread so far."""
        return self._aside

    def take(
        self,
        rows: Sequence[Row],
        progress: Sequence[Progress],
        draft: Draft,
        verdict: Verdict,
        logits: Tensor,
    ) -> None:
        """What one round brought, from the decode loop: logits (B, G + 1, V), which must stay as they are."""
        begun = time.perf_counter()
        requests, lengths = [row.request for row in rows], [row.length for row in rows]
        counts = [len(step.tokens) for step in progress]
        self._taken.append(Taken(requests, lengths, counts, draft.size + 1, verdict, logits))
        self._held += logits.nbytes
        completions = [step.completion for step in progress if step.completion]
        if completions or len(self._taken) >= ROUNDS or self._held >= BYTES:
            self._send(completions)
        self._on_the_spot += time.perf_counter() - begun

    def _keep(self, taken: Taken) -> None:
        """What is to be kept of a round."""
        spans: list[Span] = []
        index: list[int] = []
        verdict = taken.verdict
        for i, (request, length, count) in enumerate(zip(taken.requests, taken.lengths, taken.counts, strict=True)):
            if request.learn and (span := self._span(taken, i)):
                spans.append(span)
                first = span.begin - length + count
                index += [i * taken.width + place for place in verdict.places(i, first, first + span.length)]
        if spans:
            self._gather(spans, index, taken.logits, verdict.chances)

    def _span(self, taken: Taken, i: int) -> Span | None:
        """What is kept of row i's round: all of it, or the corrected token alone."""
        request, end, count = taken.requests[i], taken.lengths[i], taken.counts[i]
        accepted = taken.verdict.accepted[i]
        corrected = accepted < min(taken.verdict.depths[i], count)
        refused = taken.verdict.drafted[i][accepted] if corrected else 0
        if self.mode == "verified":
            last = REJECTED if corrected else ACCEPTED if count <= accepted else UNDRAFTED
            return Span(request.id, end - count, count, last, refused)
        if corrected and self.mode == "rejected":
            return Span(request.id, end - count + accepted, 1, REJECTED, refused)
        return None

    def _gather(self, spans: list[Span], index: list[int], logits: Tensor, chances: Tensor | None) -> None:
        """Keep these places for the next parcel; where only PyTorch can reduce them, they are one of their own."""
        known = None if chances is None else _at(F.pad(chances, (0, 1)), index)
        rows = self.reducer.rows(logits, index)
        if rows is None or not self._gathered.fits(known):
            self._deliver([])
        if rows is None:
            self._put(Parcel(spans, _at(logits, index), known, []))
        else:
            self._gathered.add(spans, rows, known)

    def finish(self, completion: Completion) -> None:
        """A request that ended outside a round: its totals count, its positions are forgotten if it was cancelled."""
        self._send([completion])

    def _send(self, completions: list[Completion]) -> None:
        """Hand over the rounds that were taken, and the requests that ended with them."""
        for taken in self._taken:
            self._keep(taken)
        self._taken, self._held = [], 0
        self._deliver(completions)

    def _deliver(self, completions: list[Completion]) -> None:
        if parcel := self._gathered.parcel(completions):
            self._put(parcel)

    def wait(self, timeout: float | None = None) -> bool:
        """Write everything handed over so far, now, and wait until it is in the store, or on this machine's disk where
        the store is away; False when the time ran out."""
        return self.buffer.empty(timeout)

    def close(self) -> None:
        """Write what is left and stop."""
        self.buffer.close()
        self._thread.join()
        self.reducer.wait()
        if self.tracing:
            self.tracing.close()

    def _put(self, parcel: Parcel) -> None:
        if not self.buffer.put(parcel):
            self._overflowed += parcel.positions

    def _work(self) -> None:
        torch.set_num_threads(1)  # of this thread: reducing must not take cores from decoding
        import_module("pyarrow.parquet")  # a tenth of a second, which the first segment would have to wait for
        last = False
        while not last:
            parcels, flush, last = self.buffer.get(self.handover.due)
            self._sort(parcels)
            if flush:
                self._flush()
            self._aside = time.thread_time()
            self.buffer.done()
            self.handover.catch_up()

    def _sort(self, parcels: list[Parcel]) -> None:
        """Every span to its request, and of the finished ones samples."""
        for parcel, kept, begin in self._reduced([parcel for parcel in parcels if parcel.content is not None]):
            for part in by_request(parcel, kept, begin):
                self._open.setdefault(part.spans[0].request_id, []).append(part)
        for completion in (completion for parcel in parcels for completion in parcel.completions):
            self._outcomes += completion.outcomes
            if self.tracing:
                self.tracing.request(completion)
            parts = self._open.pop(completion.request.id, [])
            if parts and completion.finish_reason != "cancelled":
                self._samples.append(bundle(completion, parts))

    def _reduced(self, parcels: list[Parcel]) -> Iterator[tuple[Parcel, Kept, int]]:
        """Each with what is kept of it, and the place in that where it begins: plain logits are reduced in one go."""
        logits = [parcel.content for parcel in parcels if isinstance(parcel.content, Tensor)]
        together = self.reducer(torch.cat(logits)) if logits else None
        begin = 0
        for parcel in parcels:
            if isinstance(parcel.content, list):
                yield parcel, self.reducer.reduce(parcel.content), 0
            elif together is not None:
                yield parcel, together, begin
                begin += parcel.positions

    def _flush(self) -> None:
        samples, outcomes, self._samples, self._outcomes = self._samples, self._outcomes, [], []
        self.handover.keep(self.redactor(samples), outcomes)


def _at(table: Tensor, index: list[int]) -> Tensor:
    """(B, n, …) → (m, …): these places of the B · n."""
    return table.flatten(0, 1)[torch.tensor(index, device=table.device)]
