"""A cache of machine code between processes, keyed by the digest of the sources that it was compiled from.

Numba looks only at the file of the function that it caches. Here such a function calls others in other files of its
folder, so code of an older layout of a table could be run over a newer one, past the ends of its arrays, and end the
process without a word: after an update, or where a process that was started before the sources changed compiles after
they did. So the digest of all sources in the folder, as this process found them, is part of the files' names: code
of other sources is never loaded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import njit
from numba.core.caching import CompileResultCacheImpl, FunctionCache

from osd.kernels.arithmetic import LANES

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
