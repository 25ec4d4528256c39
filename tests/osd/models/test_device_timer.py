"""Timers beside a thread that waits."""

from __future__ import annotations

import time

import torch

from osd.models.device_timer import Clock, Laps


def work(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_what_a_thread_waits_for_is_no_part_of_what_a_pass_takes() -> None:
    with Clock(torch.device("cpu")) as clock:
        work(0.01)
        time.sleep(0.2)
        clock.split()
        work(0.01)
    assert clock.first_ms >= 200 > clock.first_busy_ms >= 10
    assert clock.second_ms >= clock.second_busy_ms - 1 and clock.second_busy_ms >= 10


def test_laps_leave_waiting_out() -> None:
    laps = Laps(torch.device("cpu"))
    laps.begin()
    time.sleep(0.2)
    laps.end_one()
    work(0.01)
    laps.end_one()
    waited, worked = laps.read()
    assert waited < 200 and worked >= 10
