"""The parts of an answer, and what it has beside its text where that is asked for: log-probabilities, the prompt,
numbers of speculation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from osd.engine.detokenizer import HALF, Detokenizer
from osd.engine.text_stream import TextStream
from osd.logits import Scores
from osd.server.core.messages import JobOutput
from osd.server.http.protocol import Detail
from storage.records import Request, ratio

Json = dict[str, Any]
Ranked = dict[str, Json]
"""vLLM's form: a token's id → its ``logprob``, ``rank`` and ``decoded_token``."""
LEAST = -9999.0
"""The number that replaces −∞, which JSON lacks, as in OpenAI's answers."""


def floor(logprob: float | None) -> float | None:
    """Return a log-probability as JSON can hold it; None of None."""
    return None if logprob is None else max(logprob, LEAST)


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token of the answer, or of its echoed prompt, with its log-probabilities."""

    token: int
    logprob: float | None
    """None of a prompt's first token."""
    top: list[tuple[int, float]]
    """The likeliest tokens at its position, with their log-probabilities."""
    offset: int
    """Offset in the answer, in characters: of its text, or of the character that it is part of."""


@dataclass(frozen=True, slots=True)
class CallDelta:
    """The part of a call that can be shown now."""

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None
    """Its function; as its id, with the first part alone."""


@dataclass(frozen=True, slots=True)
class Delta:
    """The part of an answer that can be shown now."""

    text: str
    scored: list[ScoredToken] = field(default_factory=list)
    finish_reason: str | None = None
    prompt: list[dict[str, Any] | None] | None = None
    """The log-probabilities of the prompt's tokens in vLLM's form, where they were asked for: in the first delta."""
    calls: list[CallDelta] = field(default_factory=list)


class HeldScores:
    """The log-probabilities of one answer's tokens, held until the text of each is shown. All together they are those
    of the whole answer: one for each of its tokens, those of its end too."""

    def __init__(self) -> None:
        self._held: list[ScoredToken] = []

    def push(self, stream: TextStream, output: JobOutput) -> str:
        """Take in an output; return the text that its tokens add."""
        scores, shown = output.scores or Scores([], [], [], []), ""
        for i, token in enumerate(output.tokens):
            offset = len(stream.text)
            shown += stream.push([token])
            top = list(zip(scores.top_ids[i], scores.top[i], strict=True))
            self._held.append(ScoredToken(token, scores.chosen[i], top, offset))
        return shown

    def release(self, stream: TextStream, *, last: bool) -> list[ScoredToken]:
        """Return those of tokens whose text was shown; all where nothing follows, and the text is whole."""
        if last:
            end = len(stream.text)
            return [one if one.offset <= end else replace(one, offset=end) for one in self._held]
        ready = [one for one in self._held if one.offset < stream.shown]
        self._held = self._held[len(ready) :]
        return ready


class TokenText:
    """The text of single tokens, as they stand within a text."""

    def __init__(self, detokenizer: Detokenizer) -> None:
        self._detokenizer, self._data = detokenizer, detokenizer.data(skip_special_tokens=False)

    def __call__(self, token: int) -> tuple[str, list[int] | None]:
        """Return a token's text and its UTF-8 bytes; None where it is part of a character and its bytes are unknown."""
        data = self._data[token]
        text = data.decode(errors=self._detokenizer.errors)
        return text, list(data) if self._detokenizer.joins or HALF not in text else None


def chat_logprobs(one: ScoredToken, token_text: TokenText) -> Json:
    """Return a token's log-probabilities as chats have them."""
    top = [_token(token, logprob, token_text) for token, logprob in one.top]
    return {**_token(one.token, one.logprob, token_text), "top_logprobs": top}


def _token(token: int, logprob: float | None, token_text: TokenText) -> Json:
    text, data = token_text(token)
    return {"token": text, "logprob": floor(logprob), "bytes": data}


def completion_logprobs(scored: Sequence[ScoredToken], token_text: TokenText) -> Json:
    """Return the log-probabilities of tokens as completions have them."""
    return {
        "tokens": [token_text(one.token)[0] for one in scored],
        "token_logprobs": [floor(one.logprob) for one in scored],
        "top_logprobs": [_top(one, token_text) for one in scored],
        "text_offset": [one.offset for one in scored],
    }


def _top(one: ScoredToken, token_text: TokenText) -> Json | None:
    """Return the likeliest tokens, the likeliest last; None of a prompt's first token."""
    return None if one.logprob is None else {token_text(t)[0]: floor(p) for t, p in reversed(one.top)}


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


def speculative_decoding(steps: Sequence[tuple[int, int]], gamma_max: int, detail: Detail) -> Json | None:
    """Summarise a call's rounds that drafted, (drafted, accepted) each, in vLLM's terms
    (`metrics.speculative_decoding`); None where it was not asked for.

    ``mean_acceptance_length`` counts the target's own token: 1 + accepted ÷ steps. ``acceptance_histogram[j]`` is the
    number of steps that accepted j tokens.
    """
    if detail == "off":
        return None
    steps = [(drafted, accepted) for drafted, accepted in steps if drafted]
    drafted, accepted = sum(d for d, _ in steps), sum(a for _, a in steps)
    histogram = [0] * (gamma_max + 1)
    for _, kept in steps:
        histogram[min(kept, gamma_max)] += 1
    facts: Json = {
        "mean_acceptance_length": 1 + accepted / len(steps) if steps else None,
        "draft_acceptance_rate": ratio(accepted, drafted),
        "acceptance_histogram": histogram,
        "num_spec_steps": len(steps),
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": drafted,
        "num_spec_tokens": gamma_max,
    }
    return facts | ({"per_step_accepted": [a for _, a in steps]} if detail == "detailed" else {})
