"""`osd serve` with a target alone."""

from __future__ import annotations

from pathlib import Path

from osd.server.start import SHIPPED
from tests.osd.server.conftest import serving
from tests.support.waiting import until

ASKED = {"model": "target", "prompt": "SELECT all users", "max_tokens": 24, "temperature": 0}


def test_a_target_alone_serves_keeps_and_is_listed(tmp_path: Path) -> None:
    with serving(tmp_path, "--target", str(SHIPPED / "target"), "--drafter", "lookup") as made:
        said = [made.post("/v1/completions", ASKED) for _ in range(2)]
        assert {answer.status_code for answer in said} == {200}
        first, second = (answer.json() for answer in said)
        assert first["choices"][0]["text"] == second["choices"][0]["text"] and first["usage"]["completion_tokens"] == 24
        listed = made.get("/admin/servers").json()
        assert listed["serving"] == [] and [each["drafts"] for each in listed["workers"]] == [[]], listed
        assert made.get("/metrics").status_code == made.get("/admin/drafts").status_code == 200
        with made.store() as store:
            until(lambda: len(store.samples.recent(limit=9)) == 2, "both are kept")
            assert store.versions.list() == []
        made.process.terminate()
        assert made.process.wait(60) == 0, made.log
