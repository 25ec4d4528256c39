"""The ledger of draft versions: their parents, the gate's evidence, and which is current.

Weights are written aside, digested, renamed and then entered as CANDIDATE. Publishing checks the files and the
run's lease, writes the READY marker, and makes the version current, all under one lock on the draft.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import select

from storage.errors import BadInput, UnknownDraft, WeightsDamaged, WrongState
from storage.files.files import TemporaryPath, writing
from storage.files.places import Swept
from storage.names import given_name
from storage.records import DEFAULT_DRAFT, DraftVersion, TrainingRun, VersionState, new_id
from storage.sql.database import Database
from storage.sql.drivers import plain
from storage.sql.ledger import (
    HEIR_OF,
    get_row,
    known_drafts,
    lineage_of,
    lock_draft,
    require_name,
    require_state,
    require_weights,
    to_record,
)
from storage.sql.tables import DraftRow, VersionRow
from storage.versions import draft_choices, promotion, publication, weights
from storage.versions.draft_choices import resolve
from storage.versions.targets import UNNAMED, line_of, lines
from storage.versions.weight_files import WeightFiles

Versions = list[DraftVersion]
Names = list[str]
Copy = Callable[[Path, list[Path], Path], None]
Removed = list[Swept]


class VersionLedger:
    """The draft versions, their weights in their place, and which is current."""

    def __init__(self, db: Database, files: WeightFiles) -> None:
        self._db = db
        self.files = files

    @property
    def weights_folder(self) -> Path:
        """The local folder of weights: all of them, or a cache of those used."""
        return self.files.folder

    # queries

    def get(self, version_id: str) -> DraftVersion:
        """Return a version by its id, or by a name (:mod:`storage.versions.draft_choices`). Raises UnknownVersion."""
        with self._db.session(read_only=True) as session:
            found = session.get(VersionRow, version_id)
            return to_record(found or get_row(session, resolve(session, version_id) or version_id))

    def current(self, draft: str, target: str | None = None) -> DraftVersion:
        """Return the version that servers should draft with, of a draft's line for ``target``; without one, of the line
        of that name. Raises UnknownDraft for one without weights."""
        if (found := self.find(draft, target)) is not None:
            return found
        with self._db.session(read_only=True) as session:
            raise UnknownDraft(draft=draft, known=known_drafts(session))

    def find(self, draft: str, target: str | None = None) -> DraftVersion | None:
        """Return what :meth:`current` does; None for a draft without weights."""
        with self._db.session(read_only=True) as session:
            row = line_of(session, draft, target)
            found = None if row is None or row.current_version is None else get_row(session, row.current_version)
            return None if found is None else to_record(found)

    def lines(self, drafts: Iterable[str]) -> Names:
        """Return the lines of these drafts that have weights and are about a target, by name."""
        return self._db.read(lines, drafts)

    def target_of(self, line: str) -> str | None:
        """Return the target that a line is about; None where it is not known."""
        with self._db.session(read_only=True) as session:
            row = session.get(DraftRow, line)
            return None if row is None or row.target == UNNAMED else row.target

    def list(self, draft: str | None = None, *, deleted: bool = True) -> Versions:
        """Return every version, a draft's in the order of their numbers; with or without those whose weights were
        deleted."""
        query = select(VersionRow).order_by(VersionRow.draft, VersionRow.number)
        if not deleted:
            query = query.where(VersionRow.deleted_at.is_(None))
        if draft is not None:
            query = query.where(VersionRow.draft == draft)
        return [to_record(row) for row in self._db.scalars(query)]

    def lineage(self, version_id: str) -> Versions:
        """Return the version, its parent, and so on up to number 0."""
        with self._db.session(read_only=True) as session:
            return [to_record(row) for row in lineage_of(session, get_row(session, version_id))]

    def serving(self, draft: str = DEFAULT_DRAFT) -> dict[str, str]:
        """Return server -> the version of a draft that it last reported.

        A killed server stays until it is known to be gone (:mod:`storage.access.processes`).
        """
        return self._db.read(promotion.serving, draft)

    def served_by(self, worker: str) -> dict[str, str]:
        """Return draft -> the version of it that a server last reported."""
        return self._db.read(promotion.served_by, worker)

    def options(self, draft: str) -> dict[str, Any]:
        """Return the draft's overrides of ``[learn]``: ``method``, ``lora_rank``. Raises UnknownDraft."""
        return self._db.read(draft_choices.read_options, draft)

    def set_options(self, draft: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Replace the draft's overrides. Raises UnknownDraft, and BadInput for another key, a value out of range, or a
        method that is not for a draft of its kind."""
        kept = draft_choices.checked_options(wanted)
        with self._db.session() as session:
            draft_choices.set_options(session, lock_draft(session, draft), kept)
        return kept

    def folder(self, version: DraftVersion) -> Path:
        """Return a local folder with the version's files, downloading them if need be.

        Raises WeightsDamaged, PlaceUnreachable.
        """
        require_weights(version)
        return self.files.local(version)

    def master(self, version: DraftVersion) -> Path | None:
        """Return a local file with the version's float32 weights; None where it has none beside its own.

        Raises WeightsDamaged, PlaceUnreachable.
        """
        return self.files.master(version) if version.has_master else None

    def where(self, version: DraftVersion) -> str:
        """Return where the version's files are, for people: a folder, or a URL."""
        return str(self.files.place.show(version.path))

    def provenance(self, version: DraftVersion) -> dict[str, Any]:
        """Return the contents of osd.json beside the weights; empty when it is missing."""
        return self.files.provenance(version.path)

    def verify(self, version: DraftVersion) -> None:
        """Raise WeightsDamaged when the files are not those that were published, or READY is missing."""
        require_weights(version)
        judged = version.state not in (VersionState.CANDIDATE, VersionState.REJECTED)
        self.files.verify(version, ready=judged)

    def export(
        self, version_id: str, destination: Path, finish: Callable[[Path], object] = lambda folder: None
    ) -> Path:
        """Copy a version's sound files to a new folder. ``finish`` may change and check the folder before it appears.

        Raises BadInput when the destination exists, UnknownVersion, WeightsDamaged, StoreWriteFailed, and what
        ``finish`` raises; nothing is left then.
        """
        version, destination = self.get(version_id), Path(destination)
        self.verify(version)
        if destination.exists():
            raise BadInput(reason=f"{destination} exists; give the name of a new folder.")
        with TemporaryPath(destination.absolute().parent, destination.name, folder=True) as aside:
            source = self.folder(version)
            with writing(aside.path):
                weights.copy_files(source, [*weights.weight_files(source), source / weights.PROVENANCE], aside.path)
                finish(aside.path)
                weights.sync_tree(aside.path)
            aside.rename(destination.absolute())
        return destination

    def sweep(self) -> Removed:
        """Delete folders that killed processes left and no version refers to; return what was deleted."""
        return self.files.sweep(self._db)

    # creation of versions

    def register_root(
        self,
        draft: str,
        folder: Path,
        provenance: Mapping[str, Any] | None = None,
        copy: Copy = weights.copy_files,
        *,
        born: int | None = None,
        target: str | None = None,
    ) -> DraftVersion:
        """Enter number 0 of a draft's line for ``target``: a copy of a model folder, READY, and current if the line has
        no other.

        The same files again return the same version. ``provenance`` says where they came from, ``born`` is as in
        :meth:`stage`. Raises ModelNotLoaded for a folder without safetensors, StoreError when the draft started from
        other files, BadInput for a name that cannot be a folder's.
        """
        require_name(given_name(draft))
        source = Path(folder)
        files = weights.servable_files(source)
        draft, root = publication.open_draft(self._db, draft, weights.digest_of(source, files), target)
        if root:
            return root
        with TemporaryPath(self.weights_folder / draft, new_id(), folder=True) as aside:
            with writing(aside.path):
                copy(source, files, aside.path)
            facts = {"kind": weights.kind_of(aside.path), "parent": None, "run_id": None}
            said = provenance or {"registered_from": source.name}
            return publication.enter(self._db, self.files, draft, aside, facts, said, born)

    def stage(
        self,
        draft: str,
        parent: str,
        kind: str,
        write: Callable[[Path], object],
        *,
        run_id: str | None = None,
        provenance: Mapping[str, Any] | None = None,
        born: int | None = None,
    ) -> DraftVersion:
        """Enter new weights as CANDIDATE. ``write`` puts a Hugging Face or PEFT folder at the path it is given.
        Where ``provenance`` says whose heir it is, so does the version's evidence.

        ``born`` is for tables of n-grams: the newest line about forgetting when they began to learn. Raises
        ForgottenSince where there is a newer one by now, and keeps nothing. Raises StoreWriteFailed, with nothing left
        on the disk, when ``write`` fails or what it wrote is not whole; UnknownVersion or WrongState when ``parent`` is
        not a version of the draft.
        """
        if (owner := self.get(parent).draft) != draft:
            needed = "a version of its own"
            raise WrongState(version=parent, state=f"of {owner}", action=f"training {draft}", needed=needed)
        with TemporaryPath(self.weights_folder / draft, new_id(), folder=True) as aside:
            with writing(aside.path):
                write(aside.path)
            inherits = {HEIR_OF: provenance[HEIR_OF]} if provenance and HEIR_OF in provenance else {}
            facts = {"kind": kind, "parent": parent, "run_id": run_id, "evidence": inherits}
            return publication.enter(self._db, self.files, draft, aside, facts, provenance or {}, born)

    # the gate's decisions

    def publish(self, version_id: str, evidence: Mapping[str, Any], *, run: TrainingRun) -> DraftVersion:
        """Make a candidate READY and current, and its run PUBLISHED; a second call changes nothing.

        Raises LeaseLost when another run has the draft, WeightsDamaged, and WrongState for a version that is no
        candidate of this run, or whose parent, with which it was compared, is no longer current.
        """
        version = self.get(version_id)
        if version.state is VersionState.CANDIDATE:
            self.verify(version)  # before the lock is taken: reading all weights takes a while
        return publication.publish(self._db, self.files, version, evidence, run)

    def reject(self, version_id: str, evidence: Mapping[str, Any]) -> DraftVersion:
        """Reject a candidate that the gate found no better; twice is fine. Raises WrongState for any other version."""
        with self._db.session() as session:
            lock_draft(session, get_row(session, version_id).draft)
            row = get_row(session, version_id, lock=True)
            if row.state != VersionState.REJECTED.value:
                require_state(row, "rejecting", VersionState.CANDIDATE)
                row.state, row.evidence = VersionState.REJECTED.value, plain(evidence)
            return to_record(row)

    # changes after publication

    def mark_serving(self, version_id: str, worker: str) -> DraftVersion:
        """Record that a server has loaded a version: the current version becomes SERVING, those before it RETIRED.

        A version that is no longer current keeps its state: the server lags behind, which is only noted. The server's
        other drafts are unchanged.
        """
        with self._db.session() as session:
            return to_record(promotion.mark_serving(session, version_id, worker))

    def end_serving(self, worker: str, draft: str | None = None) -> None:
        """Record that a server no longer drafts with a draft, or with any (None).

        :meth:`serving` no longer lists it there; the version stays SERVING.
        """
        with self._db.session() as session:
            promotion.end_serving(session, worker, draft)

    def promote(self, version_id: str) -> DraftVersion:
        """Make a version with sound files current, whatever the gate said. Raises UnknownVersion, WeightsDamaged."""
        self.make_servable(self.get(version_id))
        with self._db.session() as session:
            return to_record(promotion.promote(session, version_id))

    def settle_heir(self, version_id: str, evidence: Mapping[str, Any], *, good: bool) -> DraftVersion:
        """End the wait of an heir (:mod:`storage.versions.heirs`): a good one becomes current if nothing has been
        published on its line meanwhile, any other is rejected; one that was settled stays so. Return the line's current
        version. Raises UnknownVersion, WeightsDamaged."""
        version = self.get(version_id)
        if good and version.state is VersionState.CANDIDATE:
            self.make_servable(version)
        with self._db.session() as session:
            return to_record(promotion.settle_heir(session, version_id, plain(evidence), good=good))

    def rollback(self, draft: str, reason: str, to: str | None = None, *, of: str | None = None) -> DraftVersion:
        """Leave the current version for ``to`` or its nearest sound ancestor; return the version now current.

        ``of`` is for watchers: nothing happens unless that version is still current. Raises WrongState when there
        is nothing to go back to, UnknownVersion, UnknownDraft, and WeightsDamaged for ``to``.
        """
        if of is not None and (current := self.current(draft)).id != of:
            return current
        current, target = self.way_back(draft, to)
        return self._leave(current, target, VersionState.ROLLED_BACK, reason)

    def way_back(self, draft: str, to: str | None) -> tuple[DraftVersion, DraftVersion]:
        """Return the current version, and the one to go back to, checked and marked. Raises as :meth:`rollback`."""
        current = self.current(draft)
        target = self._sound_ancestor(current) if to is None else self.get(to)
        if target is None or target.draft != draft or target.id == current.id:
            needed = "another sound version of the draft"
            raise WrongState(version=current.id, state="current", action="rolling back", needed=needed)
        self.make_servable(target)
        return current, target

    def take_back(self, version_id: str, reason: str, to: str) -> DraftVersion:
        """Leave a version for good, current or not; return the current version.

        Where it was current, ``to`` becomes so, or the nearest sound ancestor if ``to`` is not sound. Raises
        UnknownVersion.
        """
        version, target = self.get(version_id), self.get(to)
        back: DraftVersion | None = target
        try:
            if target.state not in promotion.SOUND:
                raise WeightsDamaged(version=to, reason=f"it is {target.state.value}")
            self.make_servable(target)
        except WeightsDamaged:
            back = self._sound_ancestor(version)
        return self._leave(version, back, VersionState.ROLLED_BACK, reason)

    def quarantine(self, version_id: str, reason: str) -> DraftVersion:
        """Quarantine a version for good; when it is current, its nearest sound ancestor becomes current."""
        version = self.get(version_id)
        self._leave(version, self._sound_ancestor(version), VersionState.QUARANTINED, reason)
        return self.get(version_id)

    def _leave(self, version: DraftVersion, to: DraftVersion | None, state: VersionState, reason: str) -> DraftVersion:
        with self._db.session() as session:
            return to_record(promotion.leave(session, version.id, None if to is None else to.id, state, reason))

    def make_servable(self, version: DraftVersion) -> None:
        """Check a version's files and write the READY marker. Raises WeightsDamaged."""
        require_weights(version)
        self.files.verify(version, ready=False)
        self.files.mark(version.path)

    def _sound_ancestor(self, version: DraftVersion) -> DraftVersion | None:
        for ancestor in self.lineage(version.id)[1:]:
            if ancestor.state in promotion.SOUND:
                try:
                    self.verify(ancestor)
                    return ancestor
                except WeightsDamaged:
                    continue
        return None
