"""Records what can be learned from decoding: a bounded queue between the decode loop and the store.

Rounds are noted as they were and handed, a few at a time (:mod:`osd.recording.queue`), to a thread of the
recorder's own. That finds the positions worth keeping (:mod:`osd.recording.extract`), reduces the target's logits
there to top-k log-probabilities (:mod:`osd.recording.topk`), puts them together by request
(:mod:`osd.recording.assemble`) and writes them, with the totals of finished requests, to storage
(:mod:`osd.recording.writer`). When the queue is full, positions are dropped and counted; decoding never waits.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Collection, Sequence
from importlib import import_module
from pathlib import PurePath
from typing import Any

import torch
from torch import Tensor

from osd.logits import RaggedLogits
from osd.recording.assemble import SampleAssembler
from osd.recording.branches import BranchRecorder
from osd.recording.extract import RecordedRound, gather, launch
from osd.recording.queue import Buffer, RoundBatch
from osd.recording.topk import Reducer
from osd.recording.tracing import make_tracing
from osd.recording.writer import StoreWriter
from osd.sequence import Completion, RequestOutput
from osd.verification.result import VerifyResult
from storage.records import Outcome
from storage.settings import Settings
from storage.store import Store

SWITCH_SECONDS = 2e-5
"""Interpreter switch interval: how soon a thread of this process must let another have the interpreter."""


class Recorder:
    """Writes samples and outcomes to a store, from a thread of its own. Close it to flush."""

    def __init__(
        self, store: Store, settings: Settings, worker: str, tokenizer: Any = None, target: str | None = None,
        eos_ids: Collection[int] = (),
    ) -> None:  # fmt: skip
        """Start the thread. ``worker`` names this process in the counters; ``tokenizer`` gives the redaction hook text;
        ``target`` is the digest of the target that answers; branches end with one of ``eos_ids``.

        Raises BadSetting for a hook that cannot be loaded, and for traces without their library.
        """
        self.redactor = store.samples.redactor.load(lambda: tokenizer)
        self.store, self.worker, self.mode = store, worker, settings.serve.record
        self.reducer = Reducer(settings.storage.top_k, compiled=self.mode != "off")
        model = settings.server.model or PurePath(settings.serve.target or "osd").name
        self.tracing = make_tracing(settings.trace, "osd-server", model)
        self.writer = StoreWriter(store, settings, worker, *([self.tracing.samples] if self.tracing else []))
        self._overflowed = 0
        self.buffer = Buffer(
            settings.serve.record_queue_mb << 20, settings.storage.flush_requests, settings.storage.flush_seconds
        )
        self._batch = RoundBatch()
        self._assembler, self._branches = SampleAssembler(target), BranchRecorder(settings.serve, eos_ids)
        self._ended: list[Completion] = []
        # decoding gives up the interpreter at every product, and by default waits 5 ms for this thread, or one that
        # serves HTTP, to give it back
        sys.setswitchinterval(min(SWITCH_SECONDS, sys.getswitchinterval()))
        self.seconds = self.seconds_beside = 0.0
        """Seconds that recording has taken so far of the decode loop, and CPU seconds of the recorder's own thread."""
        self._thread = threading.Thread(target=self._work, name="osd-recorder", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Positions lost: the queue was full, or neither the store nor this machine's disk took them."""
        return self._overflowed + self.writer.lost_positions

    def record(self, progress: Sequence[RequestOutput], verdict: VerifyResult, scored: RaggedLogits) -> None:
        """Note what one round brought, from the decode loop; the round and its logits must not change any more."""
        begun = time.perf_counter()
        if self.mode != "off":
            self._note(RecordedRound(progress, verdict, scored))
        completions = [step.completion for step in progress if step.completion]
        if completions or self._batch.full:
            self._send(completions)
        self.seconds += time.perf_counter() - begun

    def _note(self, taken: RecordedRound) -> None:
        if self._batch.rounds or stays(taken.scored.lines):  # a target has one device
            self._batch.add(taken)
        elif launched := launch(taken, self.mode, self.reducer.k):
            self._batch.add_launched(launched, self._branches.launch(taken, self.reducer.k))

    def finish(self, completion: Completion) -> None:
        """Record a request that ended outside a round: its totals count, its positions are dropped if it was
        cancelled."""
        self._send([completion])

    def _send(self, completions: list[Completion]) -> None:
        """Hand over the rounds that were taken, and the requests that ended with them."""
        batch, self._batch = self._batch, RoundBatch()
        batch.completions = completions
        if not self.buffer.put(batch):
            self._overflowed += batch.kept(self.mode)

    def wait(self, timeout: float | None = None) -> bool:
        """Write everything handed over so far, and wait until it is in the store, or on this machine's disk where
        the store is away; return False when the time ran out."""
        return self.buffer.empty(timeout)

    def close(self) -> None:
        """Write what is left and stop."""
        self.buffer.close()
        self._thread.join()
        self.reducer.wait()
        if self.tracing:
            self.tracing.close()

    def _work(self) -> None:
        torch.set_num_threads(1)  # for this thread alone: reducing must not take cores from decoding
        import_module("pyarrow.parquet")  # a tenth of a second, which the first segment would have to wait for
        while not self._turn():
            pass

    def _turn(self) -> bool:
        """Wait for work, do it, and return whether it was the last; its memory is freed before the next wait."""
        batches, flush, last = self.buffer.get(self.writer.due)
        self._reduce(batches)
        if flush:
            self._flush()
        self.seconds_beside = time.thread_time()
        self.buffer.done()
        self.writer.catch_up()
        return last

    def _reduce(self, batches: list[RoundBatch]) -> None:
        """Reduce what came, and note which requests ended."""
        rounds = [one for batch in batches for one in batch.rounds]
        self._assembler.add(gather(rounds, self.mode, self.reducer))
        self._branches.add(rounds, [each for batch in batches for each in batch.branches], self.reducer)
        for launched in (launched for batch in batches for launched in batch.launched):
            self._assembler.add(launched.block())
        for completion in (completion for batch in batches for completion in batch.completions):
            self._ended.append(completion)
            if self.tracing:
                self.tracing.request(completion)

    def _flush(self) -> None:
        ended, self._ended = self._ended, []
        outcomes: list[Outcome] = [outcome for completion in ended for outcome in completion.outcomes]
        self.writer.keep(self.redactor(self._branches.onto(self._assembler.samples_of(ended), ended)), outcomes)


def stays(logits: Tensor) -> bool:
    """Return whether logits may wait on their device."""
    return logits.device.type == "cpu"
