"""The provenance of a draft version, stored in its osd.json beside the weights."""

from __future__ import annotations

import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from storage.distribution import osd_version


def provenance(settings: dict[str, Any], **facts: Any) -> dict[str, Any]:
    """Return osd's version, the commit it runs from if it is a checkout, the command, and the settings of the run."""
    return {"osd": osd_version(), "commit": commit(), "command": sys.argv, "settings": settings, **facts}


@lru_cache(maxsize=1)
def commit() -> str | None:
    """Return the commit of the checkout that this file belongs to; None when it is installed elsewhere."""
    here = Path(__file__).resolve().parent
    try:
        answer = subprocess.run(
            ["git", "-C", str(here), "ls-files", "--error-unmatch", "--full-name", Path(__file__).name, "-z"],
            capture_output=True, timeout=5, check=False,
        )  # fmt: skip
        if answer.returncode:
            return None
        head = subprocess.run(["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, timeout=5, check=True)
        return head.stdout.decode().strip()
    except (OSError, subprocess.SubprocessError):
        return None
