"""Dashboard and alert rules name only what the exporters have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from osd.attached.intake import IntakeCounters
from osd.cli.reference import commands
from osd.server.metrics import families
from osd.server.metrics.server import Meters

FOLDER = Path(__file__).parents[4] / "docs" / "monitoring"
NAME = re.compile(r"\b(?:osd_|vllm:)[a-z0-9_:]+")
SHOWN = {metric.shown: metric for metric in (*families.STORE, *families.ENGINE, *families.UPSTREAM)}
SHOWN |= {
    f"{histogram.name}_bucket": families.Metric(histogram.name, histogram.documentation, ("model_name", "engine", "le"))
    for histogram in Meters().registry.collect() if histogram.type == "histogram"
}  # fmt: skip
SHOWN |= {
    metric.shown: metric
    for family in IntakeCounters().registry.collect()
    for metric in [families.Metric(family.name, family.documentation, ("engine",), family.type == "counter")]
}  # fmt: skip


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((FOLDER / "alerts.yml").read_text("utf-8"))["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "grafana.json").read_text("utf-8"))
    return found


def expressions() -> list[str]:
    board = dashboard()
    shown = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked = [variable["query"] for variable in board["templating"]["list"]]
    marked = [note["expr"] for note in board["annotations"]["list"]]
    return [*shown, *asked, *marked, *(rule["expr"] for rule in rules())]


def test_every_name_is_one_that_is_exported() -> None:
    named = {name for expression in expressions() for name in NAME.findall(expression)}
    assert len(named) > 20
    assert named <= SHOWN.keys(), named - SHOWN.keys()


def test_every_label_is_one_that_the_metric_has() -> None:
    for expression in expressions():
        for name, selector in re.findall(r"((?:osd_|vllm:)[a-z0-9_:]+)\{([^}]*)\}", expression):
            labels = re.findall(r"(\w+)\s*=", selector)
            assert set(labels) <= {*SHOWN[name].labels}, expression


def test_every_command_that_a_rule_names_exists() -> None:
    known = {name for name, _ in commands()}
    named = {name.strip() for rule in rules() for name in re.findall(r"`(osd [a-z ]+)", str(rule["annotations"]))}
    assert len(named) > 5 and named <= known, named - known


@pytest.mark.parametrize("expression", expressions())
def test_brackets_are_closed(expression: str) -> None:
    for opened, closed in ("()", "[]", "{}"):
        assert expression.count(opened) == expression.count(closed)


def test_counters_are_asked_for_their_rate_and_gauges_are_not() -> None:
    for expression in expressions():
        for function, name in re.findall(r"\b(rate|increase)\(((?:osd_|vllm:)[a-z0-9_:]+)", expression):
            assert SHOWN[name].counter, (function, name)
        counters = [name for name in NAME.findall(expression) if SHOWN[name].counter]
        if not expression.startswith("label_values"):
            assert len(counters) == len(re.findall(r"\b(?:rate|increase)\(", expression)), expression


def test_an_alert_for_each_thing_that_goes_wrong() -> None:
    found = {rule["alert"]: rule for rule in rules()}
    wanted = {"AcceptanceFell", "TrainerSilent", "RecorderDropping", "GateRejecting", "StoreNearlyFull"}
    assert {f"Osd{name}" for name in wanted} <= found.keys()
    for rule in found.values():
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert {"summary", "description"} == rule["annotations"].keys()
        assert re.fullmatch(r"\d+[mh]", rule.get("for", "1m"))


def test_panels_have_places_of_their_own() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = set()
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        mine = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & mine
        cells |= mine


def test_the_documented_scrape_has_each_number_in_one_place() -> None:
    page = (FOLDER.parent / "watching.md").read_text("utf-8")
    config = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0])
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    (rule,) = jobs["osd-server"]["metric_relabel_configs"]
    dropped = re.compile(rule["regex"])
    assert rule["action"] == "drop" and set(jobs) == {"osd", "osd-server", "osd-attach"}
    assert [metric.shown for metric in families.STORE if not dropped.fullmatch(metric.shown)] == []
    assert [metric.shown for metric in families.ENGINE if dropped.fullmatch(metric.shown)] == []
