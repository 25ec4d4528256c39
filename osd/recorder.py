"""Keeps what can be learned from decoding: a bounded buffer between the decode loop and the store.

The decode loop hands over the target's logits at the positions worth keeping and goes on. A thread of the
recorder's own reduces them to top-k log-probabilities and writes them, with the totals of finished requests,
to storage. When the buffer is full, positions are dropped and counted; decoding never waits.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from osd.drafters.base import Draft
from osd.parcels import Parcel, Part, Span, bundle, reduce_logits
from osd.row import Completion, Progress, Row
from storage.errors import StoreError
from storage.records import Outcome, RequestSamples, TokenKind, now
from storage.settings import Settings
from storage.store import Store

log = logging.getLogger(__name__)


SWITCH_SECONDS = 5e-4
"""How soon a thread of this process must let another have the interpreter."""
WAKE_POSITIONS = 64
"""The thread is woken when so many positions wait, or a request is finished: waking it every round would cost
the decode loop more than the work itself."""


class Recorder:
    """Writes samples and outcomes to a store, from a thread of its own. Close it to flush."""

    def __init__(self, store: Store, settings: Settings, worker: str) -> None:
        """``worker`` names this process in the counters."""
        self.store, self.worker = store, worker
        self.mode, self.k = settings.serve.record, settings.storage.top_k
        self.dropped = 0
        """Positions lost because the buffer was full or the store refused them."""
        self._limit = settings.serve.record_queue_mb << 20
        self._flush_requests, self._flush_seconds = settings.storage.flush_requests, settings.storage.flush_seconds
        self._parcels: deque[Parcel] = deque()
        self._held = self._positions = 0
        self._wake = threading.Condition()
        self._closing = self._idle = False
        self._open: dict[str, list[Part]] = {}
        self._samples: list[RequestSamples] = []
        self._outcomes: list[Outcome] = []
        self._oldest: float | None = None
        # decoding gives up the interpreter at every product, and by default waits 5 ms for this thread to give it back
        sys.setswitchinterval(min(SWITCH_SECONDS, sys.getswitchinterval()))
        self._thread = threading.Thread(target=self._work, name="osd-recorder", daemon=True)
        self._thread.start()

    def take(
        self,
        rows: Sequence[Row],
        progress: Sequence[Progress],
        draft: Draft,
        accepted: Sequence[int],
        drafted: Sequence[Sequence[int]],
        logits: Tensor,
        chances: Tensor | None = None,
    ) -> None:
        """What one round brought, from the decode loop: logits (B, G + 1, V) are copied where they are kept.

        ``chances`` (B, G): with which probability each drafted token was to be kept; None in a greedy batch.
        """
        spans: list[Span] = []
        index: list[int] = []
        for i, (row, step) in enumerate(zip(rows, progress, strict=True)):
            span = self._span(row, step, accepted[i], drafted[i], draft.lengths[i])
            if span:
                spans.append(span)
                first = i * (draft.size + 1) + span.begin - row.length + len(step.tokens)
                index.extend(range(first, first + len(span.kinds)))
        completions = [step.completion for step in progress if step.completion]
        if spans or completions:
            which = torch.tensor(index, dtype=torch.long, device=logits.device)
            padded = None if chances is None else F.pad(chances, (0, 1)).flatten()[which]
            self._put(Parcel(spans, logits.flatten(0, 1)[which], completions, padded))

    def _span(self, row: Row, step: Progress, accepted: int, drafted: Sequence[int], length: int) -> Span | None:
        """What is kept of one row's round: all of it, or the corrected token alone."""
        if not row.request.learn or self.mode == "off":
            return None
        begin, count = row.length - len(step.tokens), len(step.tokens)
        corrected = accepted < min(length, count)
        if self.mode == "verified":
            last = [] if count <= accepted else [int(TokenKind.REJECTED if corrected else TokenKind.UNDRAFTED)]
            kinds = [int(TokenKind.ACCEPTED)] * (count - len(last)) + last
            tokens = [*step.tokens[:accepted], drafted[accepted]] if corrected else list(step.tokens)
            return Span(row.request.id, begin, kinds, tokens)
        if corrected:
            return Span(row.request.id, begin + accepted, [int(TokenKind.REJECTED)], [drafted[accepted]])
        return None

    def finish(self, completion: Completion) -> None:
        """A request that ended outside a round: its totals count, its positions are forgotten if it was cancelled."""
        self._put(Parcel([], torch.empty(0), [completion]))

    def wait(self, timeout: float | None = None) -> bool:
        """Until everything handed over so far is in the store; False when the time ran out."""
        with self._wake:
            return self._wake.wait_for(lambda: self._idle and not self._parcels, timeout)

    def close(self) -> None:
        """Write what is left and stop."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        self._thread.join()

    def _put(self, parcel: Parcel) -> None:
        with self._wake:
            if self._held + parcel.bytes > self._limit:
                self.dropped += len(parcel.logits)
                parcel = Parcel([], parcel.logits[:0], parcel.completions)
            self._held += parcel.bytes
            self._positions += len(parcel.logits)
            self._parcels.append(parcel)
            self._idle = False
            if parcel.completions or self._positions >= WAKE_POSITIONS:
                self._wake.notify_all()

    def _work(self) -> None:
        torch.set_num_threads(1)  # of this thread: reducing must not take cores from decoding
        while (parcels := self._next()) or not self._closing:
            if parcels:
                self._reduce(parcels)
            if self._due():
                self._flush()
        self._flush()

    def _next(self) -> list[Parcel]:
        """All parcels that wait; none when it is time to flush, or to close."""
        with self._wake:
            if not self._parcels and self._oldest is None:
                self._idle = True
                self._wake.notify_all()
            self._wake.wait_for(lambda: self._parcels or self._closing, self._flush_seconds)
            parcels: list[Parcel] = []
            while self._parcels and sum(len(parcel.logits) for parcel in parcels) < WAKE_POSITIONS:
                parcels.append(self._parcels.popleft())
            self._positions = sum(len(parcel.logits) for parcel in self._parcels)
            return parcels

    def _reduce(self, parcels: list[Parcel]) -> None:
        """All that waits in one go: every operation of this thread takes the interpreter from the decode loop."""
        full = [parcel.logits for parcel in parcels if parcel.spans]
        if full:
            ids, logprobs, outside = (part.cpu() for part in reduce_logits(torch.cat(full), self.k))
            chances = torch.cat([chances_of(parcel) for parcel in parcels if parcel.spans]).cpu()
            end = 0
            for span in (span for parcel in parcels for span in parcel.spans):
                begin, end = end, end + len(span.kinds)
                part = Part(span, ids[begin:end], logprobs[begin:end], outside[begin:end], chances[begin:end])
                self._open.setdefault(span.request_id, []).append(part)
        for completion in (completion for parcel in parcels for completion in parcel.completions):
            self._oldest = self._oldest or now()
            self._outcomes += completion.outcomes
            parts = self._open.pop(completion.request.id, [])
            if parts and completion.finish_reason != "cancelled":
                self._samples.append(bundle(completion, parts))
        with self._wake:
            self._held -= sum(parcel.bytes for parcel in parcels)

    def _due(self) -> bool:
        old = self._oldest is not None and now() - self._oldest >= self._flush_seconds
        return old or len(self._samples) >= self._flush_requests

    def _flush(self) -> None:
        samples, outcomes, self._samples, self._outcomes, self._oldest = self._samples, self._outcomes, [], [], None
        try:
            if samples:
                self.store.samples.add(samples)
            if outcomes:
                self.store.outcomes.add(outcomes, self.worker)
        except StoreError as error:
            self.dropped += sum(len(s) for s in samples)
            log.error("%d requests could not be kept: %s", len(samples), error, extra={"action": "record_failed"})


def chances_of(parcel: Parcel) -> Tensor:
    """(m,) its chances, NaN where they follow from what was kept."""
    if parcel.chances is not None:
        return parcel.chances
    return torch.full((len(parcel.logits),), torch.nan, device=parcel.logits.device)  # float32, whatever logits are
