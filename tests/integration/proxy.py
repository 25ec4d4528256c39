"""A TCP proxy in a process of its own, to be killed: what goes through it is cut at once, and refused until it is back.

python -m tests.integration.proxy PORT TARGET_PORT
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from types import TracebackType

from tests.support.launch import Process
from tests.trainer.processes import PATIENCE, ROOT, environment

HOST = "127.0.0.1"


class Proxy:
    """A port on this machine that leads to another, while it is not cut."""

    def __init__(self, target: int) -> None:
        self.target, self.port = target, _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def mend(self) -> None:
        """Let it through; returns when it does."""
        if self._process is not None:
            return
        command = [sys.executable, "-m", "tests.integration.proxy", str(self.port), str(self.target)]
        self._process = Process(command, cwd=ROOT, env=environment())
        deadline = time.monotonic() + PATIENCE
        while not _answers(self.port):
            assert time.monotonic() < deadline and self._process.poll() is None, "the proxy did not start"
            time.sleep(0.01)

    def cut(self) -> None:
        """Kill it with SIGKILL: every connection through it is reset."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> Proxy:
        self.mend()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind((HOST, 0))
        return int(bound.getsockname()[1])


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
        return True
    return False


async def _pass(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()
    sink.close()


async def _serve(port: int, target: int) -> None:
    async def joined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(HOST, target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_pass(reader, far_writer), _pass(far_reader, writer))

    server = await asyncio.start_server(joined, HOST, port, reuse_address=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), int(sys.argv[2])))
