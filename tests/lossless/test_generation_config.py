"""What a model's generation_config.json says of its texts is applied as `generate` does, or refused by its name."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from transformers import GenerationConfig

from osd.engine.engine import Engine
from osd.models.pair import Pair
from storage.errors import GenerationConfigRefused
from storage.records import Request
from storage.sampling import Sampling
from tests.lossless.test_logits_processors import EOS, engine_of, generated
from tests.lossless.test_lossless import serve
from tests.support.models import model_of, prompts, random_pair
from tests.support.settings import settings_of

pytestmark = pytest.mark.usefixtures("compiled")

APPLIED: dict[str, Any] = {
    "repetition_penalty": 1.5,
    "sequence_bias": [[[30, 38], -8.0], [[7], 4.0], [[7, 7], -20.0]],
    "no_repeat_ngram_size": 2,
    "bad_words_ids": [[25], [34, 34], [30, 38, 30], [EOS]],
    "min_length": 15,
    "min_new_tokens": 10,
    "forced_bos_token_id": 33,
    "forced_eos_token_id": EOS,
    "exponential_decay_length_penalty": (3, 1.6),
    "suppress_tokens": list(range(2, 97, 3)),
    "begin_suppress_tokens": list(range(2, 97, 2)),
}
SHORT = ("repetition_penalty", "no_repeat_ngram_size", "min_new_tokens", "suppress_tokens")
OF_ENDS = ("min_length", "min_new_tokens", "exponential_decay_length_penalty")
REFUSED: dict[str, Any] = {
    "num_beams": 4, "penalty_alpha": 0.6, "guidance_scale": 1.5, "encoder_repetition_penalty": 1.2,
    "encoder_no_repeat_ngram_size": 3, "typical_p": 0.9, "epsilon_cutoff": 3e-4, "eta_cutoff": 3e-4, "top_h": 0.4,
    "dola_layers": "high", "force_words_ids": [[[3]]], "token_healing": True, "max_time": 2.0, "stop_strings": ["."],
    "watermarking_config": {"greenlist_ratio": 0.25},
}  # fmt: skip
NEUTRAL: dict[str, Any] = {
    "num_beams": 1, "guidance_scale": 1, "encoder_repetition_penalty": 1.0, "encoder_no_repeat_ngram_size": 0,
    "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "token_healing": False, "length_penalty": 2.0,
    "early_stopping": True, "diversity_penalty": 0.0, "max_length": 20, "renormalize_logits": True, "do_sample": True,
    "use_cache": False, "num_return_sequences": 1, "something_new": "x", "top_k": 50, "remove_invalid_values": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def plain() -> Pair:
    return random_pair("llama", noise=0.1, eos=EOS)


def saying(pair: Pair, **said: Any) -> Pair:
    """The pair, its target with these keys in generation_config.json; where keys mind end tokens, they take the place
    of a frequent one."""
    module = copy.deepcopy(pair.target.module)
    if set(said) & set(OF_ENDS):
        weight = module.get_output_embeddings().weight
        weight[EOS] = 1.05 * weight[34]
    config = module.generation_config.to_dict() | said
    module.generation_config = GenerationConfig.from_dict(config)
    return replace(pair, target=model_of(module, "target"))


@pytest.mark.parametrize("key", [pytest.param(k, marks=[pytest.mark.long] * (k not in SHORT)) for k in APPLIED])
def test_each_key_is_applied_as_generate_does(plain: Pair, key: str) -> None:
    pair = saying(plain, **{key: APPLIED[key]})
    asked = [Request(p, 14 + i) for i, p in enumerate([(40,), *prompts(2, seed=11, longest=9)])]
    expected = [generated(pair, request, {}) for request in asked]
    kind = "branching" if key in ("sequence_bias", "no_repeat_ngram_size") else "causal"
    known = {r.prompt_tokens: text for r, text in zip(asked, expected, strict=True)}
    assert serve(engine_of(pair, kind, known), asked) == expected
    if key == "repetition_penalty":  # a request may say otherwise
        neutral = [replace(request, sampling=Sampling(repetition_penalty=1.0)) for request in asked]
        assert serve(engine_of(pair, kind, {}), neutral) != expected
    without = serve(engine_of(pair, kind, {}, serve__generation_config="vllm"), asked)
    assert without != expected and without == [generated(pair, r, {key: None}) for r in asked]


@pytest.mark.parametrize("key", REFUSED)
def test_what_osd_lacks_is_refused_by_its_name(plain: Pair, key: str) -> None:
    pair = saying(plain, **{key: REFUSED[key]})
    with pytest.raises(GenerationConfigRefused, match=rf"target: .* {key} = .*serve.generation_config = vllm"):
        Engine(pair, settings_of(serve__max_length=64))
    Engine(pair, settings_of(serve__max_length=64, serve__generation_config="vllm"))


def test_what_asks_for_nothing_is_accepted(plain: Pair) -> None:
    engine = Engine(saying(plain, **NEUTRAL), settings_of(serve__max_length=64))
    (done,) = engine.run([Request((3, 4), 5)])
    assert list(done.tokens) == generated(plain, done.request, {})


@pytest.mark.parametrize(("key", "value"), [("top_k", 1), ("top_p", 1e-6), ("min_p", 1.0)])
def test_sampling_defaults_are_those_of_requests_that_do_not_say(plain: Pair, key: str, value: float) -> None:
    """Each of these values leaves the likeliest token alone."""
    engine = engine_of(saying(plain, **{key: value}), "causal", {})
    asked = [Request(p, 8, Sampling(2.0, seed=i)) for i, p in enumerate(prompts(3, seed=2))]
    assert serve(engine, asked) == [generated(plain, request, {}) for request in asked]
    free = [replace(r, sampling=replace(r.sampling, top_k=0, top_p=1.0, min_p=0.0)) for r in asked]
    assert serve(engine, free) != serve(engine, asked)


def test_ids_beyond_the_vocabulary_change_nothing(plain: Pair) -> None:
    beyond = {
        "suppress_tokens": [500], "bad_words_ids": [[3, 500]], "sequence_bias": [[[500], 3.0]],
        "begin_suppress_tokens": [97], "forced_eos_token_id": 97,
    }  # fmt: skip
    asked = [Request((3, 4), 5)]
    assert serve(engine_of(saying(plain, **beyond), "causal", {}), asked) == serve(
        engine_of(plain, "causal", {}), asked
    )
