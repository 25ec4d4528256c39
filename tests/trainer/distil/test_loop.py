"""The circle's learning half against a real store: claim → collate → distil → gate → publish."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sqlalchemy import select

from storage.errors import DraftHeld, LeaseHeld, StoreWriteFailed, TrainingFailed, WeightsDamaged, WrongState
from storage.records import DraftVersion, RunState, TokenKind, TrainingRun, VersionState, new_id, now
from storage.runs import ClaimTerms
from storage.settings import Settings
from storage.sql.tables import RunRow
from storage.store import Store
from tests.trainer.conftest import Traffic
from trainer.distil import draft_learner
from trainer.distil.checkpoints import load_current
from trainer.distil.data import choose_replayed
from trainer.distil.gate import GateDecision
from trainer.distil.loop import run_once
from trainer.distil.publish import where_to_start
from trainer.distil.scores import score
from trainer.lease import RunControl

CPU = torch.device("cpu")


def changed(settings: Settings, section: str, **values: object) -> Settings:
    return settings.changed(**{section: values})


def done(run: TrainingRun | None) -> TrainingRun:
    assert run is not None
    return run


def states(store: Store) -> list[str]:
    return [version.state.value for version in store.versions.list("default")]


def test_nothing_waits_nothing_happens(drafted: Store, settings: Settings, traffic: Traffic) -> None:
    assert run_once(drafted, settings, "default", "me") is None
    traffic(7, held_out=False)
    assert run_once(drafted, settings, "default", "me") is None
    assert drafted.runs.list() == []


def test_a_draft_may_train_an_adapter_where_the_others_train_all_weights(
    drafted: Store, settings: Settings, traffic: Traffic
) -> None:
    drafted.versions.set_options("default", {"method": "lora", "lora_rank": 4})
    traffic(8, held_out=False), traffic(5, held_out=True)
    run = done(run_once(drafted, settings, "default", "me"))
    assert run.settings["method"] == "lora" and run.settings["lora_rank"] == 4
    assert settings.learn.method == "full"
    assert run.version is not None and drafted.versions.get(run.version).kind == "lora"


def test_a_run_learns_on_this_machines_device_is_judged_by_requests_that_it_never_saw_and_is_published(
    drafted: Store, settings: Settings, traffic: Traffic
) -> None:
    claimed, held = traffic(8, held_out=False), traffic(5, held_out=True)
    run = done(run_once(drafted, changed(settings, "trainer", device="auto"), "default", "me"))
    version = drafted.versions.current("default")
    assert run.state is RunState.PUBLISHED and run.version == version.id and version.number == 1
    assert set(run.request_ids) == {s.request_id for s in claimed}
    assert version.evidence["held_out"] == len(held) and version.evidence["trained_on"] == 0
    assert version.evidence["after"] > version.evidence["before"]
    assert run.result["loss_last"] < run.result["loss_first"] and run.result["claimed"] == 8
    provenance = drafted.versions.provenance(version)["provenance"]
    assert provenance["settings"]["learning_rate"] == 5e-3 and provenance["holder"] == "me"
    before, after = (load_current(drafted, v, CPU) for v in drafted.versions.list("default"))
    moved = [not torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True)]
    assert all(moved) and all(p.dtype == torch.float32 for p in after.parameters())


def test_the_gate_judges_in_the_arithmetic_that_serves(
    drafted: Store, settings: Settings, traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    score_both, seen = draft_learner.score_both, set()

    def watched(current: torch.nn.Module, other: torch.nn.Module, *rest: Any) -> Any:
        seen.update(weight.dtype for model in (current, other) for weight in model.parameters())
        return score_both(current, other, *rest)

    monkeypatch.setattr(draft_learner, "score_both", watched)
    for dtype in ("bfloat16", "float32", "auto"):
        traffic(12)
        run = done(run_once(drafted, changed(settings, "serve", dtype=dtype, device="cpu"), "default", "me"))
        assert run.state in (RunState.PUBLISHED, RunState.REJECTED)
        assert seen == {torch.bfloat16 if dtype == "bfloat16" else torch.float32}
        seen.clear()
    kept = load_current(drafted, drafted.versions.current("default"), CPU)
    assert {weight.dtype for weight in kept.parameters()} == {torch.float32}


def test_the_next_run_goes_on_from_there_and_replays_what_came_before(
    drafted: Store, settings: Settings, traffic: Traffic
) -> None:
    traffic(5, held_out=True)
    first = traffic(8, held_out=False)
    run_once(drafted, settings, "default", "me")
    second = traffic(8, held_out=False)
    run = done(run_once(drafted, settings, "default", "me"))
    assert set(run.request_ids) == {s.request_id for s in second}
    assert run.parent == drafted.versions.list("default")[1].id
    assert (run.result["claimed"], run.result["replayed"], run.result["requests"]) == (8, len(first), 16)
    traffic(8, held_out=False)
    run = done(run_once(drafted, changed(settings, "learn", replay_requests=3), "default", "me"))
    assert run.result["replayed"] == 3, "as many as the settings say"


def test_a_reservoir_is_replayed_of_all_that_earlier_runs_took(
    drafted: Store, settings: Settings, traffic: Traffic
) -> None:
    settings = settings.changed(learn={"epochs": 1, "replay_requests": 4})
    older = []
    for _ in range(2):
        older += [s.request_id for s in traffic(8, held_out=False)]
        run_once(drafted, settings, "default", "me")
    traffic(8, held_out=False)
    settings = settings.changed(learn={"replay": "reservoir"})
    run = done(run_once(drafted, settings, "default", "me"))
    assert run.result["replayed"] == 4
    replayed = drafted.db.scalar(select(RunRow.replayed).where(RunRow.id == run.id))
    drawn = choose_replayed(drafted, "default", run.id, settings.learn, claimed_before=run.id)
    assert set(replayed or ()) == set(drawn), "what a repeated run would replay"
    assert [sum(request in replayed for request in some) for some in (older[:8], older[8:])] == [2, 2]


def test_age_starts_a_run_with_fewer(drafted: Store, settings: Settings, traffic: Traffic) -> None:
    traffic(2, held_out=False)
    assert run_once(drafted, settings, "default", "me") is None
    assert run_once(drafted, changed(settings, "learn", max_age_seconds=1e-6), "default", "me") is not None


def test_requests_that_came_meanwhile_judge_too_and_old_ones_do_not(
    drafted: Store, settings: Settings, traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    traffic(4, held_out=True)  # older than anything trained on
    traffic(8, held_out=False)
    real = draft_learner.distil_on_devices

    def distil_while_traffic_goes_on(*args: Any, **kwargs: Any) -> Any:
        result = real(*args, **kwargs)
        traffic(6, held_out=False)
        return result

    monkeypatch.setattr(draft_learner, "distil_on_devices", distil_while_traffic_goes_on)
    run = done(run_once(drafted, settings, "default", "me"))
    evidence = run.result["evidence"]
    assert (evidence["held_out"], evidence["fresh"], evidence["trained_on"]) == (0, 6, 0)


def test_with_too_few_unseen_requests_trained_ones_judge_and_the_evidence_says_so(
    drafted: Store, settings: Settings, traffic: Traffic
) -> None:
    traffic(8, held_out=False)
    evidence = done(run_once(drafted, settings, "default", "me")).result["evidence"]
    assert evidence["held_out"] == evidence["fresh"] == 0
    assert evidence["trained_on"] == evidence["requests"] == settings.gate.min_requests


def test_no_better_is_rejected_and_what_serves_goes_on(drafted: Store, settings: Settings, traffic: Traffic) -> None:
    traffic(12)
    run = done(run_once(drafted, changed(settings, "learn", learning_rate=1e-12), "default", "me"))
    assert run.state is RunState.REJECTED and drafted.versions.current("default").number == 0
    assert states(drafted) == ["ready", "rejected"] and "difference" in drafted.versions.list("default")[1].evidence
    assert run_once(drafted, settings, "default", "me") is None  # the requests were used


def test_training_goes_on_from_a_candidate_that_was_too_close_to_call(
    drafted: Store, settings: Settings, traffic: Traffic
) -> None:
    """Gains of single runs that the gate cannot tell from chance add up until it can."""
    asks_much = changed(settings, "gate", min_gain=0.001)
    slow = changed(asks_much, "learn", learning_rate=1e-3, epochs=1)
    runs = []
    for _ in range(8):
        traffic(12)
        runs.append(done(run_once(drafted, slow, "default", "me")))
        if runs[-1].state is RunState.PUBLISHED:
            break
    root = drafted.versions.list("default")[0].id
    assert len(runs) > 2 and all(run.state is RunState.REJECTED for run in runs[:-1])
    assert [run.result["started_from"] for run in runs] == [root, *(run.version for run in runs[:-1])]
    assert all(run.parent == root for run in runs)
    gains = [run.result["evidence"]["difference"] for run in runs]
    assert gains[-1] > 2 * gains[0] and runs[-1].state is RunState.PUBLISHED


def test_a_claimed_request_judges_the_line_before_it_is_trained_on(
    drafted: Store, settings: Settings, traffic: Traffic
) -> None:
    never = changed(settings, "gate", min_gain=0.9)
    traffic(8, held_out=False)
    assert done(run_once(drafted, never, "default", "me")).result["evidence"]["tested_first"] == 0
    traffic(9, held_out=False)
    run = done(run_once(drafted, settings, "default", "me"))
    evidence = run.result["evidence"]
    assert (evidence["tested_first"], evidence["trained_on"], evidence["requests"]) == (9, 0, 9)
    assert run.state is RunState.PUBLISHED

    root, last, _ = drafted.versions.list("default")
    claimed = drafted.samples.read(run.request_ids)
    before, after = (score(load_current(drafted, version, CPU), claimed) for version in (root, last))
    assert evidence["before"] == pytest.approx(before.expected.sum() / before.positions.sum(), abs=1e-6)
    assert evidence["after"] == pytest.approx(after.expected.sum() / after.positions.sum(), abs=1e-6)


def test_training_does_not_go_on_from_a_worse_candidate(drafted: Store, settings: Settings, traffic: Traffic) -> None:
    traffic(12)
    learnt = done(run_once(drafted, changed(settings, "learn", epochs=40), "default", "me"))
    asked_again = drafted.samples.read(learnt.request_ids)
    drafted.samples.add([replace(s, request_id=new_id(), created_at=now()) for s in asked_again])
    bad = done(run_once(drafted, changed(settings, "learn", learning_rate=1e3), "default", "me"))
    assert bad.state is RunState.REJECTED and bad.result["evidence"]["worse"]
    traffic(12)
    run = done(run_once(drafted, settings, "default", "me"))
    assert run.result["started_from"] == run.parent == learnt.version


def test_only_mistakes_are_learnt_from_when_settings_say_so(
    drafted: Store, settings: Settings, traffic: Traffic
) -> None:
    settings = changed(settings, "learn", positions="rejected")
    kinds = np.array([TokenKind.ACCEPTED] * 9 + [TokenKind.REJECTED] * 3, np.uint8)
    traffic(8, held_out=False, kinds=kinds)
    run = done(run_once(drafted, settings, "default", "me"))
    assert run.result["positions"] == 8 * 3 * settings.learn.epochs


def test_a_draft_without_mistakes_has_nothing_to_learn(drafted: Store, settings: Settings, traffic: Traffic) -> None:
    traffic(8, held_out=False)
    run = done(run_once(drafted, changed(settings, "learn", positions="rejected"), "default", "me"))
    assert run.state is RunState.REJECTED and "rejected positions" in run.result["reason"]
    assert states(drafted) == ["ready"]


def test_where_only_mistakes_were_kept_the_gate_counts_agreement(
    drafted: Store, settings: Settings, traffic: Traffic
) -> None:
    def mistakes_of(n: int, held_out: bool) -> list[Any]:
        whole = traffic(n, held_out=held_out)
        drafted.samples.purge(everything=True)
        cut = ("positions", "kinds", "drafted", "topk_ids", "topk_logprobs", "outside")
        kept = [{name: getattr(s, name)[2::4] for name in cut} for s in whole]
        wrong = [np.full(len(k["kinds"]), TokenKind.REJECTED, np.uint8) for k in kept]
        return [replace(s, **{**k, "kinds": w}) for s, k, w in zip(whole, kept, wrong, strict=True)]

    learn, held = mistakes_of(8, False), mistakes_of(5, True)
    drafted.samples.add(learn + held)
    run = done(run_once(drafted, settings, "default", "me"))
    evidence = run.result["evidence"]
    assert evidence["measure"] == "agreement" and evidence["positions"] == 5 * 12


def test_two_workers_on_one_draft(drafted: Store, settings: Settings, traffic: Traffic) -> None:
    traffic(8, held_out=False)
    drafted.runs.claim("default", "first", ClaimTerms(1, 9, 60))
    with pytest.raises(LeaseHeld, match=r"being trained by first until .* One worker trains a draft at a time"):
        run_once(drafted, settings, "default", "second")


def take_over(store: Store, run: TrainingRun) -> TrainingRun:
    """Another worker claims after the lease has run out."""
    store.runs.heartbeat(run, -1)
    return done(store.runs.claim(run.draft, "other", ClaimTerms(1, 9, 60)))


@pytest.mark.parametrize("phase", ["distil_on_devices", "stage", "judge"])
def test_a_lost_lease_throws_the_result_away(
    drafted: Store, settings: Settings, traffic: Traffic, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    traffic(12)
    real = getattr(draft_learner, phase)
    taken: list[TrainingRun] = []

    def then_lose(*args: Any, **kwargs: Any) -> Any:
        result = real(*args, **kwargs)
        taken.append(take_over(drafted, drafted.runs.list("default")[0]))
        return result

    monkeypatch.setattr(draft_learner, phase, then_lose)
    run = done(run_once(drafted, changed(settings, "trainer", lease_seconds=1e-3), "default", "me"))
    assert run.state is RunState.LOST and drafted.versions.current("default").number == 0
    assert VersionState.CANDIDATE not in {v.state for v in drafted.versions.list("default")}
    assert set(taken[0].request_ids) == set(run.request_ids)


def test_a_stop_between_batches_gives_the_requests_back(drafted: Store, settings: Settings, traffic: Traffic) -> None:
    traffic(12)
    stop = threading.Event()
    run = done(run_once(drafted, settings, "default", "me", RunControl(stop, lambda _: stop.set())))
    assert run.state is RunState.FAILED and run.result["stopped"] and states(drafted) == ["ready"]
    again = done(run_once(drafted, settings, "default", "me"))
    assert set(again.request_ids) == set(run.request_ids) and again.state is RunState.PUBLISHED


def test_a_loss_that_is_no_number_publishes_nothing(drafted: Store, settings: Settings, traffic: Traffic) -> None:
    traffic(8, held_out=False)
    with pytest.raises(TrainingFailed, match=r"became .* with a gradient of norm nan"):
        run_once(drafted, changed(settings, "learn", learning_rate=1e30), "default", "me")
    assert states(drafted) == ["ready"] and drafted.runs.list()[0].state is RunState.FAILED
    assert drafted.samples.waiting("default").requests == 8


def test_requests_that_cannot_be_used_are_left_out_and_do_not_fail_every_run(
    drafted: Store, settings: Settings, traffic: Traffic
) -> None:
    traffic(1, held_out=False, topk_ids=np.full((12, 8), 916, np.int32))  # of another vocabulary
    traffic(1, held_out=False, topk_logprobs=np.full((12, 8), np.nan, np.float16))  # no distribution
    traffic(1, held_out=False, positions=np.arange(90, 102, dtype=np.int32))  # no such position
    sound = traffic(6, held_out=False)
    run = done(run_once(drafted, settings, "default", "me"))
    assert (run.result["unusable"], run.result["requests"]) == (3, len(sound)) and run.state is RunState.PUBLISHED


def test_damaged_parent_weights_are_refused_and_the_version_before_serves(
    drafted: Store, settings: Settings, traffic: Traffic
) -> None:
    traffic(12)
    done(run_once(drafted, settings, "default", "me"))
    bad = drafted.versions.current("default")
    damage(drafted, bad)
    traffic(12)
    with pytest.raises(WeightsDamaged, match=bad.id):
        run_once(drafted, settings, "default", "me")
    assert drafted.versions.get(bad.id).state is VersionState.QUARANTINED
    run = done(run_once(drafted, settings, "default", "me"))
    assert run.parent == drafted.versions.list("default")[0].id and run.state is RunState.PUBLISHED


def damage(store: Store, version: DraftVersion) -> None:
    path = store.versions.folder(version) / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_a_promotion_in_mid_training_voids_the_comparison(
    drafted: Store, settings: Settings, traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    traffic(12)
    done(run_once(drafted, settings, "default", "me"))
    traffic(12)
    real = draft_learner.judge

    def judge_while_an_admin_goes_back(*args: Any) -> GateDecision:
        drafted.versions.rollback("default", "an admin said so")
        verdict = real(*args)
        return replace(verdict, better=True)

    monkeypatch.setattr(draft_learner, "judge", judge_while_an_admin_goes_back)
    with pytest.raises(WrongState, match="child of the current version"):
        run_once(drafted, settings, "default", "me")
    assert drafted.versions.current("default").number == 0
    assert states(drafted)[-1] == "rejected" and drafted.samples.waiting("default").requests > 0


def test_a_write_that_fails_leaves_nothing_and_frees_the_requests(
    drafted: Store, settings: Settings, traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("trainer.distil.publish.write_model", full)
    traffic(12)
    waiting = drafted.samples.waiting("default").requests
    with pytest.raises(StoreWriteFailed, match="No space left"):
        run_once(drafted, settings, "default", "me")
    assert states(drafted) == ["ready"] and drafted.samples.waiting("default").requests == waiting
    assert [path.name for path in Path(drafted.versions.weights_folder / "default").iterdir()] == [
        drafted.versions.current("default").id
    ]


def test_candidates_that_a_killed_worker_left_are_rejected(
    drafted: Store, settings: Settings, traffic: Traffic, draft_folder: Path
) -> None:
    traffic(12)
    lost = done(drafted.runs.claim("default", "killed", ClaimTerms(1, 9, -1)))
    orphan = drafted.versions.stage(
        "default",
        lost.parent,
        "full",
        lambda f: (f / "model.safetensors").write_bytes(weights_of(draft_folder)),
        run_id=lost.id,
    )
    heir = drafted.versions.stage(
        "default", lost.parent, "full", lambda f: shutil.copytree(draft_folder, f, dirs_exist_ok=True)
    )
    run = done(run_once(drafted, settings, "default", "me"))
    assert drafted.runs.get(lost.id).state is RunState.LOST
    assert drafted.versions.get(orphan.id).state is VersionState.REJECTED
    assert drafted.versions.get(heir.id).state is VersionState.CANDIDATE, "it is no run's"
    assert set(run.request_ids) == set(lost.request_ids) and run.state is RunState.PUBLISHED


def weights_of(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_nothing_is_trained_while_people_hold_a_draft_and_a_run_under_way_gives_its_requests_back(
    drafted: Store, settings: Settings, traffic: Traffic
) -> None:
    """The watcher is called between two steps; the lease is renewed as soon as it may be."""
    traffic(12)
    settings = changed(settings, "trainer", lease_seconds=0.001)
    run = done(run_once(drafted, settings, "default", "me", RunControl(watcher=lambda _: freeze(drafted))))
    assert run.state is RunState.FAILED and run.result["stopped"] and "frozen at" in run.result["reason"]
    waiting = drafted.samples.waiting("default").requests
    assert waiting > 0 and states(drafted)[1:] in ([], ["rejected"])
    with pytest.raises(DraftHeld, match="osd drafts resume default"):
        run_once(drafted, settings, "default", "me")
    drafted.decisions.resume("default")
    settings = changed(settings, "trainer", lease_seconds=60)
    assert done(run_once(drafted, settings, "default", "me")).state is RunState.PUBLISHED


def test_a_run_that_judged_nothing_takes_nothing_from_the_one_before(
    drafted: Store, settings: Settings, traffic: Traffic
) -> None:
    """It was cancelled, or found nothing to learn from; the next one goes on from what was too close to call."""
    strict = changed(settings, "gate", min_gain=0.999)
    traffic(12)
    candidate = str(done(run_once(drafted, strict, "default", "me")).version)
    traffic(12)
    empty = drafted.runs.claim("default", "me", ClaimTerms(1, 0.0, 60.0))
    drafted.runs.finish(done(empty), RunState.REJECTED)
    root = drafted.versions.list("default")[0]
    assert where_to_start(drafted, new_run(drafted, root), "full").id == candidate


def freeze(store: Store) -> None:
    if not store.decisions.holds():
        store.decisions.freeze("default", "the fair")


def test_what_was_taken_back_by_hand_is_not_trained_from_again(
    drafted: Store, settings: Settings, traffic: Traffic
) -> None:
    """A candidate that was too close to call would be gone on from; a person tried it, and took it back."""
    strict = changed(settings, "gate", min_gain=0.999)
    traffic(12)
    candidate = str(done(run_once(drafted, strict, "default", "me")).version)
    root = drafted.versions.list("default")[0]
    assert where_to_start(drafted, new_run(drafted, root), "full").id == candidate
    drafted.decisions.promote(candidate)
    drafted.decisions.rollback("default", "it was rude", to=root.id)
    drafted.decisions.resume("default")
    assert where_to_start(drafted, new_run(drafted, root), "full").id == root.id
    traffic(12)
    run = done(run_once(drafted, settings, "default", "me"))
    assert run.result["started_from"] == run.parent == root.id


def new_run(store: Store, parent: DraftVersion) -> TrainingRun:
    return replace(store.runs.list("default")[0], id="new", parent=parent.id)
