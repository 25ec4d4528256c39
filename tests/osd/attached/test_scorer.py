"""A target that reads texts gives its own distributions and states."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from osd.attached import passes
from osd.attached.passes import CHUNK, DraftPass, Scorer
from storage.store import Store
from tests.support.models import model_of, random_module


@pytest.mark.parametrize(("count", "begin"), [(9, 1), (40, 7), (200, 3)])
def test_scores_are_the_targets_own(count: int, begin: int) -> None:
    module = random_module("llama")
    tokens = torch.randint(2, 90, (count,), generator=torch.Generator().manual_seed(count)).tolist()
    found = Scorer(model_of(module), 5, 256)(tokens, begin)
    plain = module(torch.tensor([tokens])).logits[0].log_softmax(-1)[begin - 1 : -1]
    values, ids = plain.topk(5)
    assert (found.ids == ids.numpy()).all() and np.allclose(found.logprobs, values.numpy(), atol=1e-4)
    assert np.allclose(found.outside, 1 - values.exp().sum(-1).numpy(), atol=1e-4) and CHUNK > 1


@pytest.mark.parametrize(("kind", "count", "begin"), [("llama", 200, 3), ("llama", 9, 1), ("gpt2", 40, 7)])
def test_states_are_those_that_the_output_layer_reads(
    kind: str, count: int, begin: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "CHUNK", 64)
    module = random_module(kind)
    tokens = torch.randint(2, 90, (count,), generator=torch.Generator().manual_seed(count)).tolist()
    scorer = Scorer(model_of(module), 5, 256)
    tops, states = scorer.with_states(tokens, begin)
    plain = module(torch.tensor([tokens]), output_hidden_states=True).hidden_states[-1][0, begin - 1 : -1]
    assert states.dtype == np.float16 and states.shape == plain.shape
    assert np.allclose(states, plain.numpy(), atol=2e-2)
    for one, other in zip(tops, scorer(tokens, begin), strict=True):
        assert np.allclose(one, other, atol=1e-5)


def test_a_draft_says_its_likeliest_tokens_however_many_it_is_asked_for(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = random_module("llama")
    module.save_pretrained(tmp_path / "draft")
    version = store.versions.register_root("default", tmp_path / "draft").id
    tokens, positions = list(range(1, 30)), [3, 4, 9, 20, 28]
    plain = module(torch.tensor([tokens])).logits[0].argmax(-1).tolist()
    for most in (1024, 2):
        monkeypatch.setattr("osd.attached.passes.MOST", most)
        assert DraftPass(store)(version, tokens, positions) == [plain[place - 1] for place in positions]
