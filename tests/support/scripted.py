"""A model that says what it is told to: its next token hangs on the position alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def scripted(script: Mapping[int, Sequence[int]], vocabulary: int, end: int) -> Any:
    """A GPT-2 whose text from position p on is ``script[p]``; elsewhere it says ``end``.

    A position's embedding is a direction of its own, which the block leaves as it is and the head reads."""
    said = {at + i: token for at, tokens in script.items() for i, token in enumerate(tokens)}
    config = GPT2Config(
        vocab_size=vocabulary, n_positions=1024, n_embd=len(said) + 1, n_layer=1, n_head=1, eos_token_id=end,
        bos_token_id=None, tie_word_embeddings=False,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        model.transformer.ln_f.weight.fill_(1.0)
        model.transformer.wpe.weight[:, -1] = 1.0
        model.lm_head.weight[end, -1] = 1.0
        for direction, (position, token) in enumerate(said.items()):
            model.transformer.wpe.weight[position - 1].zero_()
            model.transformer.wpe.weight[position - 1, direction] = 1.0
            model.lm_head.weight[token, direction] = 1.0
    return model


def written(folder: Path, model: Any, tokenizer: Any) -> str:
    """Save both; the folder's name."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
