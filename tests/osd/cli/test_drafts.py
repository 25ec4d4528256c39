"""`osd drafts`: what there is, and which version serves."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from osd.cli.drafts import flat
from osd.engine.session import serving
from osd.models.features.files import load_feature_draft
from osd.models.features.target import FeatureTarget
from osd.models.model_digest import model_digest
from osd.server.start import PairNames, draft_in_store
from storage.insights.runs import why_none
from storage.records import Request, RunState, VersionState
from storage.runs import ClaimTerms
from storage.settings import ServeSettings, Settings, load_settings
from storage.store import open_store
from tests.osd.cli.conftest import samples
from tests.support.fake_hub import fake_hub, use_hub
from tests.support.families import random_family
from tests.support.models import random_module
from trainer.worker.schedule import describe


def test_list_marks_the_current_version(osd, filled):
    rows = json.loads(osd("drafts", "list", "--json").stdout)
    assert [(row["number"], row["current"], row["state"]) for row in rows] == [(0, False, "ready"), (1, True, "ready")]
    shown = osd("drafts", "list")
    assert filled.child in shown.stdout.replace("\n", "") or filled.child[:10] in shown.stdout
    assert shown.stderr == ""


def test_list_names_who_serves_which_version(osd, filled):
    filled.store.versions.mark_serving(filled.root, "gpu-1")
    for engine in ("gpu-2", "gpu-3"):
        filled.store.versions.mark_serving(filled.child, engine)
    rows = json.loads(osd("drafts", "list", "--json").stdout)
    assert [row["served_by"] for row in rows] == [["gpu-1"], ["gpu-2", "gpu-3"]]
    assert "gpu-2, gpu-3" in osd("drafts", "list").stdout


def test_list_of_an_empty_store_is_an_empty_list(osd):
    assert json.loads(osd("drafts", "list", "--json").stdout) == []
    shown = osd("drafts", "list")
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert "no drafts yet" in shown.stderr


def test_list_of_a_draft_that_is_not_there_names_those_that_are(osd, filled):
    done = osd("drafts", "list", "--draft", "nobody", "--json")
    assert (done.exit_code, done.stdout) == (3, "")
    assert "known: default" in done.stderr


def test_show_says_where_a_version_came_from(osd, filled):
    facts = json.loads(osd("drafts", "show", filled.child, "--json").stdout)
    assert facts["evidence"] == {"gain": 0.25}
    assert facts["lineage"] == [filled.child, filled.root]
    assert facts["files"] == "sound"
    assert facts["provenance"] == {"osd": "test"}
    assert "evidence.gain" in osd("drafts", "show", filled.child).stdout


def test_show_finds_damaged_files_and_goes_on(osd, filled):
    version = filled.store.versions.get(filled.child)
    (filled.store.versions.folder(version) / "model.safetensors").write_bytes(b"damaged")
    done = osd("drafts", "show", filled.child, "--json")
    assert done.exit_code == 0
    assert "refused" in json.loads(done.stdout)["files"]


def test_rollback_asks_first_and_returns_to_the_parent(osd, filled):
    refused = osd("drafts", "rollback", stdin="n\n")
    assert refused.exit_code == 1
    assert filled.root in refused.stderr
    assert filled.store.versions.current("default").id == filled.child
    done = osd("drafts", "rollback", "--yes", "--reason", "worse on Fridays")
    assert done.exit_code == 0, done.stderr
    assert filled.store.versions.current("default").id == filled.root
    assert filled.store.versions.get(filled.child).state is VersionState.ROLLED_BACK


def test_rollback_of_number_zero_says_why_not_and_asks_nothing(osd, filled):
    osd("drafts", "rollback", "--yes")
    done = osd("drafts", "rollback")
    assert done.exit_code == 5
    assert "another sound version" in done.stderr and "None" not in done.output


def test_promote_brings_it_back(osd, filled):
    osd("drafts", "rollback", "--yes")
    done = osd("drafts", "promote", filled.child, "--yes")
    assert done.exit_code == 0, done.stderr
    assert filled.store.versions.current("default").id == filled.child


def test_export_copies_the_files_and_prints_the_folder(osd, filled, tmp_path: Path):
    refused = osd("drafts", "export", filled.child, tmp_path / "plain")
    assert refused.exit_code == 5 and "do not load" in refused.stderr and not (tmp_path / "plain").exists()
    model = random_module("llama")
    loads = filled.store.versions.stage("default", filled.child, "full", model.save_pretrained).id
    filled.store.versions.promote(loads)
    done = osd("drafts", "export", loads, tmp_path / "plain")
    assert done.stdout.strip() == str(tmp_path / "plain")
    assert {"config.json", "model.safetensors"} <= {path.name for path in (tmp_path / "plain").iterdir()}
    assert [line.action for line in filled.store.trail.history(loads)] == ["drafts export"]
    again = osd("drafts", "export", loads, tmp_path / "plain")
    assert again.exit_code == 2
    assert "exists" in again.stderr


def test_a_draft_goes_to_the_hub_and_comes_back(osd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    target = target_in(tmp_path / "target")
    version = osd("drafts", "new", "code", "--target", target, "--layers", 1).stdout.strip()
    with fake_hub() as hub:
        use_hub(hub, tmp_path / "hub", monkeypatch)
        pushed = osd("drafts", "push", version, "me/code")
        assert pushed.stdout.strip() == f"{hub.url}/me/code", pushed.stderr
        back = osd("drafts", "new", "back", "--target", target, "--from", "me/code")
        assert f"is me/code at {hub.sha('me/code')}. Serve with --draft back." in back.stderr
        assert (
            "leave --kind" in osd("drafts", "new", "x", "--target", target, "--from", "me/code", "--layers", 1).stderr
        )
        assert osd("drafts", "push", "none", "me/code").exit_code == 3
    with open_store(load_settings(storage={"directory": tmp_path / "data"})) as store:
        assert [line.action for line in store.trail.history(version)] == ["drafts push", "drafts new"]


def test_a_quarantined_version_is_listed_with_its_reason(osd, filled):
    filled.store.versions.quarantine(filled.child, "it does not load")
    listed = osd("drafts", "list")
    assert "quarantined" in listed.stdout and f"Quarantined: {filled.child} (it does not load)" in listed.stderr


def test_flat_names_nested_facts_with_dots():
    facts = {"a": {"b": {"c": 1}}, "command": ["osd", "worker"], "lineage": ["x", "y"], "e": None}
    assert flat(facts) == {"a.b.c": "1", "command": "osd worker", "lineage": "x ← y", "e": None}


def target_in(folder: Path, kind: str = "llama", seed: int = 0) -> Path:
    """A random target's folder."""
    random_module(kind, seed).save_pretrained(folder)
    return folder


def test_a_small_draft_is_cut_and_named_by_its_target(osd, tmp_path: Path):
    target = target_in(tmp_path / "target")
    done = osd("drafts", "new", "code", "--kind", "small", "--layers", 1, "--target", target)
    assert done.exit_code == 0, done.stderr
    version = done.stdout.strip()
    assert f"{version} has layers 0 of the 2 of {target}. Serve with --draft code." in done.stderr
    (row,) = json.loads(osd("drafts", "list", "--json").stdout)
    assert (row["id"], row["number"], row["state"], row["current"]) == (version, 0, "ready", True)
    assert row["target"] == model_digest(str(target))
    facts = json.loads(osd("drafts", "show", version, "--json").stdout)
    assert (facts["provenance"]["layers"], facts["files"]) == ([0], "sound")


@pytest.mark.parametrize("kind", ["medusa", "eagle", "eagle3", "peagle", "dflash", "mtp"])
def test_a_feature_draft_of_random_weights_is_number_0_of_its_line(osd, kind: str, tmp_path: Path):
    target = target_in(tmp_path / "target")
    done = osd("drafts", "new", "code", "--kind", kind, "--target", target)
    assert done.exit_code == 0, done.stderr
    version = done.stdout.strip()
    assert "random weights, and reads the hidden states of" in done.stderr
    (row,) = json.loads(osd("drafts", "list", "--json").stdout)
    assert (row["id"], row["kind"], row["state"], row["current"]) == (version, kind, "ready", True)
    with open_store(load_settings(storage={"directory": tmp_path / "data"})) as store:
        folder = store.versions.folder(store.versions.get(version))
        read = FeatureTarget(random_module("llama"), str(target), model_digest(str(target)))
        assert load_feature_draft(folder, read).kind == kind


@pytest.mark.parametrize("kind", ["medusa", "eagle", "dflash", "mtp"])
def test_number_0_proposes_as_many_tokens_as_learn_draft_vocabulary_says(osd, kind: str, tmp_path: Path):
    target = target_in(tmp_path / "target")
    done = osd("drafts", "new", "code", "--kind", kind, "--target", target, OSD_LEARN__DRAFT_VOCABULARY="16")
    with open_store(load_settings(storage={"directory": tmp_path / "data"})) as store:
        folder = store.versions.folder(store.versions.get(done.stdout.strip()))
        draft = load_feature_draft(folder, FeatureTarget(random_module("llama"), str(target)))
    assert draft.token_map is not None and len(draft.token_map) == 16


def test_a_feature_draft_has_no_adapter_over_it(osd, tmp_path: Path):
    done = osd("drafts", "new", "code", "--kind", "eagle", "--target", target_in(tmp_path / "target"))
    refused = osd("router", "add", "sql", "--new-draft", "--from", "code", "--kind", "lora")
    assert refused.exit_code == 2 and "a draft of kind eagle takes no adapter" in refused.stderr
    assert "give --kind full" in refused.stderr
    assert {row["draft"] for row in json.loads(osd("drafts", "list", "--json").stdout)} == {"code"}
    assert osd("router", "add", "sql", "--new-draft", "--from", done.stdout.strip(), "--kind", "full").exit_code == 0


def test_options_of_another_kind_of_draft_are_refused(osd, tmp_path: Path):
    target = target_in(tmp_path / "target")
    heads = osd("drafts", "new", "code", "--kind", "eagle", "--heads", 3, "--target", target)
    layers = osd("drafts", "new", "code", "--kind", "medusa", "--layers", 1, "--target", target)
    assert (heads.exit_code, layers.exit_code) == (2, 2)
    assert json.loads(osd("drafts", "list", "--json").stdout) == []


@pytest.mark.usefixtures("compiled")
def test_a_draft_that_was_made_serves_by_its_name(osd, tmp_path: Path):
    """Its number 0 is what the default draft starts from, and texts are the target's."""
    target = target_in(tmp_path / "target")
    version = osd("drafts", "new", "default", "--target", target).stdout.strip()
    with open_store(load_settings(storage={"directory": tmp_path / "data"})) as store:
        names = draft_in_store(PairNames(str(target), "default"), store)
        assert names.draft == str(store.versions.folder(store.versions.get(version)))
        with serving(names.load(ServeSettings()), Settings(), store) as engine:
            (text,) = engine.run([Request((5, 9, 33), 8, ignore_eos=True)])
        assert {row.id for row in store.versions.list()} == {version}  # no other number 0, no other line
        assert list(text.tokens) == alone(target, [5, 9, 33], 8)
        for unknown in (PairNames(str(target), "nobody/there"), PairNames(str(target), str(target))):
            assert draft_in_store(unknown, store) is unknown
    other = target_in(tmp_path / "other", seed=1)
    with open_store(load_settings(storage={"directory": tmp_path / "data"})) as store:
        names = PairNames(str(other), "default")
        assert draft_in_store(names, store) is names  # the line is about another target


def alone(target: Path, prompt: list[int], count: int) -> list[int]:
    module = AutoModelForCausalLM.from_pretrained(target, dtype="float32")
    ids = torch.tensor([prompt])
    told = {"max_new_tokens": count, "do_sample": False, "eos_token_id": None}
    said = module.generate(ids, attention_mask=torch.ones_like(ids), **told)
    return said[0, len(prompt) :].tolist()


def test_what_cannot_be_cut_leaves_nothing_in_the_store(osd, tmp_path: Path):
    target = target_in(tmp_path / "target")
    many = osd("drafts", "new", "code", "--layers", 3, "--target", target)
    assert many.exit_code == 4 and "3 layers were asked for, and it has 2 to choose from" in many.stderr
    no_name = osd("drafts", "new", "a/b", "--target", target)
    assert no_name.exit_code == 2
    assert "give --target" in osd("drafts", "new", "code").stderr
    missing = osd("drafts", "new", "code", "--target", tmp_path / "nothing")
    assert missing.exit_code == 4
    recurrent = tmp_path / "recurrent"
    random_family("mamba").save_pretrained(recurrent)
    refused = osd("drafts", "new", "code", "--target", recurrent)
    assert refused.exit_code == 4 and "recurrent state" in refused.stderr
    assert json.loads(osd("drafts", "list", "--json").stdout) == []


def test_a_name_that_is_taken_is_refused(osd, tmp_path: Path):
    target = target_in(tmp_path / "target")
    first = osd("drafts", "new", "code", "--target", target).stdout.strip()
    again = osd("drafts", "new", "code", "--target", target, "--layers", 2)
    assert again.exit_code == 2 and f"has a number 0 for this target ({first})" in again.stderr
    assert osd("drafts", "new", "code", "--target", target_in(tmp_path / "other", seed=1)).exit_code == 0
    assert len({row["target"] for row in json.loads(osd("drafts", "list", "--json").stdout)}) == 2


def test_list_says_why_the_last_run_brought_no_version(osd, filled):
    run = filled.store.runs.claim("default", "test", ClaimTerms(1, 60, 60))
    assert run is None, "all requests were learned from"
    filled.store.samples.add([replace(samples(9, filled.child), request_id="new")])
    run = filled.store.runs.claim("default", "test", ClaimTerms(1, 60, 60))
    assert osd("drafts", "list").stderr == "", "it is under way"
    evidence = {"difference": 0.0123, "worse": False, "confidence": 0.8, "min_gain": 0.0, "requests": 4}
    filled.store.runs.finish(run, RunState.REJECTED, result={"evidence": evidence})
    why = "unproven: it gained +0.0123 on 4 requests, and a gain above 0 had to be sure at 80 %"
    assert f"ended without a new version: {why}" in " ".join(osd("drafts", "list").stderr.split())
    assert json.loads(osd("stats", "runs", "--json").stdout)[0]["reason"] == why
    hint = "99% was not kept: learn.teacher = recompute reads all of it"
    assert str(why_none("rejected", {"evidence": evidence | {"unknown_after": 0.99}})).endswith(hint)
    assert f"({why})" in describe(replace(filled.store.runs.get(run.id), result={
        "evidence": {**evidence, "before": 0.5, "after": 0.5123}, "requests": 1, "seconds": 2.0,
    }))  # fmt: skip
