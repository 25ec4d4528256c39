"""What every test starts from: no settings from outside, no hub, a data directory of its own."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from osd.kernels.host import leave_alone
from storage.settings import Settings
from storage.sql import database
from storage.store import Store, open_store

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "support" / "nobody.pem")
"""Whom HTTPS trusts, which nobody asks for here: reading the usual 140 takes each new client 50 ms of a core."""
for name in [name for name in os.environ if name.startswith("OSD_")]:
    del os.environ[name]  # servers that a module shares are started before a test's own surroundings
# A busy machine is no reason to fail: how long an example takes says nothing about what is tested.
hypothesis_settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
hypothesis_settings.load_profile("unhurried")


HOMES = itertools.count()
"""pytest's own numbered folders are counted anew for each test, among thousands of others."""


@pytest.fixture(autouse=True)
def own_surroundings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No OSD_… variable reaches a test, and what it leaves in the default data directory is its own."""
    for name in [name for name in os.environ if name.startswith("OSD_")]:
        monkeypatch.delenv(name)
    home = tmp_path_factory.getbasetemp() / "homes" / str(next(HOMES))
    home.mkdir(parents=True)
    monkeypatch.setenv("XDG_DATA_HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(run_folder(tmp_path_factory) / "cache"))
    return home


@pytest.fixture(autouse=True, scope="module")
def what_was_there_is_not_collected() -> None:
    """Garbage is looked for among what a module makes: by the middle of a run a collection over all that torch and
    others brought takes more than a second, and comes anywhere."""
    leave_alone()


def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that all workers of a run share: what one has compiled the others need not."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(autouse=True)
def drafters_do_not_fail(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a drafter raises fails the test, unless that is what it is about."""
    if not request.node.get_closest_marker("drafters_may_fail"):
        monkeypatch.setattr("osd.drafters.pool.DraftFailures.note_failure", raise_it)


def raise_it(failures: object, name: str, error: Exception, rows: object = ()) -> None:
    raise error


@pytest.fixture(scope="session")
def new_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with the newest schema and nothing else, to be copied: migrating takes ten times as long."""
    path = tmp_path_factory.mktemp("sqlite") / "osd.db"
    database.upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def store(settings: Settings, new_sqlite: Path) -> Iterator[Store]:
    """A store as the test's own ``settings`` say."""
    file = settings.storage.data_directory() / "osd.db"
    if settings.storage.url is None and not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(new_sqlite, file)
    with open_store(settings) as opened:
        yield opened
