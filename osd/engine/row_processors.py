"""The logits processors of a row: what its request asks for and what the model's own generation config says.

Biases come first, then penalties, then masks, as in transformers: where masks leave nothing, the last one is passed
over."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from osd.models.generation_config import PLAIN, GenerationConfig
from osd.models.pair import Pair
from osd.sequence import SequenceState
from osd.verification.grammar import GrammarCompiler, GrammarProcessor
from osd.verification.logits_processors import (
    AllowedTokens,
    EndTokenGrowth,
    ForcedTokens,
    LogitsProcessor,
    SequenceBias,
    SuppressTokens,
)
from osd.verification.penalties import NoRepeatNgram, OutputPenalties, RepetitionPenalty
from storage.sampling import Sampling


class RowProcessors:
    """Makes the processors of rows: none where nothing is asked for."""

    def __init__(self, pair: Pair, generation: GenerationConfig, grammars: GrammarCompiler) -> None:
        self._vocabulary, self._own, self._grammars = pair.vocab_size, generation, grammars
        self._tokenizer: Any = pair.tokenizer
        self._ends = self._known(sorted(pair.eos_ids))
        words = [tuple(word) for word in generation.bad_words_ids or () if [*word] not in [[end] for end in self._ends]]
        self._bad_words: dict[Sequence[int], float] = dict.fromkeys(words, -math.inf)
        self._plain = generation == PLAIN

    def of(self, row: SequenceState) -> list[LogitsProcessor]:
        """Return a row's processors. Lengths count from where the decoder begins to read. Raises BadRequest where a
        grammar cannot be compiled."""
        sampling, prompt = row.request.sampling, row.prompt_len - row.encoded
        found: list[LogitsProcessor] = []
        if row.request.grammar:
            found.append(GrammarProcessor(self._grammars.compile(row.request.grammar), prompt))
        found += [*self._biases(sampling), *_penalties(sampling, prompt)]
        if sampling.allowed_token_ids is not None:
            found.append(AllowedTokens(sampling.allowed_token_ids))
        if row.request.min_tokens:
            ends = [*row.request.stop_token_ids, *self._ends_of(row)]
            found.append(SuppressTokens(ends, end=prompt + row.request.min_tokens))
        if not self._plain:
            found += self._model_masks(row)
        if sampling.bad_words:
            found.append(self._sequences(dict.fromkeys(self._words(sampling.bad_words), -math.inf)))
        return found

    def _biases(self, sampling: Sampling) -> Iterator[LogitsProcessor]:
        if self._own.sequence_bias:
            yield self._sequences(self._own.sequence_bias)
        if sampling.logit_bias:
            yield self._sequences({(token,): bias for token, bias in sampling.logit_bias.items()})

    def _model_masks(self, row: SequenceState) -> Iterator[LogitsProcessor]:
        own, prompt = self._own, row.prompt_len - row.encoded
        if own.no_repeat_ngram_size:
            yield NoRepeatNgram(own.no_repeat_ngram_size)
        if self._bad_words:
            yield self._sequences(self._bad_words)
        yield from self._model_ends(row)
        if own.forced_bos_token_id is not None:
            yield ForcedTokens(self._known([own.forced_bos_token_id]), 1)
        if own.forced_eos_token_id is not None:
            yield ForcedTokens(self._known(_several(own.forced_eos_token_id)), row.end - row.encoded - 1)
        if own.suppress_tokens:
            yield SuppressTokens(self._known(own.suppress_tokens))
        if own.begin_suppress_tokens:
            begin = prompt + (prompt == 1 and own.forced_bos_token_id is not None)
            yield SuppressTokens(self._known(own.begin_suppress_tokens), begin, begin + 1)

    def _model_ends(self, row: SequenceState) -> Iterator[LogitsProcessor]:
        """When end tokens may come: never before the model's least lengths, and the likelier the longer."""
        own, ends, prompt = self._own, self._ends_of(row), row.prompt_len - row.encoded
        least = max(own.min_length or 0, prompt + own.min_new_tokens if own.min_new_tokens else 0)
        if least and ends:
            yield SuppressTokens(ends, end=least)
        if own.exponential_decay_length_penalty and ends:
            begin, factor = own.exponential_decay_length_penalty
            yield EndTokenGrowth(ends, prompt + begin, factor)

    def _words(self, words: Iterable[str]) -> Iterator[Sequence[int]]:
        """Tokens of each word as a text begins with it, and as it follows a space where that is another way to write it
        in as many tokens."""
        for word in words:
            plain, spaced = (self._encode(before + word.lstrip()) for before in ("", " "))
            yield plain
            if len(spaced) == len(plain) and spaced[0] != plain[0]:
                yield spaced

    def _encode(self, text: str) -> Sequence[int]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def _ends_of(self, row: SequenceState) -> Sequence[int]:
        return () if row.request.ignore_eos else self._ends

    def _sequences(self, biases: Mapping[Sequence[int], float]) -> SequenceBias:
        return SequenceBias({tokens: bias for tokens, bias in biases.items() if self._known(tokens[-1:])})

    def _known(self, tokens: Iterable[int]) -> list[int]:
        """Leave out tokens that the model has no logit for: they cannot come in any case."""
        return [token for token in tokens if token < self._vocabulary]


def _penalties(sampling: Sampling, prompt_len: int) -> Iterator[LogitsProcessor]:
    if sampling.repetition_penalty is not None and sampling.repetition_penalty != 1:
        yield RepetitionPenalty(sampling.repetition_penalty)
    if sampling.frequency_penalty or sampling.presence_penalty:
        yield OutputPenalties(prompt_len, sampling.frequency_penalty, sampling.presence_penalty)


def _several(tokens: int | Sequence[int]) -> Sequence[int]:
    return (tokens,) if isinstance(tokens, int) else tokens
