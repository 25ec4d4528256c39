"""The systemd unit and the Kubernetes manifest, as far as neither has to run: shape, settings, commands."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from storage.errors import BadSetting, VocabularyMismatch
from storage.settings import Settings, load_settings
from tests.architecture.test_compose import COMPOSE, require_command

DEPLOY = Path(__file__).resolve().parents[2] / "docs" / "deploy"
UNIT, MANIFEST = DEPLOY / "osd-trainer.service", DEPLOY / "kubernetes.yaml"
OBJECTS: list[dict[str, Any]] = list(yaml.safe_load_all(MANIFEST.read_text()))
PODS = [one for one in OBJECTS if "template" in one.get("spec", {})]
KUBERNETES = ("1.30", "1.37")


def settings_of(variables: dict[str, str], toml: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """What osd reads from a file and variables. Raises BadSetting for what it does not know."""
    (folder / "osd.toml").write_text(toml)
    for name, value in variables.items():
        monkeypatch.setenv(name, str(folder / "osd.toml") if name == "OSD_CONFIG" else value)
    return load_settings()


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    here = tmp_path / UNIT.name  # where the command is, which systemd asks for
    here.write_text(UNIT.read_text().replace("/opt/osd/bin/osd", sys.executable))
    said = subprocess.run(["systemd-analyze", "verify", here], capture_output=True, text=True, timeout=60)
    assert (said.returncode, said.stdout + said.stderr) == (0, "")
    here.write_text(here.read_text().replace("TimeoutStopSec", "TimeoutStopSecs"))
    said = subprocess.run(["systemd-analyze", "verify", here], capture_output=True, text=True, timeout=60)
    assert "TimeoutStopSecs" in said.stderr, "it looks at what is written"


def test_the_units_command_and_settings_are_osds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = UNIT.read_text()
    [(command,)] = [re.findall(r"^ExecStart=/opt/osd/bin/osd (.*)$", unit, re.MULTILINE)]
    require_command(command.split())
    variables = dict(word.split("=", 1) for word in re.findall(r"^Environment=(.*)$", unit, re.MULTILINE)[0].split())
    settings = settings_of(variables, "", tmp_path, monkeypatch)
    assert f"WorkingDirectory={settings.storage.data_directory()}\n" in unit
    assert f"RestartPreventExitStatus={BadSetting.exit_code} {VocabularyMismatch.exit_code}\n" in unit


@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_takes_the_manifest(version: str) -> None:
    kubernetes = pytest.importorskip("kubernetes_validate")
    for one in OBJECTS:
        kubernetes.validate(one, version, strict=True)
    with pytest.raises(kubernetes.ValidationError):
        kubernetes.validate({**OBJECTS[-1], "spec": {"replica": 1}}, version, strict=True)


def test_what_pods_are_told_is_what_osd_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = OBJECTS[0]
    devices = {}
    for one in PODS:
        container = one["spec"]["template"]["spec"]["containers"][0]
        if "command" not in container:
            require_command(container["args"])
        variables = {each["name"]: each["value"] for each in container.get("env", ())}
        settings = settings_of(variables, config["data"]["osd.toml"], tmp_path, monkeypatch)
        devices[one["metadata"]["name"]] = settings.trainer.device
    assert {one["metadata"]["namespace"] for one in OBJECTS} == {"osd"}
    assert (devices["osd-trainer-cpu"], devices["osd-trainer-gpu"], devices["osd-server"]) == ("cpu", "cuda", "auto")


def test_what_the_vllm_is_told_is_what_compose_tells_it() -> None:
    """The flags of the plugin, and the commands of what stands beside it."""
    (pod,) = [one for one in PODS if one["metadata"]["name"] == "osd-vllm"]
    attach, vllm = pod["spec"]["template"]["spec"]["containers"]
    told = COMPOSE["compose.vllm.yaml"]["services"]["vllm"]
    flags = lambda words: {word for word in words if word[:2] == "--" and "speculative-config" not in word}  # noqa: E731
    assert flags(vllm["args"]) == flags(told["command"])
    assert {each["name"] for each in vllm["env"]} == set(told["environment"])
    for command in re.findall(r"osd ((?:engines add|attach)[^;]*)", attach["args"][0]):
        require_command([word for word in command.split() if "://" not in word])


def test_pods_select_mount_and_end_as_they_are_meant_to() -> None:
    names = {one["metadata"]["name"] for one in OBJECTS}
    for one in PODS[1:]:
        pod, labels = one["spec"]["template"], one["spec"]["selector"]["matchLabels"]
        assert labels == pod["metadata"]["labels"] == one["metadata"]["labels"]
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        mounted = [mount["name"] for container in pod["spec"]["containers"] for mount in container["volumeMounts"]]
        assert set(mounted) == set(volumes)
        assert volumes["config"]["configMap"]["name"] in names
        assert pod["spec"]["terminationGracePeriodSeconds"] >= 60


def test_services_and_budgets_are_of_pods_that_say_whether_they_are_well() -> None:
    labels = {one["metadata"]["name"]: one["spec"]["selector"]["matchLabels"] for one in PODS[1:]}
    chosen = [one for one in OBJECTS if one["kind"] in ("Service", "PodDisruptionBudget")]
    assert len(chosen) == 4
    for one in chosen:
        selector = one["spec"]["selector"]
        assert selector.get("matchLabels", selector) == labels[one["metadata"]["name"]]
    for pod in (one for one in PODS if one["metadata"]["name"] in {one["metadata"]["name"] for one in chosen}):
        serving = pod["spec"]["template"]["spec"]["containers"][-1]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert serving[probe]["httpGet"]["port"] == serving["ports"][0]["name"]
