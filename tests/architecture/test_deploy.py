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
from tests.architecture.test_compose import require_command

DEPLOY = Path(__file__).resolve().parents[2] / "docs" / "deploy"
UNIT, MANIFEST = DEPLOY / "osd-trainer.service", DEPLOY / "kubernetes.yaml"
OBJECTS: list[dict[str, Any]] = list(yaml.safe_load_all(MANIFEST.read_text()))
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
    config, *others = OBJECTS
    devices = []
    for one in others:
        (container,) = one["spec"]["template"]["spec"]["containers"]
        require_command(container["args"])
        variables = {each["name"]: each["value"] for each in container.get("env", ())}
        devices.append(settings_of(variables, config["data"]["osd.toml"], tmp_path, monkeypatch).trainer.device)
        assert {one["metadata"]["namespace"]} == {config["metadata"]["namespace"]}
    assert devices == ["auto", "cpu", "cuda"]


def test_pods_select_mount_and_end_as_they_are_meant_to() -> None:
    names = {one["metadata"]["name"] for one in OBJECTS}
    for one in OBJECTS[2:]:
        pod, labels = one["spec"]["template"], one["spec"]["selector"]["matchLabels"]
        assert labels == pod["metadata"]["labels"] == one["metadata"]["labels"]
        (container,) = pod["spec"]["containers"]
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
        assert volumes["config"]["configMap"]["name"] in names
        assert pod["spec"]["terminationGracePeriodSeconds"] >= 60
