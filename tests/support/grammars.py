"""Tokenizers that can write any text, small pairs that use them, and the plain way to keep to a grammar."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from osd.models.pair import Pair
from osd.verification.grammar import CompiledGrammar, GrammarCompiler
from storage.sampling import Grammar
from tests.support.models import random_pair

BOS, END = "<s>", "</s>"
TEXTS = [
    '{"name": "Ann", "age": 31, "tags": ["a", "bb"]} true false null',
    'näkö 日本 "x\\n": [1, 2.5, -3e4], {"a": {}}',
]
TRAINING: dict[str, Any] = {"special_tokens": ["<unk>", BOS, END], "show_progress": False}


def byte_level() -> Tokenizer:
    """BPE over bytes."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(TEXTS * 9, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, **TRAINING))
    return made


def byte_fallback() -> Tokenizer:
    """BPE over characters, with bytes for those that it does not know, as SentencePiece makes it."""
    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.train_from_iterator(TEXTS * 9, trainers.BpeTrainer(vocab_size=60, **TRAINING))
    said = json.loads(made.to_str())
    vocabulary = said["model"]["vocab"]
    vocabulary |= {f"<0x{byte:02X}>": len(vocabulary) + byte for byte in range(256)}
    said["model"] |= {"byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True}
    made = Tokenizer.from_str(json.dumps(said))
    replaced, strip = decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)
    made.decoder = decoders.Sequence([replaced, decoders.ByteFallback(), decoders.Fuse(), strip])
    return made


FAMILIES: dict[str, Callable[[], Tokenizer]] = {"byte_level": byte_level, "byte_fallback": byte_fallback}


@cache
def tokenizer_of(family: str) -> PreTrainedTokenizerFast:
    """A tokenizer of a family."""
    return PreTrainedTokenizerFast(tokenizer_object=FAMILIES[family](), bos_token=BOS, eos_token=END)


@cache
def grammar_pair(family: str = "byte_level", noise: float = 0.1) -> Pair:
    """A random pair with a tokenizer, its logits wider than that."""
    tokenizer = tokenizer_of(family)
    pair = random_pair("llama", noise=noise, vocabulary=len(tokenizer) + 5, eos=tokenizer.eos_token_id)
    return replace(pair, tokenizer=tokenizer)


def compiler_of(pair: Pair) -> GrammarCompiler:
    """What compiles for a pair."""
    return GrammarCompiler(pair.tokenizer, pair.vocab_size, pair.eos_ids)


def followers(compiled: CompiledGrammar, tokens: Sequence[int], width: int) -> list[int]:
    """The tokens that may follow others, by trying each in a matcher that has seen no others."""
    matcher = compiled.matcher()
    if matcher.try_consume_tokens(list(tokens)) < len(tokens):
        return []
    ends = compiled.eos_ids if matcher.is_accepting() else ()
    others = (token for token in range(width) if token not in compiled.eos_ids)
    return sorted([*ends, *(token for token in others if matcher.validate_tokens([token]) == 1)])


@torch.inference_mode()
def alone_with(pair: Pair, prompt: tuple[int, ...], count: int, grammar: Grammar) -> list[int]:
    """The plain reference: the target's greedy text by a fresh pass for each token, the likeliest that may follow."""
    compiled, text = compiler_of(pair).compile(grammar), list[int]()
    while len(text) < count and not (text and text[-1] in pair.eos_ids):
        logits = pair.target.module(input_ids=torch.tensor([[*prompt, *text]]), use_cache=False).logits[0, -1]
        good = followers(compiled, text, len(logits))
        text.append(good[int(logits[good].argmax())])
    return text


def schema(given: Any, field: str = "grammar") -> Grammar:
    """The grammar of a JSON schema."""
    return Grammar("json_schema", json.dumps(given), field)
