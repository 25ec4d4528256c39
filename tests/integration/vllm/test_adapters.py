"""A vLLM with three LoRA adapters beside a draft: each answers as its merged weights do, acceptance is told apart, and
the adapter on which the draft is worst is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from benchmarks.vllm.server import PLUGIN, WORKER, speculation
from benchmarks.vllm.server import vllm_server as server
from osd.demo import DRAFT, TARGET
from storage.insights.recent import judged_by_route
from storage.insights.statistics import rate
from tests.integration.vllm.conftest import Serving, ask, free_port, home_of, ids_of, some_prompts, until
from tests.integration.vllm.test_starts import variables
from tests.support.models import alone
from trainer.routes.discover import _worse

pytestmark = pytest.mark.vllm
SPREAD = {"small": 0.002, "middle": 0.01, "other": 0.01}
"""Adapters, and how large the numbers of their second factor are."""


def write_adapter(folder: Path, spread: float) -> Any:
    """Write an adapter over the target; return the merged model."""
    loader: Any = AutoModelForCausalLM
    torch.manual_seed(3)
    config = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "o_proj"])
    model: Any = get_peft_model(loader.from_pretrained(TARGET, dtype=torch.float32), config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(0, spread)
    model.save_pretrained(folder)
    return model.merge_and_unload().eval().requires_grad_(False)


def test_adapters_beside_a_draft(python: Path, tmp_path: Path, plugin: str) -> None:
    merged = {name: write_adapter(tmp_path / name, spread) for name, spread in SPREAD.items()}
    port, asked = free_port(), {name: "finnish" if name == "other" else "sql" for name in (*SPREAD, None)}
    prompts = {name: some_prompts(domain, 28) for name, domain in asked.items()}
    words = (
        *speculation(DRAFT), *PLUGIN, *WORKER, "--enable-lora", "--max-lora-rank", "8", "--max-loras", "3",
        "--lora-modules", *(f"{name}={tmp_path / name}" for name in SPREAD),
    )  # fmt: skip
    with server(python, TARGET, tmp_path / "vllm.log", words, variables(tmp_path, plugin, port)) as url:
        vllm = Serving(url, tmp_path, DRAFT, port)
        with home_of(vllm, "adapters") as home:
            added = home.osd("engines", "add", url, "--draft", "default")
            assert added.returncode == 0, added.stderr
            until(lambda: home.store.versions.serving("default"))
            said = {name: ids_of(ask(url, some, model=name)) for name, some in prompts.items()}
            for name, model in merged.items():
                assert said[name][0] == alone(model, tuple(prompts[name][0]), len(said[name][0]), eos=1), name
            until(lambda: sum(row.requests for row in home.store.samples.stats()) == 4 * 28)
            judged = judged_by_route(home.store.db, "default", 1000)
            alphas = {name: rate(found).value for name, found in judged.items()}
            assert set(alphas) == {"default", *SPREAD} and alphas["other"] == min(alphas.values())  # type: ignore
            assert _worse(home.store, "default", [*SPREAD], 0.8, 1000) == ["other"]
            routes = {route.name: (route.draft, route.matches) for route in home.store.routes.list()}
            assert routes == {"default": ("default", {})} | {name: ("default", {"model": [name]}) for name in SPREAD}
