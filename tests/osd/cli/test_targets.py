"""`osd targets`: which served, and which succeeds which."""

import json

import pytest

from storage.replay.samples import SampleStore
from tests.storage.make import samples

A, B, C = (letter * 64 for letter in "abc")
LLAMA = {"architecture": "LlamaForCausalLM", "vocabulary": "v"}


@pytest.fixture
def targets(filled):
    for digest, facts in ((A, LLAMA), (B, LLAMA), (C, {**LLAMA, "vocabulary": "w"})):
        filled.store.targets.arrive(digest, f"models/{digest[0]}", facts)
    return filled.store.targets


def test_succeed_show_forget(osd, filled, targets):
    filled.store.samples.add([samples(i, target=A) for i in range(2)])
    assert osd("targets", "succeed", "aa", "bb").exit_code == 0
    targets.note_divergence(B, A, {"default": 0.25})
    rows = json.loads(osd("targets", "list", "--json").stdout)
    found = [(row["digest"], row["predecessor"], row["requests"]) for row in rows]
    assert found == [(A, None, 2), (B, A, 0), (C, None, 0)]
    assert "bbbbbbbb" in osd("targets", "list").stdout
    facts = json.loads(osd("targets", "show", "bb", "--json").stdout)
    assert facts["ancestors"] == [A] and facts["facts"]["divergence"] == {A: {"default": 0.25}}
    assert "0.25" in osd("targets", "show", "bb").stdout
    assert osd("targets", "forget", "aa", "--yes").exit_code == 0
    assert targets.ancestors(B) == [] and not filled.store.samples.kept(["r0", "r1"])
    trail = [(line.action, line.subject) for line in filled.store.trail.history(limit=2)]
    assert trail == [("targets forget", A), ("targets succeed", B)]


def test_forgetting_that_was_interrupted_is_done_again(osd, filled, targets, monkeypatch):
    filled.store.samples.add([samples(1, target=A)])
    with monkeypatch.context() as broken:
        broken.setattr(SampleStore, "purge", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        assert osd("targets", "forget", "aa", "--yes").exit_code != 0
    assert osd("targets", "forget", "aa", "--yes").exit_code == 0
    assert not filled.store.samples.kept(["r1"])


def test_what_cannot_be_is_refused_by_a_sentence(osd, targets):
    refused = osd("targets", "succeed", "aa", "cc")
    assert refused.exit_code == 2 and "its tokenizer is another" in refused.stderr
    assert "0 targets" in osd("targets", "succeed", "aa", "dd").stderr
    assert "served last" in osd("targets", "forget", "cc", "--yes").stderr
