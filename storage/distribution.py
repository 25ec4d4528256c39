"""The distribution that osd is installed from: its name, its version, and how an extra of it is installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

from storage.errors import BadSetting

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


@contextmanager
def needing(extra: str, command: str) -> Iterator[None]:
    """Import what an extra of osd brings. Raises BadSetting, naming the ``command`` that needs it, where it lacks."""
    try:
        yield
    except ModuleNotFoundError as error:
        reason = f"{error.name} is not installed; {install_extra(extra)}"
        raise BadSetting(source="command", key=command, reason=reason) from None
