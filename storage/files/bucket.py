"""Objects in a folder of an object store, given by an fsspec URL: ``s3://bucket/folder``, ``gs://…``, ``memory://…``.

A put becomes visible whole or not at all, so no rename is needed. Credentials come from the store's own environment
variables (``AWS_…``) or from fsspec's configuration, never from the URL, which is shown in messages.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from storage.distribution import install_extra
from storage.errors import BadSetting, DatabaseUnreachable, OsdError, PlaceUnreachable, StoreError
from storage.files.places import Found, LocalFolder

CONNECT_SECONDS, READ_SECONDS, ATTEMPTS = 10, 60, 3
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(.*)", re.DOTALL)
LIBRARIES = {"gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}
"""What to install for a scheme that no extra of ours is for."""
MISSING_BUCKET = ("NoSuchBucket",)
REFUSED = ("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "403", "Forbidden")


def open_place(named: str | None, default: Path, key: str) -> LocalFolder | ObjectStore:
    """Return the place that a setting names: a path, a ``file:`` URL, or an fsspec URL; None is ``default``. ``key`` is
    the setting. Raises BadSetting."""
    if named is None:
        return LocalFolder(default)
    folder = _local_folder(named, key)
    return ObjectStore(named, key) if folder is None else LocalFolder(folder.absolute())


def _local_folder(text: str, key: str) -> Path | None:
    """Return the folder that a plain path or a ``file:`` URL names; None for another URL. Raises BadSetting."""
    match = SCHEME.fullmatch(text)
    if match is None:
        return Path(text).expanduser()
    if match[1] in ("file", "local"):
        parts = urlsplit(text)
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise _bad(key, "a file: URL needs a whole path, as in file:///srv/osd")
        return Path(unquote(parts.path))
    if not match[2].startswith("//"):
        raise _bad(key, f"write {match[1]}://… for an object store, or ./{match[1]}:… for a folder of that name")
    return None


def _bad(key: str, reason: str) -> BadSetting:
    return BadSetting(source="settings", key=key, reason=reason)


class ObjectStore:
    """A folder of an object store, connected to at the first use. Raises BadSetting for a URL of no object store.

    Its other methods raise PlaceUnreachable when the store does not answer or refuses.
    """

    def __init__(self, url: str, key: str) -> None:
        """Open nothing yet; ``key`` is the setting that named the URL, for messages."""
        self.url, self.key = url.rstrip("/"), key
        self._require_plain()
        self._opened: tuple[int, Any, str] | None = None
        self._open()

    def _require_plain(self) -> None:
        scheme, _, rest = self.url.partition("://")
        if "@" in rest or "?" in rest or "#" in rest:
            reason = "a URL holds no keys or options; give them in the environment (AWS_…) or fsspec's configuration"
            raise _bad(self.key, reason)
        if "::" in self.url or (not rest and scheme != "memory"):
            raise _bad(self.key, "give one object store and a bucket, as in s3://bucket/folder")

    def _open(self) -> tuple[Any, str]:
        """Return (file system, root), opened anew in a forked child, which must not use its parent's connections."""
        if self._opened is None or self._opened[0] != os.getpid():
            import fsspec

            scheme = self.url.partition("://")[0]
            try:
                system, root = fsspec.core.url_to_fs(self.url, use_listings_cache=False, **_options(scheme))
            except (ImportError, ValueError) as error:
                raise _bad(self.key, _unusable(scheme, error)) from None
            self._opened = (os.getpid(), system, str(root).rstrip("/"))
        return self._opened[1:]

    def show(self, path: str = "") -> str:
        """Return the URL of an object."""
        return f"{self.url}/{path}" if path else self.url

    @contextmanager
    def holding(self, path: str, data: memoryview) -> Iterator[None]:
        """Write an object in one put, which is whole or not at all; an OsdError in the context deletes it, unless the
        database went away."""
        self.put(path, data)
        try:
            yield
        except DatabaseUnreachable:
            raise
        except OsdError:
            with suppress(OsdError):
                self.remove(path)
            raise

    def require(self, path: str) -> None:
        """Check that the object exists. Raises StoreError."""
        if not self.exists(path):
            raise StoreError(reason=f"{self.show(path)} was swept before it was entered; its requests were not kept.")

    def source(self, path: str) -> Any:
        """Return the object's bytes in a buffer reader."""
        import pyarrow as pa

        return pa.BufferReader(self.get(path))

    def put(self, path: str, data: bytes | memoryview) -> None:
        """Write an object whole, replacing any of that name."""
        with self._using("written") as (system, root):
            system.pipe_file(f"{root}/{path}", bytes(data))

    def put_file(self, source: Path, path: str) -> None:
        """Write a file's bytes as an object."""
        with self._using("written") as (system, root):
            system.put_file(str(source), f"{root}/{path}")

    def get(self, path: str) -> bytes:
        """Return an object's bytes. Raises FileNotFoundError when it is not there."""
        with self._using("read") as (system, root):
            return bytes(system.cat_file(f"{root}/{path}"))

    def get_file(self, path: str, target: Path) -> None:
        """Download an object to ``target``. Raises FileNotFoundError when it is not there."""
        with self._using("read") as (system, root):
            system.get_file(f"{root}/{path}", str(target))

    def remove(self, path: str) -> None:
        """Delete an object; does nothing when it is not there."""
        with suppress(FileNotFoundError), self._using("deleted") as (system, root):
            system.rm_file(f"{root}/{path}")

    def exists(self, path: str) -> bool:
        """Return whether the object exists."""
        try:
            with self._using("read") as (system, root):
                system.info(f"{root}/{path}")
        except FileNotFoundError:
            return False
        return True

    def list(self, folder: str = "") -> list[Found]:
        """Return every object below a folder, in order of name."""
        with self._using("listed") as (system, root):
            top = f"{root}/{folder}".rstrip("/")
            system.invalidate_cache()
            found = system.find(top, detail=True)
        return [_found(name, facts, root) for name, facts in sorted(found.items())]

    def probe(self) -> None:
        """Check access by writing, listing, reading and deleting an object. Raises PlaceUnreachable."""
        name = f".osd-probe-{os.urandom(8).hex()}"
        self.put(name, b"osd")
        try:
            if self.get(name) != b"osd" or name not in [each.path for each in self.list()]:
                reason = "what was written did not come back; osd needs a store that is consistent at once"
                raise PlaceUnreachable(url=self.url, what="trusted", key=self.key, reason=reason)
        finally:
            self.remove(name)

    @contextmanager
    def _using(self, what: str) -> Iterator[tuple[Any, str]]:
        """Yield (file system, root) and turn the errors of fsspec's libraries into PlaceUnreachable.

        FileNotFoundError passes, since it means that one object is missing.
        """
        try:
            yield self._open()
        except OsdError:
            raise
        except Exception as error:
            code = _code(error)
            if isinstance(error, FileNotFoundError) and code not in MISSING_BUCKET:
                raise
            raise PlaceUnreachable(url=self.url, what=what, key=self.key, reason=_reason(error, code)) from error


def _options(scheme: str) -> dict[str, Any]:
    """Return short timeouts for a scheme, so that an unreachable store fails in seconds; fsspec's configuration
    wins."""
    if scheme not in ("s3", "s3a"):
        return {}
    from fsspec.config import conf

    limits = {"connect_timeout": CONNECT_SECONDS, "read_timeout": READ_SECONDS, "retries": {"max_attempts": ATTEMPTS}}
    return {} if "config_kwargs" in conf.get("s3", {}) else {"config_kwargs": limits}


def _unusable(scheme: str, error: Exception) -> str:
    if isinstance(error, ImportError):
        library = LIBRARIES.get(scheme, scheme)
        advice = install_extra("s3") if scheme in ("s3", "s3a") else f"pip install '{library}'"
        return f"{scheme}:// needs a library that is not installed; {advice}"
    return f"{scheme}:// is not known to fsspec; give a path, file:///FOLDER or s3://BUCKET/FOLDER"


def _code(error: BaseException) -> str:
    """Return the error code that the store answered with, where the error or its cause has one."""
    for each in (error, error.__cause__):
        response = getattr(each, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
    return ""


def _reason(error: Exception, code: str) -> str:
    """Return what went wrong and what to do, without the request details that the library repeats."""
    name = type(error).__name__
    if code in MISSING_BUCKET:
        return "there is no such bucket; make it, or correct the name"
    if code in REFUSED or isinstance(error, PermissionError):
        return "it refused these credentials; correct AWS_… or fsspec's configuration, or what they may do"
    if "Credentials" in name:
        return "no credentials were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or fsspec's configuration"
    if "Endpoint" in name or "Connect" in name or "Timeout" in name:
        return "it does not answer; check that it runs, and AWS_ENDPOINT_URL"
    return (str(error).strip().splitlines() or [name])[0]


def _found(name: str, facts: dict[str, Any], root: str) -> Found:
    modified = facts.get("LastModified") or facts.get("mtime") or facts.get("updated") or facts.get("created")
    if not isinstance(modified, datetime):
        modified = datetime.fromisoformat(modified) if isinstance(modified, str) else datetime.now().astimezone()
    return Found(name.removeprefix(root).lstrip("/"), int(facts["size"] or 0), modified.astimezone())
