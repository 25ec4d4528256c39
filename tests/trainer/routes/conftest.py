"""A draft with a tokenizer, and traffic of two kinds."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from storage.records import RequestSamples, now
from storage.settings import Settings
from storage.store import Store, open_store
from tests.trainer.conftest import quick
from tests.trainer.models import VOCAB, answers, random_prompts, tiny_llama
from trainer.routes.discover import Search, discover

Domains = dict[str, list[RequestSamples]]


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return until_learned(settings)


def until_learned(settings: Settings) -> Settings:
    """Learning until a draft of both kinds has no room for more: before that, more requests of any kind win."""
    return settings.changed(learn={"epochs": 12, "learning_rate": 0.02}, gate={"confidence": 0.6})


@pytest.fixture
def drafted(store: Store, draft_folder: Path) -> Store:
    add_draft(store, draft_folder)
    return store


def add_draft(store: Store, folder: Path) -> None:
    """A draft with a tokenizer of words w0 … w47."""
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)  # type: ignore[no-untyped-call]
    store.versions.register_root("default", folder)


@pytest.fixture(scope="session")
def domains() -> Domains:
    """Two kinds of prompts, answered by two targets: what one draft learns of the one is no use for the other."""
    low, high = random_prompts(48, 8, seed=1, high=24), random_prompts(48, 8, seed=2, low=25)
    return {"low": answers(tiny_llama(1), low), "high": answers(tiny_llama(3), high)}


def keep(store: Store, samples: Sequence[RequestSamples], route: str = "default") -> list[RequestSamples]:
    """Into the store, in this order."""
    kept = [replace(s, route=route, created_at=now() + i * 1e-4) for i, s in enumerate(samples)]
    store.samples.add(kept)
    return kept


@pytest.fixture
def mixed(drafted: Store, domains: Domains) -> Store:
    """The store with both kinds, in a mixed order, on the default route."""
    keep(drafted, in_mixed_order(domains))
    return drafted


def in_mixed_order(domains: Domains) -> list[RequestSamples]:
    samples = [s for some in domains.values() for s in some]
    random.Random(0).shuffle(samples)
    return samples


@pytest.fixture(scope="session")
def looked_through(domains: Domains, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of such a store, in which routes were looked for."""
    folder = tmp_path_factory.mktemp("found")
    settings = until_learned(quick(folder / "data"))
    tiny_llama(2).save_pretrained(folder / "draft")
    with open_store(settings) as store:
        add_draft(store, folder / "draft")
        keep(store, in_mixed_order(domains))
        discover(store, settings, Search())
    return folder / "data"


@pytest.fixture
def found(looked_through: Path, settings: Settings) -> Iterator[Store]:
    """A store with open proposals to split its traffic."""
    shutil.copytree(looked_through, settings.storage.data_directory())
    with open_store(settings) as store:
        yield store
