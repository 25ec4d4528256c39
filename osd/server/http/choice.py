"""One choice of an answer as it grows: its text, the log-probabilities of its tokens, its finish reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from osd.engine.text_stream import TextStream
from osd.logits import Scores
from osd.server.core.messages import Done, JobOutput
from osd.server.http.tool_calls import CallDelta, CallReader


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
class Delta:
    """The part of an answer that can be shown now."""

    text: str
    scored: list[ScoredToken] = field(default_factory=list)
    finish_reason: str | None = None
    prompt: list[dict[str, Any] | None] | None = None
    """The log-probabilities of the prompt's tokens in vLLM's form, where they were asked for: in the first delta."""
    calls: list[CallDelta] = field(default_factory=list)


class Choice:
    """Fed with outputs, it hands out deltas. Texts and scores of all deltas together are those of the whole answer:
    a score for each of its tokens, those of its end too."""

    def __init__(self, stream: TextStream, calls: CallReader | None = None) -> None:
        self._stream, self._calls = stream, calls.stream() if calls else None
        self._held: list[ScoredToken] = []
        self.done: Done | None = None
        self.version: str | None = None
        self.route: str | None = None

    def take(self, piece: JobOutput) -> Delta:
        """Take in what a decoding step brought; return what can be shown now."""
        delta = self._take(piece)
        if self._calls is None:
            return delta
        content, calls = self._calls.push(delta.text, last=piece.done is not None)
        reason = "tool_calls" if delta.finish_reason == "stop" and self._calls.count else delta.finish_reason
        return replace(delta, text=content, finish_reason=reason, calls=calls)

    def _take(self, piece: JobOutput) -> Delta:
        self.version, self.route = piece.version or self.version, piece.route or self.route
        text = self._push(piece.tokens, piece.scores)
        if piece.done is None:
            return Delta(text, self._release(self._stream.shown))
        self.done = piece.done
        text += self._stream.finish()
        return Delta(text, self._release(None), piece.done.finish_reason)

    def _push(self, tokens: Sequence[int], scores: Scores | None) -> str:
        if scores is None:
            return self._stream.push(tokens)
        shown = ""
        for i, token in enumerate(tokens):
            offset = len(self._stream.text)
            shown += self._stream.push([token])
            top = list(zip(scores.top_ids[i], scores.top[i], strict=True))
            self._held.append(ScoredToken(token, scores.chosen[i], top, offset))
        return shown

    def _release(self, end: int | None) -> list[ScoredToken]:
        """Return scores of tokens whose text begins before ``end``; None means all, and the text is whole."""
        if end is None:
            ready, last = self._held, len(self._stream.text)
            return [one if one.offset <= last else replace(one, offset=last) for one in ready]
        ready = [one for one in self._held if one.offset < end]
        self._held = self._held[len(ready) :]
        return ready
