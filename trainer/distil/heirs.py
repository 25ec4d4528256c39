"""Judges heirs (:mod:`storage.versions.heirs`) by what their own target has answered: those that no server could judge
when the target came, because an engine that is not ours serves it, or it was declared a successor later."""

from __future__ import annotations

from osd.hotswap.succession import break_even, judge_heir, settle
from storage.records import DraftVersion
from storage.settings import Settings
from storage.store import Store
from storage.versions.heirs import offer_heir
from trainer.devices import training_device
from trainer.distil.checkpoints import load_current, positions_of, vocab_size
from trainer.distil.data import Readable, read_sound
from trainer.distil.gate import comparable
from trainer.distil.scores import score
from trainer.distil.teachers import Teachers


def judge_waiting_heir(store: Store, settings: Settings, line: str, teachers: Teachers) -> DraftVersion | None:
    """Judge the line's heir once ``gate.min_requests`` are kept of its target; return the line's current version then,
    None where nothing was judged. Raises StoreError, BadSetting, WeightsDamaged."""
    if (heir := offer_heir(store, line)) is None or heir.parent is None:
        return None
    ids = store.samples.recent(line, limit=settings.gate.requests)
    if len(ids) < settings.gate.min_requests:
        return None
    device = training_device(settings.trainer)
    lessons = teachers.lessons(store, settings, heir, device)
    drafts = [load_current(store, one, device, None) for one in (heir, store.versions.get(heir.parent))]
    readable = Readable(vocab_size(drafts[0]), positions_of(drafts[0]), lessons)
    measure, judges = comparable(readable.among(read_sound(store, ids)), lessons)
    after, before = (score(draft, judges, lessons=lessons) for draft in drafts)
    sums, others = after.of(measure).tolist(), before.of(measure).tolist()
    found = judge_heir(sums, others, after.positions.tolist(), break_even(store, line))
    return None if found is None else settle(store, heir, found, store.versions.target_of(line))
