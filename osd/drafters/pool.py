"""The drafts that are in memory, behind the interface of one drafter: rows of a batch may use different ones.

Rows are grouped by :class:`DraftModel`. Full weights are a draft model each; adapters over one base, and
the bare base, share one, so their rows share its passes and its cache. Where one draft model serves the whole batch
nothing is regrouped.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from osd.draft import Draft
from osd.drafters.base import ShouldContinue
from osd.drafters.chain_override import Begin
from osd.drafters.failures import DraftFailures
from osd.drafters.feature_tree import TreeShape
from osd.drafters.loaded_draft import DraftModel, FeatureDraftModel, LoadedDraft, seat_of
from osd.drafters.merge import Part, merge, pick
from osd.gamma.base import CostModel
from osd.models.acceptance_head import HeadPass
from osd.models.decoder import Decoder
from osd.models.device_timer import Laps
from osd.models.prefix_cache import draft_prefixes
from osd.sequence import SequenceState
from osd.verification.warping import Warp
from storage.settings import ServeSettings

DRAFTS_READ = 2
"""Most tokens of each row that drafts prefill in a step, in multiples of the target's budget: their passes are
cheaper."""


class DraftPool:
    """Drafters by the draft's name. ``default`` serves where the one asked for is not here, and never leaves."""

    def __init__(self, default: LoadedDraft, vocabulary: int, costs: CostModel) -> None:
        self.default = default
        self.loaded_drafts: dict[str, LoadedDraft] = {default.draft: default}
        """Every draft that new requests may get."""
        self.heads: dict[str, HeadPass | None] = {}
        """Acceptance heads by the draft's name."""
        self.vocabulary, self.costs = vocabulary, costs
        self.device = default.body.device
        """Where drafts are wanted: the target's device."""
        self.most_read: int | None = None
        """Most tokens of a row that a draft prefills in one round; a row that has more unread drafts nothing yet. None:
        all."""
        self.second: Begin | None = None
        """Returns what may put other tokens into the drafts' chains; None where nothing may."""
        self.shape: TreeShape | None = None
        """How large the trees are of drafts that draft such; None where all draft chains."""
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

    def read_as(self, serve: ServeSettings) -> None:
        """Have drafts prefill in pieces, with a prefix cache for the default draft, as the settings say."""
        self._serve, self.most_read = serve, DRAFTS_READ * serve.prefill_tokens

    def read_from(self, target: Decoder) -> None:
        """Have feature drafts read the hidden states of this target, whose cache keeps them from now on."""
        self._target = target
        for loaded in self.loaded_drafts.values():
            self.keep_features(loaded.body)

    def keep_features(self, body: DraftModel) -> None:
        """Have the target's cache keep what a draft model reads of it, from its next pass on."""
        if self._target is not None and isinstance(body, FeatureDraftModel):
            self._target.cache.keep_features(body.drafter.features.layers)
            body.drafter.source = self._target

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
        body.join(row)
        loaded.rows += 1
        self._touch(loaded)
        if len(body.rows) == 1:
            self.busy.append(body)
        self._share_out()

    def leave(self, row: SequenceState) -> None:
        """Let go of a row that has ended."""
        loaded = seat_of(row)
        loaded.rows -= 1
        self.idled += not loaded.rows
        self._touch(loaded)
        body = loaded.body
        body.leave(row)
        if not body.rows:
            self.busy.remove(body)
            body.newest = None
            body.costs(self.costs).sharing = None
        self._share_out()

    def commit(self, row: SequenceState, length_before: int, accepted: int, draft: Draft) -> None:
        """See :meth:`osd.drafters.base.Drafter.commit`."""
        body = seat_of(row).body
        if body.newest is not None:
            body.drafter.commit(row, length_before, accepted, body.newest)

    def forget(self, rows: Sequence[SequenceState]) -> None:
        """Have the rows' drafts read their texts from the beginning."""
        for row in rows:
            row.drafter_seen = 0
        for body in self.busy:
            body.newest = None

    def seats(self, row: SequenceState) -> bool:
        """Return whether a row has joined and not left."""
        return any(row in body.rows for body in self.busy)

    def costs_beside(self, row: SequenceState) -> CostModel | None:
        """Return the cost model of the row's draft; None where it is the engine's first."""
        body = seat_of(row).body
        return None if body.name is None else body.costs(self.costs)

    # drafting

    def propose(
        self,
        rows: Sequence[SequenceState],
        gammas: Sequence[int],
        warp: Warp | None,
        chance: Tensor | None,
        should_continue: ShouldContinue,
    ) -> Draft:
        """Draft chains; see :meth:`osd.drafters.base.Drafter.propose`."""
        self._timed.clear()
        self._laps.begin()
        if len(self.busy) == 1 and self.busy[0].rows == rows:
            return self._ask(self.busy[0], range(len(rows)), gammas, warp, chance, should_continue)
        places = {id(row): i for i, row in enumerate(rows)}
        parts: list[Part] = []
        for body in self.busy:
            where = [places[id(row)] for row in body.rows]
            some = None if warp is None else warp.take(where)
            draft = self._ask(body, where, [gammas[i] for i in where], some, pick(chance, where), should_continue)
            parts.append((draft, where))
        return merge(parts, len(rows), self.vocabulary, self.device, sampled=warp is not None)

    def _ask(
        self,
        body: DraftModel,
        places: Sequence[int],
        gammas: Sequence[int],
        warp: Warp | None,
        chance: Tensor | None,
        should_continue: ShouldContinue,
    ) -> Draft:
        body.newest = None
        name = body.name or self.default.draft
        if not self.failures.may_ask(name):
            gammas = [0] * len(gammas)
        body.drafter.most_read = most = self.most_read
        body.drafter.second = self.second
        if isinstance(body, FeatureDraftModel):
            body.drafter.places, body.drafter.shape = places, self.shape
        elif body.drafter.prefixes is None and self._serve and body is self.default.body and not body.decoder.encodes:
            body.drafter.prefixes = draft_prefixes(self._serve, body.decoder.cache)
        unread = [row.unread() for row, gamma in zip(body.rows, gammas, strict=True) if gamma]
        body.costs(self.costs).unread = sum(unread if most is None else (min(each, most) for each in unread))
        if body.device != self.device:
            warp = None if warp is None else warp.on(body.device)
            chance = None if chance is None else chance.to(body.device)
        draft = body.drafter.propose(body.rows, gammas, warp, chance, should_continue)
        body.newest = draft = draft if body.device == self.device else draft.to(self.device)
        self._look_at(body, name)
        if body.decoder.quicker:
            body.decoder.quicker = False
            body.costs(self.costs).forget_drafts()
        if not draft.passes:
            body.costs(self.costs).unread = 0
        if steps := max(draft.passes, draft.size if draft.trees is None else 0):
            self._timed.append((body, len(body.rows), steps))
            self._laps.end_one()
        return draft

    def _look_at(self, body: DraftModel, name: str) -> None:
        """Note whether the draft raised; if so, its cache is in doubt."""
        if error := body.drafter.failure:
            self.failures.note(name, error)
            self.forget(body.rows)
        else:
            self.failures.well(name)

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
            body.costs(self.costs).sharing = len(body.rows) if len(self.busy) > 1 else None

    def _touch(self, loaded: LoadedDraft) -> None:
        self._count += 1
        loaded.used = self._count
