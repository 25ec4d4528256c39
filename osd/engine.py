"""The decoding loop: rows join and leave between steps, and every step is one draft-then-verify round.

    admit → draft → verify → accept → commit → record

Offline generation, the benches and the server run this same loop. A batch is ragged: its rows accept
different numbers of tokens and are rolled back by shortening a length. The parts that it wires:
osd.intake (refuses), router (chooses a route), osd.gamma (how far), osd.drafters (proposes),
osd.decoder (the target's pass), osd.warp and osd.verdict (what is kept), osd.recorder, osd.swap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from osd.clock import Clock
from osd.drafters import CausalDrafter, Draft
from osd.drafters.head import head_in_settings
from osd.gamma import CostModel, Observation, make_pace
from osd.intake import check_request
from osd.models import Pair
from osd.recorder import Recorder
from osd.row import Completion, Progress, Row
from osd.swap import HeadSwap, Swap
from osd.text import Ending
from osd.verdict import Verdict, judge
from osd.warp import Warp
from router.base import Router
from router.fixed import FixedRouter
from storage.errors import BadRequest
from storage.records import Request, Round
from storage.settings import ServeSettings

UNVERSIONED = "unversioned"
"""The draft version of an engine that no store stands behind."""


@dataclass(slots=True)
class EngineStats:
    """What the engine measured of itself."""

    steps: int = 0
    round_ms: deque[float] = field(default_factory=lambda: deque(maxlen=100_000))
    """Milliseconds of each round, newest last."""
    swap_pause_ms: list[float] = field(default_factory=list)
    """Milliseconds for which decoding stood still at each swap."""


class Engine:
    """Decodes many requests together. Not thread-safe: one thread steps it."""

    def __init__(
        self,
        pair: Pair,
        settings: ServeSettings,
        *,
        router: Router | None = None,
        recorder: Recorder | None = None,
        swap: Swap | None = None,
        heads: HeadSwap | None = None,
    ) -> None:
        """``heads`` brings acceptance heads; without it the one that ``gamma_head`` names is read.

        Raises BadSetting when the gamma controller's settings do not fit together, HeadNotLoaded and HeadMismatch.
        """
        self.pair, self.settings = pair, settings
        self.limit = min(settings.max_length, pair.limit)
        self.router = router or FixedRouter()
        self.recorder, self.swap, self.heads = recorder, swap, heads
        self.costs = CostModel()
        self.pace = make_pace(settings, self.costs)
        self.stats = EngineStats()
        length = self.limit + settings.gamma_max + 1  # a row's padding may stand beyond its own end
        self.target = pair.target.decoder(settings.max_batch, length)
        head = None if heads else head_in_settings(settings, pair.draft)
        self.drafter = CausalDrafter(pair.draft.decoder(settings.max_batch, length), pair.vocab_size, head)
        self.ending = Ending(pair.tokenizer, pair.eos_ids)
        self.rows: list[Row] = []
        self.waiting: deque[Row] = deque()
        self._ended: list[Progress] = []
        self._clock = Clock(pair.device)
        if settings.threads:
            torch.set_num_threads(settings.threads)

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.rows or self.waiting or self._ended)

    @property
    def draft_version(self) -> str:
        """The version of the draft's weights that drafts now."""
        return self.swap.version if self.swap else UNVERSIONED

    def submit(self, request: Request) -> None:
        """Queue a request. Raises BadRequest or UnknownRoute; nothing is queued then."""
        check_request(request, self.pair, self.limit)
        if self._find(request.id):
            raise BadRequest(field="id", reason=f"request {request.id!r} is already being served")
        route = self.router.route(request)
        self.waiting.append(Row(request, route.name, self.pace.controller(route.name), self.limit))

    @torch.inference_mode()
    def cancel(self, request_id: str) -> bool:
        """End a request early; its completion comes with the next step. False if it is not here."""
        row = self._find(request_id)
        if row is None:
            return False
        if row in self.rows:
            self._leave(self.rows.index(row))
        else:
            self.waiting.remove(row)
        completion = self._finish(row, "cancelled")
        self._ended.append(Progress(request_id, (), completion))
        if self.recorder:
            self.recorder.finish(completion)
        return True

    def run(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Serve requests to the end, at most ``max_batch`` at a time, pulling them as there is room."""
        source = iter(requests)
        while True:
            while len(self.rows) + len(self.waiting) < self.settings.max_batch and (request := next(source, None)):
                self.submit(request)
            if not self.busy:
                return
            yield from (progress.completion for progress in self.step() if progress.completion)

    @torch.inference_mode()
    def step(self) -> list[Progress]:
        """One round over the batch; what it brought to each request."""
        self._swap()
        self._admit()
        progress, self._ended = self._ended, []
        if self.rows:
            progress += self._round()
        return progress

    def _round(self) -> list[Progress]:
        with self._clock as clock:
            gammas = self.pace.plan(self.rows)
            warp = Warp.of([row.request.sampling for row in self.rows], self.pair.vocab_size, self.pair.device)
            chance = self._chance(gammas) if warp else None
            self.costs.unread = sum(row.unread() for row, gamma in zip(self.rows, gammas, strict=True) if gamma)
            draft = self.drafter.propose(self.rows, gammas, warp, chance, self.pace.steer)
            clock.split()
            logits = self._verify(draft)
            verdict = judge(logits, draft, warp, chance, keep_chances=self.recorder is not None)
        rows = len(self.rows)
        progress = self._commit(gammas, draft, verdict, logits, clock)
        self._measure(rows, draft, clock)
        return progress

    def _admit(self) -> None:
        while self.waiting and len(self.rows) < self.settings.max_batch:
            row = self.waiting.popleft()
            self.target.prefill(len(self.rows), row.tokens[:-1])
            self.rows.append(row)

    def _chance(self, gammas: Sequence[int]) -> Tensor:
        """(B, 2 G + 1) uniforms: to draw each drafted token, to accept it, and for the token that follows.

        A row uses as many as its own gamma asks for, so that its text does not hang on its neighbours'.
        """
        lines = []
        for row, gamma in zip(self.rows, gammas, strict=True):
            chances, unused = row.chances(2 * gamma + 1), [0.0] * (max(gammas) - gamma)
            lines.append(chances[:gamma] + unused + chances[gamma:-1] + unused + chances[-1:])
        return torch.tensor(lines, dtype=torch.float64, device=self.pair.device)

    def _verify(self, draft: Draft) -> Tensor:
        """One target pass over each row's last token and its draft: logits (B, G + 1, V)."""
        last = torch.tensor([[row.tokens[-1]] for row in self.rows], device=self.pair.device)
        starts, counts = [row.length - 1 for row in self.rows], [length + 1 for length in draft.lengths]
        return self.target.logits(torch.cat([last, draft.tokens], dim=1), starts, counts=counts)

    def _measure(self, rows: int, draft: Draft, clock: Clock) -> None:
        """Tell the cost model. Committing is as often as verifying, so it counts there."""
        self.stats.steps += 1
        self.stats.round_ms.append(clock.first_ms + clock.second_ms)
        if draft.passes:
            self.costs.observe_draft(rows, draft.passes, clock.first_ms)
        tokens = sum(draft.lengths) + rows if self.target.packs else rows * (draft.size + 1)
        self.costs.observe_verify(rows, tokens, clock.second_ms + clock.since_ms())

    def _commit(
        self, gammas: Sequence[int], draft: Draft, verdict: Verdict, logits: Tensor, clock: Clock
    ) -> list[Progress]:
        """Append what was accepted, tell the controllers, keep what can be learned from, let rows go."""
        progress: list[Progress] = []
        share = 1 / len(self.rows)
        for index, row in enumerate(self.rows):
            accepted, drafted, before = verdict.accepted[index], draft.lengths[index], row.length
            tokens, reason = self.ending.cut(row, [*verdict.drafted[index][:accepted], verdict.follows[index]])
            row.tokens += tokens
            self.drafter.commit(row, before, accepted, draft)
            row.gamma.observe(Observation(gammas[index], drafted, accepted, row.tokens))
            times = (clock.first_ms * share, clock.second_ms * share)
            row.rounds.append(Round(gammas[index], drafted, accepted, len(tokens), *times, self.draft_version))
            progress.append(Progress(row.request.id, tuple(tokens), self._finish(row, reason) if reason else None))
        if self.recorder:
            self.recorder.take(self.rows, progress, draft, verdict.accepted, verdict.drafted, logits, verdict.chances)
        for index in reversed([i for i, p in enumerate(progress) if p.completion]):
            self._leave(index)
        return progress

    def _finish(self, row: Row, reason: str) -> Completion:
        return row.complete(reason, self.ending.text(row))

    def _leave(self, index: int) -> None:
        """Take a row out; the last one takes its place, so that rows stay together in the caches."""
        last = len(self.rows) - 1
        if index < last:
            row = self.rows[last]
            self.target.move_row(last, index, row.length - 1)
            self.drafter.move_row(last, index, row)
            self.rows[index] = row
        self.rows.pop()

    def _swap(self) -> None:
        """Take newer draft weights and a newer head if they are ready: exchanges of references between two steps."""
        if self.swap and self.swap.ready:
            with self._clock as clock:
                self.drafter.decoder.forward = self.swap.take()
                clock.split()
            self.stats.swap_pause_ms.append(clock.first_ms)
        if self.heads and self.heads.ready:
            self.drafter.head = self.heads.take()

    def _find(self, request_id: str) -> Row | None:
        return next((row for row in [*self.rows, *self.waiting] if row.request.id == request_id), None)
