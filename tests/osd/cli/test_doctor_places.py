"""`osd doctor` where samples and weights lie elsewhere: each place is tried, what is broken says how to mend it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from osd.cli import checks
from storage.files.bucket import ObjectStore
from tests.storage.conftest import postgres_url, s3, s3_endpoint, upgraded_postgres  # noqa: F401, fixtures

PARTS = ("samples", "weights", "weights cache", "encryption", "places")


@pytest.fixture
def look(osd, only):
    """The findings of those parts, the pair and the broker left out."""
    only(checks.places)

    def run(**variables: str) -> dict[str, dict[str, str]]:
        done = osd("doctor", "--json", **{f"OSD_STORAGE__{name.upper()}": text for name, text in variables.items()})
        assert "not-a-secret" not in done.output
        return {row["part"]: row for row in json.loads(done.stdout) if row["part"] in PARTS}

    return run


def states(found: dict[str, dict[str, str]]) -> dict[str, str]:
    return {part: row["state"] for part, row in found.items()}


def test_sound_places_are_tried_and_left_as_they_are(look, s3: str, postgres_url: str, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "ring").write_text("first " + "QUJD" * 8)
    (tmp_path / "ring").chmod(0o600)
    found = look(
        url=postgres_url, samples=f"{s3}/a", weights=f"{s3}/b", cache=str(tmp_path / "cache"),
        encryption=f"file:{tmp_path / 'ring'}",
    )  # fmt: skip
    assert states(found) == dict.fromkeys(("samples", "weights", "weights cache", "encryption"), "ok")
    assert "'first'" in found["encryption"]["found"]
    assert ObjectStore(s3, "storage.samples").list() == [] and not (tmp_path / "cache").exists()


def test_what_is_broken_says_how_to_mend_it(look, s3: str, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "file").touch()
    (tmp_path / "ring").write_text("first " + "QUJD" * 8)
    found = look(
        samples="s3://osd-no-such-bucket/a", weights=f"{tmp_path}/file/w", encryption=f"file:{tmp_path / 'ring'}"
    )
    assert states(found) == {"samples": "broken", "weights": "broken", "encryption": "warning"}
    assert "no such bucket" in found["samples"]["found"] and "storage.samples" in found["samples"]["found"]
    assert "storage.weights" in found["weights"]["mend"] and "chmod 600" in found["encryption"]["mend"]
    found = look(samples="s5://a", encryption="QUJD" * 8)
    assert states(found) == {"places": "broken"} and "fsspec" in found["places"]["found"]
    found = look(samples="memory://a", encryption="QUJD" * 8)
    assert (found["samples"]["state"], found["encryption"]["state"]) == ("warning", "broken")
    assert "QUJD" not in json.dumps(found)
