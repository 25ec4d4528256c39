"""What serving leaves behind: samples with the target's own distribution, totals that add up, counted drops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from osd.engine.engine import Engine
from osd.models.pair import Pair
from osd.recording.recorder import Recorder
from osd.recording.topk import Reducer
from osd.verification.warping import Warp
from storage.records import Request, TokenKind
from storage.sampling import Sampling
from storage.settings import Settings
from storage.store import Store
from tests.support.models import VOCABULARY, prompts, random_pair
from tests.support.recording import record
from tests.support.samples import each_position
from tests.support.waiting import until


def recorder_that(compiles: bool, store: Store, settings: Settings) -> Recorder:
    """One that has the compiled pass from the first position on, or never."""
    recorder = Recorder(store, settings, "test")
    assert recorder.reducer.wait()
    if not compiles:
        recorder.reducer = Reducer(settings.storage.top_k, compiled=False)
    return recorder


@torch.inference_mode()
@pytest.mark.parametrize(("compiled", "stays"), [(True, True), (False, True), (True, False)])
def test_every_verified_position_carries_the_targets_distribution(
    pair: Pair, store: Store, settings: Settings, compiled: bool, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("osd.recording.recorder.stays", lambda logits: stays)
    asked = [Request(p, max_new_tokens=17) for p in prompts(7, seed=20)]
    done, kept = record(pair, store, settings, asked, recorder_that(compiled, store, settings))
    texts = {c.request.id: [*c.request.prompt_tokens, *c.tokens] for c in done}
    assert len(kept) == 7
    for samples in kept:
        tokens = texts[samples.request_id]
        assert samples.tokens.tolist() == tokens
        assert samples.positions.tolist() == list(range(samples.prompt_len, len(tokens)))
        logits = pair.target.module(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
        for sample in each_position(samples):
            expected = logits[sample.position - 1].log_softmax(-1)  # what the target says after the tokens before
            top = expected.topk(8)
            assert np.allclose(sample.topk_logprobs.astype(np.float32), top.values, atol=1e-2)
            assert sample.outside == pytest.approx(1 - float(top.values.exp().sum()), abs=1e-4)
            assert tokens[sample.position] == top.indices[0] == sample.topk_ids[0]  # greedy
            assert (sample.drafted != tokens[sample.position]) == (sample.kind is TokenKind.REJECTED)


@torch.inference_mode()
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("temperatures", [(0.0, 0.0, 0.0), (1.0, 0.0, 0.7)])
def test_every_drafted_token_carries_its_chance_of_acceptance(
    pair: Pair, store: Store, settings: Settings, temperatures: tuple[float, ...], compiled: bool
) -> None:
    """min(1, p/q) from plain forward passes of both models; in a greedy batch it is 1 or 0."""
    sampling = [Sampling(t, top_k=20 if t == 0.7 else None, seed=i) for i, t in enumerate(temperatures)]
    asked = [Request(p, max_new_tokens=17, sampling=s) for p, s in zip(prompts(3, seed=23), sampling, strict=True)]
    _, kept = record(pair, store, settings, asked, recorder_that(compiled, store, settings))
    chances = []
    for request, samples in zip(asked, kept, strict=True):
        warp = Warp.of([request.sampling, Sampling(1.0)], VOCABULARY, pair.device)
        assert warp is not None
        for sample in each_position(samples):
            text = torch.tensor([samples.tokens[: sample.position].tolist()])
            p, q = (warp(m.module(text).logits[:, -1:].expand(2, -1, -1))[0, 0] for m in (pair.target, pair.draft))
            if sample.kind is TokenKind.UNDRAFTED:
                assert sample.acceptance is None
            else:
                chances.append(float((p / q)[sample.drafted].clamp(max=1)))
                assert sample.acceptance == pytest.approx(chances[-1], abs=2e-3)
    assert min(chances) < 0.05 and max(chances) == 1.0
    assert any(0.05 < chance < 0.95 for chance in chances) == any(temperatures)


def test_only_rejected_positions_when_so_set(pair: Pair, store: Store, settings: Settings) -> None:
    asked = [Request(p, max_new_tokens=17) for p in prompts(7, seed=20)]
    done, found = record(pair, store, settings.changed(serve={"record": "rejected"}), asked)
    kept = {samples.request_id: samples for samples in found}
    for completion in done:
        position, expected = len(completion.request.prompt_tokens), []
        for r in completion.rounds:
            position += r.emitted
            if r.rejected and r.emitted == r.accepted + 1:
                expected.append(position - 1)
        samples = kept.get(completion.request.id)
        assert (samples.positions.tolist() if samples else []) == expected
    assert sum(len(s) for s in kept.values()) > 5


@pytest.mark.parametrize(
    ("kind", "drafter", "waits"), [("llama", "causal", True), ("gemma2", "lookup", True), ("llama", "lookup", False)]
)
def test_hidden_states_are_kept_where_that_is_set(
    store: Store, settings: Settings, kind: str, drafter: str, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("osd.recording.recorder.stays", lambda logits: waits)
    settings = settings.changed(serve={"record_hidden_states": True}, drafters={"kind": drafter, "tree_nodes": 6})
    pair = random_pair(kind)
    asked = [Request(p, max_new_tokens=9, sampling=Sampling(0.0)) for p in prompts(3, seed=29)]
    for samples in record(pair, store, settings, asked)[1]:
        text = torch.tensor([samples.tokens.tolist()])
        with torch.no_grad():
            states = pair.target.module(text, output_hidden_states=True).hidden_states[-1][0]
        assert samples.hidden_states is not None and samples.hidden_states.dtype == np.float16
        plain = states[samples.positions - 1].numpy()
        np.testing.assert_allclose(samples.hidden_states.astype(np.float32), plain, rtol=4e-3, atol=4e-3)


def test_totals_in_the_store_are_the_requests_own(pair: Pair, store: Store, settings: Settings) -> None:
    asked = [Request(p, max_new_tokens=11 + i) for i, p in enumerate(prompts(6, seed=21))]
    done, _ = record(pair, store, settings, asked)
    (row,) = store.outcomes.acceptance(by=["route"])
    outcomes = [o for c in done for o in c.outcomes]
    for name in ("requests", "rounds", "drafted", "accepted", "rejections", "emitted"):
        assert getattr(row, name) == sum(getattr(o, name) for o in outcomes), name
    assert row.requests == 6 and row.emitted == sum(len(c.tokens) for c in done)


def test_requests_that_may_not_be_learned_from_or_were_cancelled_leave_no_sample(
    pair: Pair, store: Store, settings: Settings
) -> None:
    first, second, third = prompts(3)
    private = Request(first, max_new_tokens=9, learn=False)
    cancelled, open_ = Request(second, max_new_tokens=9), Request(third, max_new_tokens=9)
    recorder = Recorder(store, settings, "test")
    engine = Engine(pair, settings, recorder=recorder)
    for request in (private, cancelled, open_):
        engine.submit(request)
    engine.step()
    engine.cancel(cancelled.id)
    list(engine.run([]))
    recorder.close()
    assert not len(recorder._assembler)  # nothing of the cancelled request stays in memory
    assert store.outcomes.acceptance(by=["route"])[0].requests == 3
    assert [s.request_id for s in store.samples.read([private.id, cancelled.id, open_.id])] == [open_.id]


def test_a_full_buffer_drops_and_counts_and_serving_goes_on(pair: Pair, store: Store, settings: Settings) -> None:
    recorder = Recorder(store, settings, "test")
    recorder.buffer.limit = 3 * 4 * VOCABULARY * 4 - 1  # not even a round of three rows of four places fits
    asked = [Request(p, max_new_tokens=12) for p in prompts(4, seed=22)]
    done, kept = record(pair, store, settings, asked, recorder)
    assert len(done) == 4 and all(len(c.tokens) == 12 for c in done)
    assert recorder.dropped > 0 and sum(map(len, kept)) + recorder.dropped == 48
    (row,) = store.outcomes.acceptance(by=["route"])
    assert row.requests == 4  # totals are never dropped


def test_waiting_requests_are_flushed_by_age(pair: Pair, store: Store, settings: Settings) -> None:
    settings = settings.model_copy(update={"storage": settings.storage.model_copy(update={"flush_seconds": 0.05})})
    recorder = Recorder(store, settings, "test")
    request = Request(prompts(1)[0], max_new_tokens=5)
    list(Engine(pair, settings, recorder=recorder).run([request]))
    until(lambda: store.samples.read([request.id]))
    recorder.close()
    assert len(store.samples.read([request.id])) == 1


def test_waiting_for_the_store_does_not_wait_for_age_or_number(pair: Pair, store: Store, settings: Settings) -> None:
    storage = settings.storage.model_copy(update={"flush_seconds": 3600.0, "flush_requests": 1000})
    recorder = Recorder(store, settings.model_copy(update={"storage": storage}), "test")
    asked = [Request(p, max_new_tokens=5) for p in prompts(2, seed=24)]
    for request in asked:
        list(Engine(pair, settings, recorder=recorder).run([request]))
        assert recorder.wait(timeout=20)
        assert len(store.samples.read([request.id])) == 1
    assert recorder.wait(timeout=20)  # nothing is left
    recorder.close()


def test_a_request_begun_before_the_compiled_pass_was_ready_is_kept_whole(
    pair: Pair, store: Store, settings: Settings
) -> None:
    """Its first positions wait as logits, the others as what is kept of them."""
    recorder = recorder_that(True, store, settings)
    compiled, recorder.reducer = recorder.reducer, Reducer(settings.storage.top_k, compiled=False)
    request = Request(prompts(1, seed=25)[0], max_new_tokens=30)
    engine = Engine(pair, settings, recorder=recorder)
    engine.submit(request)
    engine.step()
    recorder.reducer = compiled
    (done,) = engine.run([])
    recorder.close()
    (samples,) = store.samples.read([request.id])
    assert samples.positions.tolist() == list(range(samples.prompt_len, samples.prompt_len + 30))
    assert samples.topk_ids[:, 0].tolist() == list(done.tokens)  # greedy
