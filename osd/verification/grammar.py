"""Grammars that an output must match, compiled by llguidance: which tokens may come next, and where the text may end.

A grammar's mask changes the target's logits and the draft's alike, as every logits processor does, so drafting goes on.
Compiling a large schema takes up to a second: a server does it in a thread of its own before a request is in line
(:meth:`GrammarCompiler.prepare`)."""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from osd.verification.logits_processors import StatefulProcessor
from storage.errors import BadRequest
from storage.sampling import Grammar

log = logging.getLogger(__name__)

KEPT = 64
"""Compiled grammars that are kept when nobody uses them, the most recently used ones."""
MOST_ITEMS = 10_000
"""Most ways to go on from a place: four a property of an object in which all may be left out."""
LONGEST, LONGEST_OTHER = {"json_schema": 1 << 18}, 1 << 16
"""Most characters of a grammar, by its kind. Rules of which each needs the next take a stack that grows with them, and
terminals of that kind a time that grows faster."""
STACK = 1 << 28
"""Bytes of the compiling thread's stack (address space until they are used): 20 kB for each of the rules that may need
one another."""
TRIED = 8
"""Tokens of a text that are tried when a grammar is compiled."""
SPACES = r"( |\n{1,2}[ \t]{0,20})"
"""White space between JSON's tokens, where there is any. Without a bound, a model that likes spaces never ends."""

NO_FORCING = '%llguidance {"no_forcing": true}\n'
"""Any way to write a text is allowed, not only the one that the tokenizer would choose: a token may come if and only if
a text that matches goes on with it."""
BYTES = [9, 10, *range(0x20, 0x7F), *range(0x80, 0xC0), *range(0xC2, 0xF5)]
"""The bytes of which texts consist, in UTF-8."""


class CompiledGrammar:
    """A compiled grammar."""

    def __init__(self, matcher: Any, eos_ids: frozenset[int], vocabulary: int) -> None:
        self._matcher, self.eos_ids, self.vocabulary = matcher, eos_ids, vocabulary

    def matcher(self) -> Any:
        """Return a matcher at the beginning of a text; it shares what was compiled."""
        return self._matcher.deep_copy()


class GrammarCompiler:
    """Compiles grammars for one tokenizer, and keeps them. Safe to use from several threads."""

    def __init__(self, tokenizer: Any, vocabulary: int, eos_ids: Collection[int]) -> None:
        """Prepare. ``vocabulary``: the width of the target's logits; ``eos_ids``: the tokens that end a text."""
        self._tokenizer, self._vocabulary = tokenizer, vocabulary
        self._eos_ids = frozenset(token for token in eos_ids if token < vocabulary)
        self._known: WeakValueDictionary[tuple[str, str], CompiledGrammar] = WeakValueDictionary()
        self._recent: OrderedDict[tuple[str, str], CompiledGrammar] = OrderedDict()
        self._lock = threading.Lock()

    def prepare(self, grammar: Grammar) -> Future[CompiledGrammar]:
        """Compile in the background. The future raises as :meth:`compile` does."""
        if (found := self._find(grammar)) is None:
            return self._executor.submit(self._make, grammar)
        done: Future[CompiledGrammar] = Future()
        done.set_result(found)
        return done

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Return the compiled grammar. Raises BadRequest, naming the grammar's field, where it cannot be compiled."""
        return self.prepare(grammar).result()

    def _make(self, grammar: Grammar) -> CompiledGrammar:
        if (found := self._find(grammar)) is not None:
            return found
        try:
            matcher = self._compile(grammar.kind, grammar.text)
        except BaseException as error:  # a panic of the library's is no Exception, and ends only this request
            if not isinstance(error, (ValueError, RecursionError)):
                log.exception("llguidance failed", extra={"action": "grammar_failed"})
            reason = " ".join(str(error).split()).rstrip(".")
            raise BadRequest(field=grammar.field, reason=f"it cannot be used as a grammar ({reason})") from None
        return self._keep(grammar, CompiledGrammar(matcher, self._eos_ids, self._vocabulary))

    def _find(self, grammar: Grammar) -> CompiledGrammar | None:
        with self._lock:
            found = self._known.get((grammar.kind, grammar.text))
        return self._keep(grammar, found) if found else None

    def _keep(self, grammar: Grammar, compiled: CompiledGrammar) -> CompiledGrammar:
        with self._lock:
            key = grammar.kind, grammar.text
            self._known[key] = self._recent[key] = compiled
            self._recent.move_to_end(key)
            if len(self._recent) > KEPT:
                self._recent.popitem(last=False)
        return compiled

    def _compile(self, kind: str, text: str) -> Any:
        """Return llguidance's matcher. Raises ValueError."""
        if len(text) > (most := LONGEST.get(kind, LONGEST_OTHER)):
            raise ValueError(f"it has {len(text)} characters, and may have {most}")
        tokenizer = self._ll_tokenizer
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(max_items_in_row=MOST_ITEMS, verbose_errors=False)
        matcher = LLMatcher(tokenizer, NO_FORCING + _lark(kind, text), log_level=0, limits=limits)
        if reason := matcher.get_error() or _tried(matcher.deep_copy()):
            raise ValueError(reason)
        return matcher

    @cached_property
    def _executor(self) -> ThreadPoolExecutor:
        executor, usual = ThreadPoolExecutor(1, thread_name_prefix="osd-grammar"), threading.stack_size(STACK)
        executor.submit(int).result()  # its thread begins
        threading.stack_size(usual)
        return executor

    @cached_property
    def _ll_tokenizer(self) -> Any:
        """The tokenizer as llguidance sees it. Raises ValueError where there is none that it can read."""
        try:
            from llguidance.hf import from_tokenizer
        except ImportError:
            raise ValueError("it needs llguidance, which is not installed: pip install 'llguidance>=1.9,<2'") from None
        if not self._eos_ids:
            raise ValueError("the target has no end token, with which a text that matches would end")
        if self._tokenizer is None:
            raise ValueError("the target has no tokenizer")
        try:
            made = from_tokenizer(self._tokenizer, self._vocabulary, sorted(self._eos_ids))
        except ValueError as error:
            families = "byte-level BPE and SentencePiece with byte fallback can be read, the target's tokenizer cannot"
            raise ValueError(f"{families}: {str(error)[:80]}") from None
        written = {made.decode_bytes([token]) for token in range(min(len(self._tokenizer), self._vocabulary))}
        if missing := next((byte for byte in BYTES if bytes([byte]) not in written), None):
            raise ValueError(
                f"the target's tokenizer has no token for the byte 0x{missing:02X}, so texts may lead nowhere"
            )
        return made


def _tried(matcher: Any) -> str:
    """Go some tokens into a grammar, which also makes the first masks quick; return why it fails, empty where it does
    not."""
    for _ in range(TRIED):
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        if matcher.is_error() or matcher.try_consume_tokens([int(bits.argmax())]) < 1:
            break
    reason: str = matcher.get_error()
    return reason


def json_rule(schema: Mapping[str, Any]) -> str:
    """Return what matches a JSON schema, as a part of a grammar in llguidance's notation."""
    return "%json " + json.dumps({**schema, "x-guidance": {"whitespace_pattern": SPACES}}, ensure_ascii=False)


def _lark(kind: str, text: str) -> str:
    """Return a grammar in llguidance's notation. Raises ValueError for a kind that there is not."""
    from llguidance import LLMatcher, grammar_from

    if kind == "json_schema":
        return "start: " + json_rule(json.loads(text))
    if kind == "regex":
        found: str = json.loads(LLMatcher.grammar_from_regex(text))["grammars"][0]["lark_grammar"]
        return found
    return grammar_from(kind, text)  # type: ignore[arg-type]


class GrammarProcessor(StatefulProcessor):
    """Lets a row's output match a grammar. An end token may come exactly where the grammar accepts, and where the text
    has become too complex for it, which is logged: such a text ends there."""

    def __init__(self, compiled: CompiledGrammar, start: int) -> None:
        """Follow a row whose output begins at ``start``."""
        super().__init__(start)
        self._compiled, self._matcher = compiled, compiled.matcher()
        self._taken: list[int] = []
        """The tokens that the matcher has seen."""
        self._beyond = 0
        """Tokens after those: the end token, which the matcher would not take back, or what it could not take."""
        self._ended = False
        """Whether the first of these is an end token."""

    def advance(self, token: int) -> bool:
        """Advance by a token; see :class:`StatefulProcessor`."""
        if self._ended:
            return False
        if not self._beyond and token not in self._compiled.eos_ids and self._matcher.try_consume_tokens([token]) == 1:
            self._taken.append(token)
            return True
        self._ended = token in self._compiled.eos_ids and not self._beyond and bool(self._matcher.is_accepting())
        if self._ended or self._beyond or self._recovered():
            self._beyond += 1
            return True
        return False

    def rollback(self, tokens: Sequence[int]) -> None:
        """Take the newest tokens back."""
        back = max(0, len(tokens) - self._beyond)
        self._beyond = max(0, self._beyond - len(tokens))
        self._ended = self._ended and self._beyond > 0
        self._matcher.rollback(back)
        del self._taken[len(self._taken) - back :]

    def change(self, logits: Tensor) -> None:
        """Forbid the tokens that cannot come next; none after the end, where nobody looks."""
        if not self._ended:
            logits.masked_fill_(~self._allowed(len(logits)).to(logits.device), -torch.inf)

    def _allowed(self, width: int) -> Tensor:
        """Return which of the first ``width`` tokens may come next (bool)."""
        bits = np.zeros((max(width, self._compiled.vocabulary) + 31) // 32, np.uint32)
        self._matcher.unsafe_compute_mask_ptr(bits.ctypes.data, (self._compiled.vocabulary + 31) // 32 * 4)
        allowed = np.unpackbits(bits.view(np.uint8), bitorder="little")[:width]
        if self._recovered() or self._beyond:
            allowed[:] = 0
            allowed[[token for token in self._compiled.eos_ids if token < width]] = 1
        return torch.from_numpy(allowed).bool()

    def _recovered(self) -> bool:
        """Return whether the matcher had failed, which it never leaves: there is another now in its place, as it was
        before."""
        if not self._matcher.is_error():
            return False
        log.warning("a text grew too complex for its grammar", extra={"action": "grammar_failed"})
        self._matcher = self._compiled.matcher()
        self._matcher.try_consume_tokens(self._taken)
        return True
