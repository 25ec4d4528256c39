"""``trainer.device = "spare"``: which GPU is chosen, by a stand-in for NVML."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from osd.engine.stats import Beacon, loads
from storage.errors import BadSetting
from storage.settings import TrainerSettings
from tests.support.fake_nvml import FakeGpu, FakeNvml
from tests.trainer.processes import wait_for
from trainer import devices
from trainer.devices import SpareGpus, training_device, training_places
from trainer.gpus import visible_gpus
from trainer.lease import RunStopped
from trainer.worker import idle_capacity
from trainer.worker.idle_capacity import IdleCapacity

SPARE = TrainerSettings(device="spare")
IDLE = ("aaaa-1", "aabb-2", "cccc-3")

Install = Callable[..., FakeNvml]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a stand-in for NVML over GPUs that torch seems to see; a process that has chosen none yet."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def install(*gpus: FakeGpu, slices: tuple[FakeGpu, ...] = (), broken: bool = False) -> FakeNvml:
        fake, process = FakeNvml(*gpus, slices=slices, broken=broken), SpareGpus()
        monkeypatch.setitem(sys.modules, "pynvml", fake)
        for module in (devices, idle_capacity):
            monkeypatch.setattr(module, "SPARE_GPUS", process)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(devices, "cuda_uuids", lambda: [gpu.uuid.removeprefix("GPU-") for gpu in gpus])
        return fake

    return install


def cards(*busy: int) -> list[FakeGpu]:
    return [FakeGpu(f"GPU-{uuid}", percent) for uuid, percent in zip(IDLE, busy, strict=False)]


@pytest.mark.parametrize(
    ("listed", "found"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("2,0", [2, 0]),
        (" 1 , 2 ", [1, 2]),
        ("0,7,1", [0]),
        ("0,-1,1", [0]),
        ("1,1", []),
        ("GPU-cccc-3,GPU-aaaa", [2, 0]),
        ("GPU-aa", []),  # two begin so
        ("2,GPU-aabb", [2, 1]),
        ("MIG-1111,MIG-0000", ["1111"]),
    ],
)
def test_what_cuda_visible_devices_leaves(
    nvml: Install, monkeypatch: pytest.MonkeyPatch, listed: str | None, found: list[int | str]
) -> None:
    nvml(*cards(10, 20, 30), slices=(FakeGpu("MIG-1111", None, 5, 10),))
    if listed is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    gpus = visible_gpus()
    assert [gpu.ordinal for gpu in gpus] == list(range(len(found)))
    assert [gpu.uuid for gpu in gpus] == [each if isinstance(each, str) else IDLE[each] for each in found]
    if found == ["1111"]:
        assert gpus[0].busy is None and gpus[0].used == 0.5


def test_the_least_used_gpu_is_chosen_by_its_place_among_those_that_are_left(
    nvml: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml(*cards(40, 0, 30))
    assert training_device(SPARE) == torch.device("cuda", 1)
    nvml(FakeGpu("GPU-a", 10, 70_000), FakeGpu("GPU-b", 30, 1_000))
    assert training_device(SPARE) == torch.device("cuda", 1), "full counts as busy does"
    nvml(*cards(40, 0, 30))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    monkeypatch.setattr(devices, "cuda_uuids", lambda: [IDLE[2], IDLE[0]])
    assert training_device(SPARE) == torch.device("cuda", 0)


def test_a_process_stays_where_its_models_are_until_that_gpu_is_needed(nvml: Install, tmp_path: Path) -> None:
    fake = nvml(*cards(0, 10, 20))
    spare = IdleCapacity(SPARE, tmp_path)
    assert spare.why_not_begin() is None and training_device(SPARE).index == 0
    fake.gpus[0].busy = 45
    assert spare.why_not_begin() is None and training_device(SPARE).index == 0
    fake.gpus[0].busy = 60
    assert spare.why_not_begin() is None and training_device(SPARE).index == 1
    fake.gpus[1].busy, devices.SPARE_GPUS._computed_at = 99, devices.time.monotonic()
    assert spare.why_not_begin() is None and training_device(SPARE).index == 1, "that was its own run"


def test_where_all_are_busy_or_full_no_run_begins(nvml: Install, tmp_path: Path) -> None:
    nvml(*cards(60, 90, 70))
    assert IdleCapacity(SPARE, tmp_path).why_not_begin() == "the GPU is busy 60% of the time"
    nvml(FakeGpu("GPU-a", 0, 79_000), FakeGpu("GPU-b", 0, 78_000))
    full = SPARE.model_copy(update={"spare_gpu_mb": 4_000})
    assert IdleCapacity(full, tmp_path).why_not_begin() == "2000 MB of the GPU are free"
    full = SPARE.model_copy(update={"spare_gpu_mb": 1_500})
    assert IdleCapacity(full, tmp_path).why_not_begin() is None and training_device(full).index == 1


def test_a_busy_engine_stops_training_on_its_own_gpu_alone(
    nvml: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml(*cards(0, 5))
    spare = IdleCapacity(SPARE, tmp_path)
    load = [(True, 1, 1)]
    engine = Beacon(tmp_path, lambda: load[0], [IDLE[0]])
    wait_for(lambda: loads(tmp_path) and loads(tmp_path)[0].busy > 0.5)
    assert spare.why_not_begin() is None and training_device(SPARE).index == 1
    assert spare.why_not_go_on() is None
    other = Beacon(tmp_path, lambda: load[0], [IDLE[1]])
    wait_for(spare.why_not_go_on)
    assert spare.why_not_begin() == "1 requests wait for a row"
    engine.close()
    monkeypatch.setattr(idle_capacity, "MOVE_SECONDS", 0.1)
    with pytest.raises(RunStopped, match="the next run begins there"):
        wait_for(lambda: spare.why_not_go_on() is None)
    assert spare.why_not_begin() is None and training_device(SPARE).index == 0
    other.close()


def test_an_engine_that_does_not_say_where_it_computes_may_be_anywhere(nvml: Install, tmp_path: Path) -> None:
    nvml(*cards(0, 5))
    engine = Beacon(tmp_path, lambda: (True, 1, 1))
    wait_for(lambda: loads(tmp_path))
    assert IdleCapacity(SPARE, tmp_path).why_not_begin() == "1 requests wait for a row"
    engine.close()


def test_without_gpus_it_is_the_cpu_and_without_nvml_an_error(
    nvml: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nvml(broken=True)
    with pytest.raises(BadSetting, match=r"trainer\.device: NVML does not answer \(Driver Not Loaded\); mend"):
        training_device(SPARE)
    named = TrainerSettings(device="cuda:0", spare=True)
    assert IdleCapacity(named, tmp_path)._gpu() is None, "a GPU that is named is taken without NVML"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(BadSetting, match=r"whose package is missing; .*\[gpu\]"):
        training_device(SPARE)
    nvml()
    with pytest.raises(BadSetting, match="none of the GPUs"):
        training_device(SPARE)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert training_device(SPARE) == torch.device("cpu")


def test_several_processes_take_gpus_of_their_own(nvml: Install, tmp_path: Path) -> None:
    fake = nvml(*cards(60, 20, 10))
    three = SPARE.model_copy(update={"processes": 3})
    spare, sharded = IdleCapacity(three, tmp_path), IdleCapacity(three.model_copy(update={"shard": True}), tmp_path)
    assert spare.why_not_begin() is None and training_places(three) == [IDLE[2], IDLE[1]], "as many as can be had"
    assert sharded.why_not_begin() == "2 of the 3 GPUs that a sharded draft needs can be had"
    fake.gpus[0].busy = 0
    assert sharded.why_not_begin() is None and training_places(three) == [IDLE[2], IDLE[0], IDLE[1]]
    assert training_places(TrainerSettings(device="cuda:1", processes=2)) == [IDLE[1], IDLE[2]]
    with pytest.raises(BadSetting, match="it is 3, and CUDA shows 2 GPUs from cuda:1 on"):
        training_places(TrainerSettings(device="cuda:1", processes=3))
    assert training_places(TrainerSettings(device="cpu", processes=2)) == ["cpu", "cpu"]


def test_a_cuda_that_counts_otherwise_is_refused(nvml: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml(*cards(0, 5))
    monkeypatch.setattr(devices, "cuda_uuids", lambda: [IDLE[1], IDLE[0]])
    with pytest.raises(BadSetting, match=r"CUDA_DEVICE_ORDER: .* PCI_BUS_ID"):
        training_device(SPARE)
