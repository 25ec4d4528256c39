"""Biases and masks of tokens: what depends on the text's length or on its last tokens alone.

Each changes logits as the processor of transformers or vLLM for the same thing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor


class SequenceBias:
    """Adds to the logit of a sequence's last token where the text ends with those before it: ``logit_bias`` for
    sequences of one token, bad words with −inf."""

    def __init__(self, biases: Mapping[Sequence[int], float]) -> None:
        self._biases = [(list(sequence[:-1]), sequence[-1], bias) for sequence, bias in biases.items()]
        self._longest = max((len(prefix) for prefix, _, _ in self._biases), default=0)

    def apply(self, logits: Tensor, text: Sequence[int], drafted: Sequence[int]) -> None:
        """Add the biases; see :class:`osd.verification.logits_processors.LogitsProcessor`."""
        end, due = [*text[max(0, len(text) - self._longest) :], *drafted], dict[int, float]()
        for prefix, token, bias in self._biases:
            if not prefix or end[-len(prefix) :] == prefix:
                due[token] = due.get(token, 0.0) + bias
        if due:
            logits[list(due)] += torch.tensor(list(due.values()), dtype=logits.dtype, device=logits.device)


class SuppressTokens:
    """Forbids tokens in texts of ``begin`` tokens or more, prompt included, and fewer than ``end``."""

    def __init__(self, tokens: Iterable[int], begin: int = 0, end: float = torch.inf) -> None:
        self._tokens, self._begin, self._end = list(tokens), begin, end

    def apply(self, logits: Tensor, text: Sequence[int], drafted: Sequence[int]) -> None:
        """Forbid them; see :class:`osd.verification.logits_processors.LogitsProcessor`."""
        if self._begin <= len(text) + len(drafted) < self._end:
            logits[self._tokens] = -torch.inf


class AllowedTokens:
    """Forbids all but some tokens."""

    def __init__(self, tokens: Iterable[int]) -> None:
        self._tokens = list(tokens)

    def apply(self, logits: Tensor, text: Sequence[int], drafted: Sequence[int]) -> None:
        """Forbid the others; see :class:`osd.verification.logits_processors.LogitsProcessor`."""
        allowed = logits[self._tokens]
        logits.fill_(-torch.inf)
        logits[self._tokens] = allowed


class ForcedTokens:
    """Leaves nothing but ``tokens``, equally likely, after a text of exactly ``length`` tokens, prompt included."""

    def __init__(self, tokens: Iterable[int], length: int) -> None:
        self._tokens, self._length = list(tokens), length

    def apply(self, logits: Tensor, text: Sequence[int], drafted: Sequence[int]) -> None:
        """Force them; see :class:`osd.verification.logits_processors.LogitsProcessor`."""
        if len(text) + len(drafted) == self._length:
            logits.fill_(-torch.inf)
            logits[self._tokens] = 0.0


class EndTokenGrowth:
    """Raises the logits of end tokens beyond ``begin`` tokens, prompt included: by ``factor`` to the power of what the
    text has beyond them (exponential_decay_length_penalty)."""

    def __init__(self, tokens: Iterable[int], begin: int, factor: float) -> None:
        self._tokens, self._begin, self._factor = list(tokens), begin, factor

    def apply(self, logits: Tensor, text: Sequence[int], drafted: Sequence[int]) -> None:
        """Raise them; see :class:`osd.verification.logits_processors.LogitsProcessor`."""
        beyond = len(text) + len(drafted) - self._begin
        if beyond > 0:
            scores = logits[self._tokens]
            growth = (scores.abs() * (self._factor**beyond - 1)).masked_fill(~scores.isfinite(), 0.0)
            logits[self._tokens] = scores + growth
