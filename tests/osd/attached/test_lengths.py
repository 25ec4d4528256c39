"""Draft lengths that vLLM's scheduler takes from the plugin: a file's, else what is measured; and how that is told."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from osd.attached.attach import Attachment
from osd.attached.overview import verdict
from osd.attached.vllm.engine import PAUSED, VllmEngine
from osd.attached.vllm.plugin.osd_vllm.lengths import LiveLengths
from osd.attached.vllm.plugin.osd_vllm.options import draft_file, gain_file
from osd.cli.main import app
from osd.server.metrics.store import StoreCollector
from storage import records
from storage.settings import Settings
from storage.sql.tables import RunRow
from storage.store import Store
from tests.osd.attached.conftest import Running
from tests.support.fake_vllm import TOKEN, FakeEngine, make_app
from tests.support.waiting import until

NAME = "osd_vllm.scheduler.OsdScheduler"


def step(rows: int, drafted: int, scheduled: int | None = None, ended: int = 0) -> Any:
    """What vLLM's scheduler hands out: every row verifies ``drafted`` tokens; of earlier rows so many have ended."""
    names = [f"r{i}" for i in range(ended, ended + rows)]
    return SimpleNamespace(
        finished_req_ids={f"r{i}" for i in range(ended)},
        num_scheduled_tokens=dict.fromkeys(names, 1 + drafted if scheduled is None else scheduled),
        scheduled_spec_decode_tokens={name: [7] * drafted for name in names if drafted},
        num_spec_tokens_to_schedule=drafted,
    )


class Asked(SimpleNamespace):
    """A request that comes, with vLLM's names for what its prefix cache goes by."""

    def __init__(self, name: str, salt: str | None = None, *, resumable: bool = False) -> None:
        asked = SimpleNamespace(logprobs=20 if name.endswith("1") else None)
        super().__init__(request_id=name, cache_salt=salt, resumable=resumable, block_hashes=[], sampling_params=asked)
        self.update_block_hashes()

    def update_block_hashes(self) -> None:
        """Hash its blocks, as vLLM does once more for what was emitted."""
        self.block_hashes.append(hash((self.cache_salt, len(self.block_hashes))))


def come(lengths: LiveLengths, step: Any) -> None:
    """Let the requests of a step come."""
    for name in step.num_scheduled_tokens:
        lengths.admit(Asked(name))


def done(step: Any, emitted: int) -> Any:
    """What comes back of it."""
    rows = list(step.num_scheduled_tokens)
    return SimpleNamespace(
        req_id_to_index={row: i for i, row in enumerate(rows)}, sampled_token_ids=[[5] * emitted for _ in rows]
    )


@dataclass
class StepClock:
    """Time in which a step takes 20 ms, and half as much more for each drafted token."""

    now: float = 0.0

    def perf_counter(self) -> float:
        return self.now

    monotonic = time = perf_counter

    def step(self, drafted: int) -> None:
        self.now += 0.02 * (1 + drafted / 2)


def go(
    lengths: LiveLengths, steps: int, rows: int = 2, *, accepted: bool = True, rested: list[bool] | None = None,
    clock: StepClock | None = None,
) -> set[int]:  # fmt: skip
    """Take some steps in which every drafted token is accepted, or none; an answer takes 40. Return the lengths that
    were taken; ``rested`` gets whether the draft rested in each step."""
    taken = set()
    for number in range(steps):
        lengths.look()
        drafted = lengths[rows]
        taken.add(drafted)
        now = step(rows, drafted, ended=number // 40 * rows)
        if number % 40 == 0:
            come(lengths, now)
        if not number:
            now.finished_req_ids |= lengths._rest._unread - {*now.num_scheduled_tokens}  # those of before
        lengths.begin(now)
        if rested is not None:
            rested.append(now.osd_rests)
        if clock:
            clock.step(drafted)
        lengths.note(now, done(now, drafted + 1 if accepted else 1))
    return taken


def test_without_a_file_it_begins_with_nothing_and_drafts_once_that_is_proven(tmp_path: Path) -> None:
    lengths = LiveLengths(tmp_path / "gamma", 4, 3)
    assert go(lengths, 20) == {0}
    assert {0, 3} <= go(lengths, 4000)
    assert lengths[2] > 0, "all is accepted, and steps cost nothing"


def test_a_draft_that_is_not_used_rests_and_wakes_to_be_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = StepClock()
    monkeypatch.setattr("osd.attached.vllm.plugin.osd_vllm.lengths.time", clock)
    lengths, rested = LiveLengths(tmp_path / "gamma", 4, 3), list[bool]()
    go(lengths, 12000, accepted=False, rested=rested, clock=clock)
    assert 0.9 < sum(rested) / len(rested) < 1.0, "awake for a small share"
    assert sum(rested[:600]) > 500, "from the beginning on"
    wakes = [at for at in range(1, len(rested)) if rested[at - 1] and not rested[at]]
    assert len(wakes) >= 3, "again and again"
    draft_file(tmp_path / "gamma").write_text("another one")
    assert {0, 3} <= go(lengths, 3000, clock=clock) and lengths[2] > 0, "a better draft is tried at once"


def test_nothing_is_tried_on_requests_whose_tokens_the_draft_has_not_read(tmp_path: Path) -> None:
    lengths = LiveLengths(tmp_path / "gamma", 4, 3)
    lengths._rest.wake()
    come(lengths, now := step(2, 0))
    lengths.begin(now)
    assert not now.osd_rests and lengths._rest.ready
    lengths._rest.rests = True
    lengths.begin(decoding := step(2, 0))
    assert not decoding.osd_rests, "their blocks may be shared with requests that are drafted for"
    come(lengths, prefill := step(2, 0, scheduled=7, ended=2))
    lengths.begin(prefill)
    lengths._rest.wake()
    assert prefill.osd_rests and not lengths._rest.ready and lengths[2] == 0
    lengths.begin(step(2, 0, ended=4))
    assert lengths._rest.ready


@pytest.mark.parametrize("salt", [None, "the client's"])
def test_an_unread_request_shares_the_prefix_cache_with_its_like_alone(tmp_path: Path, salt: str | None) -> None:
    lengths = LiveLengths(tmp_path / "gamma", 4, 3)
    unread = [Asked("a", salt), Asked("b", salt)]
    session = Asked("goes on", salt, resumable=True)
    for one in (*unread, session):
        lengths.admit(one)
    lengths._rest.wake()
    lengths.admit(read := Asked("c", salt))
    assert unread[0].block_hashes == unread[1].block_hashes != read.block_hashes == session.block_hashes
    assert unread[0].cache_salt.startswith(salt or "osd") and len(unread[0].block_hashes) == 1


def test_a_paused_draft_rests(tmp_path: Path) -> None:
    (tmp_path / "gamma").write_text(json.dumps(PAUSED))
    lengths, rested = LiveLengths(tmp_path / "gamma", 4, 3), list[bool]()
    assert go(lengths, 50, rested=rested) == {0} and all(rested[1:])


def test_a_file_of_lengths_holds_until_it_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("osd.attached.vllm.plugin.osd_vllm.lengths.POLL", 0.0)
    path = tmp_path / "gamma"
    lengths = LiveLengths(path, 4, 3)
    path.write_text(json.dumps([[1, 2, 2], [3, 4, 0]]))
    assert go(lengths, 200) == {2} and lengths[4] == 0 and lengths[0] == 0
    path.write_text("not json")
    assert go(lengths, 2) == {2}, "what cannot be read changes nothing"
    path.unlink()
    assert go(lengths, 2) != {2}


def test_prefills_and_mixed_steps_are_not_measured_and_faults_cost_nothing(tmp_path: Path) -> None:
    lengths = LiveLengths(tmp_path / "gamma", 4, 3)
    for scheduled in (64, 2):
        now = step(2, 0, scheduled)
        lengths.begin(now)
        lengths.note(now, done(now, 1))
    assert lengths.meter.told()["batches"] == [] and lengths.meter.told()["gain"] is None
    lengths.note(object(), object())
    assert go(lengths, 3) == {0}


def test_what_is_measured_is_told_beside_the_file(tmp_path: Path) -> None:
    lengths = LiveLengths(tmp_path / "gamma", 4, 3)
    go(lengths, 50)
    lengths._tell()
    told = json.loads(gain_file(tmp_path / "gamma").read_text())
    assert told["gain"] == 1.0 and not told["fixed"] and [batch["length"] for batch in told["batches"]] == [0]
    (tmp_path / "gamma").write_text("[[1, 4, 3]]")
    lengths._read()
    lengths._tell()
    told = json.loads(gain_file(tmp_path / "gamma").read_text())
    assert told["gain"] is None and told["fixed"] and [batch["length"] for batch in told["batches"]] == [3]
    assert verdict(told) == "drafts with lengths that were set"


@pytest.mark.parametrize(
    ("pays_from", "accepted", "said"),
    [
        (0.4, 0.11, "drafts nothing yet: pays from 0.40 accepted, now 0.11"),
        (0.33, 0.34, "drafts nothing yet: it would pay from 0.33 accepted, now 0.34, which is not proven yet"),
        (1.32, 0.11, "drafts nothing: on this machine nothing that is accepted would pay for drafting; now 0.11"),
    ],
)  # fmt: skip
def test_words_say_what_keeps_it_from_drafting(pays_from: float, accepted: float, said: str) -> None:
    batch = {"length": 0, "best": 2, "break_even": pays_from}
    assert verdict({"fixed": False, "gain": 1.0, "accepted": accepted, "batches": [batch]}) == said


def trained(store: Store, seconds: float) -> None:
    """Note two runs that ended just now, on this machine and on another one, and the processor time that each took."""
    parent = store.versions.current("sql").id
    with store.db.session() as session:
        for host in (socket.gethostname(), "elsewhere"):
            session.add(
                RunRow(
                    id=host, draft="sql", holder=f"{host}:7:x", state="rejected", started_at=0.0, heartbeat_at=0.0,
                    lease_until=0.0, parent=parent, request_ids=[], replayed=[], tenants=[], settings={},
                    finished_at=records.now(), version=None, result={"processor_seconds": seconds},
                )
            )  # fmt: skip


def osd(settings: Settings, *arguments: str) -> Any:
    """The command, over the store of the settings."""
    told = {"OSD_STORAGE__DIRECTORY": str(settings.storage.data_directory()), "COLUMNS": "300"}
    return CliRunner().invoke(app, arguments, env=told | {"OSD_ATTACH__TOKEN": "env:OSD_VLLM_TOKEN"})


@pytest.fixture
def live(tmp_path: Path, fake: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A fake vLLM with osd's scheduler class."""
    monkeypatch.setenv("OSD_VLLM_GAMMA", str(tmp_path / "gamma"))
    running = Running(make_app(fake, scheduler=NAME))
    yield running
    running.stop()


def test_lengths_are_set_and_left_to_the_measure_over_http(live: Running, tmp_path: Path) -> None:
    engine = VllmEngine(live.url, TOKEN)
    assert engine.probe().live_gamma and engine.gain() is None
    engine.set_gamma(PAUSED)
    assert json.loads((tmp_path / "gamma").read_text()) == [[1, 1 << 20, 0]]
    engine.set_gamma(None)
    engine.set_gamma(None)
    assert not (tmp_path / "gamma").exists()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"data_parallel_size": 2}, "data parallel"), ({"method": "suffix"}, "'suffix'"),
        ({"method": "ngram_gpu"}, "'ngram_gpu'"), ({"method": "medusa", "worker_extension_cls": ""}, "OsdWorker"),
        ({"method": "medusa"}, None), ({"method": "eagle3"}, None),
    ],
)  # fmt: skip
def test_lengths_that_vllm_asserts_stay_as_they_are(
    live: Running, fake: FakeEngine, changed: dict[str, Any], said: str | None
) -> None:
    """vLLM's process would die of another one."""
    for name, value in changed.items():
        of = fake.vllm_config.speculative_config if name == "method" else fake.vllm_config.parallel_config
        setattr(of, name, value)
    answer = httpx.put(f"{live.url}/v1/osd/gamma", json={"schedule": [[1, 4, 0]]}, headers={"X-OSD-Token": TOKEN})
    assert answer.status_code == (409 if said else 200) and (said or "") in answer.text


def test_what_drafting_gains_is_kept_listed_and_exported(
    live: Running, tmp_path: Path, store: Store, settings: Settings, folders: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("osd.attached.follower.GAIN_LOOKS", 0)
    lengths = LiveLengths(tmp_path / "gamma", 16, 3, top_k=20)
    go(lengths, 4000)
    lengths._cost.share = lambda: 0.25  # type: ignore[method-assign]
    lengths._tell()
    engine = VllmEngine(live.url, TOKEN)
    store.versions.register_root("sql", folders["draft"], target=engine.probe().digest)
    trained(store, (os.cpu_count() or 1) * 360.0)
    store.engines.add("gpu-1", live.url, "sql", {})
    attachment = Attachment(store, settings, lambda *_: VllmEngine(live.url, TOKEN))
    attachment.start()
    until(lambda: store.engines.get("gpu-1").facts.get("gain"), "it has said what it gains")
    exported = {family.name: family.samples for family in StoreCollector(store).collect()}
    attachment.close()
    assert [sample.value for name in ("up", "drafting") for sample in exported[f"osd_attached_{name}"]] == [1, 1]
    said = engine.gain()
    assert said is not None and said.gain is not None and said.gain > 1
    assert f"drafts: {said.gain:.2f} × without" in osd(settings, "engines", "list").stdout.replace("\n", " ")
    rows = json.loads(osd(settings, "stats", "gain", "--by", "engine", "--json").stdout)
    assert rows[0]["gain"] == pytest.approx(said.gain) and rows[1]["rows"] == 2
    assert rows[0]["harvesting"] == pytest.approx(0.25, abs=0.01) and rows[0]["learning"] == pytest.approx(0.1)
    assert rows[0]["tpot_ms"] == pytest.approx(2000 / rows[0]["rate"]), "two requests share the rate"
    assert rows[0]["tpot_without_ms"] == pytest.approx(rows[0]["tpot_ms"] * said.gain)
    assert rows[0]["net"] == pytest.approx(said.gain * (1 - rows[0]["harvesting"]) * 0.9)


def test_an_engine_is_paused_and_resumed(
    live: Running, tmp_path: Path, store: Store, settings: Settings, folders: dict[str, Path]
) -> None:
    store.versions.register_root("sql", folders["draft"], target="t")
    store.engines.add("gpu-1", live.url, "sql", {})
    paused = osd(settings, "engines", "pause", "gpu-1")
    assert paused.exit_code == 0, paused.output
    assert json.loads((tmp_path / "gamma").read_text()) == [list(PAUSED[0])]
    assert osd(settings, "engines", "resume", "gpu-1").exit_code == 0 and not (tmp_path / "gamma").exists()
    assert [line.action for line in store.trail.history(limit=2)] == ["engines resume", "engines pause"]
