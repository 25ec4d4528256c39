"""What the plugin is told by environment variables of vLLM's process, and `osd attach --proxy` by those of its own.

Standard library only: it runs in both.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

HERE = ("127.0.0.1", "localhost", "::1")


class BadOption(ValueError):
    """An environment variable is wrong. vLLM does not start with it, before it has read any weights."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the plugin, or of the proxy."""

    token: str
    """OSD_VLLM_TOKEN: what `osd attach` and this plugin know each other by; required."""
    engine: str | None
    """OSD_VLLM_ENGINE: this vLLM's name, which must survive a restart; None takes its host's name and port."""
    collector: str | None
    """OSD_VLLM_COLLECTOR: URL of `osd attach`; None harvests nothing."""
    folders: tuple[Path, ...]
    """OSD_VLLM_FOLDERS: folders below which drafts may be loaded from, divided by colons."""
    top_k: int
    """OSD_VLLM_TOP_K: likeliest tokens asked for at each position; 0 leaves them to
    `osd attach` (attach.target)."""
    queue: int
    """OSD_VLLM_QUEUE: answers that wait to be sent at most; beyond it they are dropped and counted."""
    spool: Path | None
    """OSD_VLLM_SPOOL: folder for answers while the collector is away; None drops them."""
    spool_mb: int
    """OSD_VLLM_SPOOL_MB: its size at most."""
    tenant_header: str
    """OSD_VLLM_TENANT_HEADER: header that names the tenant; empty for none."""
    shows_metrics: bool
    """OSD_VLLM_SHOW_METRICS: 1 leaves ``metrics.speculative_decoding`` in answers."""
    gamma: Path | None
    """OSD_VLLM_GAMMA: file of draft lengths for the scheduler class, which measures what they should be while there is
    none; None leaves them to vLLM."""
    positions: int = 0
    """OSD_VLLM_POSITIONS: positions a second at which likeliest tokens are asked for at most, in the mean; answers
    beyond it are counted and not learned from. 0 for no limit."""

    @classmethod
    def read(cls) -> Options:
        """Read the environment. Raises BadOption naming the variable."""
        token = os.environ.get("OSD_VLLM_TOKEN", "")
        if len(token) < 16:
            raise BadOption("OSD_VLLM_TOKEN: give at least 16 characters, the same as `osd attach` has.")
        collector = os.environ.get("OSD_VLLM_COLLECTOR") or None
        if collector:
            _require_private(collector)
        spool, gamma = os.environ.get("OSD_VLLM_SPOOL"), os.environ.get("OSD_VLLM_GAMMA")
        folders = _folders(os.environ.get("OSD_VLLM_FOLDERS", ""))
        top_k, waiting = _number("OSD_VLLM_TOP_K", 20), _number("OSD_VLLM_QUEUE", 1024)
        return cls(
            token, os.environ.get("OSD_VLLM_ENGINE") or None, collector, folders, top_k, waiting,
            Path(spool) if spool else None, _number("OSD_VLLM_SPOOL_MB", 256),
            os.environ.get("OSD_VLLM_TENANT_HEADER", "").lower(), os.environ.get("OSD_VLLM_SHOW_METRICS") == "1",
            Path(gamma) if gamma else None, _number("OSD_VLLM_POSITIONS", 100),
        )  # fmt: skip


def draft_file(gamma: Path) -> Path:
    """Return the file that names the draft version, beside that of draft lengths: when it changes, acceptance does."""
    return gamma.with_name(gamma.name + ".draft")


def gain_file(gamma: Path) -> Path:
    """Return the file into which the scheduler class writes what drafting gains."""
    return gamma.with_name(gamma.name + ".gain")


def write_whole(path: Path, text: str) -> None:
    """Write a file so that whoever reads it finds the old one or the new one. Raises OSError."""
    half = path.with_name(path.name + ".half")
    half.write_text(text)
    half.replace(path)


@cache
def options() -> Options:
    """Return the options of this process. Raises BadOption."""
    return Options.read()


def _require_private(url: str) -> None:
    """Raise BadOption for a URL that would send prompts over a network in the clear."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadOption(f"OSD_VLLM_COLLECTOR: {url!r} is no URL; give one as https://HOST:PORT.")
    if parts.scheme == "http" and parts.hostname not in HERE:
        raise BadOption("OSD_VLLM_COLLECTOR: prompts would cross the network in the clear; give an https:// URL.")


def _folders(given: str) -> tuple[Path, ...]:
    folders = tuple(Path(one).resolve() for one in given.split(os.pathsep) if one)
    for folder in folders:
        if not folder.is_dir():
            raise BadOption(f"OSD_VLLM_FOLDERS: there is no folder {folder}; make it: mkdir -p {folder}")
    return folders


def absolute(name: str) -> str:
    """Return a model's folder or file as it is found from any folder; a hub name stays as it is."""
    return str(Path(name).absolute()) if Path(name).exists() else name


def _number(name: str, default: int) -> int:
    given = os.environ.get(name, str(default))
    if not given.isdecimal():
        raise BadOption(f"{name}: {given!r} is no number; give 0 or more.")
    return int(given)
