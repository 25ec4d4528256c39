"""What two processes say to each other, as bytes: a kind and what belongs to it, in JSON, behind its length in four
bytes."""

from __future__ import annotations

import json
import struct
from typing import Any

LENGTH = struct.Struct("!I")


def packed_message(kind: str, what: tuple[Any, ...]) -> bytes:
    """For :func:`message_of`."""
    text = json.dumps([kind, *what], ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    return LENGTH.pack(len(text)) + text


def message_of(text: bytes | bytearray) -> list[Any]:
    """The kind and what belongs to it, from what stands behind the length."""
    found: list[Any] = json.loads(text.decode("utf-8", "surrogatepass"))
    return found
