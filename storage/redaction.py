"""The hook that sees every text before anything of it is written. The store's own writers ask it, whoever calls them.

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
from functools import cached_property
from importlib.metadata import entry_points
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from storage.errors import BadInput, BadSetting
from storage.records import DEFAULT_ROUTE, DEFAULT_TENANT, RequestSamples

log = logging.getLogger(__name__)

GROUP = "osd.redact"
Ints = npt.NDArray[np.int32]
T = TypeVar("T")


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


class Redacted(list[RequestSamples]):
    """Requests that the hook has seen: those that a redactor returns, and old ones that come back."""


class NothingReadsTokens(BadInput):
    """privacy.redact is set, and its hook is shown text: name the target whose tokenizer it is by (serve.target)."""


def _no_tokenizer() -> Any:
    raise NothingReadsTokens


class Redactor:
    """Runs a hook over texts, and applies what it answers."""

    def __init__(self, hook: Hook | str | None, find_tokenizer: Callable[[], Any] = _no_tokenizer) -> None:
        """``hook``: it, or what ``privacy.redact`` says. ``find_tokenizer`` is called once there is something to read;
        where it returns None, the hook is shown ids alone."""
        self._given, self.find_tokenizer = hook, find_tokenizer
        self.refused = 0
        """Texts that the hook did not want kept."""
        self.failed = 0
        """Texts that were not kept because the hook failed."""

    def load(self, find_tokenizer: Callable[[], Any] | None = None) -> Redactor:
        """Load the hook and its tokenizer now; ``find_tokenizer`` as of the constructor. Raises BadSetting,
        NothingReadsTokens."""
        self.find_tokenizer = find_tokenizer or self.find_tokenizer
        if self.hook is not None:
            self._tokenizer = self.find_tokenizer()
        return self

    @cached_property
    def hook(self) -> Hook | None:
        """The hook. Raises BadSetting."""
        return load_hook(self._given) if isinstance(self._given, str) else self._given

    @cached_property
    def _tokenizer(self) -> Any:
        return self.find_tokenizer()

    def __call__(self, batch: Sequence[RequestSamples]) -> Redacted:
        """Return the samples that may be written, as they may be. Raises NothingReadsTokens."""
        if isinstance(batch, Redacted):
            return batch
        if self.hook is None:
            return Redacted(batch)
        return Redacted(kept for one in batch if (kept := self._guarded(self._seen, one)) is not None)

    def text(self, text: str) -> str | None:
        """Return a text that is no request's as it may be written; None where it may not. The hook sees it as a prompt
        of the default tenant. Raises NothingReadsTokens."""
        if self.hook is not None and self._tokenizer is None:
            raise NothingReadsTokens
        return text if self.hook is None else self._guarded(self._seen_text, text)

    def _guarded(self, see: Callable[[T], T | None], given: T) -> T | None:
        try:
            if (kept := see(given)) is None:
                self.refused += 1
            return kept
        except NothingReadsTokens:
            raise
        except Exception as error:  # whatever a hook raises: its message may hold what must not be told
            self.failed += 1
            log.error("a text was not kept: the redaction hook failed (%s)", type(error).__name__,
                      extra={"action": "redaction_failed"})  # fmt: skip
            return None

    def _seen(self, samples: RequestSamples) -> RequestSamples | None:
        answer = self._asked(samples, samples.tokens)
        return None if answer is None else redacted(self._with_allowed_branches(samples), answer)

    def _seen_text(self, text: str) -> str | None:
        tokens = np.array(self._tokenizer.encode(text, add_special_tokens=False), np.int32)
        answer = self._ask(tokens, len(tokens), DEFAULT_TENANT, DEFAULT_ROUTE)
        if answer is None:
            return None
        if len(answer) != len(tokens):
            raise ValueError(f"a hook answers {len(tokens)} tokens or None, not {len(answer)}")
        return text if tuple(answer) == tuple(tokens.tolist()) else str(self._tokenizer.decode(answer))

    def _with_allowed_branches(self, samples: RequestSamples) -> RequestSamples:
        """Return the request without the branches that the hook would change, or not keep, as a text of their own."""
        if samples.branches is None:
            return samples
        answers = ((text, self._asked(samples, text)) for text in samples.branches.texts(samples.tokens))
        allowed = [answer is not None and tuple(answer) == tuple(text.tolist()) for text, answer in answers]
        return replace(samples, branches=samples.branches.where(np.array(allowed)))

    def _asked(self, samples: RequestSamples, text: Ints) -> Sequence[int] | None:
        return self._ask(text, samples.prompt_len, samples.tenant, samples.route)

    def _ask(self, text: Ints, prompt_len: int, tenant: str, route: str) -> Sequence[int] | None:
        tokens = tuple(text.tolist())
        pieces = () if self._tokenizer is None else tuple(self._tokenizer.batch_decode([[token] for token in tokens]))
        return self.hook(Passage(tokens, pieces, prompt_len, tenant, route))  # type: ignore[misc]


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


def load_hook(name: str) -> Hook:
    """Load the hook that ``privacy.redact`` names. Raises BadSetting."""
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
