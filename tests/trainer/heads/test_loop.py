"""A head learns from traffic through a real store: served, kept, claimed, trained, judged, published, swapped."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

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
from storage.store import Store
from tests.support.models import noisy
from tests.trainer.models import VOCAB, random_prompts, tiny_llama
from trainer.distil.optimizer import Memory
from trainer.heads.loop import reweigh, run_head_once
from trainer.worker.schedule import TrainingSchedule

HEAD = "default.head"
Serve = Callable[..., None]


def changed(settings: Settings, section: str, **values: object) -> Settings:
    return settings.changed(**{section: values})


@pytest.fixture
def settings(settings: Settings) -> Settings:
    serve = changed(settings, "serve", max_length=64, max_batch=4)
    rule = changed(serve, "gamma", rule="specdecpp", initial=4, max=8)
    few = changed(rule, "gate", confidence=0.7)  # a handful of requests judges here
    return changed(
        few, "learn", head_depth=1, head_epochs=10, head_learning_rate=5e-3, head_batch=64, interval_requests=16
    )


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


@pytest.fixture
def serve(pair: Pair, settings: Settings, store: Store) -> Iterator[Serve]:
    """Serves the next n requests, sampled, and keeps them; the caller may look at the rounds."""
    prompts = iter(random_prompts(400, seed=5))

    def run(
        n: int, settings: Settings = settings, seen: Callable[[int], None] = lambda _: None, route: str = "default"
    ) -> None:
        with serving(pair, settings, store) as engine:
            ask = partial(Request, max_new_tokens=20, ignore_eos=True, route=route)
            asked = [ask(tuple(next(prompts)), sampling=Sampling(0.5, seed=i)) for i in range(n)]
            for done in engine.run(asked):
                for r in done.rounds:
                    seen(r.drafted)

    yield run


def done(run: TrainingRun | None) -> TrainingRun:
    assert run is not None
    return run


def current(store: Store) -> tuple[DraftVersion, AcceptanceHead]:
    version = store.versions.current(HEAD)
    return version, load_head(store.versions.folder(version))


def test_nothing_is_made_before_enough_came(store: Store, settings: Settings, serve: Serve) -> None:
    serve(4)
    assert run_head_once(store, settings, "default", "me") is None
    assert {version.draft for version in store.versions.list()} == {"default"}


def test_a_head_learns_from_traffic_is_published_and_drafts_with_it(
    store: Store, settings: Settings, serve: Serve, models: Path
) -> None:
    serve(32)
    run = done(run_head_once(store, settings, "default", "me"))
    evidence = run.result["evidence"]
    assert run.state is RunState.PUBLISHED and evidence["measure"] == "binary_kl"
    assert evidence["kl_after"] < evidence["kl_before"] and evidence["lower"] > 0
    root, version = store.versions.list(HEAD)
    assert (root.number, root.kind, version.kind, version.parent) == (0, "head", "head", root.id)
    config = current(store)[1].config
    draft = store.versions.current("default")
    assert (config.draft, config.trained_for, config.hidden_size) == (draft.digest, draft.digest, 32)
    assert store.samples.waiting("default").requests == len(run.request_ids)  # the draft's own run takes them still
    lengths: list[int] = []
    serve(8, seen=lengths.append)
    assert len(set(lengths)) > 3  # rounds end where the head says
    assert store.versions.get(version.id).state is VersionState.SERVING


def test_every_draft_has_a_head_of_its_own(
    store: Store, settings: Settings, serve: Serve, pair: Pair, models: Path
) -> None:
    store.versions.register_root("sql", models / "draft")
    store.routes.add(Route("sql", "sql"))
    serve(40, route="sql")
    assert run_head_once(store, settings, "default", "me") is None
    run = done(run_head_once(store, settings, "sql", "me"))
    assert run.state is RunState.PUBLISHED and run.draft == "sql.head"
    prompts = [tuple(prompt) for prompt in random_prompts(12, seed=6)]
    with serving(pair, settings, store) as engine:
        while not ((sql := engine.drafter.loaded_drafts.get("sql")) and sql.head):
            list(engine.run([Request(prompts[0], 4, route="sql")]))  # it is loaded because it is asked for
        both, most = product(prompts, ("sql", "default")), Counter[str]()
        for one in engine.run(Request(prompt, 30, route=route, ignore_eos=True) for prompt, route in both):
            most[one.route] = max(most[one.route], *(each.drafted for each in one.rounds))
    assert most["default"] == settings.gamma.initial, "this one has no head yet"
    assert settings.gamma.initial < most["sql"] <= settings.gamma.max, "rounds end where its head says"
    assert store.versions.get(str(run.version)).state is VersionState.SERVING


def test_the_first_head_knows_the_mean_and_no_more(store: Store, settings: Settings, serve: Serve) -> None:
    serve(20)
    run = done(run_head_once(store, changed(settings, "learn", head_learning_rate=1e-12), "default", "me"))
    assert run.state is RunState.REJECTED
    version, head = current(store)
    assert version.number == 0
    estimates = head.estimate(torch.randn(5, 32)).sigmoid()
    kept = [s.acceptance for s in store.samples.read(store.samples.recent("default", limit=16, holdout=False))]
    mean = torch.cat([torch.from_numpy(a).float() for a in kept if a is not None]).nanmean()
    assert estimates.tolist() == pytest.approx([float(mean)] * 5, abs=1e-4)


def test_the_next_run_takes_only_what_came_since_and_replays(store: Store, settings: Settings, serve: Serve) -> None:
    memory = Memory()
    serve(24)
    first = done(run_head_once(store, settings, "default", "me", memory=memory))
    assert run_head_once(store, settings, "default", "me", memory=memory) is None
    serve(24)
    second = done(run_head_once(store, settings, "default", "me", memory=memory))
    assert not set(first.request_ids) & set(second.request_ids)
    assert second.result["replayed"] == len(first.request_ids)
    assert second.parent == second.result["started_from"] == first.version


def test_when_the_draft_changes_the_head_goes_on_and_embeds_anew(
    store: Store, settings: Settings, serve: Serve, pair: Pair
) -> None:
    serve(24)
    done(run_head_once(store, settings, "default", "me"))
    root = store.versions.current("default")
    other = noisy(pair.draft.module, 0.1, seed=3)
    newer = store.versions.promote(store.versions.stage("default", root.id, "full", other.save_pretrained).id)
    serve(24)
    run = done(run_head_once(store, settings, "default", "me"))
    assert run.result["draft_version"] == newer.id
    candidate = load_head(store.versions.folder(store.versions.get(str(run.version))))
    assert (candidate.config.draft, candidate.config.trained_for) == (root.digest, newer.digest)


def test_one_worker_trains_a_head_at_a_time(store: Store, settings: Settings, serve: Serve) -> None:
    serve(24)

    def train_as_well(_: object) -> None:
        with pytest.raises(LeaseHeld):
            run_head_once(store, settings, "default", "other")

    assert done(run_head_once(store, settings, "default", "me", watcher=train_as_well)).state is RunState.PUBLISHED


def test_a_run_that_fails_leaves_its_requests_to_the_next(
    store: Store, settings: Settings, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(24)
    with monkeypatch.context() as patch:
        patch.setattr("trainer.heads.loop.fit", lambda *a, **k: 1 / 0)
        with pytest.raises(TrainingFailed, match=r"default\.head.*division"):
            run_head_once(store, settings, "default", "me")
    failed = store.runs.list(HEAD)[0]
    run = done(run_head_once(store, settings, "default", "me"))
    assert failed.state is RunState.FAILED and run.request_ids == failed.request_ids


def test_a_damaged_head_is_refused_and_quarantined(store: Store, settings: Settings, serve: Serve, pair: Pair) -> None:
    serve(24)
    version = store.versions.get(str(done(run_head_once(store, settings, "default", "me")).version))
    path = store.versions.folder(version) / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    swap = HeadSwap(store, "default", pair, settings, "test")
    swap.close()
    assert not swap.ready and store.versions.get(version.id).state is VersionState.QUARANTINED
    serve(24)
    done(run_head_once(store, settings, "default", "me"))  # from number 0 again
    path.unlink()
    with pytest.raises(WeightsDamaged):
        store.versions.promote(version.id)


def test_requests_with_only_mistakes_train_no_head(store: Store, settings: Settings, serve: Serve) -> None:
    serve(24, changed(settings, "serve", record="rejected"))
    assert run_head_once(store, settings, "default", "me") is None


def test_the_worker_trains_heads_where_the_rule_asks_for_one(
    store: Store, settings: Settings, serve: Serve, never: object, caplog: pytest.LogCaptureFixture
) -> None:
    serve(24)
    off = changed(settings, "learn", head="off", interval_requests=16)
    assert {run.draft for run in TrainingSchedule(store, off, never).take()} == {"default"}  # type: ignore[arg-type]
    with caplog.at_level(logging.INFO, "osd.trainer"):
        assert {run.draft for run in TrainingSchedule(store, settings, never).take()} == {HEAD}  # type: ignore[arg-type]
    assert "binary KL" in caplog.text
    blind = changed(settings, "serve", record="rejected")
    with caplog.at_level(logging.INFO, "osd.trainer"):
        turns = TrainingSchedule(store, blind, never)  # type: ignore[arg-type]
        assert turns.take() == turns.take() == []
    assert caplog.text.count("serve.record") == 1


def test_a_head_of_ones_own_begins_the_lineage_and_one_of_another_draft_is_refused(
    store: Store, settings: Settings, serve: Serve, pair: Pair, tmp_path: Path
) -> None:
    serve(24)
    done(run_head_once(store, settings, "default", "me"))
    _, head = current(store)
    for name in ("own", "other"):
        (tmp_path / name).mkdir()
    save_head(head, tmp_path / "own")
    head.config = replace(head.config, draft="1" * 64, trained_for="2" * 64)
    save_head(head, tmp_path / "other")
    assert json.loads((tmp_path / "other" / "acceptance_head.json").read_text())["draft"] == "1" * 64
    fresh = changed(settings, "storage", directory=tmp_path / "elsewhere")
    from storage.store import open_store

    with open_store(fresh) as empty:
        with serving(pair, changed(fresh, "gamma", specdecpp={"head": tmp_path / "own"}), empty) as engine:
            assert engine.heads is not None and engine.heads.ready
        assert empty.versions.current(HEAD).number == 0
        with (
            pytest.raises(HeadMismatch, match="was trained for weights 11111111"),
            serving(pair, changed(fresh, "gamma", specdecpp={"head": tmp_path / "other"}), empty),
        ):
            pass


def test_another_weight_of_rejections_leaves_the_estimates(store: Store, settings: Settings, serve: Serve) -> None:
    serve(24)
    done(run_head_once(store, settings, "default", "me"))
    _, head = current(store)
    embeddings = torch.randn(4, 32)
    before, served = head.estimate(embeddings), head(embeddings)
    reweigh(head, 2.0)
    torch.testing.assert_close(head.estimate(embeddings), before)
    assert (head(embeddings) > served).all() and head.config.reject_weight == 2.0
