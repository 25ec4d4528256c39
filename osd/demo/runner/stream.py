"""Requests through the real engine, one segment after another, with everything that is measured beside them.

    start → step → read the finished text with the frozen draft and the serving one → now and then, the target alone

Only steps of the engine count as time spent decoding. Reading, checking and waiting happen between steps. A finished
text is read in one forward pass over prompt and output, and where it was sampled in one of the target; see
osd.demo.runner.measure for why this is α.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import torch
from torch import Tensor

from osd.demo.runner.alone import TargetAlone
from osd.demo.runner.feed import RequestFeed, RequestGate, Spent
from osd.demo.runner.measure import FinishedRequest, SwapSeen
from osd.demo.runner.source import Segment
from osd.drafters.blended import BlendedDrafter, TablePredictions
from osd.drafters.loaded_draft import LoadedDraft
from osd.drafters.ngram.predictions import sureness_of, trust_in_model
from osd.drafters.scoring import drawn_from, expected_hits, logits_of, reader_of
from osd.engine.engine import Engine
from osd.models.decoder import Decoder
from osd.prompts import encode
from osd.sequence import Completion
from storage.errors import BadRequest
from storage.records import DEFAULT_DRAFT, Request
from storage.sampling import GREEDY, Sampling


@dataclass
class StreamTrace:
    """What has come of a stream so far."""

    total: int
    """Requests that it has."""
    served: list[FinishedRequest] = field(default_factory=list)
    completions: dict[str, Completion] = field(default_factory=dict)
    """Finished requests by id; their texts are for the report and for reading with other drafts."""
    prompts: dict[str, str] = field(default_factory=dict)
    """Their prompts as text."""
    swaps: list[SwapSeen] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """What was wrong with requests that could not be served."""
    _begun: float = field(default_factory=time.perf_counter)
    _ended: float | None = None

    def begin(self) -> None:
        """Start the clock."""
        self._begun = time.perf_counter()

    def end(self) -> None:
        """Stop the clock."""
        self._ended = self._ended or time.perf_counter()

    @property
    def seconds(self) -> float:
        """Since the stream began, until it ended: decoding, reading, checking and waiting."""
        return (self._ended or time.perf_counter()) - self._begun

    def of(self, segment: str) -> list[FinishedRequest]:
        """The finished requests of a segment."""
        return [served for served in self.served if served.segment == segment]


Watch = Callable[[StreamTrace, str], None]
"""Called often, with the name of the segment that is being served."""


class Stream:
    """Serves segments. ``check_every``: every so many-th request is decoded again by the target alone; 0 for none."""

    def __init__(
        self, engine: Engine, arrival: RequestGate, alone: TargetAlone, *, max_new_tokens: int, check_every: int,
        sampling: Sampling = GREEDY,
    ) -> None:  # fmt: skip
        self._engine, self._alone, self._sampling = engine, alone, sampling
        self._feed = RequestFeed(engine, arrival, DEFAULT_DRAFT)
        self._max_new_tokens, self._check_every = max_new_tokens, check_every
        self._frozen = engine.pair.draft.decoder(1, engine.limit)
        self._target = engine.pair.target.decoder(1, engine.limit)
        self._version = engine.draft_version
        self._numbers: dict[str, int] = {}
        """Which of their segment's prompts the requests in flight are."""
        if isinstance(engine.drafting, BlendedDrafter):
            engine.drafting.watched = {}

    def run(self, segments: Sequence[Segment], trace: StreamTrace, watch: Watch) -> None:
        """Serve everything; ``trace`` fills as it goes. Raises TrainingFailed when training is stuck."""
        for segment in segments:
            self._serve(segment.name, self._requests(segment, trace), trace, watch)
            self._alone.finish()
        watch(trace, segments[-1].name)

    def _requests(self, segment: Segment, trace: StreamTrace) -> Iterator[Request]:
        for number, text in zip(count(1), segment.prompts, strict=False):
            try:
                tokens = encode(self._engine.pair.tokenizer, text)
            except BadRequest as error:
                trace.failures.append(f"{segment.name}, prompt {number}: {error}")
                continue
            request = Request(tokens, self._max_new_tokens, self._sampling, route=segment.name)
            trace.prompts[request.id], self._numbers[request.id] = text, number
            yield request

    def _serve(self, name: str, requests: Iterator[Request], trace: StreamTrace, watch: Watch) -> None:
        def refused(error: BadRequest) -> None:
            trace.failures.append(f"{name}: {error}")

        for finished in self._feed.serve(requests, refused):
            self._note_swap(trace)
            for completion, spent in finished:
                self._finish(completion, spent, name, trace)
            watch(trace, name)

    def _note_swap(self, trace: StreamTrace) -> None:
        if self._engine.draft_version != self._version:
            self._version = self._engine.draft_version
            trace.swaps.append(SwapSeen(len(trace.served), self._version, trace.seconds))

    def _online(self, completion: Completion, p: Tensor | None) -> tuple[float, int | None]:
        """Hits of what served it, and the positions that they are of; see osd.demo.runner.measure."""
        loaded, drafting = self._engine.pool.default, self._engine.drafting
        if isinstance(drafting, BlendedDrafter) and drafting.watched is not None:
            watched = drafting.watched.pop(completion.request.id, None)
            if p is None and watched and len(watched.predictions) == len(completion.tokens):  # from the start
                return sum(blended_hits(loaded, watched, completion)), None
        elif self._engine.settings.drafters.kind == "causal":
            return sum(loaded_hits(loaded, completion, p)), None
        accepted = sum(outcome.accepted for outcome in completion.outcomes)
        return accepted, accepted + sum(outcome.rejections for outcome in completion.outcomes)

    def _finish(self, completion: Completion, spent: Spent, name: str, trace: StreamTrace) -> None:
        index = len(trace.served)
        p = drawn_from(self._target, completion)
        frozen = draft_hits(self._frozen, completion, p)
        outcomes = completion.outcomes
        online, judged = self._online(completion, p)
        trace.completions[completion.request.id] = completion
        trace.served.append(
            FinishedRequest(
                index=index,
                segment=name,
                request_id=completion.request.id,
                version=outcomes[-1].draft_version,
                prompt_tokens=len(completion.request.prompt_tokens),
                emitted=len(completion.tokens),
                online_hits=online,
                judged=judged,
                frozen_hits=sum(frozen),
                rounds=sum(o.rounds for o in outcomes),
                drafted=sum(o.drafted for o in outcomes),
                accepted=sum(o.accepted for o in outcomes),
                rejections=sum(o.rejections for o in outcomes),
                seconds=spent.seconds,
                at=trace.seconds,
                number=self._numbers.pop(completion.request.id),
            )
        )
        if p is None and self._check_every and index % self._check_every == 0:
            self._alone.hold(completion, spent)


def draft_hits(decoder: Decoder, completion: Completion, p: Tensor | None = None) -> Sequence[float]:
    """Return :func:`osd.drafters.scoring.expected_hits` of a draft that reads the text in a cache of its own, a row."""
    text, count = _text(completion), len(completion.tokens)
    return expected_hits(decoder, text, count, completion.request.sampling, p) if count else []


def loaded_hits(loaded: LoadedDraft, completion: Completion, p: Tensor | None) -> Sequence[float]:
    """Return :func:`osd.drafters.scoring.expected_hits` of a draft that an engine has loaded."""
    reader = reader_of(loaded, len(_text(completion)))
    found = draft_hits(reader, completion, p)
    reader.cache.drop()
    return found


def _text(completion: Completion) -> list[int]:
    return [*completion.prompt, *completion.tokens]


def blended_hits(loaded: LoadedDraft, watched: TablePredictions, completion: Completion) -> list[bool]:
    """For every token of the output, whether draft and table together would have named it: the table what it predicted
    there before it was said, whichever of the two is trusted more by now."""
    output = list(completion.tokens)
    tokens = [*completion.prompt, *output]
    reader = reader_of(loaded, len(tokens))
    peaks, said = logits_of(reader, tokens, len(output)).softmax(-1, dtype=torch.float32).max(-1)
    reader.cache.drop()
    models = watched.rates.models[int(not completion.request.sampling.greedy)]
    found = zip(output, said.tolist(), peaks.tolist(), watched.predictions, strict=True)
    hits = []
    for token, own, peak, (prediction, believed) in found:
        kind = sureness_of(peak)
        hits.append(token == (prediction if believed > trust_in_model(models[kind], kind) else own))
    return hits
