"""Names of the processes that hold leases, by which another one on the same machine can tell that one has ended.

A name is ``HOST:PID:PLACE-START-NONCE``. PLACE is a digest of the machine's boot and of the space of process ids, for
containers have spaces of their own; START is when the process began, in ticks since the boot, for another one may have
its id by now. Where the system tells neither, a name has the nonce alone, and its lease decides.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import socket
from pathlib import Path

NAME = re.compile(r"(?P<host>.+):(?P<pid>\d{1,7}):(?P<mark>(?P<place>[0-9a-f]{8}-)\d+-)[0-9a-f]+")


def holder_name() -> str:
    """Return a name for this process in leases."""
    return f"{socket.gethostname()}:{os.getpid()}:{_mark(os.getpid())}{secrets.token_hex(4)}"


def has_gone(holder: str) -> bool:
    """Return whether a holder has ended for sure: it was a process of this boot and this space of ids, where its id is
    nobody's now, or another's. False wherever it may live."""
    found = NAME.fullmatch(holder)
    if not (found and found["host"] == socket.gethostname() and _mark(os.getpid()).startswith(found["place"])):
        return False
    try:
        os.kill(int(found["pid"]), 0)
    except OSError as error:
        return isinstance(error, ProcessLookupError)  # others' processes may live
    return _mark(int(found["pid"])) not in ("", found["mark"])


def _mark(pid: int) -> str:
    """Return ``PLACE-START-`` of a process in this space of ids; empty where the system does not tell."""
    try:
        place = Path("/proc/sys/kernel/random/boot_id").read_text() + os.readlink("/proc/self/ns/pid")
        start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
    return f"{hashlib.sha256(place.encode()).hexdigest()[:8]}-{start}-"
