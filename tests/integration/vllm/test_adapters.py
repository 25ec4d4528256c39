"""A vLLM with three LoRA adapters beside a draft: each answers as its merged weights do, acceptance is told apart, and
the adapter on which the draft is worst is given a draft of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from benchmarks.vllm.server import PLUGIN, WORKER, speculation
from benchmarks.vllm.server import vllm_server as server
from osd.demo import DRAFT, TARGET
from osd.models.vocabulary import load_tokenizer
from tests.integration.vllm.conftest import (
    Home,
    Serving,
    Tokens,
    acceptance,
    ask,
    free_port,
    home_of,
    ids_of,
    some_prompts,
    until,
)  # fmt: skip
from tests.integration.vllm.test_starts import variables
from tests.support.models import alone

pytestmark = pytest.mark.vllm
ASKED, FRESH, TAUGHT = 120, 32, 64
"""Prompts that each route answers, those by which drafts are compared after that, and those that one adapter learns."""
RANK = 8
EPOCHS, RATE, LONGEST = 4, 3e-3, 32
"""How that adapter is taught: passes, AdamW's learning rate, tokens of an answer at most."""


def write_adapter(folder: Path, spread: float = 0.0) -> Any:
    """Write an adapter over the target; return the merged model. ``spread``: how large the numbers of its second factor
    are; with 0 it is taught to write in lower case."""
    loader: Any = AutoModelForCausalLM
    torch.manual_seed(3)
    config = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear")
    model: Any = get_peft_model(loader.from_pretrained(TARGET, dtype=torch.float32), config)
    for name, weight in model.named_parameters():
        if spread and "lora_B" in name:
            weight.data.normal_(0, spread)
    if not spread:
        teach(model)
    model.save_pretrained(folder)
    return model.merge_and_unload().eval().requires_grad_(False)


def teach(model: Any) -> None:
    """Teach an adapter the target's own answers in lower case."""
    tokenizer = load_tokenizer(TARGET)
    prompts = some_prompts("sql", TAUGHT, skip=ASKED + FRESH)
    with torch.no_grad():
        answers = [alone(model, prompt, LONGEST, eos=1) for prompt in prompts]
    lowered = [tokenizer.decode(said[:-1]).lower() for said in answers]
    lessons = [
        (prompt, [*tokenizer.encode(text, add_special_tokens=False), 1])
        for prompt, text in zip(prompts, lowered, strict=True)
    ]
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=RATE)
    for step in range(EPOCHS * TAUGHT):
        prompt, said = lessons[step % TAUGHT]
        labels = torch.tensor([[-100] * len(prompt) + said])
        model(input_ids=torch.tensor([[*prompt, *said]]), labels=labels).loss.backward()
        if step % 8 == 7:
            optimizer.step()
            optimizer.zero_grad()


def say(home: Home, *words: object) -> Any:
    """Return what a command says in JSON."""
    done = home.osd(*words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_adapter_on_which_a_draft_is_worst_is_given_its_own(python: Path, tmp_path: Path, plugin: str) -> None:
    spreads = {"small": 0.002, "middle": 0.01, "other": 0.0}
    merged = {name: write_adapter(tmp_path / name, spread) for name, spread in spreads.items()}
    port, prompts = free_port(), some_prompts("sql", ASKED + FRESH)
    asked, fresh = prompts[:ASKED], prompts[ASKED:]
    words = (
        *PLUGIN, *WORKER, "--enable-lora", "--max-lora-rank", str(RANK), "--max-loras", "3",
        "--lora-modules", *(f"{name}={tmp_path / name}" for name in merged),
    )  # fmt: skip
    given = variables(tmp_path, plugin, port)
    with server(python, TARGET, tmp_path / "vllm.log", (*speculation(DRAFT), *words), given) as url:
        vllm = Serving(url, tmp_path, DRAFT, port)
        with home_of(vllm, "adapters", learn={"epochs": 8}) as home:
            added = home.osd("engines", "add", url, "--draft", "default")
            assert added.returncode == 0, added.stderr
            until(lambda: home.store.versions.serving("default"))
            for name in (None, *merged):
                said = ids_of(ask(url, asked, model=name))
                if name:
                    assert said[0] == alone(merged[name], asked[0], len(said[0]), eos=1), name
            until(lambda: sum(row.requests for row in home.store.samples.stats()) == 4 * ASKED)
            route_is_given_its_draft(home, merged)
            before = rates(url, fresh, merged)
            version, own = home.store.versions.current("other", home.store.targets.newest()), tmp_path / "own"
            written = home.osd("drafts", "export", version.id, own)
            assert written.returncode == 0, written.stderr
    with server(python, TARGET, tmp_path / "own.log", (*speculation(own), *words), given) as url:
        after = rates(url, fresh, merged)
    assert after["other"] > before["other"] + 0.1


def rates(url: str, prompts: list[Tokens], names: dict[str, Any]) -> dict[str, float]:
    """Return the acceptance of each adapter by a vLLM's own count, of prompts that taught nobody."""
    return {name: acceptance(ask(url, prompts, model=name)) for name in names}


def route_is_given_its_draft(home: Home, adapters: dict[str, Any]) -> None:
    """One adapter's route is proposed a draft and led to it, and the others stay as they are."""
    alphas = {row["route"]: row["alpha"] for row in say(home, "stats", "acceptance", "--by", "route")}
    assert alphas.keys() == {"default", *adapters} and min(alphas, key=alphas.__getitem__) == "other"
    routes, default = say(home, "router", "list"), home.store.versions.current("default", home.store.targets.newest())
    found = say(home, "router", "discover")
    (proposal,) = [one for one in found if one["subject"] == "other"]
    say(home, "router", "apply", proposal["id"], "--yes")
    changed = [one for one in say(home, "router", "list") if one not in routes]
    assert [(one["name"], one["draft"]) for one in changed] == [("other", "other")]
    assert home.store.versions.current("default", home.store.targets.newest()) == default
