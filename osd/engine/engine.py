"""The decoding loop: sequences join and leave between steps, and every step is one draft-then-verify round.

    admit → read → draft → verify → accept → commit → record

Offline generation, the benches and the server run this same loop. A batch is ragged: its rows accept
different numbers of tokens and are rolled back by shortening a length. The parts that it wires:
osd.engine.admission (checks and routes requests), osd.engine.prefill_queue (admits them, and prefills piece by piece),
osd.gamma (draft length), osd.drafters (which drafts there are, and what they propose), osd.models.decoder (the
target's pass), osd.verification.warping and osd.verification.result (what is accepted), osd.recording.recorder,
osd.hotswap.drafts, osd.drafters.scoring."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from osd.draft import Draft
from osd.drafters.base import Drafting, DraftRequest
from osd.drafters.factory import make_drafting
from osd.drafters.guard import DraftGuard
from osd.drafters.scoring import DraftScorer
from osd.drafters.tree import Proposer
from osd.engine.admission import AdmissionQueue
from osd.engine.draft_manager import UNVERSIONED, DraftManager
from osd.engine.pass_costs import PassCosts, probe
from osd.engine.prefill_queue import PrefillQueue
from osd.engine.stats import EngineStats
from osd.engine.text_stream import StopChecker
from osd.gamma.base import CostModel, GammaController, Observation
from osd.gamma.factory import RULES, make_planner, weighs_costs
from osd.hotswap.drafts import Swap
from osd.hotswap.heads import HeadSwap
from osd.logits import RaggedLogits
from osd.models.device_timer import Clock
from osd.models.pair import Pair, row_length, row_limit
from osd.recording.recorder import Recorder
from osd.sequence import Completion, RequestOutput, SequenceState
from osd.verification.lossy import LossyRule
from osd.verification.result import VerifyResult, uniforms
from osd.verification.verify import verify
from osd.verification.warping import Warp
from router.base import Router
from storage.errors import BadRequest
from storage.records import Request, Round
from storage.settings import Settings

__all__ = ["UNVERSIONED", "Engine", "EngineStats"]

Listener = Callable[[Sequence[SequenceState], Sequence[RequestOutput], VerifyResult, RaggedLogits], None]
"""Called after every round with its sequences, what each got, the verification result and the target's logits."""


class Engine:
    """Decodes many requests together. Not thread-safe: one thread steps it."""

    def __init__(
        self,
        pair: Pair,
        settings: Settings,
        *,
        router: Router | None = None,
        recorder: Recorder | None = None,
        swap: Swap | None = None,
        heads: HeadSwap | None = None,
        proposer: Proposer | None = None,
        costs: CostModel | None = None,
    ) -> None:
        """Wire the parts. ``heads`` and ``proposer`` take the place of the settings'; ``costs``: what passes take.

        Raises BadSetting for a rule or a drafter that there is not, or whose settings are wrong, HeadNotLoaded,
        HeadMismatch, GenerationConfigRefused and CannotServeTrees.
        """
        self.pair, self.settings = pair, settings
        self.limit, self.lossy = row_limit(pair, settings.serve), LossyRule.of(settings.serve)
        self.recorder, self.swap, self.heads = recorder, swap, heads
        self.draft_manager = DraftManager(pair, settings, swap, heads, costs or CostModel())
        self.pool = self.draft_manager.pool
        self.admission = AdmissionQueue(pair, router, self.limit, self.draft_manager.want, settings.serve)
        self.planner = make_planner(settings.gamma, self.costs)
        self.pass_costs = PassCosts(self.pool)
        """What passes cost, for routers."""
        self.stats = EngineStats(draft_failures=self.pool.failures.counts)
        self.target = pair.target.decoder(settings.serve.max_batch, row_length(pair, settings))
        self.pool.configure(self.target, settings.serve)
        if settings.serve.cache_mb is not None:
            self.target.bound(settings.serve.cache_mb << 20)
        self.target.cache.want_embedding(recorder is not None and settings.serve.record_hidden_states)
        self.prefill_queue = PrefillQueue(self.admission, self.target, settings.serve, self.stats)
        drafting = make_drafting(pair, settings, self.pool, self.target, proposer)
        self._guard = DraftGuard(drafting, self.pool, f"drafters.{settings.drafters.kind}")
        self.scorer = DraftScorer(self.pool, self.router, self.target)
        self.stop_checker = StopChecker(pair.tokenizer, pair.eos_ids, apart=bool(pair.target.start))
        self.listeners: list[Listener] = []
        self.rows: list[SequenceState] = []
        self._ended: list[RequestOutput] = []
        self.clock = Clock(pair.device)
        """Times the rounds. Benches put a clock here that shows what another machine would take."""
        if settings.serve.threads:
            torch.set_num_threads(settings.serve.threads)

    @property
    def drafting(self) -> Drafting:
        """What it drafts with."""
        return self._guard.drafting

    @drafting.setter
    def drafting(self, drafting: Drafting) -> None:
        self._guard.drafting = drafting

    @property
    def router(self) -> Router:
        """What sends requests to routes and drafts."""
        return self.admission.router

    @property
    def costs(self) -> CostModel:
        """Cost model of drafting with the first draft and of verifying; ``of`` gives those of the other drafts."""
        return self.pool.costs

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.rows or self.prefill_queue.rows or self._ended)

    @property
    def sequences(self) -> list[SequenceState]:
        """The sequences that are here, in whatever state."""
        return [*self.rows, *self.prefill_queue.rows]

    @property
    def room(self) -> int:
        """Requests that may come without having to wait."""
        return self.settings.serve.max_batch - len(self.rows) - len(self.prefill_queue.rows)

    @property
    def draft_version(self) -> str:
        """The version of the default draft's weights that is in use."""
        return self.pool.default.version

    def probe(self) -> None:
        """Time a few passes, so that a gamma rule that weighs them begins with what they cost; before any request."""
        if weighs_costs(self.settings.gamma) and not self.costs.known:
            probe(self.target, self.pool, self.pair, self.settings)

    def submit(self, request: Request) -> None:
        """Queue a request. Raises BadRequest or UnknownRoute; nothing is queued then."""
        if self._find(request.id):
            raise BadRequest(field="id", reason=f"request {request.id!r} is already being served")
        self.admission.submit(request)

    @torch.inference_mode()
    def cancel(self, request_id: str) -> bool:
        """End a request early; its completion comes with the next step. Return False if it is not here."""
        row = self._find(request_id)
        if row is None:
            return False
        if row in self.rows:
            self._leave(self.rows.index(row))
        else:
            self.prefill_queue.drop(row, len(self.rows))
        self._end(row, "cancelled")
        return True

    @torch.inference_mode()
    def hand_over(self) -> list[SequenceState]:
        """Let go of all sequences as they are, for another engine to :meth:`take_over`."""
        rows = self.sequences
        while self.rows:
            self._leave(len(self.rows) - 1)
        for row in self.prefill_queue.rows:
            self.prefill_queue.drop(row, 0)
        return rows

    def take_over(self, rows: Iterable[SequenceState]) -> None:
        """Go on with sequences of another engine: all that they have is read again, and a gamma rule begins anew."""
        for row in rows:
            row.drafter_seen, row.controller = 0, None
            row.prompt_scores = row.prompt_scores if row.rounds else None
            self.admission.resume(row)

    def run(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Serve requests, at most ``max_batch`` at a time, pulling them as there is room; yield completions."""
        source = iter(requests)
        while True:
            while self.room > 0 and (request := next(source, None)):
                self.submit(request)
            if not self.busy:
                return
            yield from (progress.completion for progress in self.step() if progress.completion)

    @torch.inference_mode()
    def step(self) -> list[RequestOutput]:
        """Run one round over the batch and return what it brought to each request."""
        self.scorer.work(idle=not self.busy)
        self._swap()
        self.target.prepare() or any(body.prepare() for body in self.pool.busy)
        self._admit()
        self.prefill_queue.take_blocks(self.rows, self._guard.leave)
        ended, self._ended = self._ended, []
        return ended + (self._round() if self.rows else [])

    def _round(self) -> list[RequestOutput]:
        with self.clock as clock:
            gammas = self.planner.plan(self.rows)
            warp = Warp.of([row.request.sampling for row in self.rows], self.pair.vocab_size, self.pair.device)
            chance = uniforms(self.rows, gammas, self.pair.device) if warp else None
            places = range(len(self.rows))
            draft = self._guard.propose(
                DraftRequest(self.rows, gammas, self.planner.should_continue, places, warp, chance)
            )
            clock.split()
            keep = self.recorder is not None
            scored, verdict = verify(self.target, self.rows, draft, warp, chance, keep_chances=keep, lossy=self.lossy)
        rows, context = len(self.rows), sum([row.length for row in self.rows])
        progress = self._commit(gammas, draft, verdict, scored, clock)
        self._measure(rows, context, draft, clock)
        return progress

    def _admit(self) -> None:
        joined = len(self.rows)
        for row in self.prefill_queue.admit(self.rows):
            self._guard.join(row, row.decision.draft)
            if not row.rounds or row.controller is None:  # else it goes on after it was set aside
                row.begin(self._controller(row), self.lossy.mode if self.lossy else "")
                self.stats.stood_in += row.loaded.draft != row.decision.draft
            self.rows.append(row)
        for row in [row for row in self.rows[joined:] if row.length == row.end]:
            self._leave(self.rows.index(row))
            self._end(row, "length")

    def _controller(self, row: SequenceState) -> GammaController:
        if (gamma := row.request.gamma) is not None:
            return self.planner.fixed(min(gamma, self.settings.gamma.max))
        rule = self.planner.controller(row.route, self.pool.costs_beside(row), row.request.tenant)
        rests = self.swap is not None and row.loaded.version in self.swap.resting
        return self.planner.fixed(0) if rests and not RULES.entry(rule.name).weighs_costs else rule

    def _measure(self, rows: int, context: int, draft: Draft, clock: Clock) -> None:
        """Update the cost model with the round's times. Committing is as frequent as verifying: it counts there."""
        self.stats.steps += 1
        self.stats.round_ms.append(clock.first_ms + clock.second_ms)
        self._guard.measure(clock.first_busy_ms)
        tokens = sum(draft.lengths) + rows if self.target.packs else rows * (draft.size + 1)
        self.costs.observe_verify(rows, tokens, clock.second_busy_ms + clock.since_ms(), context)
        if self.target.became_quicker():
            self.costs.forget_verifying()

    def _commit(
        self, gammas: Sequence[int], draft: Draft, verdict: VerifyResult, scored: RaggedLogits, clock: Clock
    ) -> list[RequestOutput]:
        """Append accepted tokens, inform the gamma rules, record what can be learned from, remove what finished."""
        progress: list[RequestOutput] = []
        share = 1 / len(self.rows)
        for index, row in enumerate(self.rows):
            accepted, depth, before = verdict.accepted[index], verdict.depths[index], row.length
            tokens, reason = self.stop_checker.cut(row, [*verdict.drafted[index][:accepted], verdict.follows[index]])
            row.tokens += tokens
            self._guard.commit(row, before, accepted, draft)
            row.gamma_state.observe(Observation(gammas[index], depth, accepted, row.tokens, verdict.acceptance(index)))
            times, by = (clock.first_ms * share, clock.second_ms * share), self._guard.version(row)
            lengths, kept = (gammas[index], draft.lengths[index]), min(accepted, len(tokens))
            row.add_round(Round(*lengths, kept, len(tokens), *times, by, depth, accepted - kept))
            ended = self._finish(row, reason) if reason else None
            progress.append(RequestOutput(row.request, tuple(tokens), row.length, ended))
        if self.recorder:
            self.recorder.record(progress, verdict, scored)
        for listen in self.listeners:
            listen(self.rows, progress, verdict, scored)
        for index in reversed([i for i, p in enumerate(progress) if p.completion]):
            self._leave(index)
        return progress

    def _end(self, row: SequenceState, reason: str) -> None:
        """Finish a sequence outside a round; its completion comes with the next step's output."""
        completion = self._finish(row, reason)
        self._ended.append(RequestOutput(row.request, (), row.length, completion))
        if self.recorder:
            self.recorder.finish(completion)

    def _finish(self, row: SequenceState, reason: str) -> Completion:
        completion = row.complete(reason, self.stop_checker.text(row))
        self.admission.observe(row, completion)
        self.scorer.keep(row, completion)
        return completion

    def _leave(self, index: int) -> None:
        """Remove a sequence; the last one takes its row, so that rows stay together in the caches."""
        row, last = self.rows[index], self.rows.pop()
        self._guard.leave(row)
        if last is not row:
            self.target.move_row(len(self.rows), index, last.length - 1)
            self.rows[index] = last
        else:
            self.target.release_row(index)
        self.prefill_queue.close_up(len(self.rows))

    def _swap(self) -> None:
        """Exchange drafts and acceptance heads for newer ones between two steps, by reference."""
        if self.draft_manager.ready:
            with self.clock as clock:
                self.draft_manager.renew()
                clock.split()
            self.stats.swap_pause_ms.append(clock.first_ms)
        self.draft_manager.renew_heads()

    def _find(self, request_id: str) -> SequenceState | None:
        return next((row for row in self.sequences if row.request.id == request_id), None)
