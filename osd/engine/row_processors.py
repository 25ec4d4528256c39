"""The logits processors that a request asks for, as vLLM and transformers name and order them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from osd.models.pair import Pair
from osd.sequence import SequenceState
from osd.verification.grammar import GrammarCompiler, GrammarProcessor
from osd.verification.logits_processors import LogitsProcessor
from osd.verification.penalties import OutputPenalties, RepetitionPenalty
from osd.verification.token_masks import AllowedTokens, SequenceBias, SuppressTokens
from storage.records import Sampling


def row_processors(row: SequenceState, pair: Pair, grammars: GrammarCompiler) -> list[LogitsProcessor]:
    """Return a row's processors: a grammar, which counts where others would leave nothing that it allows, then biases,
    penalties and masks. Nothing is made where nothing is asked for. Raises BadRequest where a grammar cannot be
    compiled."""
    request, sampling = row.request, row.request.sampling
    found: list[LogitsProcessor] = []
    if request.grammar:
        found.append(GrammarProcessor(grammars.compile(request.grammar), row.prompt_len))
    if sampling.logit_bias:
        found.append(SequenceBias({(token,): bias for token, bias in sampling.logit_bias.items()}))
    found += _penalties(sampling, row.prompt_len)
    if sampling.allowed_token_ids is not None:
        found.append(AllowedTokens(sampling.allowed_token_ids))
    if request.min_tokens:
        eos = () if request.ignore_eos else (token for token in pair.eos_ids if token < pair.vocab_size)
        found.append(SuppressTokens([*request.stop_token_ids, *eos], end=row.prompt_len + request.min_tokens))
    if sampling.bad_words:
        words = bad_words_ids(pair.tokenizer, sampling.bad_words, pair.vocab_size)
        found.append(SequenceBias(dict.fromkeys(words, -math.inf)))
    return found


def _penalties(sampling: Sampling, prompt_len: int) -> Iterable[LogitsProcessor]:
    if sampling.repetition_penalty not in (None, 1):
        yield RepetitionPenalty(sampling.repetition_penalty)
    if sampling.frequency_penalty or sampling.presence_penalty:
        yield OutputPenalties(prompt_len, sampling.frequency_penalty, sampling.presence_penalty)


def bad_words_ids(tokenizer: Any, words: Iterable[str], vocabulary: int) -> list[tuple[int, ...]]:
    """Return the tokens of each word as a text begins with it, and as it follows a space where that is another way to
    write it in as many tokens. What ends with a token outside the vocabulary cannot come in any case."""
    found: list[tuple[int, ...]] = []
    for word in words:
        plain, spaced = (tuple(tokenizer.encode(p + word.lstrip(), add_special_tokens=False)) for p in ("", " "))
        found.append(plain)
        if len(spaced) == len(plain) and spaced[0] != plain[0]:
            found.append(spaced)
    return [tokens for tokens in found if tokens[-1] < vocabulary]
