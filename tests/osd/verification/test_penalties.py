"""Penalties and masks against the processors of transformers, and presence and frequency as OpenAI defines them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as tf
from hypothesis import given
from hypothesis import strategies as st

from osd.verification.logits_processors import (
    AllowedTokens,
    EndTokenGrowth,
    ForcedTokens,
    LogitsProcessor,
    SequenceBias,
    SuppressTokens,
)
from osd.verification.penalties import NoRepeatNgram, OutputPenalties, RepetitionPenalty

V = 11
TOKEN = st.integers(0, V - 1)
TEXTS = st.lists(TOKEN, min_size=1, max_size=14)
SEEDS = st.integers(0, 1 << 32)
IDS = st.lists(TOKEN, min_size=1, max_size=4, unique=True)
SEQUENCES = st.lists(st.lists(TOKEN, min_size=1, max_size=3), min_size=1, max_size=6, unique_by=tuple)


def scores(seed: int) -> torch.Tensor:
    """Logits of both signs, some −inf."""
    drawn = torch.randn(V, generator=torch.Generator().manual_seed(seed)) * 4
    drawn[seed % V] = -torch.inf
    return drawn


def agree(ours: LogitsProcessor, theirs: Callable[..., torch.Tensor], text: list[int], seed: int) -> None:
    """Over growing texts, of which the last four tokens are drafted, as far as there are so many."""
    for size in range(1, len(text) + 1):
        settled, logits = max(1, len(text) - 4), scores(seed)
        ours.apply(logits, text[: min(size, settled)], text[settled:size])
        expected = theirs(torch.tensor([text[:size]]), scores(seed).unsqueeze(0))[0]
        torch.testing.assert_close(logits, expected)


@given(TEXTS, SEEDS, st.floats(0.25, 4.0))
def test_repetition(text: list[int], seed: int, penalty: float) -> None:
    agree(RepetitionPenalty(penalty), tf.RepetitionPenaltyLogitsProcessor(penalty), text, seed)


@given(TEXTS, SEEDS, st.integers(1, 4))
def test_ngrams(text: list[int], seed: int, size: int) -> None:
    agree(NoRepeatNgram(size), tf.NoRepeatNGramLogitsProcessor(size), text, seed)


@given(TEXTS, SEEDS, SEQUENCES, st.floats(-9.0, 9.0))
def test_sequence_bias(text: list[int], seed: int, sequences: list[list[int]], bias: float) -> None:
    biases = {tuple(sequence): bias + i for i, sequence in enumerate(sequences)}
    agree(SequenceBias(biases), tf.SequenceBiasLogitsProcessor(biases), text, seed)


@given(TEXTS, SEEDS, SEQUENCES)
def test_bad_words(text: list[int], seed: int, words: list[list[int]]) -> None:
    ours = SequenceBias(dict.fromkeys(map(tuple, words), float("-inf")))
    agree(ours, tf.NoBadWordsLogitsProcessor(words, eos_token_id=V + 5), text, seed)


@given(TEXTS, SEEDS, IDS, st.integers(0, 9), st.integers(1, 6))
def test_masks_of_tokens(text: list[int], seed: int, ids: list[int], length: int, prompt: int) -> None:
    allowed = [*ids, (seed + 1) % V]  # one of which is not −inf
    pairs: list[tuple[LogitsProcessor, Any]] = [
        (SuppressTokens(ids), tf.SuppressTokensLogitsProcessor(ids)),
        (SuppressTokens(ids, prompt, prompt + 1), tf.SuppressTokensAtBeginLogitsProcessor(ids, prompt)),
        (SuppressTokens(ids, end=length), tf.MinLengthLogitsProcessor(length, ids)),
        (SuppressTokens(ids, end=prompt + length), tf.MinNewTokensLengthLogitsProcessor(prompt, length, ids)),
        (ForcedTokens(ids[:1], 1), tf.ForcedBOSTokenLogitsProcessor(ids[0])),
        (ForcedTokens(ids, length), tf.ForcedEOSTokenLogitsProcessor(length + 1, ids)),
        (AllowedTokens(allowed), tf.PrefixConstrainedLogitsProcessor(lambda *_: allowed, 1)),
        (EndTokenGrowth(ids, prompt + 1, 1.3), tf.ExponentialDecayLengthPenalty((1, 1.3), ids, prompt)),
    ]
    for ours, theirs in pairs:
        agree(ours, theirs, text, seed)


@pytest.mark.parametrize("length", [9, 300, 5000])
def test_ends_grow_and_stay_numbers(length: int) -> None:
    logits = torch.tensor([-3.0, -torch.inf, 2.0])
    EndTokenGrowth([0, 1], 5, 1.6).apply(logits, [2] * length, [])
    assert logits[0].isfinite() and logits[0] > -3.0 and logits[1] == -torch.inf
    assert logits.softmax(-1).isfinite().all()


@given(TEXTS, SEEDS, st.integers(0, 14), st.floats(-2, 2), st.floats(-2, 2))
def test_presence_and_frequency(text: list[int], seed: int, prompt: int, presence: float, frequency: float) -> None:
    """μ[j] − c[j] · frequency − (c[j] > 0) · presence, with c the counts of the output."""

    def plain(ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        count = torch.bincount(ids[0, prompt:], minlength=V)
        return logits - frequency * count - presence * (count > 0)

    prompt = min(prompt, len(text) - 1)
    processor = OutputPenalties(prompt, frequency, presence)
    for size in range(max(1, prompt), len(text) + 1):
        logits = scores(seed)
        processor.apply(logits, text[:size], [])
        torch.testing.assert_close(logits, plain(torch.tensor([text[:size]]), scores(seed).unsqueeze(0))[0])
