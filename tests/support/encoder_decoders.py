"""Small random encoder-decoder models, and their own greedy texts."""

from __future__ import annotations

from typing import Any

import torch
import transformers as tf

from osd.models.pair import Pair
from tests.support.models import VOCABULARY, model_of, noisy, prepared

TOKENS = {"vocab_size": VOCABULARY, "eos_token_id": 1, "pad_token_id": 0, "decoder_start_token_id": 0}
T5 = {
    "d_model": 32, "d_kv": 8, "num_heads": 4, "num_layers": 2, "num_decoder_layers": 3, "d_ff": 48,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, **TOKENS,
}  # fmt: skip
BART = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 96, "bos_token_id": 2,
    "forced_eos_token_id": None, "init_std": 0.1, **TOKENS, "decoder_start_token_id": 1,
}  # fmt: skip
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("t5", T5),
    "t5, gated": ("t5", {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "bart": ("bart", BART),
}
"""By a name, the model type and its configuration."""


def random_encoder_decoder(name: str, vocabulary: int = VOCABULARY, seed: int = 0, **more: Any) -> Any:
    """A random module of a kind; ``more``: what its configuration says beside."""
    kind, told = KINDS[name]
    module = prepared(tf.AutoConfig.for_model(kind, **{**told, "vocab_size": vocabulary, **more}), seed)
    start: int = told["decoder_start_token_id"]
    module.generation_config = tf.GenerationConfig(pad_token_id=0, decoder_start_token_id=start)
    return module


def encoder_decoder_pair(name: str, *, noise: float = 0.2, vocabulary: int = VOCABULARY) -> Pair:
    """A target and a noisy copy of it, without a tokenizer; no token ends a text."""
    target = random_encoder_decoder(name, vocabulary)
    return Pair(model_of(target, "target"), model_of(noisy(target, noise), "draft"), None, frozenset())


@torch.inference_mode()
def generated(module: Any, prompt: tuple[int, ...], count: int) -> list[int]:
    """The target's greedy text by transformers' ``generate``, without its start token. transformers 5.23 makes a cache
    for as many layers as the *encoder* has, so T5 with more in its decoder goes without."""
    read = torch.tensor([prompt])
    told: list[int] = module.generate(
        read,
        attention_mask=torch.ones_like(read),
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
        use_cache=False,
    )[0].tolist()
    return told[1:]
