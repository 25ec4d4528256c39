"""Everything that osd keeps, behind one door.

    store.samples    what requests leave for learning         storage.samples
    store.forgetter  forgetting requests and tenants          storage.forget
    store.keeper     retention and compaction                 storage.keeper
    store.tenants    what tenants allow                       storage.tenants
    store.keys       who may call the server                  storage.keys
    store.versions   drafts' weights and their lives          storage.versions
    store.runs       who trains what                          storage.runs
    store.suspects   requests on which training fails         storage.suspects
    store.outcomes   how drafting went                        storage.outcomes
    store.routes     which draft serves which traffic         storage.routes
    store.examples   taught examples of topics                storage.examples
    store.proposals  changes of routes worth while            storage.proposals
    store.workers    serving processes that live              storage.workers
    store.canaries   versions that one of them tries first    storage.canaries
    store.announcer  word of new versions                     storage.announce
    store.db         the metadata database                    storage.database

A data directory holds ``segments/``, ``weights/`` and ``osd.db``, unless the settings name other places for them. A
store may be used by several threads, and a directory by several processes.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from storage.announce import Announcer
from storage.bucket_weights import weight_place
from storage.canaries import CanaryLedger
from storage.cipher import open_cipher
from storage.database import Database
from storage.examples import ExampleShelf
from storage.files import make_folder, writing
from storage.forget import Forgetter
from storage.keeper import Keeper
from storage.keys import KeyLedger
from storage.outcomes import OutcomeStore
from storage.privacy_settings import EVERYTHING, PrivacySettings
from storage.proposals import ProposalLedger
from storage.routes import RouteTable
from storage.runs import RunLedger
from storage.samples import SampleStore
from storage.segment_place import SegmentPlace, segment_place
from storage.settings import Settings
from storage.suspects import SuspectList
from storage.sweep import Swept
from storage.tenants import TenantLedger
from storage.versions import VersionLedger
from storage.weight_place import WeightPlace
from storage.workers import WorkerRegistry


class Store:
    """The parts over one database and one data directory."""

    def __init__(
        self,
        db: Database,
        directory: Path,
        segments: SegmentPlace,
        weights: WeightPlace,
        holdout: float,
        privacy: PrivacySettings = EVERYTHING,
    ) -> None:
        self.db = db
        self.directory = directory
        self.tenants = TenantLedger(db, privacy)
        self.keys = KeyLedger(db)
        self.samples = SampleStore(db, segments, holdout, privacy)
        self.forgetter = Forgetter(db, segments, weights)
        self.keeper = Keeper(db, segments)
        self.versions = VersionLedger(db, weights)
        self.workers = WorkerRegistry(db)
        self.canaries = CanaryLedger(db)
        self.announcer = Announcer(db)
        self.runs = RunLedger(db, privacy)
        self.suspects = SuspectList(db)
        self.outcomes = OutcomeStore(db)
        self.routes = RouteTable(db)
        self.examples = ExampleShelf(db)
        self.proposals = ProposalLedger(db)

    def sweep(self) -> list[Swept]:
        """Delete what killed processes left half-done; safe while others write. Returns what was removed."""
        return self.samples.sweep() + self.versions.sweep()

    def close(self) -> None:
        """Return the database's connections; doing it twice is fine."""
        self.db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_store(settings: Settings) -> Store:
    """Open the store that the settings name.

    A new SQLite file gets its schema; an existing database is never changed here. Raises DatabaseUnreachable,
    SchemaOutdated, StoreWriteFailed, BadSetting.
    """
    store = lay_out(settings)
    with writing(store.directory):
        make_folder(store.directory, 0o700)  # it will hold what people asked
    try:
        store.db.create_if_fresh()
        store.db.require_current_schema()
    except BaseException:
        store.close()
        raise
    return store


def lay_out(settings: Settings) -> Store:
    """The store that the settings name, with nothing made and nobody asked. Raises BadSetting."""
    kept = settings.storage
    directory = kept.data_directory().absolute()
    segments = segment_place(kept.samples, directory, open_cipher(kept.encryption))
    weights = weight_place(kept.weights, directory, kept.cache_directory().absolute())
    return Store(Database(kept.database_url()), directory, segments, weights, kept.holdout, settings.privacy)
