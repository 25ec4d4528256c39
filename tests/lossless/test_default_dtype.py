"""Texts are the same while torch's default dtype is another: loading a model in the same process changes it."""

from __future__ import annotations

import pytest
import torch

from osd.engine.engine import Engine
from storage.records import Request
from storage.sampling import Sampling
from tests.support.models import CONFIGS, default_dtype, prompts, random_pair
from tests.support.settings import settings_of

pytestmark = pytest.mark.usefixtures("compiled")
HOW = (
    Sampling(), Sampling(1.0, seed=3), Sampling(0.8, top_k=12, top_p=0.9, seed=4), Sampling(1.0, min_p=0.05, seed=5),
    Sampling(0.9, repetition_penalty=1.3, presence_penalty=0.2, frequency_penalty=0.1, seed=6),
)  # fmt: skip


def texts(family: str, drafter: str, dtype: torch.dtype) -> dict[str, list[int]]:
    settings = settings_of(
        serve__max_batch=3, serve__max_length=96, drafters__kind=drafter, gamma__rule="fixed", gamma__initial=4
    )  # fmt: skip
    engine = Engine(random_pair(family), settings)
    asked = [
        Request(prompt * 2, max_new_tokens=20, sampling=HOW[i % len(HOW)], id=f"r{i}", ignore_eos=True)
        for i, prompt in enumerate(prompts(6, seed=2))
    ]  # fmt: skip
    with default_dtype(dtype):
        return {done.request.id: list(done.tokens) for done in engine.run(asked)}


CASES = [("llama", kind) for kind in ("causal", "blended", "trigram")]


@pytest.mark.parametrize(
    ("family", "drafter"),
    [*CASES, *(pytest.param(kind, "causal", marks=() if kind == "gpt2" else pytest.mark.long) for kind in CONFIGS)],
)
def test_texts_do_not_depend_on_it(family: str, drafter: str) -> None:
    assert texts(family, drafter, torch.bfloat16) == texts(family, drafter, torch.float32)
