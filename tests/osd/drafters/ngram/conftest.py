"""The shipped pair, and a store to serve it over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from osd.drafters.ngram.files import write_table
from osd.drafters.ngram.table import Table
from osd.models.pair import Pair, load_pair
from osd.server.start import SHIPPED
from storage.settings import Settings
from storage.store import Store, open_store
from tests.support.settings import settings_of


def settings_in(folder: Path, **more: Any) -> Settings:
    """Settings of a store in a folder, with more of them as SECTION__KEY."""
    given = {
        "storage__directory": folder / "data", "storage__holdout": 0.0, "storage__flush_requests": 1,
        "serve__max_batch": 2, "drafters__kind": "trigram", "gamma__rule": "fixed", "gamma__initial": 6,
        "ngram__memory_mb": 4, "privacy__share_tables": True,
    }  # fmt: skip
    return settings_of(**given | more)


def save_table(folder: Path, table: Table, tokenizer: str) -> None:
    """A new folder with a table."""
    folder.mkdir()
    write_table(folder, table, tokenizer)


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair(SHIPPED / "target", SHIPPED / "draft")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(settings_in(tmp_path)) as store:
        yield store
