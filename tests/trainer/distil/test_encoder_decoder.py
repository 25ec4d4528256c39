"""A T5 draft learns: what is recorded, what a batch is to it, and the whole circle from serving to the next version."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from osd.engine.session import serving
from osd.models.pair import Pair, load_pair
from storage.errors import DecoderOnly
from storage.records import Request, RequestSamples, RunState
from storage.settings import LearnSettings, Settings
from storage.store import Store
from tests.support.encoder_decoders import KINDS, generated, random_encoder_decoder
from tests.support.models import prompts
from tests.support.settings import changed
from tests.trainer.models import samples_of
from trainer.distil.checkpoints import load_trainable
from trainer.distil.collate import collate, predict
from trainer.distil.loop import run_once

ANSWER = 10


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    target = random_encoder_decoder("t5, gated")
    target.save_pretrained(tmp_path / "target")
    random_encoder_decoder("t5, gated", seed=1, initializer_factor=0.1).save_pretrained(tmp_path / "draft")
    return load_pair(tmp_path / "target", tmp_path / "draft", device="cpu")


def serve(pair: Pair, settings: Settings, store: Store, asked: list[Request]) -> dict[str, Any]:
    with serving(pair, settings, store) as engine:
        return {done.request.id: done for done in engine.run(asked)}


@torch.inference_mode()
def own_logits(module: Any, samples: RequestSamples, position: int) -> torch.Tensor:
    """One plain pass over one request's tokens before a position: (V,)."""
    tokens, begin = torch.from_numpy(samples.tokens.astype(np.int64))[None], samples.prompt_len - 1
    read, decoded = tokens[:, :begin], tokens[:, begin:position]
    return module(input_ids=read, decoder_input_ids=decoded, use_cache=False).logits[0, -1]


def test_an_adapter_is_refused_by_name(store: Store, tmp_path: Path) -> None:
    random_encoder_decoder("t5").save_pretrained(tmp_path / "root")
    root = store.versions.register_root("default", tmp_path / "root")
    with pytest.raises(DecoderOnly, match=r"learn\.method = lora"):
        load_trainable(store, root, LearnSettings(method="lora"), torch.device("cpu"))


@pytest.mark.parametrize("kind", KINDS)
def test_the_logits_are_those_of_each_requests_own_pass(kind: str) -> None:
    model = random_encoder_decoder(kind)
    samples = [
        samples_of(range(2, 9), [3, 5], prompt_len=3), samples_of(range(4, 20), [9, 12, 15], prompt_len=8),
        samples_of(range(7, 12), [2], prompt_len=2),
    ]  # fmt: skip
    with torch.inference_mode():
        got = predict(model, collate(samples))
    want = [own_logits(model, s, int(p)) for s in samples for p in s.positions]
    torch.testing.assert_close(got, torch.stack(want), rtol=1e-4, atol=1e-4)


def test_the_circle(pair: Pair, store: Store, settings: Settings) -> None:
    """Served, recorded, learned, published, and served by the next version, the texts being the target's throughout."""
    settings = changed(settings, gamma__rule="fixed", gamma__initial=3, serve__max_batch=4)
    asked = [Request(p, max_new_tokens=ANSWER, ignore_eos=True) for p in prompts(40, seed=5)]
    expected = [generated(pair.target.module, r.prompt_tokens, ANSWER) for r in asked]
    done = serve(pair, settings, store, asked)
    assert [list(done[r.id].tokens) for r in asked] == expected
    for samples in store.samples.read([asked[0].id, asked[7].id]):
        request = done[samples.request_id].request
        assert tuple(samples.tokens[: samples.prompt_len].tolist()) == (*request.prompt_tokens, 0)
        assert samples.positions.tolist() == list(range(samples.prompt_len, samples.prompt_len + ANSWER))
        for place in (0, ANSWER - 1):
            own = own_logits(pair.target.module, samples, int(samples.positions[place])).log_softmax(-1)
            top = own.topk(samples.topk_ids.shape[1])
            np.testing.assert_allclose(samples.topk_logprobs[place], top.values.numpy(), atol=2e-2)
    run = run_once(store, settings, "default", "me")
    assert run is not None and run.state is RunState.PUBLISHED, run
    version = store.versions.current("default")
    assert version.evidence["after"] > version.evidence["before"]
    again = serve(pair, settings, store, [replace(r, id=f"again {i}") for i, r in enumerate(asked[:12])])
    assert [list(again[f"again {i}"].tokens) for i in range(12)] == expected[:12]
    assert {o.draft_version for d in again.values() for o in d.outcomes} == {version.id}
