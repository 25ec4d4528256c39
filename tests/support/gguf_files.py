"""Small GGUF files of random models, as llama.cpp's converter writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers as tf

VOCABULARY = 96
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "max_position_embeddings": 256, "eos_token_id": 1,
    "bos_token_id": 1,
}  # fmt: skip
CONFIGS: dict[str, Any] = {"llama": tf.LlamaConfig, "qwen2": tf.Qwen2Config, "qwen3": tf.Qwen3Config}
NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "model.layers": "blk",
}  # fmt: skip


def write_gguf(path: Path, kind: str, quantisation: str, *, tied: bool = False, seed: int = 0, **shape: int) -> Path:
    """Write a random model of an architecture, its matrices of a GGUF type."""
    torch.manual_seed(seed)
    config = CONFIGS[kind](**{**SHAPE, **shape}, tie_word_embeddings=tied)
    module = tf.AutoModelForCausalLM.from_config(config)
    writer: Any = gguf.GGUFWriter(path, kind)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    writer.add_key_length(config.hidden_size // config.num_attention_heads)
    writer.add_eos_token_id(7)
    for name, weight in module.state_dict().items():
        if not (tied and name == "lm_head.weight"):
            _add(writer, name, weight.float(), config, quantisation if weight.dim() > 1 else "F32", kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: Any, name: str, weight: torch.Tensor, config: Any, quantisation: str, kind: str) -> None:
    values = weight.numpy() * (4 if weight.dim() > 1 else 1)
    if kind == "llama" and ("q_proj" in name or "k_proj" in name):  # llama.cpp turns other pairs of a head
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        values = values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    type_ = gguf.GGMLQuantizationType[quantisation]
    packed = gguf.quantize(np.ascontiguousarray(values, np.float32), type_)
    writer.add_tensor(name, packed, raw_dtype=type_)
