"""What is kept behind refused tokens, beside plain forward passes, and that the store's ways of losing it hold."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch

from osd.models.pair import Pair
from osd.recording.branches import BranchRecorder
from osd.recording.recorder import Recorder
from osd.recording.topk import reduce_plain
from storage.records import Request, RequestSamples
from storage.redaction import Passage, Redactor
from storage.sampling import Sampling
from storage.settings import Settings
from storage.store import Store, open_store
from tests.osd.recording.test_extract import REDUCER, K, Text, take_round
from tests.support.models import prompts
from tests.support.recording import record


def recorded(pair: Pair, store: Store, settings: Settings, temperature: float = 0.0) -> list[RequestSamples]:
    """Requests of two tenants, served and kept with their branches."""
    own = settings.changed(serve={"record_branches": True}, gamma={"rule": "fixed", "initial": 5})
    asked = [
        Request(p, max_new_tokens=17, sampling=Sampling(temperature, seed=i), tenant=f"t{i % 2}")
        for i, p in enumerate(prompts(5, seed=3))
    ]
    return record(pair, store, own, asked, Recorder(store, own, "test", eos_ids=pair.eos_ids))[1]


@torch.inference_mode()
@pytest.mark.parametrize(("temperature", "stays"), [(0.0, True), (1.0, True), (0.0, False)])
def test_every_token_behind_a_refusal_carries_what_the_target_says_after_it(
    pair: Pair, store: Store, settings: Settings, temperature: float, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("osd.recording.recorder.stays", lambda logits: stays)
    kept = recorded(pair, store, settings, temperature)
    checked = 0
    for samples in kept:
        branches = samples.branches
        refused = samples.positions[samples.kinds == 1]
        if branches is None:
            assert not len(refused)
            continue
        assert branches.begins.tolist() == refused.tolist()
        assert (
            branches.tokens[np.cumsum(branches.lengths) - branches.lengths].tolist()
            == samples.drafted[samples.kinds == 1].tolist()
        )
        for number, text in enumerate(branches.texts(samples.tokens)):
            own = np.flatnonzero(branches.branch_numbers() == number)
            logits = pair.target.module(torch.tensor([text.tolist()])).logits[0, -len(own) :]
            top = logits.log_softmax(-1).topk(branches.topk_ids.shape[1])
            assert np.allclose(branches.topk_logprobs[own].astype(np.float32), top.values, atol=1e-2)
            assert np.allclose(branches.outside[own], 1 - top.values.exp().sum(-1), atol=1e-4)
            checked += len(own)
    assert checked > 10


@pytest.mark.parametrize("seed", range(6))
def test_many_rounds_at_once_are_one_refusal_after_another(seed: int) -> None:
    """Chains and trees, texts cut by a limit, requests not to be learned from; once a few rounds at a time, once as on
    a GPU, beside a plain loop."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    texts = [Text(chance, i) for i in range(4)]
    ends = {3, 17}
    rounds = [take_round(chance, chance.sample(texts, chance.randint(1, 4))) for _ in range(80)]
    expected: dict[str, list[tuple[int, list[int], torch.Tensor]]] = defaultdict(list)
    for taken in rounds:
        verdict = taken.verdict
        for row, step in enumerate(taken.progress):
            kept, depth, drafted = verdict.accepted[row], verdict.depths[row], verdict.drafted[row]
            if verdict.paths is None and kept < depth and len(step.tokens) == kept + 1 and step.request.learn:
                tokens = drafted[kept:depth]
                tokens = tokens[: min([tokens.index(end) for end in ends if end in tokens], default=len(tokens))]
                places = [kept + 1 + i for i in range(len(tokens))]
                if tokens:
                    expected[step.request.id].append((step.length - 1, tokens, taken.scored.at(row, places)))
    assert sum(map(len, expected.values())) > 4
    serve = Settings().changed(serve={"record_branches": True}).serve
    apart, together = BranchRecorder(serve, ends), BranchRecorder(serve, ends)
    together.add(rounds, (), REDUCER)
    for taken in rounds:
        pending = apart.launch(taken, K)
        apart.add((), [pending] if pending else (), REDUCER)
    completions = [text.ended("length") for text in texts]
    bare = [RequestSamples(c.request.id, "", "", "", 0.0, 0, *[np.zeros(0)] * 7) for c in completions]
    for assembler in (apart, together):
        for samples in assembler.onto(bare, completions):
            told, found = expected[samples.request_id], samples.branches
            assert (found is None) == (not told)
            if found is None:
                continue
            plain = reduce_plain(torch.cat([logits for _, _, logits in told]), K)
            assert found.begins.tolist() == [begin for begin, _, _ in told]
            assert found.lengths.tolist() == [len(tokens) for _, tokens, _ in told]
            assert found.tokens.tolist() == [token for _, tokens, _ in told for token in tokens]
            assert np.array_equal(found.topk_ids, plain.ids)
            assert np.array_equal(found.topk_logprobs, plain.logprobs.astype(np.float16))
        assert len(assembler) == 0


def test_without_the_setting_none_are_kept(pair: Pair, store: Store, settings: Settings) -> None:
    _, kept = record(pair, store, settings, [Request(p, max_new_tokens=9) for p in prompts(3)])
    assert len(kept) == 3 and all(samples.branches is None for samples in kept)


def test_they_go_where_their_request_goes(pair: Pair, store: Store, settings: Settings, tmp_path: Path) -> None:
    """Export, import elsewhere, purge of one request, of a tenant: the rest stays as it was."""
    kept = recorded(pair, store, settings)
    store.samples.export(tmp_path / "all.parquet")
    with open_store(settings.changed(storage={"directory": tmp_path / "other"})) as other:
        assert other.samples.import_file(tmp_path / "all.parquet").requests == len(kept)
        require_same(other.samples.read([s.request_id for s in kept]), kept)
        other.samples.purge(request_id=kept[0].request_id)
        other.samples.purge(tenant="t1")
        left = [s for s in kept[1:] if s.tenant != "t1"]
        require_same(other.samples.read([s.request_id for s in kept]), left)
        needles = [s.branches for s in kept if s not in left and s.branches is not None]
        files = list((tmp_path / "other").rglob("*.parquet"))
        assert len(files) == 1 and needles  # what is purged lies in no file any more


def require_same(found: list[RequestSamples], expected: list[RequestSamples]) -> None:
    assert [s.request_id for s in found] == [s.request_id for s in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.branches is not None and other.branches is not None
        for name in one.branches.__slots__:
            left, right = getattr(one.branches, name), getattr(other.branches, name)
            assert left.dtype == right.dtype and left.tobytes() == right.tobytes(), name


def test_a_redaction_hook_sees_every_branch(pair: Pair, store: Store, settings: Settings) -> None:
    """One that would change a branch loses it, and no other."""
    samples = next(s for s in recorded(pair, store, settings) if s.branches and s.branches.count > 2)
    assert samples.branches is not None
    texts = [text.tolist() for text in samples.branches.texts(samples.tokens)]
    secret = texts[1]

    def hook(passage: Passage) -> list[int] | None:
        told = list(passage.tokens)
        return [*told[:-1], 0] if told == secret and told[-1] else told

    secret_is_hidden = secret[-1] != 0
    (redacted,) = Redactor(hook, lambda: None)([samples])
    assert redacted.branches is not None and secret_is_hidden
    left = [text.tolist() for text in redacted.branches.texts(redacted.tokens)]
    assert left == [text for text in texts if text != secret]
