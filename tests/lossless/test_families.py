"""Every family of decoders is served exactly or refused: rows of mixed lengths up to past every window and every other
switch, beside one another, give the texts that each gives alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from osd.engine.engine import Engine
from osd.models.encoder_decoder import decoder_inputs, has_encoder, start_of
from osd.models.pair import Pair
from osd.verification.warping import draw
from storage.records import Request
from storage.sampling import Sampling
from tests.lossless.test_lossless import serve
from tests.support.encoder_decoders import generated
from tests.support.families import CAPPED, CHAINS_ONLY, FAMILIES, LENGTH, REFUSED, outcome_of
from tests.support.models import model_of, noisy, prompts
from tests.support.settings import settings_of

pytestmark = pytest.mark.usefixtures("compiled")

SAMPLE = ("mistral", "gemma3_text", "gpt_neo", "gpt_oss", "phi3, longrope", "bert", "t5, gated", "bart")
COUNT = 12


def test_there_are_families_enough() -> None:
    assert len(FAMILIES) - len(REFUSED) >= 60 and {*SAMPLE, *REFUSED, *CAPPED, *CHAINS_ONLY} <= {*FAMILIES}


@pytest.mark.parametrize(
    "name", [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.long) for name in FAMILIES]
)
def test_every_text_is_that_of_the_row_alone(name: str) -> None:
    found = outcome_of(name)
    if found.model is None:
        assert re.search(REFUSED[name], found.reason)
        return
    target = found.model
    assert name not in REFUSED and min(target.limit, LENGTH) == CAPPED.get(name, LENGTH)
    assert target.start == () or not found.trees
    pair = Pair(target, model_of(noisy(target.module), "draft"), None, frozenset())
    kinds = ["causal", "trigram"] if found.trees else ["causal"]
    asked = _asked(min(target.limit, LENGTH))
    expected = [_generated(target.module, request) for request in asked]
    for kind in kinds:
        assert serve(_engine(pair, kind), asked) == expected, kind
    _compare_sampled(pair, asked)


def _engine(pair: Pair, kind: str, rows: int = 3) -> Engine:
    return Engine(pair, settings_of(
        drafters__kind=kind, serve__max_batch=rows, serve__max_length=LENGTH, gamma__rule="fixed", gamma__initial=3,
    ))  # fmt: skip


def _asked(limit: int, **fields: Any) -> list[Request]:
    """A long row that ends at the limit, a short one beside it, and two between."""
    text = [token for prompt in prompts(20, seed=7) for token in prompt]
    lengths = limit - COUNT // 2, 2, limit // 2, limit // 3
    return [Request(tuple(text[n : n + length]), max_new_tokens=COUNT, **fields) for n, length in enumerate(lengths)]


@torch.inference_mode()
def _generated(module: Any, request: Request) -> list[int]:
    prompt = torch.tensor([request.prompt_tokens])
    count = min(request.max_new_tokens, _limit(module) - len(request.prompt_tokens))
    if has_encoder(module):
        return generated(module, request.prompt_tokens, count)
    told: list[int] = module.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=count)[0].tolist()
    return told[len(request.prompt_tokens) :]


def _limit(module: Any) -> int:
    return min(LENGTH, model_of(module).limit)


def _compare_sampled(pair: Pair, greedy: Sequence[Request]) -> None:
    """Speculated rows say what they say alone; rows without drafts what their uniforms choose from the target's own
    distribution."""
    asked = [
        Request(each.prompt_tokens, COUNT, Sampling(temperature=1.0, seed=i), gamma=None if i % 2 else 0)
        for i, each in enumerate(greedy)
    ]
    together = serve(_engine(pair, "causal"), asked)
    for request, said in zip(asked, together, strict=True):
        if request.gamma == 0:
            assert said == _drawn(pair.target.module, request)
        else:
            assert said == serve(_engine(pair, "causal", rows=1), [request])[0]


@torch.inference_mode()
def _drawn(module: Any, request: Request) -> list[int]:
    chance = np.random.Generator(np.random.Philox(request.sampling.seed))
    prompt, start = request.prompt_tokens, start_of(module, "random")
    tokens = [*prompt, *start]
    for _ in range(min(COUNT, _limit(module) - len(prompt))):
        fed = decoder_inputs(module, torch.tensor([tokens]), len(prompt))
        logits = module(**fed, use_cache=False).logits[0, -1]
        tokens.append(int(draw(logits.softmax(-1, dtype=torch.float32), torch.tensor(chance.random()))))
    return tokens[len(prompt) + len(start) :]
