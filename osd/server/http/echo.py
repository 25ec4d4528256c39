"""The prompt in its answer: its text before the answer's (``echo``), and the log-probabilities of its tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from osd.engine.detokenizer import Detokenizer
from osd.logits import Scores
from osd.server.http.choice import Delta, ScoredToken
from osd.server.http.token_text import TokenText, floor
from storage.records import Request

Ranked = dict[str, dict[str, Any]]
"""vLLM's form: a token's id → its ``logprob``, ``rank`` and ``decoded_token``."""


@dataclass(slots=True)
class PromptEcho:
    """Puts a prompt before the deltas of one of its answers."""

    detokenizer: Detokenizer
    request: Request
    echo: bool
    top: int | None
    """How many of the likeliest tokens come with each token of an echo; None for no log-probabilities."""
    prompt_logprobs: int | None
    """How many of the likeliest come with each token in vLLM's form; None where that was not asked for."""
    _shift: int | None = None
    """Characters before the answer, once they were handed out."""

    def add(self, delta: Delta, scores: Scores | None, token_text: TokenText) -> Delta:
        """Return the delta with the prompt before it, if it is the first, and its offsets behind the prompt."""
        if self._shift is not None:
            return _shifted(delta, self._shift)
        tokens, scores = self.request.prompt_tokens, scores or Scores([], [], [], [])
        text = self._text() if self.echo else ""
        self._shift = len(text)
        delta = _shifted(delta, self._shift)
        if self.echo and self.top is not None:
            offsets = prompt_offsets(self.detokenizer, tokens, text)
            delta = replace(delta, scored=[*_scored(tokens, scores, self.top, offsets), *delta.scored])
        if self.prompt_logprobs is not None:
            delta = replace(delta, prompt=[None, *_ranked(tokens, scores, self.prompt_logprobs, token_text)])
        return replace(delta, text=text + delta.text)

    def _text(self) -> str:
        """Return the prompt as it was given; special tokens of one that was given as ids are kept."""
        text = self.request.text
        if text is not None:
            return text
        decoder = self.detokenizer.decoder((), skip_special_tokens=False)
        return decoder.push(self.request.prompt_tokens) + decoder.flush()


def prompt_offsets(detokenizer: Detokenizer, tokens: Sequence[int], text: str) -> list[int]:
    """Return where the text of each token begins in ``text``; 0 of what the tokenizer put before it."""
    decoder, decoded, offsets = detokenizer.decoder((), skip_special_tokens=False), "", []
    for token in tokens:
        offsets.append(len(decoded))
        decoded += decoder.push([token])
    decoded += decoder.flush()
    extra = len(decoded) - len(text) if decoded.endswith(text) else 0
    return [min(max(0, offset - extra), len(text)) for offset in offsets]


def _shifted(delta: Delta, shift: int) -> Delta:
    return replace(delta, scored=[replace(one, offset=one.offset + shift) for one in delta.scored])


def _scored(tokens: Sequence[int], scores: Scores, top: int, offsets: Sequence[int]) -> Iterator[ScoredToken]:
    """Yield the prompt's tokens with their log-probabilities; the first has none."""
    yield ScoredToken(tokens[0], None, [], offsets[0])
    for i, token in enumerate(tokens[1:]):
        likeliest = list(zip(scores.top_ids[i], scores.top[i], strict=True))[:top]
        yield ScoredToken(token, scores.chosen[i], likeliest, offsets[i + 1])


def _ranked(tokens: Sequence[int], scores: Scores, top: int, token_text: TokenText) -> Iterator[Ranked]:
    """Yield each token after the first, and the likeliest at its place, by id."""
    for i, token in enumerate(tokens[1:]):
        likeliest = list(zip(scores.top_ids[i], scores.top[i], range(1, top + 1), strict=False))
        rows = [(token, scores.chosen[i], scores.ranks[i]), *(one for one in likeliest if one[0] != token)]
        yield {
            str(each): {"logprob": floor(logprob), "rank": rank, "decoded_token": token_text(each)[0]}
            for each, logprob, rank in rows
        }
