"""Ages and dates as people write them."""

import time
from datetime import datetime

import pytest
import typer

from osd.cli.options import moment


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("1.5h", 5400), ("7d", 604800), ("2w", 1209600)]
)
def test_an_age_counts_back_from_now(text: str, seconds: float) -> None:
    assert time.time() - moment(text) == pytest.approx(seconds, abs=5)


def test_a_date_is_local_time() -> None:
    assert moment("2026-11-21T08:00") == datetime(2026, 11, 21, 8).timestamp()


@pytest.mark.parametrize("text", ["", "yesterday", "5", "5y", "2026-13-01"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        moment(text)
