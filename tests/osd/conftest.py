"""What tests of the recorder start from: a draft that is often wrong, three rows, eight tokens kept a position; and
models whose passes are compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

from osd.models.llama_forward_compiled import PARTS
from osd.models.pair import Pair
from osd.verification.compiled_sampling import CHOOSING
from storage.settings import Settings, load_settings
from tests.support.models import random_pair


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    storage = {"directory": tmp_path, "top_k": 8, "holdout": 0.0}
    gamma = {"rule": "fixed", "initial": 3}
    return load_settings(storage=storage, serve={"max_batch": 3, "max_length": 96}, gamma=gamma)


@pytest.fixture(scope="module")
def pair() -> Pair:
    return random_pair("llama", noise=0.3)


@pytest.fixture(scope="session")
def compiled() -> None:
    """Passes over few tokens are compiled, as they are once a process has decoded and drafted a while."""
    assert PARTS.wait() is not None
    assert CHOOSING.wait() is not None
