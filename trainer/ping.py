"""Can the broker be reached? One JSON line, for `osd doctor`."""

from __future__ import annotations

from typing import Any

from kombu.exceptions import OperationalError

from storage.settings import Settings
from trainer.app import make_app

SECONDS = 5.0


def ping(settings: Settings) -> dict[str, Any]:
    """``ok``, ``found`` (a sentence without passwords) and, when something is wrong, ``mend``."""
    app = make_app(settings)
    with app.connection_for_write(connect_timeout=SECONDS) as connection:
        where = connection.as_uri()
        try:
            connection.ensure_connection(max_retries=1, timeout=SECONDS)
        except (OperationalError, OSError) as error:
            return {"ok": False, "found": f"{where}: {error}", "mend": "check worker.broker and that the broker runs"}
        except ImportError as error:
            return {"ok": False, "found": f"{where}: {error}", "mend": "install the broker's client (extra redis)"}
    return {"ok": True, "found": _named(settings, where)}


def _named(settings: Settings, where: str) -> str:
    return where if settings.worker.broker is not None else "files in the data directory (no server needed)"
