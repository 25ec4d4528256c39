"""A cache of machine code between processes, keyed by the digest of the sources that it was compiled from.

Numba looks only at the file of the function that it caches. Here such a function calls others in other files of its
folder, so code of an older layout of a table could be run over a newer one, past the ends of its arrays, and end the
process without a word: after an update, or where a process that was started before the sources changed compiles after
they did. So the digest of all sources in the folder, as this process found them, is part of the files' names: code
of other sources is never loaded.

Where nothing is cached for this machine yet, a process of its own compiles, once, in the background and at the lowest
priority: compiling is some ten seconds of Python, which would take the interpreter from decoding. Until the machine
code is there, or where that fails, the plain code must do."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from numba import njit
from numba.core.caching import CompileResultCacheImpl, FunctionCache

from osd.kernels.arithmetic import LANES

log = logging.getLogger(__name__)

Made = TypeVar("Made")
Function = TypeVar("Function", bound=Callable[..., Any])


def digest_of(folder: Path) -> str:
    """Return the digest of a folder's sources: the same for the same names with the same bytes."""
    whole = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        source = path.read_bytes()
        whole.update(f"{path.name} {len(source)} ".encode() + source)
    return whole.hexdigest()[:16]


@cache
def sources_beside(file: str) -> str:
    """Return the digest of all sources in a file's folder, as they were when this process asked first."""
    return digest_of(Path(file).parent)


MARK = ".of-"
"""Separator before the digest in a file's name."""


class _Names(CompileResultCacheImpl):  # type: ignore[misc]
    def __init__(self, function: Callable[..., Any]) -> None:
        self._sources = sources_beside(function.__code__.co_filename)
        super().__init__(function)

    def get_filename_base(self, fullname: str, abiflags: str) -> str:
        return f"{super().get_filename_base(fullname, abiflags)}{MARK}{self._sources}"


class _Cache(FunctionCache):  # type: ignore[misc]
    _impl_class = _Names


def kept(function: Function, *, nogil: bool = True, fastmath: Collection[str] = ()) -> Function:
    """Compile a function and cache its code; where it cannot be cached it is compiled once a process.

    ``nogil``: it runs without the GIL, for which it has to wait afterwards where other threads want it; ``fastmath``:
    see Numba.
    """
    dispatcher = njit(nogil=nogil, fastmath=set(fastmath))(function)
    with suppress(RuntimeError, OSError, AttributeError):  # no folder that can be written; another Numba
        found = _Cache(function)
        sources = sources_beside(function.__code__.co_filename)
        forget_others(Path(found.cache_path), function.__module__.rsplit(".", 1)[-1], sources)
        dispatcher._cache = found
    return cast(Function, dispatcher)


holding = partial(kept, nogil=False, fastmath=LANES)
"""Compiles and caches functions that hold the GIL: calls of some 50 µs would wait for it afterwards if they released
it."""


def forget_others(folder: Path, module: str, sources: str) -> list[str]:
    """Remove a module's cached code of other sources; return the names of what was removed.

    A process of those sources that still runs has its code in memory, or compiles it again.
    """
    old = [path for path in folder.glob(f"{module}.*.nb[ic]") if f"{MARK}{sources}." not in path.name]
    for path in old:
        with suppress(OSError):
            path.unlink()
    return [path.name for path in old]


INSIDE = "OSD_COMPILES_APART"
"""Environment variable that is set in that process."""
PATIENCE = 300.0
"""Seconds to wait for it; after them this process compiles after all."""


def apart(function: Any, call: str) -> None:
    """Have another process make the ``call`` ``module:name``, which compiles, if no code of ``function`` is cached
    here. Of processes that ask at once one has it compiled, and the others wait.

    Where that fails, nothing is cached afterwards, as before.
    """
    if INSIDE in os.environ or is_kept(function):
        return
    with suppress(OSError, subprocess.SubprocessError), one_at_a_time(function):
        if not is_kept(function):
            _compile(*call.split(":"))


@contextmanager
def one_at_a_time(function: Any) -> Iterator[None]:
    """Hold the lock on the folder that the function's code is cached in. It ends with this process at the latest."""
    folder = Path(function._cache.cache_path)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "compiling.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compile(module: str, name: str) -> None:
    command = [sys.executable, "-P", "-c", f"import {module} as module; module.{name}()"]
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


class BackgroundCompile(Generic[Made]):
    """Something compiled in the background."""

    def __init__(self, make: Callable[[], Made], name: str, otherwise: str) -> None:
        """Prepare without compiling. ``make`` imports the compiler, compiles, and calls what it made once with each
        kind of argument. ``otherwise``: the log message where that fails on a machine."""
        self.ready: Made | None = None
        """What was compiled; None until it is, and where it cannot be."""
        self._make, self._name, self._otherwise = make, name, otherwise
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Compile in the background, unless that was begun already."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._load, name=self._name, daemon=True)
                self._thread.start()

    def wait(self) -> Made | None:
        """Wait until it is ready and return it; None where it cannot be compiled."""
        self.start()
        if self._thread is not None:
            self._thread.join()
        return self.ready

    def _load(self) -> None:
        try:
            self.ready = self._make()
        except Exception as error:  # whatever is wrong with the compiler on this machine, the plain way works
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            log.warning("%s (%s)", self._otherwise, reason, extra={"action": "compile_failed"})
