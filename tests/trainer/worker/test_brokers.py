"""What every broker must do, over each that osd names: a nudge wakes the real worker; a message that is lost, doubled,
late or not JSON changes nothing. What is due stands in the database.

The worker's own timer is set to an hour, so that whatever it does after its first turn, a message asked for it.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery
from kombu import Producer

from storage.errors import BadSetting
from storage.records import RunState
from storage.settings import Settings, load_settings
from storage.store import Store
from tests.trainer.conftest import Traffic
from tests.trainer.processes import QUICK, configured, wait_for, worker
from trainer.worker.broker import TURN, class_queue, make_app, nudge, ping, queue_name, require_broker

BROKERS = {"files": None, "redis": "redis://127.0.0.1:6379/9", "rabbitmq": "amqp://guest:guest@127.0.0.1:5672//"}
PORTS = {"redis": 6379, "rabbitmq": 5672}
HOUR = 3600.0


def needs(port: int) -> None:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        pytest.skip(f"no broker at 127.0.0.1:{port}")


@pytest.fixture(params=BROKERS)
def config(request: pytest.FixtureRequest, settings: Settings, tmp_path: Path) -> Path:
    """An osd.toml with the broker; skips the test where the broker is not."""
    if port := PORTS.get(request.param):
        needs(port)
    broker = {"broker": url} if (url := BROKERS[request.param]) else {}
    return configured(tmp_path, settings, QUICK, poll_seconds=HOUR, **broker)


@pytest.fixture
def app(config: Path) -> Iterator[Celery]:
    """What others than the worker send with."""
    opened = make_app(load_settings(config))
    yield opened
    with opened.connection_for_write() as connection:
        for ending in ("", ".cpu", ".gpu"):
            connection.default_channel.queue_delete(queue_name(load_settings(config)) + ending)
    opened.close()


class Bomb:
    """What a pickle could do to who reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def send_pickle(app: Celery, queue: str, bomb: Bomb) -> None:
    with app.connection_for_write() as connection:
        producer = Producer(connection.default_channel)
        headers = {"task": TURN, "id": "bomb", "lang": "py"}
        producer.publish(((bomb,), {}, {}), serializer="pickle", routing_key=queue, headers=headers)


def test_the_contract(drafted: Store, config: Path, app: Celery, traffic: Traffic, tmp_path: Path) -> None:
    settings = load_settings(config)

    def ended() -> int:
        return sum(run.state in (RunState.PUBLISHED, RunState.REJECTED) for run in drafted.runs.list())

    traffic(12)
    with worker(config) as process:
        wait_for(lambda: ended() == 1, process)  # its own first nudge

        sent = traffic(12)  # and the message is lost
        assert drafted.samples.waiting("default").requests and ended() == 1

        nudge(app, settings, f"{queue_name(settings)}.gpu")  # to others
        nudge(app, settings, class_queue(settings))  # the next one makes it good
        wait_for(lambda: ended() == 2, process)
        assert {s.request_id for s in sent} & set(drafted.runs.list()[0].request_ids)

        traffic(12)
        for _ in range(3):  # doubled
            nudge(app, settings)
        wait_for(lambda: ended() == 3, process)

        traffic(12)
        app.send_task(TURN, expires=-HOUR)  # late: void before it arrives
        send_pickle(app, queue_name(settings), Bomb(tmp_path / "unpickled"))
        app.send_task("osd.unknown")
        nudge(app, settings)
        wait_for(lambda: ended() == 4, process)

        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert len(drafted.runs.list()) == 4, "one run for each time that something was due"
    assert not (tmp_path / "unpickled").exists()
    if settings.trainer.broker is None:
        left = (drafted.directory / "broker" / "messages").glob("*.gpu.msg")
        assert len(list(left)) == 1, "one for another class of devices wakes nobody here"
    assert drafted.samples.waiting("default").requests == 0


BAD = {
    "foo://secret@x": "not known to Celery",
    "redis://127.0.0.1:99999/0": "no URL",
    "nothing": "without a scheme",
    "amqp://guest:secret@127.0.0.1:5672//": "refused",
    "amqp://guest:guest@127.0.0.1:5672/no-such-host": "refused",
}


@pytest.mark.parametrize("url", BAD)
def test_a_broker_that_will_never_do_is_a_bad_setting(url: str, tmp_path: Path) -> None:
    if "5672" in url:
        needs(5672)
    settings = load_settings(storage={"directory": tmp_path}, trainer={"broker": url})
    with pytest.raises(BadSetting, match=rf"trainer\.broker.*{BAD[url]}") as caught:
        require_broker(make_app(settings))
    assert "secret" not in str(caught.value)
    assert (said := ping(settings))["ok"] is False and BAD[url] in said["found"]


def test_a_broker_that_is_away_is_waited_for(tmp_path: Path) -> None:
    away = load_settings(storage={"directory": tmp_path}, trainer={"broker": "amqp://guest:guest@127.0.0.1:1//"})
    require_broker(make_app(away))
    assert ping(away)["ok"] is False
