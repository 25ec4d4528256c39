"""The recipes for KServe, llm-d and vLLM's production stack: each pod that comes of them has a vLLM that is told what
compose.vllm.yaml's is told, and the same `osd attach` beside it. None of the three systems runs here."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from storage.settings import load_settings
from tests.architecture.test_compose import COMPOSE, require_command
from tests.architecture.test_deploy import DEPLOY, KUBERNETES, OBJECTS

KSERVE = yaml.safe_load((DEPLOY / "kserve.yaml").read_text())
LLM_D, STACK = DEPLOY / "llm-d" / "kustomization.yaml", DEPLOY / "production-stack" / "kustomization.yaml"
VALUES = yaml.safe_load((STACK.parent / "values.yaml").read_text())
RECIPES = {"kserve": "main", "llm-d": "modelserver", "production-stack": "vllm"}
"""By their names, what vLLM's container is called there."""
Pod = dict[str, Any]


def deployment(name: str, labels: dict[str, str], pod: Pod) -> dict[str, Any]:
    template = {"metadata": {"labels": labels}, "spec": pod}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "labels": labels}, "spec": spec}


def patched(recipe: Path, resource: str, base: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What kustomize makes of a deployment with a recipe's patch. ``resource``: what the recipe patches."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not here")
    overlay = folder / "overlay"
    overlay.mkdir()
    shutil.copy(recipe, overlay)
    at = overlay / resource
    if not at.suffix:
        at.mkdir()
        (at / "kustomization.yaml").write_text("resources: [deployment.yaml]\n")
        at = at / "deployment.yaml"
    at.write_text(yaml.safe_dump(base))
    said = subprocess.run(["kubectl", "kustomize", overlay], capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, said.stderr
    found: dict[str, Any] = yaml.safe_load(said.stdout)
    return found


def of_llm_d(folder: Path) -> Pod:
    """As the guide's base has it: a name with a prefix, vLLM's image, arguments that a patch replaces."""
    told = {
        "name": "modelserver", "image": "docker.io/vllm/vllm-openai:v0.27.1", "command": ["vllm", "serve"],
        "args": ["another/model"], "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }  # fmt: skip
    pod = {"containers": [told], "volumes": [{"name": "shm", "emptyDir": {}}]}
    base = deployment("optimized-baseline-nvidia-gpu-vllm-decode", {"llm-d.ai/role": "decode"}, pod)
    found: Pod = patched(LLM_D, "../base", base, folder)["spec"]["template"]["spec"]
    assert found["containers"][0]["args"][0] == "NAME/TARGET" and {"shm"} < {each["name"] for each in found["volumes"]}
    return found


def of_production_stack(folder: Path) -> Pod:
    """As the chart's template lays the values out."""
    engine, (model,) = VALUES["servingEngineSpec"], VALUES["servingEngineSpec"]["modelSpec"]
    told = {
        "name": "vllm", "image": f"{model['repository']}:{model['tag']}", "env": model["env"],
        "command": ["vllm", "serve", model["modelURL"], *model["vllmConfig"]["extraArgs"]],
        "volumeMounts": model["extraVolumeMounts"],
    }  # fmt: skip
    pod = {"securityContext": engine["securityContext"], "containers": [told], "volumes": model["extraVolumes"]}
    base = deployment("osd-learning-deployment-vllm", {"model": model["name"]}, pod)
    found: Pod = patched(STACK, "stack.yaml", base, folder)["spec"]["template"]["spec"]
    return found


def pod_of(name: str, folder: Path) -> Pod:
    if name == "kserve":
        pod: Pod = KSERVE["spec"]["template"]
        return pod
    return of_llm_d(folder) if name == "llm-d" else of_production_stack(folder)


def words_of(vllm: dict[str, Any]) -> list[str]:
    """vLLM's arguments; KServe's shell reads them from a variable."""
    told = {each["name"]: each.get("value", "") for each in vllm["env"]}
    if "VLLM_ADDITIONAL_ARGS" in told:
        return shlex.split(told["VLLM_ADDITIONAL_ARGS"])
    return [*vllm["command"], *vllm.get("args", ())]


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipes_pod_is_one_and_its_vllm_is_told_what_it_needs(name: str, tmp_path: Path) -> None:
    kubernetes = pytest.importorskip("kubernetes_validate")
    pod = pod_of(name, tmp_path)
    for version in KUBERNETES:
        kubernetes.validate(deployment("any", {"a": "b"}, pod), version, strict=True)
    by_name = {each["name"]: each for each in pod["containers"]}
    assert set(by_name) == {RECIPES[name], "attach"} and pod["securityContext"] == {"fsGroup": 10001}
    mounted = {mount["name"] for each in pod["containers"] for mount in each["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    vllm, told = by_name[RECIPES[name]], COMPOSE["compose.vllm.yaml"]["services"]["vllm"]
    assert vllm["image"].startswith("REGISTRY/osd-llm-vllm")
    words = words_of(vllm)
    flags = {word for word in told["command"] if word[:2] == "--" and not word.startswith(("--spec", "--host"))}
    assert flags <= set(words)
    (speculation,) = [word.split("=", 1)[1] for word in words if word.startswith("--speculative-config=")]
    assert json.loads(speculation)["model"] == "NAME/DRAFT"
    assert set(told["environment"]) <= {each["name"] for each in vllm["env"]}
    attach = by_name["attach"]
    assert attach == {each["name"]: each for each in KSERVE["spec"]["template"]["containers"]}["attach"]


def test_attach_attends_to_the_vllm_of_its_pod_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script runs with a command that only tells what it is told, and TERM ends it in order."""
    (attach,) = [each for each in KSERVE["spec"]["template"]["containers"] if each["name"] == "attach"]
    for command in (["engines", "add", "--draft", "default"], ["attach"], ["engines", "remove", "pod-1"]):
        require_command(command)
    (tmp_path / "osd.toml").write_text(OBJECTS[0]["data"]["osd.toml"])
    monkeypatch.setenv("OSD_CONFIG", str(tmp_path / "osd.toml"))
    monkeypatch.setenv("OSD_ATTACH__ENGINE", "pod-1")
    assert load_settings().attach.engine == "pod-1"
    osd = tmp_path / "osd"
    osd.write_text('#!/bin/sh\necho "$@" >> "$0.log"\n[ "$1" = attach ] && kill -TERM $PPID && exec sleep 60\nexit 0\n')
    osd.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("POD_IP", "10.0.0.7")
    subprocess.run([*attach["command"], *attach["args"]], timeout=60)
    told = (tmp_path / "osd.log").read_text().splitlines()
    assert told == ["engines add http://10.0.0.7:8000 --draft default", "attach", "engines remove pod-1"]
