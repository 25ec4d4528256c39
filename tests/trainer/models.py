"""Small real models and made-up samples that the tests of learning share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from storage.records import RequestSamples, TokenKind, new_id

VOCAB = 48


def tiny_llama(seed: int = 0, vocab: int = VOCAB, spread: float = 0.3) -> PreTrainedModel:
    """A random Llama of one layer, 32 wide; the wider its weights are spread, the surer it is."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=128, bos_token_id=1, eos_token_id=1, pad_token_id=0,
        initializer_range=spread,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def samples_of(
    tokens: Sequence[int],
    positions: Sequence[int],
    prompt_len: int = 2,
    kinds: Sequence[TokenKind] | None = None,
    k: int = 4,
    sure: float = 0.95,
    **fields: object,
) -> RequestSamples:
    """A request whose target gives each emitted token ``sure`` and shares the rest among k − 1 others."""
    array = np.asarray(tokens, np.int32)
    m = len(positions)
    emitted = array[list(positions)]
    ids = np.stack([(emitted + i) % VOCAB for i in range(k)], axis=1).astype(np.int32)
    logprobs = np.full((m, k), np.log(max(1e-6, (1 - sure) / k)), np.float32)
    logprobs[:, 0] = np.log(sure)
    values: dict[str, object] = {
        "request_id": new_id(), "route": "default", "tenant": "default", "draft_version": "v", "created_at": 0.0,
        "prompt_len": prompt_len, "tokens": array, "positions": np.asarray(positions, np.int32),
        "kinds": np.asarray(kinds if kinds is not None else [TokenKind.REJECTED] * m, np.uint8),
        "drafted": (emitted + 7) % VOCAB, "topk_ids": ids, "topk_logprobs": logprobs.astype(np.float16),
        "outside": (1 - np.exp(logprobs).sum(1)).clip(0).astype(np.float32),
    }  # fmt: skip
    return RequestSamples(**(values | fields))  # type: ignore[arg-type]


def answers(
    target: PreTrainedModel, prompts: Sequence[Sequence[int]], new: int = 12, k: int = 8, **fields: object
) -> list[RequestSamples]:
    """What greedy decoding of ``target`` leaves for learning, every position verified."""
    return [_answer(target, list(prompt), new, k, **fields) for prompt in prompts]


@torch.inference_mode()
def _answer(target: PreTrainedModel, tokens: list[int], new: int, k: int, **fields: object) -> RequestSamples:
    prompt_len = len(tokens)
    for _ in range(new):
        tokens.append(int(target(torch.tensor([tokens])).logits[0, -1].argmax()))
    log_p = target(torch.tensor([tokens])).logits[0, prompt_len - 1 : -1].log_softmax(-1)
    logprobs, ids = log_p.topk(k)
    outside = log_p.scatter(1, ids, -torch.inf).logsumexp(1).exp()
    made = samples_of(tokens, range(prompt_len, len(tokens)), prompt_len, **fields)  # type: ignore[arg-type]
    return RequestSamples(**{name: getattr(made, name) for name in made.__slots__} | {
        "kinds": np.full(new, TokenKind.ACCEPTED, np.uint8), "topk_ids": ids.numpy().astype(np.int32),
        "topk_logprobs": logprobs.numpy().astype(np.float16), "outside": outside.numpy(),
    })  # fmt: skip


def random_prompts(n: int, length: int = 5, seed: int = 0, low: int = 2, high: int = VOCAB) -> list[list[int]]:
    """n prompts of random tokens."""
    rng = np.random.default_rng(seed)
    return [rng.integers(low, high, length).tolist() for _ in range(n)]
