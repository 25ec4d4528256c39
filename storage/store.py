"""The store: everything that osd keeps, as one object.

    store.samples    what requests leave for learning         storage.replay.samples
    store.forgetter  forgetting requests and tenants          storage.forget
    store.keeper     retention and compaction                 storage.replay.keeper
    store.tenants    what tenants allow                       storage.access.tenants
    store.keys       who may call the server                  storage.access.keys
    store.versions   drafts' weights and their states         storage.versions.versions
    store.version_keeper  which weights stay                  storage.versions.version_keeper
    store.decisions  what people decide about versions        storage.versions.decisions
    store.targets    what was learned is about                storage.versions.targets
    store.runs       who trains what                          storage.runs
    store.suspects   requests on which training fails         storage.sql.suspects
    store.outcomes   how drafting went                        storage.outcomes.outcomes
    store.routes     which draft serves which traffic         storage.routes.routes
    store.examples   taught examples of topics                storage.routes.examples
    store.proposals  proposed changes of routes               storage.routes.proposals
    store.servers    serving processes that live              storage.access.processes
    store.trainers   training processes that live             storage.access.processes
    store.canaries   versions that one of them serves first   storage.versions.canaries
    store.trail      who changed what                         storage.sql.audit
    store.db         the metadata database                    storage.sql.database

A data directory holds ``segments/``, ``weights/`` and ``osd.db``, unless the settings name other places for them. A
store may be used by several threads, and a directory by several processes.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from storage.access.engines import EngineRegistry
from storage.access.keys import KeyLedger
from storage.access.processes import ServerRegistry, TrainerRegistry
from storage.access.tenants import TenantLedger
from storage.files.bucket import open_place
from storage.files.cipher import open_cipher
from storage.files.files import make_folder, writing
from storage.files.places import Swept
from storage.forget import Forgetter
from storage.outcomes.outcomes import OutcomeStore
from storage.replay.keeper import RetentionKeeper
from storage.replay.samples import SampleStore
from storage.replay.segment_files import SegmentFiles
from storage.routes.examples import BackgroundStore, ExampleStore
from storage.routes.proposals import ProposalLedger
from storage.routes.routes import RouteTable
from storage.runs import RunLedger
from storage.settings import EVERYTHING, PrivacySettings, Settings
from storage.sql.audit import AuditTrail
from storage.sql.database import Database
from storage.sql.suspects import SuspectList
from storage.versions.canaries import CanaryLedger
from storage.versions.decisions import DecisionLedger
from storage.versions.targets import TargetLedger
from storage.versions.version_keeper import VersionKeeper
from storage.versions.versions import VersionLedger
from storage.versions.weight_files import WeightFiles, weight_files


class Store:
    """The store's parts over one database and one data directory."""

    def __init__(
        self,
        db: Database,
        directory: Path,
        segments: SegmentFiles,
        weights: WeightFiles,
        holdout: float,
        privacy: PrivacySettings = EVERYTHING,
    ) -> None:
        self.db = db
        self.directory = directory
        self.trail = AuditTrail(db)
        self.tenants = TenantLedger(db, privacy)
        self.keys = KeyLedger(db)
        self.samples = SampleStore(db, segments, holdout, privacy)
        self.forgetter = Forgetter(db, segments, weights, directory)
        self.keeper = RetentionKeeper(db, segments)
        self.versions = VersionLedger(db, weights)
        self.version_keeper = VersionKeeper(db, weights)
        self.decisions = DecisionLedger(db, self.versions)
        self.targets = TargetLedger(db)
        self.servers = ServerRegistry(db)
        self.trainers = TrainerRegistry(db)
        self.engines = EngineRegistry(db)
        self.canaries = CanaryLedger(db)
        self.runs = RunLedger(db, privacy)
        self.suspects = SuspectList(db)
        self.outcomes = OutcomeStore(db)
        self.routes = RouteTable(db, self.samples.redactor)
        self.examples = ExampleStore(db, self.samples.redactor)
        self.background = BackgroundStore(db)
        self.proposals = ProposalLedger(db)

    def sweep(self) -> list[Swept]:
        """Delete what killed processes left half-done and return it; safe while others write."""
        return self.samples.sweep() + self.versions.sweep()

    def close(self) -> None:
        """Close the database's connections; doing it twice is fine."""
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
        make_folder(store.directory, 0o700)  # it will hold users' prompts
    try:
        store.db.create_if_fresh()
        store.db.require_current_schema()
    except BaseException:
        store.close()
        raise
    return store


def lay_out(settings: Settings) -> Store:
    """Construct the store that the settings name without creating or connecting to anything. Raises BadSetting."""
    kept = settings.storage
    directory = kept.data_directory().absolute()
    place = open_place(kept.samples, directory / "segments", "storage.samples")
    segments = SegmentFiles(place, open_cipher(kept.encryption))
    weights = weight_files(kept.weights, directory, kept.cache_directory().absolute())
    return Store(Database(kept.database_url()), directory, segments, weights, kept.holdout, settings.privacy)
