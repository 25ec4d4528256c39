"""A head learns from traffic through a real store: served, kept, claimed, trained, judged, published, swapped."""

from __future__ import annotations

import json
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from osd.engine.session import serving
from osd.hotswap.heads import HeadSwap
from osd.models.acceptance_head import AcceptanceHead, load_head, save_head
from osd.models.pair import Pair, load_pair
from storage.errors import HeadMismatch, LeaseHeld, TrainingFailed, WeightsDamaged
from storage.records import DraftVersion, Request, Route, RunState, TrainingRun, VersionState
from storage.sampling import Sampling
from storage.settings import Settings
from storage.store import Store, open_store
from tests.support.models import noisy
from tests.trainer.conftest import quick
from tests.trainer.models import VOCAB, random_prompts, tiny_llama
from trainer.distil.loop import run_once
from trainer.distil.resident import ResidentModels
from trainer.heads.learner import HeadLearner, reweigh
from trainer.lease import RunControl
from trainer.worker.schedule import TrainingSchedule

HEAD = "default.head"
Serve = Callable[..., None]
run_head_once = partial(run_once, learner=HeadLearner)


def changed(settings: Settings, section: str, **values: object) -> Settings:
    return settings.changed(**{section: values})


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return of_heads(settings)


def of_heads(settings: Settings) -> Settings:
    learn = {"head_depth": 1, "head_epochs": 10, "head_learning_rate": 5e-3, "head_batch": 64, "interval_requests": 16}
    return settings.changed(
        serve={"max_length": 64, "max_batch": 4}, gamma={"rule": "specdecpp", "initial": 4, "max": 8},
        gate={"confidence": 0.7}, learn=learn,
    )  # fmt: skip  # a handful of requests judges here


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    model = tiny_llama(1).requires_grad_(False)
    model.get_input_embeddings().weight[:, 0] = 2.0  # the same for every token, so below it is a bias
    model.save_pretrained(folder / "target")
    model.get_output_embeddings().weight[VOCAB // 2 :, 0] += 1.0  # these tokens the draft proposes too often
    model.save_pretrained(folder / "draft")
    return folder


@pytest.fixture
def pair(models: Path) -> Pair:
    return load_pair(models / "target", models / "draft", device="cpu")


@pytest.fixture(scope="session")
def kept(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two data directories: after 24 requests, ``served``; and when the head that they taught was published."""
    folder = tmp_path_factory.mktemp("kept")
    pair = load_pair(models / "target", models / "draft", device="cpu")
    settings = {name: of_heads(quick(folder / name)) for name in ("served", "learned")}
    with open_store(settings["served"]) as store:
        ask(pair, settings["served"], store, random_prompts(24, seed=5))
    shutil.copytree(folder / "served", folder / "learned")
    with open_store(settings["learned"]) as store:
        run = done(run_head_once(store, settings["learned"], "default", "me"))
    assert run.state is RunState.PUBLISHED
    return folder


@pytest.fixture
def served(kept: Path, settings: Settings) -> Iterator[Store]:
    shutil.copytree(kept / "served", settings.storage.data_directory())
    with open_store(settings) as store:
        yield store


@pytest.fixture
def learned(kept: Path, settings: Settings) -> Iterator[Store]:
    shutil.copytree(kept / "learned", settings.storage.data_directory())
    with open_store(settings) as store:
        yield store


@pytest.fixture
def serve(pair: Pair, settings: Settings) -> Serve:
    """Serves the next n requests and keeps them."""
    prompts = iter(random_prompts(100, seed=6))

    def run(store: Store, n: int, settings: Settings = settings, **how: Any) -> None:
        ask(pair, settings, store, [next(prompts) for _ in range(n)], **how)

    return run


def ask(
    pair: Pair, settings: Settings, store: Store, prompts: Sequence[Sequence[int]],
    seen: Callable[[int], None] = lambda _: None, route: str = "default",
) -> None:  # fmt: skip
    """Serve these, sampled; the caller may look at the rounds."""
    with serving(pair, settings, store) as engine:
        order = partial(Request, max_new_tokens=20, ignore_eos=True, route=route)
        for one in engine.run([order(tuple(p), sampling=Sampling(0.5, seed=i)) for i, p in enumerate(prompts)]):
            for r in one.rounds:
                seen(r.drafted)


def done(run: TrainingRun | None) -> TrainingRun:
    assert run is not None
    return run


def current(store: Store) -> tuple[DraftVersion, AcceptanceHead]:
    version = store.versions.current(HEAD)
    return version, load_head(store.versions.folder(version))


def test_nothing_is_made_before_enough_came(served: Store, settings: Settings) -> None:
    more = changed(settings, "learn", interval_requests=48)
    assert run_head_once(served, more, "default", "me") is None
    assert {version.draft for version in served.versions.list()} == {"default"}


def test_a_head_learns_from_traffic_is_published_and_drafts_with_it(
    served: Store, settings: Settings, serve: Serve, models: Path
) -> None:
    run = done(run_head_once(served, settings, "default", "me"))
    evidence = run.result["evidence"]
    assert run.state is RunState.PUBLISHED and evidence["measure"] == "binary_kl"
    assert evidence["kl_after"] < evidence["kl_before"] and evidence["lower"] > 0
    root, version = served.versions.list(HEAD)
    assert (root.number, root.kind, version.kind, version.parent) == (0, "head", "head", root.id)
    config = current(served)[1].config
    draft = served.versions.current("default")
    assert (config.draft, config.trained_for, config.hidden_size) == (draft.digest, draft.digest, 32)
    assert served.samples.waiting("default").requests == len(run.request_ids)  # the draft's own run takes them still
    lengths: list[int] = []
    serve(served, 8, seen=lengths.append)
    assert len(set(lengths)) > 3  # rounds end where the head says
    assert served.versions.get(version.id).state is VersionState.SERVING


def test_every_draft_has_a_head_of_its_own(
    store: Store, settings: Settings, serve: Serve, pair: Pair, models: Path
) -> None:
    store.versions.register_root("sql", models / "draft")
    store.routes.add(Route("sql", "sql"))
    serve(store, 40, route="sql")
    assert run_head_once(store, settings, "default", "me") is None
    run = done(run_head_once(store, settings, "sql", "me"))
    assert run.state is RunState.PUBLISHED and run.draft == "sql.head"
    prompts = [tuple(prompt) for prompt in random_prompts(12, seed=6)]
    with serving(pair, settings, store) as engine:
        while not ((sql := engine.pool.loaded_drafts.get("sql")) and sql.head):
            list(engine.run([Request(prompts[0], 4, route="sql")]))  # it is loaded because it is asked for
        both, most = product(prompts, ("sql", "default")), Counter[str]()
        for one in engine.run(Request(prompt, 30, route=route, ignore_eos=True) for prompt, route in both):
            most[one.route] = max(most[one.route], *(each.drafted for each in one.rounds))
    assert most["default"] == settings.gamma.initial, "this one has no head yet"
    assert settings.gamma.initial < most["sql"] <= settings.gamma.max, "rounds end where its head says"
    assert store.versions.get(str(run.version)).state is VersionState.SERVING


def test_the_first_head_knows_the_mean_and_no_more(served: Store, settings: Settings) -> None:
    settings = settings.changed(learn={"head_learning_rate": 1e-12}, gate={"confidence": 0.9999})
    run = done(run_head_once(served, settings, "default", "me"))
    assert run.state is RunState.REJECTED
    version, head = current(served)
    assert version.number == 0
    estimates = head.estimate(torch.randn(5, 32)).sigmoid()
    kept = [s.acceptance for s in served.samples.read(served.samples.recent("default", limit=16, holdout=False))]
    mean = torch.cat([torch.from_numpy(a).float() for a in kept if a is not None]).nanmean()
    assert estimates.tolist() == pytest.approx([float(mean)] * 5, abs=1e-4)


def test_the_next_run_takes_only_what_came_since_and_replays(served: Store, settings: Settings, serve: Serve) -> None:
    resident = ResidentModels()
    first = done(run_head_once(served, settings, "default", "me", resident=resident))
    assert run_head_once(served, settings, "default", "me", resident=resident) is None
    serve(served, 24)
    second = done(run_head_once(served, settings, "default", "me", resident=resident))
    assert not set(first.request_ids) & set(second.request_ids)
    assert second.result["replayed"] == len(first.request_ids)
    assert second.parent == second.result["started_from"] == first.version


def test_when_the_draft_changes_the_head_goes_on_and_embeds_anew(
    learned: Store, settings: Settings, serve: Serve, pair: Pair
) -> None:
    root = learned.versions.current("default")
    other = noisy(pair.draft.module, 0.1, seed=3)
    newer = learned.versions.promote(learned.versions.stage("default", root.id, "full", other.save_pretrained).id)
    serve(learned, 24)
    run = done(run_head_once(learned, settings, "default", "me"))
    assert run.result["draft_version"] == newer.id
    candidate = load_head(learned.versions.folder(learned.versions.get(str(run.version))))
    assert (candidate.config.draft, candidate.config.trained_for) == (root.digest, newer.digest)


def test_one_worker_trains_a_head_at_a_time(served: Store, settings: Settings) -> None:

    def train_as_well(_: object) -> None:
        with pytest.raises(LeaseHeld):
            run_head_once(served, settings, "default", "other")

    run = done(run_head_once(served, settings, "default", "me", RunControl(watcher=train_as_well)))
    assert run.state is RunState.PUBLISHED


def test_a_run_that_fails_leaves_its_requests_to_the_next(
    served: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("trainer.heads.learner.fit", lambda *a, **k: 1 / 0)
        with pytest.raises(TrainingFailed, match=r"default\.head.*division"):
            run_head_once(served, settings, "default", "me")
    failed = served.runs.list(HEAD)[0]
    run = done(run_head_once(served, settings, "default", "me"))
    assert failed.state is RunState.FAILED and run.request_ids == failed.request_ids


def test_a_damaged_head_is_refused_and_quarantined(
    learned: Store, settings: Settings, serve: Serve, pair: Pair
) -> None:
    version = learned.versions.current(HEAD)
    path = learned.versions.folder(version) / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    swap = HeadSwap(learned, "default", pair, settings, "test")
    swap.close()
    assert not swap.ready and learned.versions.get(version.id).state is VersionState.QUARANTINED
    serve(learned, 24)
    done(run_head_once(learned, settings, "default", "me"))  # from number 0 again
    path.unlink()
    with pytest.raises(WeightsDamaged):
        learned.versions.promote(version.id)


def test_requests_with_only_mistakes_train_no_head(store: Store, settings: Settings, serve: Serve) -> None:
    serve(store, 20, changed(settings, "serve", record="rejected"))
    assert run_head_once(store, settings, "default", "me") is None


def test_the_worker_trains_heads_where_the_rule_asks_for_one(
    served: Store, settings: Settings, never: object, caplog: pytest.LogCaptureFixture
) -> None:
    off = changed(settings, "learn", head="off", interval_requests=16)
    assert {run.draft for run in TrainingSchedule(served, off, never).take_turn()} == {"default"}  # type: ignore[arg-type]
    with caplog.at_level(logging.INFO, "osd.trainer"):
        assert {run.draft for run in TrainingSchedule(served, settings, never).take_turn()} == {HEAD}  # type: ignore[arg-type]
    assert "binary KL" in caplog.text
    blind = changed(settings, "serve", record="rejected")
    with caplog.at_level(logging.INFO, "osd.trainer"):
        turns = TrainingSchedule(served, blind, never)  # type: ignore[arg-type]
        assert turns.take_turn() == turns.take_turn() == []
    assert caplog.text.count("serve.record") == 1


def test_a_head_of_ones_own_begins_the_lineage_and_one_of_another_draft_is_refused(
    learned: Store, settings: Settings, pair: Pair, tmp_path: Path
) -> None:
    _, head = current(learned)
    for name in ("own", "other"):
        (tmp_path / name).mkdir()
    save_head(head, tmp_path / "own")
    head.config = replace(head.config, draft="1" * 64, trained_for="2" * 64)
    save_head(head, tmp_path / "other")
    assert json.loads((tmp_path / "other" / "acceptance_head.json").read_text())["draft"] == "1" * 64
    fresh = changed(settings, "storage", directory=tmp_path / "elsewhere")
    with open_store(fresh) as empty:
        with serving(pair, changed(fresh, "gamma", specdecpp={"head": tmp_path / "own"}), empty) as engine:
            assert engine.heads is not None and engine.heads.ready
        assert empty.versions.current(HEAD).number == 0
        with (
            pytest.raises(HeadMismatch, match="was trained for weights 11111111"),
            serving(pair, changed(fresh, "gamma", specdecpp={"head": tmp_path / "other"}), empty),
        ):
            pass


def test_another_weight_of_rejections_leaves_the_estimates(learned: Store) -> None:
    _, head = current(learned)
    embeddings = torch.randn(4, 32)
    before, served = head.estimate(embeddings), head(embeddings)
    reweigh(head, 2.0)
    torch.testing.assert_close(head.estimate(embeddings), before)
    assert (head(embeddings) > served).all() and head.config.reject_weight == 2.0
