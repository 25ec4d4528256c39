"""Keeps what can be learned from decoding: a bounded buffer between the decode loop and the store.

The decode loop hands over the target's logits at the positions worth keeping and goes on. A thread of the
recorder's own reduces them to top-k log-probabilities and writes them, with the totals of finished requests,
to storage. When the buffer is full, positions are dropped and counted; decoding never waits.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from osd.drafters.base import Draft
from osd.row import Completion, Progress, Row
from storage.errors import StoreError
from storage.records import Outcome, RequestSamples, TokenKind, now
from storage.settings import Settings
from storage.store import Store

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Position:
    """One position handed over: whose it is and what happened there."""

    request_id: str
    position: int
    kind: TokenKind
    drafted: int


@dataclass(frozen=True, slots=True)
class Parcel:
    """What one step hands over."""

    positions: list[Position]
    logits: Tensor
    """(m, V)"""
    completions: list[Completion]

    @property
    def bytes(self) -> int:
        """Memory that the parcel holds while it waits."""
        return self.logits.numel() * self.logits.element_size()


@dataclass(frozen=True, slots=True)
class Part:
    """What one step kept of one request: m positions, their top-k ids and log-probabilities, the mass outside."""

    positions: list[Position]
    ids: Tensor
    logprobs: Tensor
    outside: Tensor


def reduce_logits(logits: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits (m, V) → token ids (m, k) likeliest first, their log-probabilities (m, k), and the mass outside (m,)."""
    logits = logits.float()
    values, ids = logits.topk(min(k, logits.shape[1]), dim=-1)
    logprobs = values - logits.logsumexp(-1, keepdim=True)
    return ids, logprobs, (1 - logprobs.exp().sum(-1)).clamp_(min=0)


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
        self._held = 0
        self._wake = threading.Condition()
        self._closing = self._idle = False
        self._open: dict[str, list[Part]] = {}
        self._samples: list[RequestSamples] = []
        self._outcomes: list[Outcome] = []
        self._oldest: float | None = None
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
    ) -> None:
        """What one round brought, from the decode loop: logits (B, G + 1, V) are copied where they are kept."""
        positions, index = [], []
        for i, (row, step) in enumerate(zip(rows, progress, strict=True)):
            if not row.request.learn or self.mode == "off":
                continue
            begin = row.length - len(step.tokens)
            for j, token in enumerate(step.tokens):
                kind = _kind(j, accepted[i], draft.lengths[i])
                if self.mode == "verified" or kind is TokenKind.REJECTED:
                    proposed = drafted[i][j] if kind is TokenKind.REJECTED else token
                    positions.append(Position(row.request.id, begin + j, kind, proposed))
                    index.append(i * (draft.size + 1) + j)
        completions = [step.completion for step in progress if step.completion]
        if positions or completions:
            kept = logits.flatten(0, 1)[torch.tensor(index, dtype=torch.long, device=logits.device)]
            self._put(Parcel(positions, kept, completions))

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
                self.dropped += len(parcel.positions)
                parcel = Parcel([], parcel.logits[:0], parcel.completions)
            self._held += parcel.bytes
            self._parcels.append(parcel)
            self._idle = False
            self._wake.notify_all()

    def _work(self) -> None:
        torch.set_num_threads(1)  # of this thread: reducing must not take cores from decoding
        while (parcel := self._next()) is not None or not self._closing:
            if parcel is not None:
                self._reduce(parcel)
            if self._due(final=parcel is None):
                self._flush()
        self._flush()

    def _next(self) -> Parcel | None:
        """The next parcel; None when there is none and it is time to flush, or to close."""
        with self._wake:
            if not self._parcels and not self._oldest:
                self._idle = True
                self._wake.notify_all()
            self._wake.wait_for(lambda: self._parcels or self._closing, self._flush_seconds)
            if not self._parcels:
                return None
            parcel = self._parcels.popleft()
            self._held -= parcel.bytes
            return parcel

    def _reduce(self, parcel: Parcel) -> None:
        if parcel.positions:
            ids, logprobs, outside = (part.cpu() for part in reduce_logits(parcel.logits, self.k))
            for begin, end in _stretches(parcel.positions):
                part = Part(parcel.positions[begin:end], ids[begin:end], logprobs[begin:end], outside[begin:end])
                self._open.setdefault(parcel.positions[begin].request_id, []).append(part)
        for completion in parcel.completions:
            self._oldest = self._oldest or now()
            self._outcomes += completion.outcomes
            parts = self._open.pop(completion.request.id, [])
            if parts and completion.finish_reason != "cancelled":
                self._samples.append(_bundle(completion, parts))

    def _due(self, final: bool) -> bool:
        old = self._oldest is not None and now() - self._oldest >= self._flush_seconds
        return final or old or len(self._samples) >= self._flush_requests

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


def _kind(index: int, accepted: int, drafted: int) -> TokenKind:
    if index < accepted:
        return TokenKind.ACCEPTED
    return TokenKind.REJECTED if accepted < drafted else TokenKind.UNDRAFTED


def _stretches(positions: Sequence[Position]) -> list[tuple[int, int]]:
    """Where each request's positions begin and end."""
    edges = [i for i, p in enumerate(positions) if i == 0 or p.request_id != positions[i - 1].request_id]
    return list(zip(edges, [*edges[1:], len(positions)], strict=True))


def _bundle(completion: Completion, parts: list[Part]) -> RequestSamples:
    positions = [position for part in parts for position in part.positions]
    columns = ([p.ids for p in parts], [p.logprobs for p in parts], [p.outside for p in parts])
    ids, logprobs, outside = (torch.cat(column).numpy() for column in columns)
    return RequestSamples(
        request_id=completion.request.id,
        route=completion.route,
        tenant=completion.request.tenant,
        draft_version=completion.rounds[-1].draft_version,
        created_at=now(),
        prompt_len=len(completion.request.prompt_tokens),
        tokens=np.array([*completion.request.prompt_tokens, *completion.tokens], dtype=np.int32),
        positions=np.array([p.position for p in positions], dtype=np.int32),
        kinds=np.array([p.kind for p in positions], dtype=np.uint8),
        drafted=np.array([p.drafted for p in positions], dtype=np.int32),
        topk_ids=ids.astype(np.int32),
        topk_logprobs=logprobs.astype(np.float16),
        outside=outside.astype(np.float32),
    )
