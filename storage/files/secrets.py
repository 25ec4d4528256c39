"""Secrets that settings name and do not hold: ``env:VARIABLE`` or ``file:PATH``."""

from __future__ import annotations

import os
from pathlib import Path

from storage.errors import BadSetting


def read_secret(named: str, key: str, what: str) -> str:
    """Return a secret. ``key`` is the setting that names it, ``what`` says what it should be, as in "a key ring".

    Raises BadSetting, which never repeats what may be the secret.
    """
    kind, _, where = named.partition(":")
    if kind == "env" and where:
        if not os.environ.get(where):
            raise _bad(key, f"the environment variable {where} is not set; it should hold {what}")
        return os.environ[where]
    if kind != "file" or not where:
        raise _bad(key, f"give env:VARIABLE or file:PATH of {what}; what is secret does not belong here")
    try:
        return Path(where).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise _bad(key, f"{where} cannot be read ({getattr(error, 'strerror', None) or 'no text'})") from None


def _bad(key: str, reason: str) -> BadSetting:
    return BadSetting(source="settings", key=key, reason=reason)
