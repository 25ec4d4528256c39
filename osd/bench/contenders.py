"""Ways to decode the same prompts greedily: osd's engine, and what transformers offers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers.utils import logging

from osd.engine.engine import Engine
from osd.models.llama_forward_compiled import PARTS
from osd.models.pair import Pair
from osd.sequence import Completion
from osd.verification.compiled_sampling import CHOOSING
from storage.records import Request
from storage.sampling import GREEDY, Sampling
from storage.settings import Settings

Tokens = tuple[int, ...]
Decode = Callable[[Sequence[Tokens]], list[list[int]]]

ASSISTED: dict[str, dict[str, Any]] = {
    "assisted_constant": {"num_assistant_tokens": 5, "schedule": "constant", "threshold": 0.0},
    "assisted_heuristic": {"num_assistant_tokens": 5, "schedule": "heuristic", "threshold": 0.0},
    "assisted_dynamic": {"num_assistant_tokens": 20, "schedule": "constant", "threshold": 0.4},
}
"""transformers' three rules: a constant length; +2 / −1 by outcome; a stop where the draft is unsure (its default)."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to decode."""

    name: str
    batch: int
    decode: Decode
    """Prompts in, generated tokens out, in order."""


def wait_for_compiled() -> None:
    """What decoding runs is compiled from here on: that is done once, and no part of what decoding costs."""
    for compiled in (PARTS, CHOOSING):
        compiled.wait()


def run_in_order(engine: Engine, requests: Sequence[Request]) -> list[Completion]:
    """Serve requests together; return what came of them in their own order."""
    done = {completion.request.id: completion for completion in engine.run(requests)}
    return [done[request.id] for request in requests]


def osd_contender(
    name: str, pair: Pair, settings: Settings, new_tokens: int, sampling: Sampling = GREEDY
) -> Contender:  # fmt: skip
    """osd's engine; it lives on between calls, as a server's does, so what it learned of costs stays."""
    wait_for_compiled()
    engine = Engine(pair, settings)
    engine.probe()

    def decode(prompts: Sequence[Tokens]) -> list[list[int]]:
        asked = [Request(prompt, new_tokens, sampling) for prompt in prompts]
        return [list(done.tokens) for done in run_in_order(engine, asked)]

    return Contender(name, settings.serve.max_batch, decode)


def plain_contender(pair: Pair, batch: int, new_tokens: int) -> Contender:
    """transformers' ``generate`` with the target alone, left-padded batches."""

    def decode(prompts: Sequence[Tokens]) -> list[list[int]]:
        return [
            text for i in range(0, len(prompts), batch) for text in generate(pair, prompts[i : i + batch], new_tokens)
        ]

    return Contender("plain", batch, decode)


def assisted_contender(pair: Pair, rule: str, new_tokens: int) -> Contender:
    """transformers' assisted generation, which knows batches of one only."""
    assistant = copy.copy(pair.draft.module)
    config = assistant.generation_config = copy.deepcopy(assistant.generation_config)
    config.num_assistant_tokens = ASSISTED[rule]["num_assistant_tokens"]
    config.num_assistant_tokens_schedule = ASSISTED[rule]["schedule"]
    config.assistant_confidence_threshold = ASSISTED[rule]["threshold"]

    def decode(prompts: Sequence[Tokens]) -> list[list[int]]:
        with no_remarks():
            return [generate(pair, [prompt], new_tokens, assistant_model=assistant)[0] for prompt in prompts]

    return Contender(rule, 1, decode)


@contextmanager
def no_remarks() -> Iterator[None]:
    """transformers warns of how its own assisted modes call themselves."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(before)


@torch.inference_mode()
def generate(pair: Pair, prompts: Sequence[Tokens], new_tokens: int, **how: Any) -> list[list[int]]:
    """transformers' greedy ``generate`` with these further options, for prompts together."""
    width = max(len(prompt) for prompt in prompts)
    pad = pair.target.module.config.pad_token_id or 0
    tokens = torch.tensor([[pad] * (width - len(p)) + list(p) for p in prompts], device=pair.device)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=pair.device)
    module: Any = pair.target.module
    out = module.generate(
        tokens, attention_mask=mask, max_new_tokens=new_tokens, do_sample=False, pad_token_id=pad, **how
    )
    before = len(pair.target.start) or width  # what generate puts before an answer
    return [_until_end(line, pair.eos_ids) for line in out[:, before:].tolist()]


def _until_end(tokens: list[int], eos_ids: frozenset[int]) -> list[int]:
    for index, token in enumerate(tokens):
        if token in eos_ids:
            return tokens[: index + 1]
    return tokens
