"""The distribution that osd is installed from: its name, its version, and how an extra of it is installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

DISTRIBUTION = "osd-llm"
"""The packages and the command are called osd; on PyPI that name is somebody else's."""


def osd_version() -> str:
    """Return the installed version; ``unknown`` when osd runs without being installed."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"


def install_extra(extra: str) -> str:
    """Return the advice that installs an extra of osd (``serve``, ``redis``, …), for the end of an error's sentence."""
    return f"in a checkout of osd: pip install '.[{extra}]'"
