"""Databases and a bucket behind wires that can be cut."""

# ruff: noqa: F401, F811  (fixtures are imported by name)

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from sqlalchemy import make_url

from tests.integration.proxy import Proxy
from tests.storage.conftest import (
    memory,
    postgres_url,
    s3,
    s3_endpoint,
    upgraded_postgres,
)
from tests.trainer.conftest import all_answers, draft_folder, drafted, never, settings, traffic


@pytest.fixture
def database(postgres_url: str) -> Iterator[tuple[str, Proxy]]:
    """A database's URL through a proxy, and the proxy."""
    url = make_url(postgres_url)
    with Proxy(url.port or 5432) as proxy:
        yield url.set(port=proxy.port).render_as_string(hide_password=False), proxy


@pytest.fixture(scope="session")
def bucket_proxy(s3_endpoint: str) -> Iterator[Proxy]:
    """One for all tests: a process has one S3 client, which goes on with the endpoint that it began with."""
    with Proxy(urlsplit(s3_endpoint).port or 0) as proxy:
        yield proxy


@pytest.fixture
def bucket(bucket_proxy: Proxy, s3: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Proxy]:
    """A bucket's folder through a proxy, and the proxy."""
    bucket_proxy.mend()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{bucket_proxy.port}")
    return s3, bucket_proxy
