"""What trees leave behind: the positions along the way that the target took, with its own distribution there."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from osd.drafters.tree import TreeDrafter
from osd.engine.engine import Engine
from osd.models.pair import Pair
from osd.verification.warping import Warp
from storage.records import Request, TokenKind
from storage.sampling import Sampling
from storage.settings import Settings
from storage.store import Store
from tests.support.models import VOCABULARY, alone, prompts
from tests.support.proposers import BranchingDrafter, Guessing
from tests.support.recording import Prepare, record
from tests.support.samples import each_position


def drafting(kind: type[TreeDrafter], known: dict[tuple[int, ...], list[int]]) -> Prepare:
    """Have an engine draft trees of this kind; ``known``: the target's text after each prompt."""

    def prepare(engine: Engine) -> None:
        engine.drafting = kind(engine.pool, Guessing(VOCABULARY, known), 12, engine.target)

    return prepare


@torch.inference_mode()
@pytest.mark.parametrize("kind", [TreeDrafter, BranchingDrafter])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_every_position_carries_the_targets_distribution_and_the_chance(
    pair: Pair, store: Store, settings: Settings, kind: type[TreeDrafter], temperature: float
) -> None:
    asked = [Request(p, max_new_tokens=17, sampling=Sampling(temperature, seed=3)) for p in prompts(7, seed=20)]
    known = {r.prompt_tokens: alone(pair.target.module, r.prompt_tokens, 17) for r in asked}
    completions, kept = record(pair, store, settings, asked, prepare=drafting(kind, known))
    done = {c.request.id: c for c in completions}
    warp = Warp.of([Sampling(temperature or 1.0)], VOCABULARY, torch.device("cpu"))
    assert warp is not None
    kinds = []
    for samples in kept:
        tokens = samples.tokens.tolist()
        assert tokens == [*done[samples.request_id].request.prompt_tokens, *done[samples.request_id].tokens]
        assert samples.positions.tolist() == list(range(samples.prompt_len, len(tokens)))
        logits = pair.target.module(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
        for sample in each_position(samples):
            top = logits[sample.position - 1].log_softmax(-1).topk(8)
            assert np.allclose(sample.topk_logprobs.astype(np.float32), top.values, atol=1e-2)
            assert (sample.drafted != tokens[sample.position]) == (sample.kind is TokenKind.REJECTED)
            kinds.append(sample.kind)
            if sample.kind is TokenKind.UNDRAFTED:
                assert sample.acceptance is None
            elif temperature == 0:
                assert sample.acceptance == (sample.kind is TokenKind.ACCEPTED)
            elif kind is TreeDrafter:  # certain tokens are kept with the probability that the target gives them
                p = warp(logits[None, sample.position - 1 : sample.position])[0, 0]
                assert sample.acceptance == pytest.approx(float(p[sample.drafted]), abs=2e-3)
    rounds = [r for c in done.values() for r in c.rounds]
    whole = [r for r in rounds if r.emitted == r.accepted + 1]
    assert kinds.count(TokenKind.REJECTED) == sum(r.rejected for r in whole)
    assert kinds.count(TokenKind.ACCEPTED) == sum(min(r.accepted, r.emitted) for r in rounds)
    assert len(set(kinds)) == 3


def test_only_the_correction_is_kept_where_that_is_asked_for(pair: Pair, store: Store, settings: Settings) -> None:
    rejected = settings.changed(serve={"record": "rejected"})
    asked = [Request(p, max_new_tokens=17) for p in prompts(5, seed=20)]
    known = {r.prompt_tokens: alone(pair.target.module, r.prompt_tokens, 17) for r in asked}
    done, found = record(pair, store, rejected, asked, prepare=drafting(BranchingDrafter, known))
    kept = [sample for samples in found for sample in each_position(samples)]
    assert len(kept) == sum(r.rejected and r.emitted > r.accepted for c in done for r in c.rounds) > 0
    for sample in kept:
        assert sample.kind is TokenKind.REJECTED and sample.drafted != sample.topk_ids[0]
