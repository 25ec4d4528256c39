"""Encryption at rest of segments and exports: Parquet's modular encryption (AES-GCM), keys from a key ring.

Each file has a random key of its own, wrapped (RFC 3394) by a key of the ring whose name stands in the file's footer.
A new first key in the ring therefore encrypts new files, and old files stay readable while their keys are in the ring.

A ring is lines of ``NAME KEY``; the first key writes, all read. KEY is base64 of 16, 24 or 32 random bytes. The ring
comes from an environment variable or a file (``storage.encryption``), never from osd.toml.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from storage.distribution import install_extra
from storage.errors import BadSetting

KEY = "storage.encryption"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
KEY_BYTES = (16, 24, 32)
ENCRYPTED = b"PARE"
"""First bytes of a file with an encrypted footer; others begin with PAR1."""


class KeyProblem(Exception):
    """A file's key is unavailable; the message says why."""


class Cipher:
    """A key ring that encrypts with its first key. Raises BadSetting when a library is missing."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._keys = dict(keys)
        self.writes_with = next(iter(self._keys))
        self._factory: Any = None
        _require_libraries()

    def __repr__(self) -> str:
        return f"Cipher({', '.join(self._keys)})"

    def for_writing(self) -> dict[str, Any]:
        """Return the options of a Parquet writer for one file, with a key of its own."""
        import pyarrow.parquet.encryption as pe

        length = 8 * len(self._keys[self.writes_with])
        how = pe.EncryptionConfiguration(
            self.writes_with, uniform_encryption=True, double_wrapping=False, data_key_length_bits=length
        )
        return {"encryption_properties": self._crypto().file_encryption_properties(pe.KmsConnectionConfig(), how)}

    def for_reading(self) -> dict[str, Any]:
        """Return the options of a Parquet reader, which also reads unencrypted files."""
        import pyarrow.parquet.encryption as pe

        properties = self._crypto().file_decryption_properties(pe.KmsConnectionConfig(), pe.DecryptionConfiguration())
        return {"decryption_properties": properties}

    def _crypto(self) -> Any:
        if self._factory is None:
            import pyarrow.parquet.encryption as pe

            client = _key_client(self._keys)
            self._factory = pe.CryptoFactory(lambda _: client())
        return self._factory


def _key_client(keys: Mapping[str, bytes]) -> type[Any]:
    """Return the class of Parquet's key management client, which here only wraps keys."""
    import pyarrow.parquet.encryption as pe
    from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap, aes_key_wrap

    class Ring(pe.KmsClient):  # type: ignore[misc]
        def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
            return base64.b64encode(aes_key_wrap(keys[master_key_identifier], key_bytes))

        def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
            if master_key_identifier not in keys:
                raise KeyProblem(f"the key ring has no key {master_key_identifier!r}; put it back")
            try:
                return aes_key_unwrap(keys[master_key_identifier], base64.b64decode(wrapped_key))
            except InvalidUnwrap:
                reason = f"the ring's key {master_key_identifier!r} is not the one that it was written with"
                raise KeyProblem(f"{reason}, or the file is damaged") from None

    return Ring


def _require_libraries() -> None:
    try:
        import cryptography  # noqa: F401
        from pyarrow.parquet.encryption import EncryptionConfiguration

        enough = hasattr(EncryptionConfiguration, "uniform_encryption")
    except ImportError:
        enough = False
    if not enough:
        raise _bad(f"encryption needs libraries that are not installed or too old; {install_extra('encryption')}")


def open_cipher(named: str | None) -> Cipher | None:
    """Return the cipher that ``storage.encryption`` names: ``env:VARIABLE`` or ``file:PATH``; None encrypts nothing.

    Raises BadSetting, which never repeats what may be a key.
    """
    return None if named is None else Cipher(parse_ring(read_secret(named, KEY, "a key ring")))


def parse_ring(text: str) -> dict[str, bytes]:
    """Parse a key ring into name -> key, in order, skipping lines that begin with #. Raises BadSetting, naming the
    line."""
    keys: dict[str, bytes] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or not NAME.fullmatch(words[0]):
            raise _bad(f"line {number} of the key ring is not NAME KEY")
        if words[0] in keys:
            raise _bad(f"line {number} of the key ring names {words[0]!r} a second time")
        keys[words[0]] = _key(words[1], number)
    if not keys:
        raise _bad("the key ring is empty; a line is NAME and the output of `openssl rand -base64 32`")
    return keys


def _key(text: str, number: int) -> bytes:
    try:
        key = base64.b64decode(text, validate=True)
    except ValueError:
        key = b""
    if len(key) not in KEY_BYTES:
        raise _bad(f"the key on line {number} of the key ring is not base64 of 16, 24 or 32 bytes")
    return key


def is_encrypted(source: Any) -> bool:
    """Return whether a file (a path, or a buffer's reader) needs a key to be read."""
    if isinstance(source, Path):
        with source.open("rb") as file:
            return file.read(len(ENCRYPTED)) == ENCRYPTED
    source.seek(0)
    return bool(source.read(len(ENCRYPTED)) == ENCRYPTED)


def _bad(reason: str) -> BadSetting:
    return BadSetting(source="settings", key=KEY, reason=reason)


def read_secret(named: str, key: str, what: str) -> str:
    """Return a secret. ``key`` is the setting that names it, ``what`` says what it should be, as in "a key ring".

    Raises BadSetting, which never repeats what may be the secret.
    """
    kind, _, where = named.partition(":")
    if kind == "env" and where:
        if not os.environ.get(where):
            raise _bad_secret(key, f"the environment variable {where} is not set; it should hold {what}")
        return os.environ[where]
    if kind != "file" or not where:
        raise _bad_secret(key, f"give env:VARIABLE or file:PATH of {what}; what is secret does not belong here")
    try:
        return Path(where).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise _bad_secret(key, f"{where} cannot be read ({getattr(error, 'strerror', None) or 'no text'})") from None


def _bad_secret(key: str, reason: str) -> BadSetting:
    return BadSetting(source="settings", key=key, reason=reason)
