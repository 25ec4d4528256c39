"""`python -m MODULE …` as a process of its own that need not import torch first: see tests/support/zygote.py."""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tests.support.waiting import until

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).resolve().parents[2]


class Process(subprocess.Popen[Any]):
    """As subprocess.Popen, of ``[sys.executable, "-m", MODULE, …]``, also with ``-P`` before ``-m``; the zygote starts
    it, and tells how it ended."""

    def __init__(self, arguments: Sequence[object], **options: Any) -> None:
        self._told: int | None = None
        super().__init__(list(map(str, arguments)), **options)

    def _execute_child(self, args: list[str], *given: Any) -> None:
        (_, _, _, _, cwd, env, _, _, _, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *rest) = given
        interpreter, *flags, how, module = args[: 4 if args[1] == "-P" else 3]
        assert (interpreter, how) == (sys.executable, "-m"), args
        request = {
            "module": module, "arguments": args[3 + len(flags) :], "cwd": str(cwd or os.getcwd()),
            "session": bool(rest[-2]), "safe_path": bool(flags),
            "env": dict(os.environ if env is None else env),
        }  # fmt: skip
        ours = [fd if fd != -1 else number for number, fd in enumerate((p2cread, c2pwrite, errwrite))]
        self._told, told = os.pipe()
        self.pid = ask(request, [*ours, told])
        self._child_created = True
        os.close(told)
        for theirs, mine in ((p2cread, p2cwrite), (c2pwrite, c2pread), (errwrite, errread)):
            if mine != -1:
                os.close(theirs)
        if (nowhere := getattr(self, "_devnull", None)) is not None:
            os.close(nowhere)

    def _status(self, seconds: float | None) -> int | None:
        """Its exit status once it has ended, at most so many seconds from now."""
        if self.returncode is None and self._told is not None and select.select([self._told], [], [], seconds)[0]:
            status = os.read(self._told, 4)
            os.close(self._told)
            self._told = None
            self.returncode = os.waitstatus_to_exitcode(int.from_bytes(status, "big")) if status else -9
        return self.returncode

    def _internal_poll(self, *_: object, **__: object) -> int | None:
        return self._status(0)

    def _wait(self, timeout: float | None) -> int:
        if (status := self._status(timeout)) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return status


def start_quickly(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the zygote start what a module of the product starts by ``subprocess.Popen``."""
    own = SimpleNamespace(**{**vars(subprocess), "Popen": Process})
    monkeypatch.setattr(f"{module}.subprocess", own)


def run(arguments: Sequence[object], *, timeout: float = 120.0, stdin: str = "", **options: Any) -> Any:
    """As subprocess.run with its output captured as text."""
    pipe = subprocess.PIPE
    with Process(arguments, stdin=pipe, stdout=pipe, stderr=pipe, text=True, **options) as process:
        try:
            said, errors = process.communicate(stdin, timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, said, errors)


def ask(request: Mapping[str, object], fds: Sequence[int]) -> int:
    """Have the zygote start a process; its pid."""
    control = zygote()
    socket.send_fds(control, [json.dumps(request).encode()], fds)
    return int.from_bytes(control.recv(4), "big")


@functools.cache
def zygote() -> socket.socket:
    """What it is asked through; it ends when all workers of the run have closed theirs."""
    address = f"osd-zygote-{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}"
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("OSD_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.zygote", address], cwd=ROOT, start_new_session=True,
        env={**surroundings, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    ours = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    until(lambda: ours.connect_ex(f"\0{address}") == 0, "somebody listens")

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours
