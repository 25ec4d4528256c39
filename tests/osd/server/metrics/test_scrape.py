"""The exporter, scraped over HTTP and read with prometheus_client's own parser."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from osd.engine.session import serving
from osd.models.pair import load_pair
from osd.prompts import encode
from osd.server.metrics import families
from osd.server.metrics.exposition import exporting
from osd.server.metrics.store import StoreCollector
from osd.server.process.engine_server import EngineCollector
from osd.server.start import SHIPPED
from storage.access.processes import ServingProcess
from storage.errors import BadSetting
from storage.records import Request, now
from storage.settings import load_settings
from storage.store import Store, open_store
from tests.storage.make import outcome

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def read(url: str) -> Samples:
    with urllib.request.urlopen(url, timeout=20) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        text = answer.read().decode()
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in found}


def scrape(*collectors: Any) -> Samples:
    with exporting(collectors, "127.0.0.1", 0) as port:
        return read(f"http://127.0.0.1:{port}/metrics")


def test_vllm_s_four_names_and_what_they_count(store: Store) -> None:
    found = scrape(StoreCollector(store, "pair"))
    of = (("engine", "0"), ("model_name", "pair"))
    assert found[("vllm:spec_decode_num_drafts_total", of)] == 20
    assert found[("vllm:spec_decode_num_draft_tokens_total", of)] == 80
    assert found[("vllm:spec_decode_num_accepted_tokens_total", of)] == 44
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    by_place = [found[(name, (*of, ("position", str(place))))] for place in range(4)]
    assert by_place == [16, 12, 10, 6]
    assert sum(by_place) == 44


def test_attached_engines(store: Store) -> None:
    root = store.versions.current("default").id
    store.engines.add("gpu-1", "http://gpu-1:8000", "default", {})
    store.engines.add("gpu-2", "http://gpu-2:8000", "default", {})
    store.versions.mark_serving(root, "gpu-1")
    store.servers.beat(ServingProcess("gpu-1", "gpu-1", 0, "http://gpu-1:8000", now(), now(), now() + 60))
    store.outcomes.add([outcome(draft_version=root, drafted=8, accepted=5, controller="vllm")], "gpu-1")
    found = scrape(StoreCollector(store))
    one, two = (("engine", "gpu-1"),), (("engine", "gpu-2"),)
    assert [found[("osd_attached_drafted_tokens_total", of)] for of in (one, two)] == [8, 0]
    assert [found[("osd_attached_accepted_tokens_total", of)] for of in (one, two)] == [5, 0]
    draft = ("draft", "default")
    assert [found[("osd_attached_up", (draft, *of))] for of in (one, two)] == [1, 0]
    assert found[("osd_attached_version_number", (draft, *one))] == 0
    assert ("osd_attached_version_number", (draft, *two)) not in found


def test_osd_s_own(store: Store) -> None:
    found = scrape(StoreCollector(store))
    of, draft = (("draft", "default"), ("route", "default")), (("draft", "default"),)
    assert found[("osd_requests_total", of)] == 2
    assert found[("osd_verify_seconds_total", of)] == 0.005
    assert found[("osd_place_refused_total", (("position", "0"),))] == 4
    assert found[("osd_training_runs_total", (*draft, ("state", "rejected")))] == 1
    assert found[("osd_training_runs_total", (*draft, ("state", "failed")))] == 0
    assert found[("osd_training_positions_total", draft)] == 30
    assert found[("osd_draft_version_number", draft)] == 0
    assert found[("osd_servers", draft)] == 1
    assert found[("osd_replay_requests", (("route", "default"),))] == 5
    assert found[("osd_replay_waiting_requests", (("route", "default"),))] == 2
    assert found[("osd_store_up", ())] == 1
    assert 0 < found[("osd_store_free_bytes", ())] <= found[("osd_store_size_bytes", ())]


def test_every_declared_metric_is_there_and_no_other(store: Store) -> None:
    store.engines.add("gpu-1", "http://gpu-1:8000", "default", {"gain": {"gain": 1.2, "batches": [{"length": 3}]}})
    store.versions.mark_serving(store.versions.current("default").id, "gpu-1")
    shown = {name for name, _ in scrape(StoreCollector(store))}
    assert shown == {metric.shown for metric in families.STORE}


def test_no_tenant_and_no_version_is_told(store: Store) -> None:
    with exporting([StoreCollector(store)], "127.0.0.1", 0) as port:
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20).read().decode()
    assert "secret" not in text
    assert "default-000000" not in text


def test_labels_of_routes_are_bounded_and_stay(store: Store) -> None:
    collector = StoreCollector(store, routes=3)
    store.outcomes.add([outcome(route=f"r{n}") for n in range(4, 9)], "w")
    first = {dict(labels)["route"] for name, labels in scrape(collector) if name == "osd_requests_total"}
    store.outcomes.add([outcome(route=f"r{n}") for n in range(9)], "w")
    found = scrape(collector)
    later = {dict(labels)["route"]: value for (name, labels), value in found.items() if name == "osd_requests_total"}
    assert later.keys() == {"default", "r4", "r5", "other"}
    assert first == later.keys()
    assert sum(later.values()) == 2 + 5 + 9


def test_a_store_that_is_away_is_said_and_does_not_end_the_exporter(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "data" / "osd.db"
    with exporting([StoreCollector(store)], "127.0.0.1", 0) as port:
        store.close()
        file.rename(file.with_suffix(".away"))
        (tmp_path / "data" / "osd.db").write_bytes(b"not a database, but long enough to look like a file" * 100)
        assert read(f"http://127.0.0.1:{port}/metrics") == {("osd_store_up", ()): 0.0}
        store.close()
        file.with_suffix(".away").rename(file)
        assert read(f"http://127.0.0.1:{port}/metrics")[("osd_store_up", ())] == 1


def test_a_real_engine_beside_the_store(tmp_path: Path) -> None:
    """What the exporters say is what the completions say, place by place."""
    settings = load_settings(storage={"directory": tmp_path / "data"}, serve={"max_batch": 2}, gamma={"rule": "fixed"})
    pair = load_pair(SHIPPED / "target", SHIPPED / "draft")
    asked = [Request(tuple(encode(pair.tokenizer, text)), 24) for text in ("How many days has a year?", "Name a fish.")]
    with open_store(settings) as store, serving(pair, settings, store) as engine:
        rounds = [round for completion in engine.run(asked) for round in completion.rounds]
        assert engine.recorder is not None and engine.recorder.wait(20)
        found = scrape(StoreCollector(store), EngineCollector(engine))
        assert {metric.shown for metric in families.ENGINE} <= {name for name, _ in found}
        assert found[("osd_engine_steps_total", ())] == engine.stats.steps > 0
        assert found[("osd_recorder_dropped_positions_total", ())] == 0
        assert found[("osd_recorder_seconds_total", ())] > 0
        assert found[("vllm:kv_cache_usage_perc", (("engine", "0"), ("model_name", "osd")))] == 0, "all have ended"
        engine.submit(asked[0])
        engine.step()
        found |= scrape(EngineCollector(engine))
        engine.cancel(asked[0].id)
    held, most = found[("osd_kv_cache_held_blocks", ())], engine.prefill_queue.blocks.most
    assert held >= 1 and found[("vllm:kv_cache_usage_perc", (("engine", "0"), ("model_name", "osd")))] == held / most
    (config,) = (dict(labels) for name, labels in found if name == "vllm:cache_config_info")
    assert config == {"engine": "0", "block_size": "32", "num_gpu_blocks": str(most)}
    of = (("engine", "0"), ("model_name", "osd"))
    assert found[("vllm:spec_decode_num_drafts_total", of)] == sum(round.drafted > 0 for round in rounds) > 0
    assert found[("vllm:spec_decode_num_draft_tokens_total", of)] == sum(round.drafted for round in rounds)
    for (name, labels), value in found.items():
        if name == "vllm:spec_decode_num_accepted_tokens_per_pos_total":
            assert value == sum(round.judged_right > int(dict(labels)["position"]) for round in rounds)


def test_only_this_machine_and_only_a_free_port(store: Store) -> None:
    taken = exporting([StoreCollector(store)], "127.0.0.1", 0)
    with taken as port, pytest.raises(BadSetting, match=str(port)), exporting([], "127.0.0.1", port):
        pass
    with pytest.raises(BadSetting, match=r"nowhere\.invalid"), exporting([], "nowhere.invalid", 0):
        pass


def test_the_command_serves_until_it_is_stopped(store: Store, tmp_path: Path) -> None:
    surroundings = {**os.environ, "OSD_STORAGE__DIRECTORY": str(tmp_path / "data")}
    command = [sys.executable, "-m", "osd.cli.main", "metrics", "--port", "0"]
    with subprocess.Popen(command, env=surroundings, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        address = re.search(r"http://127\.0\.0\.1:\d+/metrics", process.stderr.readline())
        assert address is not None
        assert ("osd_store_up", ()) in read(address[0])
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 143
