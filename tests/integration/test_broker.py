"""The broker is cut off under a real worker: training goes on from the database alone, and with the broker once it is
back."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from storage.records import RunState
from storage.settings import Settings
from storage.store import Store
from tests.integration.proxy import Proxy
from tests.trainer.conftest import Traffic
from tests.trainer.processes import QUICK, configured, wait_for, worker

BROKERS = {"redis": (6379, "redis://127.0.0.1:{}/9"), "rabbitmq": (5672, "amqp://guest:guest@127.0.0.1:{}//")}


@pytest.mark.parametrize("kind", BROKERS)
def test_a_worker_without_its_broker_looks_by_itself(
    drafted: Store,
    settings: Settings,
    traffic: Traffic,
    tmp_path: Path,
    kind: str,
) -> None:
    port, url = BROKERS[kind]
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        pytest.skip(f"no broker at 127.0.0.1:{port}")

    def ended() -> int:
        return sum(run.state in (RunState.PUBLISHED, RunState.REJECTED) for run in drafted.runs.list())

    with Proxy(port) as proxy, worker(configured(tmp_path, settings, QUICK, broker=url.format(proxy.port))) as process:
        for n, act in enumerate((lambda: None, proxy.cut, proxy.mend, proxy.cut), start=1):
            act()
            traffic(12)
            wait_for(lambda n=n: ended() == n, process)
        process.send_signal(signal.SIGTERM)  # while the broker is away
        assert process.wait(60) == 0
    assert all(run.state is not RunState.LOST for run in drafted.runs.list())
