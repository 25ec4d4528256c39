"""Compiles in another process, where nothing is cached for this machine yet.

Compiling is some ten seconds of Python, which takes the interpreter from decoding as often as it wants it. A process of
its own, at the lowest priority, leaves its machine code where this one then finds it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from typing import Any

INSIDE = "OSD_COMPILES_APART"
"""Environment variable that is set in that process."""
PATIENCE = 300.0
"""Seconds to wait for it; after them this process compiles after all."""


def apart(function: Any, call: str) -> None:
    """Have another process make the ``call`` ``module:name``, which compiles, if no code of ``function`` is cached
    here.

    Where that fails, nothing is cached afterwards, as before.
    """
    if INSIDE in os.environ or is_kept(function):
        return
    module, name = call.split(":")
    command = [sys.executable, "-P", "-c", f"import {module} as module; module.{name}()"]
    with suppress(OSError, subprocess.SubprocessError):
        process = subprocess.Popen(
            command, env=os.environ | {INSIDE: "1"},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        with suppress(AttributeError, OSError):
            os.setpriority(os.PRIO_PROCESS, process.pid, 19)
        try:
            process.wait(PATIENCE)
        finally:
            process.kill()


def is_kept(function: Any) -> bool:
    """Return whether machine code of a function is cached for this processor; also where there is no place to cache
    any."""
    from numba.core.registry import cpu_target

    here = cpu_target.target_context.codegen().magic_tuple()
    try:
        return any(here in key for key in function._cache._cache_file._load_index())
    except (AttributeError, OSError):
        return True
