"""Acceptance heads of feature drafts: embeddings of chains as they were drafted, and what traffic teaches."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from osd.engine.session import serving
from osd.models.features.decoder import FeatureDecoder
from osd.models.features.files import save_feature_draft
from osd.models.features.target import FeatureTarget, read_features
from osd.models.pair import Pair, load_pair
from storage.errors import BadInput
from storage.records import Request, RequestSamples, RunState, TokenKind
from storage.sampling import Sampling
from storage.settings import Settings
from storage.store import Store
from tests.trainer.feature_drafts import answered, feature_draft, tiny_target, with_states
from tests.trainer.heads.test_loop import of_heads
from tests.trainer.models import VOCAB, random_prompts
from trainer.distil.loop import run_once
from trainer.distil.teacher import Lessons, RecomputeTeacher, RecordedTeacher, Teacher
from trainer.heads.chains import depths_of
from trainer.heads.examples import drafted_of, embed
from trainer.heads.learner import HeadLearner
from trainer.heads.offline import Recipe, train_offline
from trainer.worker.schedule import TrainingSchedule

A, R, U = TokenKind.ACCEPTED, TokenKind.REJECTED, TokenKind.UNDRAFTED


def in_rounds(samples: RequestSamples, seed: int) -> RequestSamples:
    """The same as if rounds of up to four tokens had drafted it, some of which were refused."""
    rng, kinds = np.random.default_rng(seed), [U]
    while len(kinds) < len(samples):
        kinds += [A] * int(rng.integers(0, 4)) + [R if rng.random() < 0.7 else U]
    kinds = np.array(kinds[: len(samples)], np.uint8)
    emitted = samples.tokens[samples.positions]
    drafted = np.where(kinds == R, (emitted + 5) % VOCAB, emitted).astype(np.int32)
    chances = np.where(kinds == U, np.nan, rng.random(len(kinds))).astype(np.float16)
    return replace(samples, kinds=kinds, drafted=drafted, acceptance=chances)


@torch.no_grad()
def plainly(
    decoder: FeatureDecoder, target: torch.nn.Module, samples: RequestSamples, place: int, cut: int
) -> torch.Tensor:
    """What the output layer reads once the chain that drafted it was fed a position's drafted token, pass by pass.
    ``cut``: columns before the first that the draft reads."""
    depth = int(depths_of(samples)[place])
    begin = int(samples.positions[place]) - depth
    text = torch.from_numpy(samples.tokens.astype(np.int64))[None, :begin]
    features = read_features(target, text, decoder.layers)[0][:, cut:-1]  # type: ignore[arg-type]
    hidden = decoder.read([0], features, text[:, cut + 1 :], [begin - cut - 1])
    for step in range(depth + 1):
        token = torch.tensor([int(samples.drafted[place - depth + step])])
        hidden = decoder.go_on([begin - cut - 1 + step], hidden, token)
    return decoder.embedding(hidden)[0]


@pytest.mark.parametrize(("kind", "recorded"), [("eagle", False), ("eagle", True), ("eagle3", False)])
def test_embeddings_are_those_of_chains_drafted_one_by_one(kind: str, recorded: bool) -> None:
    """Hidden states that serving kept begin at the prompt's last token, and so does what the draft looks back at."""
    target = tiny_target()
    draft, shared = feature_draft(kind, target), FeatureTarget(target)
    texts = with_states(target, [in_rounds(s, i) for i, s in enumerate(answered(target, 6, 12))])
    layers = draft.feature_layers(target)
    teacher: Teacher = RecordedTeacher(shared, layers) if recorded else RecomputeTeacher(shared, layers)
    items = [item for item in (drafted_of(s, chains=True) for s in texts) if item is not None]
    assert len(items) == len(texts) and any(item.refused.any() for item in items)
    assert max(int(depths_of(s).max()) for s in texts) == 3
    found = embed(draft, items, lessons=Lessons(teacher, 3)).embeddings
    decoder, row = FeatureDecoder(draft, shared, 1, 64, 64), 0
    for samples, item in zip(texts, items, strict=True):
        for place in np.flatnonzero(np.isin(samples.positions, item.positions)).tolist():
            expected = plainly(decoder, target, samples, place, samples.prompt_len - 1 if recorded else 0)
            close = {"rtol": 1e-2, "atol": 5e-3} if recorded else {"rtol": 1e-3, "atol": 1e-4}  # states are float16
            torch.testing.assert_close(found[row], expected, **close)
            row += 1
    assert row == len(found) > 20


@pytest.fixture
def settings(settings: Settings, tmp_path: Path) -> Settings:
    learn = {"teacher": "recompute", "interval_requests": 24, "head_reject_weight": 1.0}
    gamma = {"specdecpp": {"threshold": 0.9}}
    return of_heads(settings).changed(serve={"target": str(tmp_path / "target")}, learn=learn, gamma=gamma)


def set_up(folder: Path, kind: str) -> None:
    """Write a target, and a draft that proposes half of all tokens too often."""
    target = tiny_target()
    target.save_pretrained(folder / "target")
    draft = feature_draft(kind, target, seed=3, spread=0.2).requires_grad_(False)
    (folder / "draft").mkdir()
    save_feature_draft(draft, folder / "draft", FeatureTarget(target, str(folder / "target")))


def drafted(pair: Pair, settings: Settings, store: Store, count: int) -> set[int]:
    """Serve sampled prompts; return how many tokens rounds drafted that had room for all."""
    prompts = enumerate(random_prompts(count, seed=5))
    asked = [Request(tuple(p), 24, Sampling(0.7, seed=i), ignore_eos=True) for i, p in prompts]
    with serving(pair, settings, store) as engine:
        texts = [c.rounds for c in engine.run(asked)]
    return {r.drafted for rounds in texts for i, r in enumerate(rounds) if sum(e.emitted for e in rounds[:i]) <= 14}


@pytest.mark.parametrize(("drafter", "tokens"), [("causal", 4), ("tree", 24)])
def test_a_head_learns_from_an_eagle_drafts_traffic_and_ends_its_rounds(
    store: Store, settings: Settings, tmp_path: Path, drafter: str, tokens: int
) -> None:
    settings = settings.changed(drafters={"kind": drafter})
    set_up(tmp_path, "eagle")
    pair = load_pair(tmp_path / "target", tmp_path / "draft", device="cpu")
    before = drafted(pair, settings, store, 40)
    assert max(before) == tokens, "without a head rounds have `initial` tokens, or levels"
    run = run_once(store, settings, "default", "me", learner=HeadLearner)
    assert run is not None and run.result["loss_last"] < run.result["loss_first"], run and run.result
    assert run.result["evidence"]["measure"] == "binary_kl" and run.result["tokens"] > 50
    if run.state is not RunState.PUBLISHED:  # so few requests may not prove it
        store.versions.promote(str(run.version))
    assert min(drafted(pair, settings, store, 12)) < min(before), "rounds end where the head says"


def test_medusa_has_no_head_and_no_head_is_made_of_prompts(
    store: Store, settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture, never: object
) -> None:
    set_up(tmp_path, "medusa")
    pair = load_pair(tmp_path / "target", tmp_path / "draft", device="cpu")
    with serving(pair, settings, store) as engine:
        list(engine.run([Request(tuple(p), 4) for p in random_prompts(24)]))
    with caplog.at_level(logging.INFO, "osd.trainer"):
        turns = TrainingSchedule(store, settings, never)  # type: ignore[arg-type]
        assert turns.train_head("default") is None and turns.train_head("default") is None
    assert caplog.text.count("Medusa's heads read nothing") == 1
    with pytest.raises(BadInput, match="learns from traffic alone"):
        train_offline(pair, settings, [(2, 3)], tmp_path / "head", Recipe())
