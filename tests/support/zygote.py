"""A process that has imported what osd's own processes import, and forks one of them for each that a test starts.

Importing torch and transformers takes seconds of a core, and the suite starts some hundred processes. Each is a real
one, with a pid, a session, signals and an end of its own; only its imports were done before. All workers of a run ask
the same one. See tests/support/launch.py."""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import traceback
from contextlib import suppress

PRELOADED = (
    "osd.cli.serve", "osd.cli.generate", "osd.cli.router_discover", "osd.engine.session",
    "osd.server.process.engine_server", "osd.server.upstream.run", "osd.demo.runner.run", "trainer.worker.app",
    "trainer.worker.schedule", "trainer.routes.discover",
)  # fmt: skip
"""Not the modules that are run: those begin anew."""
FDS = 4
"""Of a request: standard input, output, error, and where its exit status is written."""
PATIENCE = 60.0
"""Seconds until the first must have come."""
LOOK_SECONDS = 0.02
"""Between two looks at which have ended."""


def main(address: str) -> None:
    """Fork what is asked for, until nobody is left who may ask. Ends at once where another listens already."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(f"\0{address}")
    except OSError:
        return
    listener.listen()
    listener.settimeout(PATIENCE)
    for name in PRELOADED:
        __import__(name)
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for pytest
    waiting: dict[int, int] = {}
    controls = [listener.accept()[0]]
    while controls:
        reap(waiting)
        for ready in select.select([listener, *controls], (), (), LOOK_SECONDS)[0]:
            if ready is listener:
                controls.append(listener.accept()[0])
            elif not answer(ready, waiting, [listener, *controls]):
                controls.remove(ready)
                ready.close()


def answer(control: socket.socket, waiting: dict[int, int], ours: list[socket.socket]) -> bool:
    """Fork what is asked for; whether anything was. The child says its own pid, once it leads its session."""
    request, fds = receive(control)
    if not request:
        return False
    if (pid := os.fork()) == 0:
        if request["session"]:
            os.setsid()
        with suppress(OSError):  # who asked may be gone
            control.sendall(os.getpid().to_bytes(4, "big"))
        become(request, fds, [*(each.fileno() for each in ours), *waiting.values()])
    waiting[pid] = fds[-1]
    for fd in fds[:-1]:
        os.close(fd)
    return True


def receive(control: socket.socket) -> tuple[dict[str, object], list[int]]:
    """A request and its files; nothing at the end."""
    try:
        data, fds, _, _ = socket.recv_fds(control, 1 << 20, FDS)
    except ConnectionError:  # a worker that was killed
        return {}, []
    return (json.loads(data) if data else {}), fds


def reap(waiting: dict[int, int]) -> None:
    """Tell the ends of those that have ended."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = ended
            with suppress(OSError):
                os.write(waiting[pid], status.to_bytes(4, "big"))
            os.close(waiting.pop(pid))


def become(request: dict[str, object], fds: list[int], ours: list[int]) -> None:
    """In the child: take its place in the world, and run the module it was asked for."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, fd in enumerate(fds[:3]):
        os.dup2(fd, number)
    for fd in [*fds, *ours]:
        os.close(fd)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(str(request["cwd"]))
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [*([] if request["safe_path"] else [str(request["cwd"])]), *filter(None, given)]
    sys.argv[1:] = request["arguments"]
    sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1)  # noqa: SIM115
    os._exit(run(str(request["module"])))


def run(module: str) -> int:
    """``python -m module``; its exit status. What Python does at its end is done, but for the imports' own ends."""
    status: object = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code
    except BaseException as error:
        traceback.print_exc()
        status = 1
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    if status is not None and not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    return int(status or 0)


if __name__ == "__main__":
    main(sys.argv[1])
