"""What the plugin relies on in vLLM is there in each version that is named here, by its own sources; what is not
is said by its name.

A wheel is downloaded without its dependencies once, and kept. Where it cannot be had the test is skipped.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from platformdirs import user_cache_path

from osd.attached.vllm.plugin.osd_vllm.needs import HARVEST, LIVE_GAMMA, NEEDS, PUBLISH, lacking
from tests.support.vllm_sources import write_sources

SERVED = {
    "0.32.0": {"medusa", "eagle", "eagle3", "mtp"},
    "0.33.0": {"eagle", "eagle3", "mtp"},
}  # fmt: skip
"""vLLM's versions, and the kinds of osd's feature drafts that each serves. Another version is another line."""
FILES = {"medusa": "medusa.py", "eagle": "llama_eagle.py", "eagle3": "llama_eagle3.py", "mtp": "mimo_mtp.py"}
CACHE = user_cache_path("osd") / "wheels"


def sources(version: str) -> Path:
    """The folder of a version's sources."""
    folder = CACHE / f"vllm-{version}" / "vllm"
    if not folder.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", f"vllm=={version}", "--no-deps", "-q", "-d", str(CACHE)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        wheels = sorted(CACHE.glob(f"vllm-{version}-*.whl"))
        if done.returncode or not wheels:
            pytest.skip(f"the wheel of vLLM {version} cannot be had: {done.stderr.strip()[-200:]}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            wheel.extractall(folder.parent, [name for name in wheel.namelist() if name.endswith(".py")])
        wheels[0].unlink()
    return folder


@pytest.mark.long
@pytest.mark.parametrize("version", SERVED)
def test_a_version_has_all_that_the_plugin_relies_on(version: str) -> None:
    root = sources(version)
    assert {use: lacking(use, root) for use in NEEDS} == dict.fromkeys(NEEDS)
    models = root / "model_executor" / "models"
    assert {kind for kind, file in FILES.items() if (models / file).is_file()} == SERVED[version]


@pytest.mark.parametrize(
    ("gone", "use", "said"),
    [
        ("dynamic_sd_lookup", LIVE_GAMMA, "Scheduler has no dynamic_sd_lookup"),
        ("num_spec_tokens_to_schedule", LIVE_GAMMA, "AsyncScheduler has no num_spec_tokens_to_schedule"),
        ("collective_rpc", PUBLISH, "v1/engine/async_llm.py has no AsyncLLM.collective_rpc"),
        ("init_state", HARVEST, "plugins/endpoint_plugins/interface.py has no EndpointPlugin.init_state"),
        ("cache_salt", HARVEST, "CompletionRequest has no cache_salt"),
        ("initialize_layerwise_reload", PUBLISH, "no initialize_layerwise_reload"),
    ],
)
def test_what_a_vllm_lacks_is_named(gone: str, use: str, said: str, tmp_path: Path) -> None:
    root = write_sources(tmp_path / "without", gone)
    assert said in str(lacking(use, root))
    assert {use: lacking(use, write_sources(tmp_path / "whole")) for use in NEEDS} == dict.fromkeys(NEEDS)


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    root = write_sources(tmp_path)
    (root / "v1" / "core" / "sched" / "output.py").unlink()
    assert lacking(LIVE_GAMMA, root) == "v1/core/sched/output.py has no SchedulerOutput"
