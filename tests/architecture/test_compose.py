"""The compose files, as far as no Docker engine is needed to check them: shape, settings, commands, addresses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from osd.attached.vllm.plugin.osd_vllm.options import Options
from osd.cli.reference import commands
from storage.settings import load_settings
from storage.store import lay_out

ROOT = Path(__file__).resolve().parents[2]
FILES = ("compose.yaml", "compose.vllm.yaml")
COMPOSE: dict[str, dict[str, Any]] = {name: yaml.safe_load((ROOT / name).read_text()) for name in FILES}
OURS = [
    (file, name) for file in FILES for name, one in COMPOSE[file]["services"].items() if one.get("image") == "osd-llm"
]
ASKED = re.compile(r"\$\{\w+:\?[^}]*\}")
MONITORING = ROOT / "docs" / "monitoring"


@pytest.mark.parametrize(("file", "name"), OURS)
def test_what_our_services_are_told_is_what_osd_knows(
    file: str, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    service = COMPOSE[file]["services"][name]
    monkeypatch.chdir(tmp_path)
    for key, value in service["environment"].items():
        monkeypatch.setenv(key, ASKED.sub("secret", value))
    with lay_out(load_settings()) as store:
        assert store.db.dialect == "postgresql" and "secret" not in store.db.url
        if file == "compose.yaml":
            assert str(store.samples.files.place.show("x")) == "s3://osd/samples/x"
    if "entrypoint" not in service:
        require_command(service["command"])


def require_command(words: list[str]) -> None:
    """Fail unless `osd` has the command, and each of its options."""
    every, words, name = dict(commands()), list(words), "osd"
    command: Any = every[name]
    while hasattr(command, "commands") and not (command.invoke_without_command and (not words or words[0][0] == "-")):
        name = f"{name} {words.pop(0)}"
        command = every[name]
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize("file", FILES)
def test_what_is_waited_for_is_there(file: str) -> None:
    services = COMPOSE[file]["services"]
    for service in services.values():
        assert set(service.get("depends_on", ())) <= set(services)
        for name, how in service.get("depends_on", {}).items():
            assert how["condition"] != "service_healthy" or "healthcheck" in services[name]
        network = service.get("network_mode", "")
        if network.startswith("service:"):  # it lives in that one's network: it has no ports, and waits for it
            assert network.removeprefix("service:") in service["depends_on"] and "ports" not in service
        for volume in service.get("volumes", ()):
            source = re.match(r"\$\{[^}]*\}|[^:]+", volume)
            assert source is not None
            if source[0].startswith("./"):
                assert (ROOT / source[0]).is_file(), volume
            elif not source[0].startswith("$"):
                assert source[0] in COMPOSE[file]["volumes"], volume


@pytest.mark.parametrize("file", FILES)
def test_no_password_is_written_down(file: str) -> None:
    text = (ROOT / file).read_text()
    for name, value in re.findall(r"(\w*(?:PASSWORD|SECRET|TOKEN)\w*): (.+)", text):
        assert value.startswith("${"), name
    services = COMPOSE[file]["services"].values()
    assert all(port.startswith("127.0.0.1:") for service in services for port in service.get("ports", ()))


def test_the_image_is_made_of_our_packages_alone() -> None:
    assert (ROOT / ".dockerignore").read_text().startswith("*\n")
    copied = re.findall(r"^COPY (\w+) ", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert set(copied) == {"storage", "router", "osd", "trainer", "migrations"}


def test_vllm_is_started_with_what_the_plugin_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    vllm = COMPOSE["compose.vllm.yaml"]["services"]["vllm"]
    flags = dict(word.removeprefix("--").split("=", 1) for word in vllm["command"][1:])
    assert json.loads(ASKED.sub("DRAFT", flags["speculative-config"]))["method"] == "draft_model"
    plugin = ROOT / "osd" / "attached" / "vllm" / "plugin"
    for flag in ("middleware", "worker-extension-cls"):
        module, name = flags[flag].rsplit(".", 1)
        assert f"class {name}" in (plugin / (module.replace(".", "/") + ".py")).read_text()
    documented = (ROOT / "docs" / "vllm.md").read_text()
    assert all(f"--{flag}" in documented for flag in flags if flag != "host")
    for key, value in vllm["environment"].items():
        monkeypatch.setenv(key, ASKED.sub("a secret of sixteen", value).replace("/data", str(tmp_path)))
    options = Options.read()
    assert options.collector == "http://127.0.0.1:8002" and options.engine == "vllm"
    copied = re.findall(r"^\s*COPY (\S+) ", vllm["build"]["dockerfile_inline"], re.MULTILINE)
    assert copied == [str(plugin.relative_to(ROOT))] and (plugin / "pyproject.toml").is_file()


def test_every_process_that_answers_can_be_asked_how_it_is() -> None:
    services = COMPOSE["compose.yaml"]["services"]
    asked = {name for name, one in services.items() if "healthcheck" in one}
    assert {"postgres", "redis", "server", "prometheus"} <= asked
    command = services["server"]["healthcheck"]["test"]
    compile(command[-1], "healthcheck", "exec")
    assert command[:3] == ["CMD", "python", "-c"] and f":{load_settings().server.port}/health" in command[-1]


def test_servers_are_scraped_as_the_page_says_and_grafana_asks_who_scrapes() -> None:
    file = COMPOSE["compose.yaml"]
    services, config = file["services"], yaml.safe_load((MONITORING / "prometheus-servers.yml").read_text())
    page = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "watching.md").read_text(), re.DOTALL)[0]
    told = {job["job_name"]: job for job in yaml.safe_load(page)["scrape_configs"]}
    ports = {"metrics": 9464, "server": load_settings().server.port}
    for job in config["scrape_configs"]:
        (host, port) = job["static_configs"][0]["targets"][0].split(":")
        assert int(port) == ports[host] and host in services
        assert job.get("metric_relabel_configs") == told[job["job_name"]].get("metric_relabel_configs")
    (key,) = [job["authorization"]["credentials_file"] for job in config["scrape_configs"] if "authorization" in job]
    assert key.removeprefix("/run/secrets/") in services["prometheus"]["secrets"] == [*file["secrets"]]
    assert file["secrets"]["metrics_key"] == {"environment": "METRICS_KEY"}
    mounted = dict(one.split(":")[:2] for name in ("prometheus", "grafana") for one in services[name]["volumes"])
    assert mounted["./docs/monitoring/prometheus-servers.yml"] == "/etc/prometheus/prometheus.yml"
    assert config["rule_files"] == [mounted["./docs/monitoring/alerts.yml"]]
    (source,) = yaml.safe_load((MONITORING / "grafana-servers.yml").read_text())["datasources"]
    assert source["type"] == "prometheus" and source["url"] == "http://prometheus:9090"


def test_prometheus_scrapes_what_listens_and_grafana_has_our_dashboard() -> None:
    services = COMPOSE["compose.vllm.yaml"]["services"]
    jobs = yaml.safe_load((MONITORING / "prometheus.yml").read_text())["scrape_configs"]
    targets = {job["job_name"]: job["static_configs"][0]["targets"][0] for job in jobs}
    ports = {"osd": 9464, "osd-attach": load_settings().attach.port, "vllm": 8000}
    assert {name: int(target.rsplit(":")[1]) for name, target in targets.items()} == ports
    for target in targets.values():  # 127.0.0.1 is vLLM's own network, in which Prometheus is too
        host = target.split(":")[0]
        assert host in services or (host, services["prometheus"]["network_mode"]) == ("127.0.0.1", "service:vllm")
    mounted = dict(volume.split(":")[:2] for volume in services["grafana"]["volumes"])
    folder = yaml.safe_load((MONITORING / "grafana-dashboards.yml").read_text())["providers"][0]["options"]["path"]
    assert mounted["./docs/monitoring/grafana.json"].startswith(folder)
    (source,) = yaml.safe_load((MONITORING / "grafana-datasources.yml").read_text())["datasources"]
    assert source["type"] == "prometheus" and source["url"] == "http://vllm:9090"
    assert "127.0.0.1:9090:9090" in services["vllm"]["ports"]
