"""Lets another process compile first, where nothing is kept for this machine yet.

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
"""Set in that process."""
PATIENCE = 300.0
"""Seconds for it; after them this one compiles after all."""


def apart(function: Any, call: str) -> None:
    """Where no machine code of ``function``, which Numba keeps, is here yet, let another process make the ``call``
    ``module:name``, which compiles it. Where that fails, nothing is there afterwards, as before."""
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
    """Whether there is machine code of it for this processor; also where there is no place to keep any."""
    from numba.core.registry import cpu_target

    here = cpu_target.target_context.codegen().magic_tuple()
    try:
        return any(here in key for key in function._cache._cache_file._load_index())
    except (AttributeError, OSError):
        return True
