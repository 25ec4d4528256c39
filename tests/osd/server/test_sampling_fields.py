"""Every field that says how tokens are chosen has its effect: the answer is what `generate` makes of the same option,
and another than without it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from osd.demo import DRAFT, TARGET
from osd.models.pair import Pair
from osd.server.http.protocol import SamplingFields
from tests.osd.server.conftest import Server, serving

PROMPT, COUNT = "SELECT name FROM", 24
Options = dict[str, Any]
Made = Callable[..., tuple[str, list[int]]]


def presence_and_frequency(prompt: int, presence: float, frequency: float, ids: Any, scores: torch.Tensor) -> Any:
    """OpenAI's definition, as a processor of `generate`."""
    count = torch.bincount(ids[0, prompt:], minlength=scores.shape[-1])
    return scores - frequency * count - presence * (count > 0)


@pytest.fixture(scope="module")
def generated(pair: Pair) -> Made:
    """The target's text and tokens by transformers, greedy."""

    def made(**options: Any) -> tuple[str, list[int]]:
        tokens = torch.tensor([pair.tokenizer.encode(PROMPT)])
        if penalties := options.pop("penalties", None):
            options["logits_processor"] = [partial(presence_and_frequency, tokens.shape[1], *penalties)]
        base = {"max_new_tokens": COUNT, "do_sample": False, "pad_token_id": 0}
        whole = pair.target.module.generate(tokens, attention_mask=torch.ones_like(tokens), **{**base, **options})
        own = whole[0, tokens.shape[1] :].tolist()
        return str(pair.tokenizer.decode(own, skip_special_tokens=True)), own

    return made


@pytest.fixture(scope="module")
def unchanged(generated: Made) -> tuple[str, list[int]]:
    """The same without any option."""
    return generated()


def cases(own: list[int], tokenizer: Any) -> dict[str, tuple[Options, Options]]:
    """Of each field, what a body says (at temperature 0, unless it says otherwise) and what `generate` is told; ``own``
    is the text without it."""
    word = next(text for token in own if len(text := tokenizer.decode([token])) > 2)
    words = [ids for text in (word.strip(), f" {word.strip()}") if len(ids := tokenizer.encode(text)) == 1]
    some = sorted({*own[:2], *range(300, 340)})
    end = {"stop_token_ids": [own[9]]}
    return {
        "temperature": ({"temperature": 1.3, "top_k": 1}, {}),
        "top_k": ({"temperature": 1.3, "top_k": 1}, {}),
        "top_p": ({"temperature": 1.3, "top_p": 1e-6}, {}),
        "min_p": ({"temperature": 1.3, "min_p": 1.0}, {}),
        "repetition_penalty": ({"repetition_penalty": 1.8}, {"repetition_penalty": 1.8}),
        "presence_penalty": ({"presence_penalty": 2.0}, {"penalties": (2.0, 0.0)}),
        "frequency_penalty": ({"frequency_penalty": 1.9}, {"penalties": (0.0, 1.9)}),
        "logit_bias": ({"logit_bias": {str(own[0]): -100, str(own[3]): -3.5}},
                       {"sequence_bias": {(own[0],): -100.0, (own[3],): -3.5}}),
        "bad_words": ({"bad_words": [word]}, {"bad_words_ids": words}),
        "allowed_token_ids": ({"allowed_token_ids": some}, {"prefix_allowed_tokens_fn": lambda *_: some}),
        "stop_token_ids": (end, {"eos_token_id": [1, own[9]]}),
        "min_tokens": ({**end, "min_tokens": 15}, {"eos_token_id": [1, own[9]], "min_new_tokens": 15}),
    }  # fmt: skip


DRAWN = ("temperature", "top_k", "top_p", "min_p")
OTHERS = ("seed", "stop", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens")
FIELDS = [name for name in SamplingFields.model_fields if name not in OTHERS]
"""All but those whose tests stand in test_openai_settings.py or below."""


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_does_what_generate_does(
    server: Server, pair: Pair, generated: Made, unchanged: tuple[str, list[int]], field: str
) -> None:
    plain, own = unchanged
    body, options = cases(own, pair.tokenizer)[field]
    asked = {"prompt": PROMPT, "max_tokens": COUNT, "temperature": 0, "seed": 3, **body}
    text, wanted = (server.post("/v1/completions", asked).json()["choices"][0]["text"], generated(**options))
    ending = pair.tokenizer.decode(wanted[1][-1:]) if "stop_token_ids" in body else ""
    assert text == wanted[0].removesuffix(ending)
    without = {**asked, field: None} if field not in DRAWN else {**asked, field: None, "temperature": 1.3, "top_k": 0}
    other = server.post("/v1/completions", without).json()["choices"][0]["text"]
    assert text != other and (field in DRAWN or other == plain or field == "min_tokens")


def test_what_ends_an_answer_and_special_tokens(server: Server, pair: Pair, unchanged: tuple[str, list[int]]) -> None:
    def said(**body: Any) -> tuple[str, str]:
        (choice,) = server.post("/v1/completions", {"prompt": PROMPT, "temperature": 0, **body}).json()["choices"]
        return choice["text"], choice["finish_reason"]

    plain, _ = unchanged
    stop = plain[9:12]
    asked = {"stop": stop, "max_tokens": COUNT}
    assert said(**asked)[0] == plain[: plain.index(stop)]
    assert said(**asked, include_stop_str_in_output=True) == (plain[: plain.index(stop) + 3], "stop")
    special = pair.tokenizer.convert_tokens_to_ids("<|assistant|>")
    only = {"allowed_token_ids": [special], "max_tokens": 3}
    assert said(**only) == ("", "length")
    assert said(**only, skip_special_tokens=False) == ("<|assistant|>" * 3, "length")
    assert said(**only, stop=["<|assistant|>"]) == ("", "stop")
    assert said(**only, stop=["<|assistant|>"], include_stop_str_in_output=True) == ("<|assistant|>", "stop")


@pytest.mark.long
def test_the_models_own_ways_are_the_defaults(tmp_path: Path, generated: Made) -> None:
    plain, _ = generated()
    target = tmp_path / "target"
    shutil.copytree(TARGET, target)
    said = json.loads((target / "generation_config.json").read_text())
    ways = {"top_k": 1, "temperature": 1.7, "repetition_penalty": 1.8, "max_new_tokens": 11}
    (target / "generation_config.json").write_text(json.dumps(said | ways))
    pair = ("--target", str(target), "--draft", str(DRAFT))
    with serving(tmp_path, *pair, OSD_SERVE__MAX_LENGTH="512") as server:
        wanted, _ = generated(repetition_penalty=1.8, max_new_tokens=11)
        (choice,) = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 400}).json()["choices"]
        assert choice["text"] == wanted != plain and choice["finish_reason"] == "length"
        asked = {"prompt": PROMPT, "repetition_penalty": 1, "temperature": 0, "max_tokens": 11}
        (choice,) = server.post("/v1/completions", asked).json()["choices"]
        assert choice["text"] == generated(max_new_tokens=11)[0]
