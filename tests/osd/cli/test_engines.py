"""What `osd engines` and `osd stats gain` say of engines that are attached: what is to come, and what another start
would bring."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from storage.records import RunState
from storage.runs import ClaimTerms
from storage.store import Store
from tests.osd.cli.conftest import Filled, Osd, samples, write_model

FACTS: dict[str, Any] = {
    "kind": "vllm", "target": "/models/the target", "digest": None, "method": "draft_model", "gamma": 4,
    "live_gamma": False, "ranks": [],
}  # fmt: skip


def batch(rows: int, break_even: float | None, length: int = 0) -> dict[str, Any]:
    return {
        "rows": rows, "length": length, "best": 1, "gain": 0.9, "error": 0.01, "turns": 9, "break_even": break_even
    }  # fmt: skip


def gain(*batches: dict[str, Any]) -> dict[str, Any]:
    return {
        "tokens_per_second": 90.0, "gain": 1.0, "error": 0.0, "accepted": 0.11, "fixed": False, "at": 1.0,
        "batches": list(batches),
    }  # fmt: skip


def learn(store: Store, requests: int, after: float) -> str:
    """Publish a version that learned from so many requests more."""
    parent = store.versions.current("default").id
    known = sum(row.requests for row in store.samples.stats())
    store.samples.add([samples(number, parent) for number in range(known, known + requests)])
    run = store.runs.claim("default", "test", ClaimTerms(1, 60, 60))
    assert run is not None
    made = store.versions.stage(
        "default", parent, "full", lambda folder: write_model(folder, after), run_id=run.id, provenance={}
    )
    store.versions.publish(made.id, {"after": after}, run=run)
    store.runs.finish(run, RunState.PUBLISHED, made.id)
    return made.id


def shown(osd: Osd, engine: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(osd("engines", "show", engine, "--json").stdout)
    return facts


def test_before_drafting_pays_it_is_said_how_many_answers_are_to_go(osd: Osd, filled: Filled) -> None:
    said = gain(batch(1, None), batch(2, 0.2), batch(4, 0.4))
    filled.store.engines.add("gpu-1", "http://a:1", "default", FACTS | {"live_gamma": True, "gain": said})
    words = "drafts nothing yet: pays from 0.20 accepted, now 0.11"
    assert shown(osd, "gpu-1")["drafting"] == words, "three versions tell"
    for requests, after in ((6, 0.05), (12, 0.1), (24, 0.15)):  # 12, 24 and 48 answers in all
        learn(filled.store, requests, after)
    assert shown(osd, "gpu-1")["drafting"] == f"{words}; about 48 answers to go"
    rows = json.loads(osd("stats", "gain", "--by", "engine", "--json").stdout)
    assert rows[0]["verdict"] == f"{words}; about 48 answers to go"
    learn(filled.store, 10, 0.12)
    assert shown(osd, "gpu-1")["drafting"] == words, "they fall"
    assert shown(osd, "gpu-1")["restart"] is None, "it changes lengths itself"


@pytest.mark.parametrize("kind", ["vllm", "vllm-proxied"])
def test_where_a_length_is_fixed_a_start_without_a_draft_is_told_of(osd: Osd, filled: Filled, kind: str) -> None:
    filled.store.engines.add("dp", "http://a:1", "default", FACTS | {"kind": kind})
    assert shown(osd, "dp")["restart"] is None, "the gate has measured nothing"
    learn(filled.store, 6, 0.5)
    told = "1.94 tokens a step at the gate's acceptance 0.50"
    without = "`vllm serve '/models/the target'`"
    unknown = f"the draft brings {told}, and pays where a step takes less than 1.94 × one without, "
    assert shown(osd, "dp")["restart"] == f"{unknown}which was not measured; without it: {without}"
    live = FACTS | {"live_gamma": True}
    filled.store.engines.add("gpu-1", "http://b:1", "default", live | {"gain": gain(batch(1, 0.3), batch(8, 0.4))})
    loses = "0.23 of what is drafted is accepted, and engines beside it need 0.30"
    listed = osd("engines", "list")
    assert f"dp, another start: faster without the draft, which brings {told}: {loses}: {without}" in listed.stderr
    assert "gpu-1" in listed.stdout and "gpu-1" not in listed.stderr
    filled.store.engines.add("gpu-1", "http://b:1", "default", live | {"gain": gain(batch(1, 0.2), batch(8, 0.4))})
    assert shown(osd, "dp")["restart"] is None, "it pays for some"


def test_a_version_that_a_stock_vllm_lacks_is_worth_a_restart(osd: Osd, filled: Filled) -> None:
    filled.store.engines.add("stock", "http://a:1", "default", FACTS | {"kind": "vllm-proxied"})
    filled.store.versions.mark_serving(filled.child, "stock")
    newer = learn(filled.store, 6, 0.5)
    said = shown(osd, "stock")["restart"]
    assert said.startswith(f"worth it, {newer} brings 1.94 tokens a step at the gate's acceptance 0.50: ")
    *_, export, _, command, _ = said.split("`")
    assert shlex.split(export) == ["osd", "drafts", "export", newer, "./draft"]
    *words, config = shlex.split(command)
    assert words == ["vllm", "serve", "/models/the target", "--speculative-config"]
    assert json.loads(config) == {"method": "draft_model", "model": "./draft", "num_speculative_tokens": 4}
    filled.store.versions.mark_serving(newer, "stock")
    assert "without it" in shown(osd, "stock")["restart"]


@pytest.mark.parametrize(("needed", "worth"), [
    (None, "worth it where a step with the draft takes less than 1.94 × one without (not measured here)"),
    (0.2, "worth it"), (0.3, "not worth it yet (0.23 of what is drafted, 0.30 needed)"),
])  # fmt: skip
def test_what_a_draft_would_bring_is_told_of_a_vllm_without_one(
    osd: Osd, filled: Filled, needed: float | None, worth: str
) -> None:
    filled.store.engines.add("plain", "http://a:1", "default", FACTS | {"method": "", "gamma": 0})
    if needed:
        facts = FACTS | {"live_gamma": True, "gain": gain(batch(1, needed))}
        filled.store.engines.add("gpu-1", "http://b:1", "default", facts)
    newer = learn(filled.store, 6, 0.5)
    said = shown(osd, "plain")["restart"]
    assert said.startswith(f"{worth}, {newer} brings 1.94 tokens a step at the gate's acceptance 0.50: ")
    config = json.loads(shlex.split(said.split("`")[3])[-1])
    assert config == {"method": "draft_model", "model": "./draft", "num_speculative_tokens": 4}
