"""schemathesis holds the server to its OpenAPI document: no answer that is not in it, no error of ours."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.osd.server.conftest import Server
from tests.support.waiting import PATIENCE

schemathesis = pytest.importorskip("schemathesis")
ROUTES = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/v1/models", "/v1/models/{model}")


@pytest.fixture(scope="module")
def operations(server: Server) -> dict[str, Any]:
    """What the document has, by path."""
    schema = schemathesis.openapi.from_dict(httpx.get(f"{server.url}/openapi.json", timeout=PATIENCE).json())
    schema.config.update(base_url=server.url)
    return {found.ok().path: found.ok() for found in schema.get_all_operations()}


def fuzz(operation: Any, examples: int) -> None:
    """Bodies that the document allows, and bodies that it does not."""
    from hypothesis import HealthCheck, given, settings
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    checks = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]

    @settings(max_examples=examples, database=None, derandomize=True,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(case=operation.as_strategy())
    def check(case) -> None:
        if isinstance(case.body, dict) and case.body.get("stream") is True:
            case.body["stream"] = False  # a stream's events are not in the document
        if isinstance(case.body, dict) and operation.path.endswith("completions"):
            case.body.setdefault("max_tokens", 2)  # else an answer to a chat goes on to the end of the row
        case.call_and_validate(checks=checks, timeout=PATIENCE)

    check()


@pytest.mark.parametrize("path", ROUTES)
def test_a_few_bodies(operations: dict[str, Any], path: str) -> None:
    fuzz(operations[path], 15)


@pytest.mark.long
@pytest.mark.parametrize("path", ROUTES)
def test_many_bodies(operations: dict[str, Any], path: str) -> None:
    """20,000 in all over the routes that take a body."""
    fuzz(operations[path], 500 if "models" in path else 5000)
