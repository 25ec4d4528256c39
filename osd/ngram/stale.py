"""Numba's cached machine code, thrown away when the source that it was made of has changed.

Numba looks only at the file of the function that it cached. Here such a function calls others in other files, so
machine code of an older layout could be run after an update.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

STAMP = "ngram.stamp"


def forget_stale(folder: Path = Path(__file__).parent) -> bool:
    """Remove the cached code beside the byte code unless it is of these sources; whether it was removed.

    Where the folder cannot be written nothing is cached in it either.
    """
    with suppress(OSError):
        whole = hashlib.sha256()
        for path in sorted(folder.glob("*.py")):
            whole.update(path.read_bytes())
        stamp = folder / "__pycache__" / STAMP
        if stamp.is_file() and stamp.read_text() == whole.hexdigest():
            return False
        for path in stamp.parent.glob("*.nbi"):
            path.unlink(missing_ok=True)
        stamp.parent.mkdir(exist_ok=True)
        stamp.write_text(whole.hexdigest())
        return True
    return False
