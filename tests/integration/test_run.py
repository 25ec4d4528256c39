"""The fault run (tests.integration.run), for as many seconds as OSD_FAULTS says: 40 when working on it, else 600."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tests.integration.run import run

SECONDS = float(os.environ.get("OSD_FAULTS", 0))
A_MINUTE = 3 / 60


@pytest.mark.slow
@pytest.mark.skipif(not SECONDS, reason="OSD_FAULTS=600 runs it for ten minutes")
def test_nothing_is_lost_doubled_or_damaged(tmp_path: Path) -> None:
    try:
        socket.create_connection(("127.0.0.1", 6379), timeout=1).close()
    except OSError:
        pytest.skip("no Redis at 127.0.0.1:6379")
    result = run(SECONDS, max(8, round(SECONDS * A_MINUTE)), 1, tmp_path)
    assert all(result["kept"].values()), result
