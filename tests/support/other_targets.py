"""Small models of the kinds that osd's engine refuses and vLLM serves: one that sees images, and one that keeps a
recurrent state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer, Qwen2_5_VLConfig

from tests.support.families import FAMILIES
from tests.support.models import LLAMA, VOCABULARY, prepared

IMAGE, VIDEO = VOCABULARY - 2, VOCABULARY - 1
"""Ids that stand for a part of an image, and of a video."""
EYES = {
    "depth": 1, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 14, "spatial_merge_size": 2,
    "temporal_patch_size": 2, "window_size": 56, "fullatt_block_indexes": [0], "in_channels": 3,
}  # fmt: skip

MARKS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
TEMPLATE = """{% for message in messages %}{% if message.content is string %}{{ message.content }}{% else %}
{%- for part in message.content %}{% if part.type == "text" %}{{ part.text }}{% else -%}
<|vision_start|><|image_pad|><|vision_end|>{% endif %}{% endfor %}{% endif %}{% endfor %}"""
PIXELS = {
    "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2_5_VLProcessor", "patch_size": 14,
    "temporal_patch_size": 2, "merge_size": 2, "min_pixels": 3136, "max_pixels": 200704,
    "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
}  # fmt: skip
"""How an image becomes parts of 28 times 28 pixels."""


def vision_language_config(**text: Any) -> Any:
    """The configuration of a Qwen2.5-VL over the tests' vocabulary, or with fields of its ``text`` changed."""
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
    own = {**LLAMA, "bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0, "rope_parameters": rope, **text}
    ids = {"image_token_id": IMAGE, "video_token_id": VIDEO, "vision_start_token_id": 94, "vision_end_token_id": 93}
    eyes = {**EYES, "out_hidden_size": own["hidden_size"]}
    return Qwen2_5_VLConfig(text_config=own, vision_config=eyes, **ids, tie_word_embeddings=False, eos_token_id=1)


def vision_language(seed: int = 0) -> Any:
    """A random Qwen2.5-VL."""
    return prepared(vision_language_config(), seed)


def recurrent(seed: int = 0) -> Any:
    """A random Qwen3-Next: layers with a recurrent state, and layers with attention."""
    kind, facts = FAMILIES["qwen3_next"]
    return prepared(AutoConfig.for_model(kind, **facts), seed)


def write_vision_language(folder: Path, words: Path) -> list[int]:
    """Write a random Qwen2.5-VL over the tokenizer in ``words``, with what reads its images, as vLLM serves it; return
    the ids that stand for an image and for a video."""
    tokenizer = AutoTokenizer.from_pretrained(words)
    tokenizer.add_special_tokens({"additional_special_tokens": list(MARKS)})
    begin, end, image, video = tokenizer.convert_tokens_to_ids(list(MARKS))
    size = -(-len(tokenizer) // 16) * 16
    text = {"vocab_size": size, "hidden_size": 64, "num_attention_heads": 2, "max_position_embeddings": 1024}
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]}
    config = vision_language_config(**text, rope_parameters=rope)
    config.image_token_id, config.video_token_id = image, video
    config.vision_start_token_id, config.vision_end_token_id = begin, end
    target = prepared(config)
    target.lm_head.weight.data *= 30  # it is sure of its tokens, as a trained one is: they can be learned
    target.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "preprocessor_config.json").write_text(json.dumps(PIXELS))
    return [image, video]
