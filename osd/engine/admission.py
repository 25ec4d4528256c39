"""Admission: a request is checked, routed, waits, and gets a row and a draft.

A router that reads text (``reads_text = True``) is given the prompt as text. One that chooses among drafts (it has
``choose(request, decision, perplexity)``) is asked a second time where its route has several: its answer is the
decision that counts. If it reads perplexity (``reads_perplexity = True``), the target's prefill also gives that of the
prompt's end.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from osd.engine.row_processors import RowProcessors
from osd.engine.validation import check_request
from osd.models.generation_config import generation_config
from osd.models.pair import Pair
from osd.sequence import Completion, SequenceState
from osd.verification.grammar import GrammarCompiler
from router.base import Decision, Router
from router.fixed import FixedRouter
from storage.errors import BadRequest
from storage.records import Request
from storage.settings import ServeSettings

Choose = Callable[[Request, Decision, float | None], Decision]
"""Takes the request, the decision so far, and exp(mean −ln p) of the prompt's tokens (None for a prompt of one)."""


class AdmissionQueue:
    """Checks and routes requests, and queues them for a row."""

    def __init__(
        self, pair: Pair, router: Router | None, limit: int, want: Callable[[str], None], serve: ServeSettings
    ) -> None:
        """Start with an empty queue. ``router``: None routes all to one; ``limit``: tokens of a row; ``want`` is
        called with the draft of each request. Raises GenerationConfigRefused."""
        self.pair, self.router, self.limit = pair, router or FixedRouter(), limit
        self._start = pair.target.start
        self.longest = limit + len(self._start)
        """Tokens of a row, with the one that a decoder begins with."""
        self.generation = generation_config(pair.target, pair.tokenizer, serve.generation_config)
        self.waiting: deque[SequenceState] = deque()
        self.grammars = GrammarCompiler(pair.tokenizer, pair.vocab_size, pair.eos_ids)
        self.processors = RowProcessors(pair, self.generation, self.grammars)
        self._want = want
        self._reads_perplexity = getattr(router, "reads_perplexity", False)
        self._choose: Choose | None = getattr(router, "choose", None)

    def submit(self, request: Request) -> None:
        """Queue a request. Raises BadRequest or UnknownRoute."""
        request = self.generation.complete(request)
        check_request(request, self.pair, self.limit)
        if self._start and request.prompt_logprobs is not None:
            reason = "an encoder reads the prompt, and says nothing of how likely it is; leave it out"
            raise BadRequest(field="prompt_logprobs", reason=reason)
        seen = self._with_text(request)
        decision = self.router.route(seen)
        self._want(decision.draft)
        row = SequenceState(request, seen, decision, self.longest, self._start)
        row.processors = self.processors.of(row)
        self.waiting.append(row)

    def resume(self, row: SequenceState) -> None:
        """Queue a sequence of another engine, with the draft that it had."""
        self._want(row.decision.draft)
        self.waiting.append(row)

    def asks_surprise(self, row: SequenceState) -> bool:
        """Return whether :meth:`decide` wants the mean −ln p of the prompt's end under the target; an encoder says
        none."""
        return self._reads_perplexity and not self._start and self._has_choice(row)

    def decide(self, row: SequenceState, surprise: float | None) -> None:
        """Choose a sequence's draft after its prefill, where its route has several. ``surprise``: the mean of −ln p."""
        if self._choose is not None and self._has_choice(row):
            row.decision = self._choose(row.seen, row.decision, None if surprise is None else math.exp(surprise))

    def _has_choice(self, row: SequenceState) -> bool:
        return self._choose is not None and len(row.decision.route.drafts) > 1

    def observe(self, row: SequenceState, completion: Completion) -> None:
        """Tell the router how a request ended."""
        self.router.observe(row.seen, row.decision, completion.outcomes)

    def _with_text(self, request: Request) -> Request:
        """Return the request as the router sees it, with its prompt as text where the router reads that."""
        if not self.router.reads_text or request.text is not None or self.pair.tokenizer is None:
            return request
        text = self.pair.tokenizer.decode(list(request.prompt_tokens), skip_special_tokens=True)
        return replace(request, text=str(text))
