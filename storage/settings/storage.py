"""Where the store keeps metadata, samples and weights: ``[storage]``."""

from __future__ import annotations

from pathlib import Path

from platformdirs import user_cache_path, user_data_path
from pydantic import Field

from storage.settings.section import Section


class StorageSettings(Section):
    url: str | None = None
    """SQLAlchemy URL of the metadata; None is a SQLite file in the data directory."""
    directory: Path | None = None
    """Where segments, weights and the SQLite file live; None is the XDG data directory."""
    samples: str | None = None
    """Where samples are kept: a folder, or an fsspec URL such as s3://BUCKET/samples; None is segments/ in the data
    directory. Credentials come from the environment (AWS_…) or fsspec's configuration."""
    weights: str | None = None
    """Where drafts' weights are kept, likewise; None is weights/ in the data directory."""
    cache: Path | None = None
    """Where weights of an object store are kept on this machine to be loaded; None is the XDG cache directory."""
    encryption: str | None = None
    """Key ring that encrypts samples and exports, as env:VARIABLE or file:PATH; None encrypts nothing."""
    top_k: int = Field(default=64, ge=1, le=4096)
    """How many of the target's log-probabilities are kept at a position."""
    flush_requests: int = Field(default=256, ge=1)
    """Finished requests that make a segment."""
    flush_seconds: float = Field(default=5.0, gt=0)
    """A segment is written at the latest after so many seconds, however few requests it holds."""
    holdout: float = Field(default=0.15, ge=0, lt=1)
    """Share of prompts that are never trained on and only judge candidates (chosen by a hash of the prompt)."""

    def data_directory(self) -> Path:
        """Return the data directory: set, or the XDG one."""
        return (self.directory or user_data_path("osd")).expanduser()

    def cache_directory(self) -> Path:
        """Return the cache directory: set, or the XDG one."""
        return (self.cache or user_cache_path("osd")).expanduser()

    def database_url(self) -> str:
        """Return the database's URL: set, or the SQLite file in the data directory."""
        return self.url or f"sqlite:///{self.data_directory() / 'osd.db'}"
