"""A check of the broker for `osd doctor`, printed as one JSON line. Nothing is created or changed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from kombu.exceptions import OperationalError

from storage.errors import BadSetting
from storage.settings import Settings
from trainer.worker.app import broker_folder, make_app
from trainer.worker.broker import connect_once


def ping(settings: Settings) -> dict[str, Any]:
    """Return ``ok``, ``found`` (a sentence without passwords) and, when something is wrong, ``mend``."""
    if settings.trainer.broker is None:
        return _ping_files(broker_folder(settings))
    try:
        app = make_app(settings)
        where = app.connection_for_write().as_uri()
        connect_once(app)
    except BadSetting as error:
        return {"ok": False, "found": str(error), "mend": "correct trainer.broker"}
    except (OperationalError, OSError) as error:
        return {"ok": False, "found": f"{where}: {error}", "mend": "check trainer.broker and that the broker runs"}
    except ImportError as error:
        return {"ok": False, "found": str(error), "mend": "install the broker's client (extra redis)"}
    return {"ok": True, "found": where}


def _ping_files(folder: Path) -> dict[str, Any]:
    """Check that the file system broker's folder, or its nearest existing parent, can be written."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        mend = "set storage.directory to a folder of yours, or trainer.broker"
        return {"ok": False, "found": f"{there} is no folder that can be written", "mend": mend}
    return {"ok": True, "found": "files in the data directory (no server needed)"}
