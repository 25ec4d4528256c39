"""Fronts over replicas: one over a real server that decodes, others over such that do as they are told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest

from tests.osd.server.conftest import Server, serving
from tests.support.fake_replica import FakeReplica, replica
from tests.support.waiting import until

QUICK = {
    "OSD_UPSTREAM__CHECK_SECONDS": "0.1", "OSD_SERVER__KEYS_POLL_SECONDS": "0.1", "OSD_ROUTER__POLL_SECONDS": "0.1",
    "OSD_FLEET__HEARTBEAT_SECONDS": "0.1",
    "OSD_UPSTREAM__CONNECT_SECONDS": "60",  # on a busy machine nobody is late
}  # fmt: skip


@contextmanager
def front(folder: Path, *replicas: str, **variables: str) -> Iterator[Server]:
    """Serve over these replicas."""
    named = [word for one in replicas for word in ("--upstream", one)]
    with serving(folder, *named, **(QUICK | variables)) as made:
        yield made


@pytest.fixture(scope="package")
def server(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A front over the server that other tests ask without one."""
    with front(tmp_path_factory.mktemp("front"), server.url) as made:
        yield made


@pytest.fixture(scope="package")
def client(server: Server) -> openai.OpenAI:
    """The official client of that front."""
    return server.client()


@dataclass
class Fronted:
    """A front and its replicas."""

    server: Server
    replicas: list[FakeReplica]

    @property
    def asked(self) -> int:
        """Requests that were passed on."""
        return sum(len(one.asked) for one in self.replicas)

    def state(self, one: FakeReplica) -> str:
        """What the front takes a replica for."""
        states = {row["url"]: str(row["state"]) for row in self.server.get("/admin/upstream").json()}
        return states[one.url]

    def until(self, one: FakeReplica, state: str) -> None:
        """Wait until it takes it for that."""
        until(lambda: self.state(one) == state, f"{one.url} is {state}, not {self.state(one)}")

    def reset(self) -> None:
        """Have all replicas as in the beginning."""
        for one in self.replicas:
            one.reset()
            one.start()
        for one in self.replicas:
            self.until(one, "up")


@contextmanager
def fronted(folder: Path, count: int, **variables: str) -> Iterator[Fronted]:
    """Serve over so many replicas that do as they are told."""
    with ExitStack() as stack:
        fakes = [stack.enter_context(replica()) for _ in range(count)]
        server = stack.enter_context(front(folder, *(fake.url for fake in fakes), **variables))
        yield Fronted(server, fakes)


@pytest.fixture(scope="package")
def one_replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fronted]:
    """A front over one."""
    with fronted(tmp_path_factory.mktemp("one"), 1) as made:
        yield made


@pytest.fixture(scope="package")
def two_replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fronted]:
    """A front over two."""
    with fronted(tmp_path_factory.mktemp("two"), 2) as made:
        yield made


@pytest.fixture
def one(one_replica: Fronted) -> Fronted:
    """The same as it was in the beginning."""
    one_replica.reset()
    return one_replica


@pytest.fixture
def two(two_replicas: Fronted) -> Fronted:
    """The same as it was in the beginning."""
    two_replicas.reset()
    return two_replicas
