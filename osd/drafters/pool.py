"""The drafts that are in memory, behind the interface of one drafter: rows of a batch may use different ones.

Rows are grouped by :class:`DraftModel`. Full weights are a draft model each; adapters over one base, and
the bare base, share one, so their rows share its passes and its cache. Where one draft model serves the whole batch
nothing is regrouped.

What drafters raise is counted, and logged at most once a minute a kind; a drafter that keeps raising rests.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch

from osd.draft import Draft, Part, merge
from osd.drafters.base import DraftRequest
from osd.drafters.loaded_draft import DraftModel, LoadedDraft, loaded_draft_of
from osd.gamma.base import CostModel
from osd.models.acceptance_head import HeadPass
from osd.models.decoder import Decoder
from osd.models.device_timer import Laps
from osd.sequence import SequenceState
from storage.settings import ServeSettings

log = logging.getLogger(__name__)

LONGEST = 1024
"""Most rounds for which a drafter rests."""
QUIET_SECONDS = 60.0
"""Seconds before the same error of the same drafter is logged again."""


class DraftFailures:
    """The failures of one engine's drafters, by name. After n in a row a drafter rests for 2ⁿ rounds."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """How often each drafter has raised."""
        self.doubtful: dict[str, SequenceState] = {}
        """Rows of which what drafters know is in doubt, by request: they have to join anew."""
        self._in_a_row: Counter[str] = Counter()
        self._rest: dict[str, int] = {}
        self._logged: dict[tuple[str, str], float] = {}

    def may_ask(self, name: str) -> bool:
        """Return whether a drafter is to be asked in this round; call it once a round."""
        left = self._rest.pop(name, 0) if self._rest else 0
        if left > 1:
            self._rest[name] = left - 1
        return not left

    def note_success(self, name: str) -> None:
        """Note a round in which a drafter raised nothing."""
        if self._in_a_row:
            self._in_a_row.pop(name, None)

    def note_failure(self, name: str, error: Exception, rows: Sequence[SequenceState] = ()) -> None:
        """Note what a drafter raised; what it knows of these rows is in doubt."""
        self.doubtful |= {row.request.id: row for row in rows}
        self.counts[name] += 1
        self._in_a_row[name] += 1
        self._rest[name] = min(1 << self._in_a_row[name], LONGEST)
        key, now = (name, type(error).__name__), time.monotonic()
        if now - self._logged.get(key, -QUIET_SECONDS) >= QUIET_SECONDS:
            self._logged[key] = now
            self._log(*key, error)

    def _log(self, name: str, kind: str, error: Exception) -> None:
        """Log the kind of error and its place. The message may hold a text, and stays out."""
        frames = traceback.extract_tb(error.__traceback__)
        place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        message = "%s raised %s%s while drafting (%d times so far); decoding goes on without its draft"
        log.error(message, name, kind, place, self.counts[name], extra={"action": "draft_failed"})


DRAFTS_READ = 2
"""Most tokens of each row that drafts prefill in a step, in multiples of the target's budget: their passes are
cheaper."""


class DraftPool:
    """Drafters by the draft's name. ``default`` serves where the one asked for is not here, and never leaves."""

    def __init__(self, default: LoadedDraft, vocabulary: int, costs: CostModel, device: torch.device) -> None:
        """``vocabulary``: width of the target's logits; ``device``: where drafts are wanted, the target's."""
        self.default = default
        self.loaded_drafts: dict[str, LoadedDraft] = {default.draft: default}
        """Every draft that new requests may get."""
        self.heads: dict[str, HeadPass | None] = {}
        """Acceptance heads by the draft's name."""
        self.vocabulary, self.costs, self.device = vocabulary, costs, device
        self._target: Decoder | None = None
        self._serve: ServeSettings | None = None
        self.busy: list[DraftModel] = []
        """Draft models that have rows."""
        self._laps = Laps(default.body.device)
        self._timed: list[tuple[DraftModel, int, int]] = []
        """The newest round's draft models that proposed, with rows and passes; a token that took none counts as one."""
        self._count = 0
        self.idled = 0
        """How often a draft's last row has ended."""
        self.failures = DraftFailures()
        """What these drafts, and others beside them, have raised."""

    def configure(self, target: Decoder, serve: ServeSettings) -> None:
        """Have drafts prefill in pieces, with a prefix cache for the default draft, as the settings say; and feature
        drafts read the hidden states of this target, whose cache keeps them from now on."""
        self._target, self._serve = target, serve
        for loaded in self.loaded_drafts.values():
            self.connect(loaded.body)

    def connect(self, body: DraftModel) -> None:
        """Have a draft model read what it reads of the target."""
        if self._target is not None:
            body.read_target(self._target)

    @property
    def decoder(self) -> Decoder:
        """The default draft's decoder."""
        return self.default.body.decoder

    @property
    def head(self) -> HeadPass | None:
        """The default draft's acceptance head."""
        return self.default.head

    @head.setter
    def head(self, head: HeadPass | None) -> None:
        self.set_head(self.default.draft, head)

    def set_head(self, draft: str, head: HeadPass | None) -> None:
        """Give a draft another acceptance head, None for none; one that is not here yet has it when it comes."""
        self.heads[draft] = head
        if loaded := self.loaded_drafts.get(draft):
            loaded.head = head
            loaded.body.regroup()

    # rows

    def join(self, row: SequenceState, draft: str) -> None:
        """Seat a row with a draft, for its life; with the default one where that draft is not here."""
        row.loaded = loaded = self.loaded_drafts.get(draft, self.default)
        body = loaded.body
        if self._serve is not None:
            body.configure(self._serve, keeps_prefixes=body is self.default.body)
        body.join(row)
        loaded.rows += 1
        self._touch(loaded)
        if len(body.rows) == 1:
            self.busy.append(body)
        self._share_out()

    def leave(self, row: SequenceState) -> None:
        """Let go of a row that has ended."""
        loaded = loaded_draft_of(row)
        loaded.rows -= 1
        self.idled += not loaded.rows
        self._touch(loaded)
        body = loaded.body
        body.leave(row)
        if not body.rows:
            self.busy.remove(body)
            body.newest = None
            body.costs(self.costs).share(None)
        self._share_out()

    def commit(self, row: SequenceState, length_before: int, accepted: int, draft: Draft) -> None:
        """Note what was accepted; see :meth:`osd.drafters.base.Drafting.commit`."""
        body = loaded_draft_of(row).body
        if body.newest is not None:
            body.drafter.commit(row, length_before, accepted, body.newest)

    def forget(self, rows: Sequence[SequenceState]) -> None:
        """Have the rows' drafts read their texts from the beginning."""
        for row in rows:
            row.drafter_seen = 0
        for body in self.busy:
            body.newest = None

    def has(self, row: SequenceState) -> bool:
        """Return whether a row has joined and not left."""
        return any(row in body.rows for body in self.busy)

    def costs_beside(self, row: SequenceState) -> CostModel | None:
        """Return the cost model of the row's draft; None where it is the engine's first."""
        body = loaded_draft_of(row).body
        return None if body.name is None else body.costs(self.costs)

    # drafting

    def propose(self, request: DraftRequest) -> Draft:
        """Draft for each row with its draft; see :meth:`osd.drafters.base.Drafting.propose`."""
        self._timed.clear()
        self._laps.begin()
        if self._serve is not None:
            request = replace(request, most_read=DRAFTS_READ * self._serve.prefill_tokens)
        if len(self.busy) == 1 and self.busy[0].rows == request.rows:
            return self._ask(self.busy[0], request)
        indices = {id(row): i for i, row in enumerate(request.rows)}
        parts: list[Part] = []
        for body in self.busy:
            mine = [indices[id(row)] for row in body.rows]
            parts.append((self._ask(body, request.select(body.rows, mine)), mine))
        return merge(parts, len(request.rows), self.vocabulary, self.device, sampled=request.sampled)

    def _ask(self, body: DraftModel, request: DraftRequest) -> Draft:
        """Have one draft model draft for its rows."""
        name = body.name or self.default.draft
        if not self.failures.may_ask(name):
            request = replace(request, gammas=[0] * len(request.gammas))
        draft = body.propose(request, self.costs, self.device)
        self._note_failure(body, name)
        if steps := max(draft.passes, draft.size if draft.trees is None else 0):
            self._timed.append((body, len(body.rows), steps))
            self._laps.end_one()
        return draft

    def _note_failure(self, body: DraftModel, name: str) -> None:
        """Note whether the draft raised; if so, its cache is in doubt."""
        if error := body.drafter.failure:
            self.failures.note_failure(name, error)
            self.forget(body.rows)
        else:
            self.failures.note_success(name)

    def measure(self, whole_ms: float) -> None:
        """Update each draft model's costs with its time; ``whole_ms`` is the round's drafting in all."""
        if len(self._timed) == 1:
            body, rows, passes = self._timed[0]
            body.costs(self.costs).observe_draft(rows, passes, whole_ms)
            return
        for (body, rows, passes), ms in zip(self._timed, self._laps.read(), strict=True):
            body.costs(self.costs).observe_draft(rows, passes, ms)

    def version(self, row: SequenceState) -> str:
        """Return the version of the row's draft."""
        return row.loaded.version

    def _share_out(self) -> None:
        """Update the cost models with how many rows each draft model drafts for."""
        for body in self.busy:
            body.costs(self.costs).share(len(body.rows) if len(self.busy) > 1 else None)

    def _touch(self, loaded: LoadedDraft) -> None:
        self._count += 1
        loaded.used = self._count
