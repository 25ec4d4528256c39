"""Small random models of several architectures, and pairs whose draft sometimes agrees with its target."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers as tf
from torch import Tensor

from osd.models.decoder import Decoder
from osd.models.limits import position_limit
from osd.models.model import Model
from osd.models.pair import Pair
from osd.models.proof import choose_forward
from osd.models.weights import auto_class

VOCABULARY = 97
SHAPE = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA = {**SHAPE, "intermediate_size": 48, "num_key_value_heads": 2, "max_position_embeddings": 256}

CONFIGS: dict[str, Any] = {
    "llama": lambda: tf.LlamaConfig(**LLAMA),
    "mistral": lambda: tf.MistralConfig(**LLAMA, sliding_window=None),
    "qwen2": lambda: tf.Qwen2Config(**LLAMA),
    "qwen3": lambda: tf.Qwen3Config(**LLAMA, head_dim=8),
    "gpt_neox": lambda: tf.GPTNeoXConfig(**SHAPE, intermediate_size=48, max_position_embeddings=256),
    "opt": lambda: tf.OPTConfig(**SHAPE, ffn_dim=48, word_embed_proj_dim=32, max_position_embeddings=256),
    "gpt2": lambda: tf.GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=256),
    "gemma2": lambda: tf.Gemma2Config(**LLAMA, head_dim=8, sliding_window=256),
}


def random_module(kind: str, seed: int = 0, vocabulary: int = VOCABULARY) -> Any:
    """A random model, with weights large enough that its texts are not all alike."""
    config = CONFIGS[kind]()
    config.vocab_size = vocabulary
    config.eos_token_id, config.bos_token_id, config.pad_token_id = 1, 1, 0
    return prepared(config, seed)


def prepared(config: Any, seed: int = 0) -> Any:
    """A random model of a configuration, ready to decode."""
    torch.manual_seed(seed)
    module = auto_class(config).from_config(config).eval().requires_grad_(False)
    for name, weight in module.named_parameters():
        if weight.dim() > 1 and "embed" not in name and "shared" not in name:
            weight.mul_(4.0)
    return module


def model_of(module: Any, name: str = "random") -> Model:
    """A module as osd sees it."""
    return Model(name, module, position_limit(module.config), choose_forward(module, name))


def noisy(module: Any, noise: float = 0.2, seed: int = 1) -> Any:
    """A copy whose weights are off by so much of their own spread: a draft that is sometimes right."""
    other = copy.deepcopy(module)
    generator = torch.Generator().manual_seed(seed)
    for weight in other.parameters():
        if weight.dim() > 1:
            weight.add_(torch.randn(weight.shape, generator=generator) * weight.std() * noise)
    return other


def random_pair(
    kind: str = "llama", *, noise: float = 0.2, eos: int | None = None, vocabulary: int = VOCABULARY
) -> Pair:
    """A target and a noisy copy of it, without a tokenizer."""
    target = random_module(kind, vocabulary=vocabulary)
    draft = noisy(target, noise)
    ends = frozenset() if eos is None else frozenset([eos])
    return Pair(model_of(target, "target"), model_of(draft, "draft"), None, ends)


def prompts(count: int, seed: int = 0, longest: int = 24) -> list[tuple[int, ...]]:
    """Random prompts of 1 to ``longest`` tokens."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int, size: int = 1) -> list[int]:
        return torch.randint(low, high, (size,), generator=generator).tolist()

    return [tuple(draw(2, VOCABULARY, draw(1, longest + 1)[0])) for _ in range(count)]


@torch.inference_mode()
def alone(module: Any, prompt: tuple[int, ...], count: int, eos: int | None = None) -> list[int]:
    """The plain reference: the target's greedy text, each token from a fresh forward pass over all before it. What the
    same weights said after the same prompt in another test is not asked for again."""
    text = SAID.setdefault((identity(module), prompt), [])
    while len(text) < count and eos not in text:
        fed = torch.tensor([[*prompt, *text]], device=module.device)
        text.append(int(module(input_ids=fed, use_cache=False).logits[0, -1].argmax()))
    end = text.index(eos) + 1 if eos in text else count
    return text[: min(count, end)]


SAID: dict[tuple[str, tuple[int, ...]], list[int]] = {}
"""Of a module and a prompt, as far as it was asked for."""


def identity(module: Any) -> str:
    """What its texts depend on: kind, configuration, where and in which numbers it computes, weights."""
    parts = [type(module), module.config, module.config._attn_implementation, module.training]
    whole = hashlib.sha256(" ".join(map(str, parts)).encode())
    for name, tensor in module.state_dict().items():
        kept = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
        whole.update(f"{name} {tensor.dtype} {tensor.device} {tuple(tensor.shape)}".encode() + kept.numpy().tobytes())
    return whole.hexdigest()


def some(*shape: int) -> Tensor:
    """Tokens; the last number is the seed."""
    return torch.randint(0, VOCABULARY, shape[:-1], generator=torch.Generator().manual_seed(shape[-1]))


def seated(kind: str) -> Decoder:
    """Three rows of 9, 5 and 12 tokens in four; what a bias or a norm is, is random too. To be called in inference
    mode."""
    module = random_module(kind)
    torch.manual_seed(3)
    for name, weight in module.named_parameters():
        if name.endswith("bias") or "norm" in name:
            weight.add_(0.3 * torch.randn_like(weight))
    decoder = model_of(module).decoder(4, 64)
    for row, count in enumerate((9, 5, 12)):
        decoder.prefill(row, some(count, row).tolist())
    return decoder


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """torch's default, as it is while another thread loads weights of this type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
