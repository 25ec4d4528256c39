"""When the recorder's thread is woken, and what it finds."""

from __future__ import annotations

import threading

import torch

from osd.logits import RaggedLogits
from osd.recording.extract import RecordedRound
from osd.recording.queue import ENOUGH_BYTES, ENOUGH_ROWS, Buffer, RoundBatch, Work
from osd.sequence import Completion, RequestOutput
from osd.verification.result import VerifyResult
from storage.records import Request

DONE = Completion(Request((1,)), "default", (2,), None, "stop", (), (), 0.0)


def logits(rows: int, width: int = 10) -> RoundBatch:
    """Of one round, which brought each row the target's own token."""
    verdict = VerifyResult([0] * rows, [[]] * rows, [0] * rows, [0] * rows)
    return RoundBatch(
        [
            RecordedRound(
                [RequestOutput(DONE.request, (0,), 1)] * rows, verdict, RaggedLogits.of(torch.zeros(rows, 1, width))
            )
        ]
    )


def finished() -> RoundBatch:
    return RoundBatch(completions=[DONE])


class Reader:
    """Takes one piece of work on a thread."""

    def __init__(self, buffer: Buffer) -> None:
        self.work: Work | None = None
        self._buffer = buffer
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        self.work = self._buffer.get()
        self._buffer.done()

    def sleeps(self) -> bool:
        self._thread.join(0.05)
        return self._thread.is_alive()

    def wakes(self) -> Work:
        self._thread.join(20)
        assert self.work is not None
        return self.work


def test_logits_wait_until_there_are_enough_of_them() -> None:
    buffer = Buffer(1 << 20, requests=2, seconds=3600)
    reader = Reader(buffer)
    assert buffer.put(logits(ENOUGH_ROWS - 1)) and reader.sleeps()
    buffer.put(logits(1))
    work = reader.wakes()
    assert [batch.rows for batch in work.batches] == [ENOUGH_ROWS - 1, 1]
    assert not work.flush and not work.last


def test_logits_wait_until_they_are_large_enough() -> None:
    buffer = Buffer(1 << 30, requests=2, seconds=3600)
    reader = Reader(buffer)
    assert buffer.put(logits(2, ENOUGH_BYTES // 16)) and reader.sleeps()
    buffer.put(logits(2, ENOUGH_BYTES // 16))
    assert len(reader.wakes().batches) == 2


def test_finished_requests_wait_until_a_batch_of_them_is_due() -> None:
    buffer = Buffer(1 << 20, requests=3, seconds=3600)
    reader = Reader(buffer)
    for _ in range(2):
        buffer.put(finished())
    assert reader.sleeps()
    buffer.put(finished())
    work = reader.wakes()
    assert len(work.batches) == 3 and work.flush
    again = Reader(buffer)  # the next batch is counted from none
    buffer.put(finished())
    assert again.sleeps()
    buffer.close()
    assert again.wakes().last


def test_the_oldest_finished_request_sets_the_clock() -> None:
    buffer = Buffer(1 << 20, requests=100, seconds=0.2)
    reader = Reader(buffer)
    buffer.put(logits(1))
    assert reader.sleeps()  # a request that is not finished does not
    buffer.put(finished())
    assert reader.wakes().flush


def test_memory_bounds_what_waits_and_comes_back_when_the_work_is_done() -> None:
    buffer = Buffer(limit=10 * 10 * 4, requests=100, seconds=3600)
    assert buffer.put(logits(5))
    both = RoundBatch(logits(6).rounds, [DONE])
    assert not buffer.put(both)  # six more do not fit; the completion does
    assert buffer.put(logits(5))
    work = buffer.get()  # more than half full
    assert [batch.rows for batch in work.batches] == [5, 0, 5] and work.batches[1].completions == [DONE]
    assert not buffer.put(logits(1))  # the work still holds its memory
    buffer.done()
    assert buffer.put(logits(10))


def test_empty_waits_for_the_work_in_hand() -> None:
    buffer = Buffer(1 << 20, requests=100, seconds=3600)
    assert buffer.empty(timeout=0)  # nothing was handed over
    buffer.put(finished())
    work: list[Work] = []
    asked = threading.Thread(target=lambda: work.append(buffer.get()))
    asked.start()
    assert not buffer.empty(timeout=0.05)
    asked.join(20)
    assert work[0].flush
    buffer.done()
    assert buffer.empty(timeout=20)
