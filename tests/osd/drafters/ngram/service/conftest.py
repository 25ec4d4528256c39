"""The shipped pair, and a store to serve it over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from osd.models.pair import Pair, load_pair
from osd.server.start import SHIPPED
from storage.settings import Settings, load_settings
from storage.store import Store, open_store


def settings_in(folder: Path, **serve: Any) -> Settings:
    serve = {"max_batch": 2, "drafter": "trigram", "gamma": "fixed", "gamma_initial": 6, "table_mb": 4} | serve
    return load_settings(storage={"directory": folder / "data", "holdout": 0.0, "flush_requests": 1}, serve=serve)


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair(SHIPPED / "target", SHIPPED / "draft")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(settings_in(tmp_path)) as store:
        yield store
