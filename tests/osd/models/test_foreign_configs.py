"""Whatever a model's config.json holds, loading it gives a model or a sentence that names the folder."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from osd.models.pair import load_model
from storage.errors import OsdError
from tests.support.models import random_module

FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
VALUES = (
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | st.text(max_size=6)
    | st.lists(st.integers(-9, 9), max_size=3) | st.dictionaries(st.text(max_size=6), st.integers(-9, 9), max_size=2)
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("llama")
    random_module("llama").save_pretrained(made)
    return made


def loads_or_tells(folder: Path, config: str) -> str:
    """Load the folder with another config.json; return the sentence, empty where it loads."""
    path = folder / "config.json"
    before = path.read_text()
    path.write_text(config)
    try:
        load_model(folder, torch.device("cpu"))
    except OsdError as error:
        assert str(folder) in str(error)
        return str(error)
    finally:
        path.write_text(before)
    return ""


@FUZZ
@given(data=st.data())
def test_any_value_of_any_field(data: st.DataObject, folder: Path) -> None:
    logging.disable(logging.CRITICAL)
    facts: dict[str, Any] = json.loads((folder / "config.json").read_text())
    name = data.draw(st.sampled_from(sorted(facts)))
    loads_or_tells(folder, json.dumps(facts | {name: data.draw(VALUES)}))
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(
    ("name", "value"),
    [("hidden_act", "nonsense"), ("num_attention_heads", 0), ("rms_norm_eps", "x"), ("num_hidden_layers", 1 << 40)],
)
def test_the_field_is_named(name: str, value: Any, folder: Path) -> None:
    facts = json.loads((folder / "config.json").read_text())
    assert name in loads_or_tells(folder, json.dumps(facts | {name: value}))


@pytest.mark.parametrize("config", ["", "[", "[" * 100_000, "3", "{}", '{"model_type": 5}', "\ud800"])
def test_no_configuration_at_all(config: str, folder: Path) -> None:
    assert loads_or_tells(folder, config.encode("utf-8", "surrogatepass").decode("utf-8", "replace"))


def test_sizes_beyond_the_files_take_no_memory(folder: Path) -> None:
    facts = json.loads((folder / "config.json").read_text())
    assert "the files hold" in loads_or_tells(folder, json.dumps(facts | {"vocab_size": 1 << 40}))
