"""Ctrl-C where Python loses it."""

from __future__ import annotations

import os
import signal
import sys
import threading

import pytest

from osd.demo.runner.run import ctrl_c


class Dying:
    """Is interrupted in its finalizer, where an exception can only be printed."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):  # the handler runs between two instructions
            pass


def test_an_interrupt_that_was_lost_is_raised_by_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: lost.append(args.exc_type))
    with ctrl_c() as heed:
        heed()
        dying = Dying()
        del dying
        assert lost == [KeyboardInterrupt]
        with pytest.raises(KeyboardInterrupt):
            heed()


def test_an_interrupt_is_raised_where_it_comes_and_the_old_handler_comes_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), ctrl_c():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_see_no_signals_and_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work() -> None:
        with ctrl_c() as heed:
            heed()
            seen.append(signal.getsignal(signal.SIGINT) is before)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [True]
