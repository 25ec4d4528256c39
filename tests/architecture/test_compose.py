"""compose.yaml, as far as it can be checked where no Docker engine runs: its shape, its settings, its commands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from osd.cli.main import app
from storage.settings import load_settings
from storage.store import lay_out

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
OURS = {name: service for name, service in COMPOSE["services"].items() if service.get("image") == "osd-llm"}


@pytest.mark.parametrize("name", OURS)
def test_what_our_services_are_told_is_what_osd_knows(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for key, value in OURS[name]["environment"].items():
        monkeypatch.setenv(key, re.sub(r"\$\{\w+:\?[^}]*\}", "secret", value))
    with lay_out(load_settings()) as store:
        assert store.db.dialect == "postgresql" and "secret" not in store.db.url
        assert str(store.samples.place.show("x")) == "s3://osd/samples/x"
    if "entrypoint" not in OURS[name]:
        command: Any = get_command(app)
        for word in OURS[name]["command"][:2]:
            command = command.commands[word] if hasattr(command, "commands") else command


def test_what_is_waited_for_is_there() -> None:
    services = COMPOSE["services"]
    for service in services.values():
        assert set(service.get("depends_on", ())) <= set(services)
        for name, how in service.get("depends_on", {}).items():
            assert how["condition"] != "service_healthy" or "healthcheck" in services[name]
        for volume in service.get("volumes", ()):
            assert volume.split(":")[0] in COMPOSE["volumes"]


def test_no_password_is_written_down() -> None:
    text = (ROOT / "compose.yaml").read_text()
    for name, value in re.findall(r"(\w*(?:PASSWORD|SECRET)\w*): (.+)", text):
        assert value.startswith("${"), name
    assert all(port.startswith("127.0.0.1:") for s in COMPOSE["services"].values() for port in s.get("ports", ()))
    assert (ROOT / ".dockerignore").read_text().startswith("*\n")
    copied = re.findall(r"^COPY (\w+) ", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert set(copied) == {"storage", "router", "osd", "trainer", "migrations"}
