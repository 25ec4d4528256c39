"""What the choice among drafts has learned outlives the process, and a file that does not fit is not believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from router.auto import FILE, AutoRouter
from router.prompt_vector import COMMON
from storage.records import Request
from tests.router.test_auto import KINDS, make, serve


def taught(folder: Path, requests: int = 80) -> AutoRouter:
    """A router that has learned and was closed."""
    router = make("both", folder=folder)
    for i in range(requests):
        serve(router, list(KINDS)[i % 2], score=True, seed=i)
    router.close()
    return router


def reopened(folder: Path) -> AutoRouter:
    router = make("both", folder=folder)
    router.close()
    return router


def test_a_router_goes_on_where_it_was(tmp_path: Path) -> None:
    before, after = taught(tmp_path / "router"), reopened(tmp_path / "router")
    assert after.weights("default") == before.weights("default") and after.learned == before.learned > 80
    for tokens, _ in KINDS.values():
        request = Request(tuple(tokens))
        first, second = (router.choose(request, router.route(request), 20.0) for router in (before, after))
        assert second.draft == first.draft
        for left, right in zip(second.estimates, first.estimates, strict=True):
            assert left.alpha == pytest.approx(right.alpha, abs=0.02), "tokens that are rare count as unseen"


def test_only_common_tokens_are_kept_and_nothing_of_requests_that_must_not_be_learned_from(tmp_path: Path) -> None:
    router = make("both", folder=tmp_path)
    for learn in (True, False):
        for i in range(COMMON):
            request = Request((7 if learn else 8, 1000 + i), learn=learn)
            router.choose(request, router.route(request))
    serve(router, "chat", score=True)
    router.close()
    prompts = json.loads((tmp_path / FILE).read_text())["prompts"]
    assert (prompts["tokens"], prompts["held"]) == ([7], [COMMON])


def test_nothing_is_written_where_nothing_was_learned(tmp_path: Path) -> None:
    reopened(tmp_path)
    assert list(tmp_path.iterdir()) == []
    taught(tmp_path)
    written = (tmp_path / FILE).stat().st_mtime_ns
    reopened(tmp_path)
    assert (tmp_path / FILE).stat().st_mtime_ns == written and len(list(tmp_path.iterdir())) == 1


WEIGHTS = {"weights": {"small": 1}, "averages": {"small": [0, 0, 0]}, "seen": 1, "alarms": 0}


def edited(**changes: Any) -> Any:
    return lambda state: json.dumps({**state, **changes})


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: json.dumps(state)[:-9], lambda _: "[]", edited(format=2), edited(dimensions=8),
        edited(drafts=["small"]),
        edited(drafts={"small": {"products": [[1]], "sums": [[1]], "seen": 3}}),
        edited(routes={"default": {**WEIGHTS, "weights": {"small": -1}}}),
        edited(routes={"default": {**WEIGHTS, "averages": {}}}),
        edited(prompts={"documents": 3, "tokens": [1], "held": []}),
    ],
    ids=["cut off", "a list", "format", "dimensions", "drafts", "shape", "weights", "averages", "prompts"],
)  # fmt: skip
def test_a_file_that_does_not_fit_is_not_believed(
    tmp_path: Path, damage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    taught(tmp_path)
    (tmp_path / FILE).write_text(damage(json.loads((tmp_path / FILE).read_text())))
    assert reopened(tmp_path).learned == 0
    assert "learned anew" in caplog.text


def test_where_it_cannot_be_written_serving_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    taught(tmp_path / "file" / "router")
    assert "is not kept" in caplog.text
