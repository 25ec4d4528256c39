"""Answers that a running vLLM hands over without distributions are read by the target in `osd attach`."""

from __future__ import annotations

import httpx
import pytest
import torch

from osd.demo import TARGET
from osd.models.pair import load_model
from tests.integration.vllm.conftest import KEY, Serving, home_of, some_prompts, until

pytestmark = pytest.mark.vllm


def test_what_vllm_gives_no_distributions_of_is_read_by_the_target(vllm: Serving) -> None:
    """Answers to clients that ask for log-probabilities themselves, which get theirs alone."""
    prompts = some_prompts("sql", 8)
    with home_of(vllm, "reading", target=str(TARGET)) as home:
        done = home.osd("engines", "add", vllm.url, "--draft", "sql")
        assert done.returncode == 0, done.stderr
        until(lambda: home.store.versions.serving("sql"))
        asked = [
            httpx.post(
                f"{vllm.url}/v1/completions", headers={"Authorization": f"Bearer {KEY}"}, timeout=600,
                json={"prompt": list(prompt), "max_tokens": 24, "temperature": 0, "logprobs": 1},
            ).json()
            for prompt in prompts
        ]  # fmt: skip
        until(lambda: sum(one.requests for one in home.store.samples.stats()) == len(prompts))
        target = load_model(str(TARGET), torch.device("cpu"), "float32")
        ids = [one.request_id for one in home.store.outcomes.recent()]
        for one in home.store.samples.read(ids):
            logits = target.module(torch.tensor(one.tokens[None].astype("int64"))).logits[0, one.prompt_len - 1 : -1]
            assert (one.topk_ids[:, 0] == logits.argmax(-1).numpy()).all()
            assert (one.topk_ids[:, 0] == one.tokens[one.prompt_len :]).all(), "greedy"
        home.osd("engines", "remove", "vllm")
    assert all(len(one["choices"][0]["logprobs"]["tokens"]) == one["usage"]["completion_tokens"] for one in asked)
