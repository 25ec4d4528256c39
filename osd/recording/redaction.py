"""The hook that sees every request before anything of it is written.

A hook takes a :class:`Passage` and answers token ids, as many as there were, or None: do not keep this one. Positions
whose token it changed are dropped with the target's distribution there, for that names the token. What follows later
stays, so a hook that must be sure answers None. A draft's own tokens behind
a refused one (branches) are shown to the hook too, each branch with the text before it; one that it would change is
dropped. Where a hook raises or answers something else, nothing is written.
"""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from typing import Any

import numpy as np
import numpy.typing as npt

from storage.errors import BadSetting
from storage.records import RequestSamples

log = logging.getLogger(__name__)

GROUP = "osd.redact"
Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Passage:
    """A finished request as a hook sees it."""

    tokens: tuple[int, ...]
    """Token ids of prompt and output."""
    pieces: tuple[str, ...]
    """The text of each token by itself; empty where the target has no tokenizer."""
    prompt_len: int
    tenant: str
    route: str

    def without(self, pattern: str, token: int) -> tuple[int, ...]:
        """Return the tokens, with ``token`` in place of each that a match of the regular expression touches."""
        ends = np.cumsum([len(piece) for piece in self.pieces])
        tokens = np.array(self.tokens)
        for match in re.finditer(pattern, "".join(self.pieces)):
            first, last = np.searchsorted(ends, [match.start(), match.end() - 1], side="right")
            tokens[first : last + 1] = token
        return tuple(tokens.tolist())


Hook = Callable[[Passage], Sequence[int] | None]


class Redactor:
    """Runs a hook over requests, and applies what it answers."""

    def __init__(self, hook: Hook | None, tokenizer: Any = None) -> None:
        self._hook = hook
        self._tokenizer = tokenizer
        self.refused = 0
        """Requests that the hook did not want kept."""
        self.failed = 0
        """Requests that were not kept because the hook failed."""

    def __call__(self, batch: list[RequestSamples]) -> list[RequestSamples]:
        """Return the samples that may be written."""
        return batch if self._hook is None else [kept for one in batch if (kept := self._seen(one)) is not None]

    def _seen(self, samples: RequestSamples) -> RequestSamples | None:
        try:
            answer = self._asked(samples, samples.tokens)
            if answer is None:
                self.refused += 1
                return None
            return redacted(self._with_allowed_branches(samples), answer)
        except Exception as error:  # whatever a hook raises: its message may hold what must not be told
            self.failed += 1
            log.error("a request was not kept: the redaction hook failed (%s)", type(error).__name__,
                      extra={"action": "redaction_failed"})  # fmt: skip
            return None

    def _with_allowed_branches(self, samples: RequestSamples) -> RequestSamples:
        """Return the request without the branches that the hook would change, or not keep, as a text of their own."""
        if samples.branches is None:
            return samples
        answers = ((text, self._asked(samples, text)) for text in samples.branches.texts(samples.tokens))
        allowed = [answer is not None and tuple(answer) == tuple(text.tolist()) for text, answer in answers]
        return replace(samples, branches=samples.branches.where(np.array(allowed)))

    def _asked(self, samples: RequestSamples, text: Ints) -> Sequence[int] | None:
        return self._hook(self._passage(samples, text))  # type: ignore[misc]

    def _passage(self, samples: RequestSamples, text: Ints) -> Passage:
        tokens = tuple(text.tolist())
        pieces = () if self._tokenizer is None else tuple(self._tokenizer.batch_decode([[token] for token in tokens]))
        return Passage(tokens, pieces, samples.prompt_len, samples.tenant, samples.route)


def redacted(samples: RequestSamples, answer: Sequence[int]) -> RequestSamples:
    """Return the request with other tokens, and without the positions where they changed. Raises ValueError."""
    tokens = np.array(answer, np.int32)
    if tokens.shape != samples.tokens.shape:
        raise ValueError(f"a hook answers {len(samples.tokens)} tokens or None, not {tokens.shape}")
    stays = (tokens == samples.tokens)[samples.positions]
    names = ("positions", "kinds", "drafted", "topk_ids", "topk_logprobs", "outside")
    chances = None if samples.acceptance is None else samples.acceptance[stays]
    kept = {name: getattr(samples, name)[stays] for name in names}
    # a hidden state tells of every token before it, what the hook took away among them
    states = samples.hidden_states if stays.all() and (tokens == samples.tokens).all() else None
    return replace(samples, tokens=tokens, acceptance=chances, hidden_states=states, **kept)


def load_hook(name: str | None) -> Hook | None:
    """Load the hook that ``privacy.redact`` names. Raises BadSetting."""
    if name is None:
        return None
    try:
        found = [point for point in entry_points(group=GROUP) if point.name == name]
        module, _, attribute = name.partition(":")
        hook = found[0].load() if found else getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise _bad(f"{name!r} cannot be loaded ({type(error).__name__}: {error})") from error
    if not callable(hook):
        raise _bad(f"{name!r} is no function")
    return hook  # type: ignore[no-any-return]


def _bad(reason: str) -> BadSetting:
    reason = f"{reason}; give package.module:function or the name of an entry point of the group {GROUP}"
    return BadSetting(source="settings", key="privacy.redact", reason=reason)
