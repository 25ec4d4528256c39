"""Cost tables: lines between cells, planes, files, profiles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gamma.costs import (
    CostCells,
    CostTable,
    Piece,
    Pieces,
    costs_of_engine,
    find_costs,
    load_costs,
    profiles,
    save_costs,
)
from osd.gamma.base import CostModel
from storage.errors import BadBenchFile, BadInput

GOOD: dict[str, Any] = {
    "osd_costs": 1,
    "draft": {"cells": [[1, 1, 1.0]]},
    "verify": {"pieces": [{"start_ms": 4}, {"token_ms": 0.5}]},
}


def test_cells_are_joined_by_straight_lines() -> None:
    cells = CostCells([(1, 1, 4.0), (1, 5, 8.0), (3, 3, 10.0), (3, 9, 16.0)])
    assert cells.ms(1, 5) == 8.0
    assert cells.ms(1, 2) == 5.0
    assert cells.ms(1, 9) == 12.0  # on as the last two rise
    assert cells.ms(3, 1) == 10.0  # before the first, its value
    assert cells.ms(2, 5) == (8.0 + 12.0) / 2
    assert cells.ms(2, 5) == 10.0  # and again, from what was kept


def test_a_fall_at_the_end_is_not_carried_on() -> None:
    assert CostCells([(1, 1, 4.0), (1, 2, 3.0)]).ms(1, 9) == 3.0


def test_one_cell_is_the_cost_everywhere() -> None:
    assert CostCells([(2, 2, 3.0)]).ms(7, 50) == 3.0


def test_a_roofline_is_the_larger_of_reading_and_computing() -> None:
    roof = Pieces((Piece(start_ms=4, row_ms=0.5), Piece(token_ms=0.25)))
    assert (roof.ms(2, 2), roof.ms(2, 40)) == (5.0, 10.0)


def test_a_table_comes_back_from_its_file(tmp_path: Path) -> None:
    table = CostTable("a", "by hand", CostCells([(1, 1, 2.0), (1, 2, 1.5)]), Pieces((Piece(1, 2, 3),)), 0.25)
    save_costs(tmp_path / "costs.json", table)
    read = load_costs(tmp_path / "costs.json")
    assert (read.name, read.source, read.catch_up_token_ms) == ("a", "by hand", 0.25)
    assert (read.draft_ms(1, 2), read.verify_ms(2, 4)) == (3.0, 17.0)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"osd_costs": 2}, "osd_costs is 2"),
        ({"drafft": 1}, "drafft is 1"),
        ({"draft": None}, "draft.cells is None"),
        ({"draft": {"cells": []}}, "at least 1 item"),
        ({"draft": {"cells": [[0, 1, 1.0]]}}, r"cells\.0\.0 is 0: .* greater than 0"),
        ({"verify": {"cells": [[1, 1, 0]]}}, r"cells\.0\.2 is 0: .* greater than 0"),
        ({"verify": {"pieces": [{"start": 1}]}}, r"pieces\.0\.start is 1"),
        ({"verify": {"pieces": [{"start_ms": -1}]}}, r"start_ms is -1: .* greater than or equal to 0"),
        ({"verify": {"pieces": [{"start_ms": True}]}}, "start_ms is True"),
        ({"verify": {"pieces": [{"start_ms": 1}], "cells": []}}, r"verify\.pieces\.cells is"),
        ({"catch_up_token_ms": "fast"}, "catch_up_token_ms is 'fast'"),
    ],
)
def test_a_wrong_file_is_told_what_is_wrong(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(GOOD))
    assert load_costs(path).verify_ms(1, 10) == 5.0
    path.write_text(json.dumps(GOOD | change))
    with pytest.raises(BadBenchFile, match=told):
        load_costs(path)


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_what_is_no_table_is_refused(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "costs.json").write_text(text)
    with pytest.raises(BadBenchFile, match=r"costs\.json"):
        load_costs(tmp_path / "costs.json")


def test_profiles_have_the_papers_ratios_at_batch_one() -> None:
    tables = {name: find_costs(name) for name in profiles()}
    ratios = {name: table.draft_ms(1, 1) / table.verify_ms(1, 1) for name, table in tables.items()}
    assert ratios["a100-c008"] == pytest.approx(0.08, abs=1e-6)
    assert ratios["a100-c013"] == pytest.approx(0.13)
    assert tables["a100-c008"].verify_ms(1, 1) == pytest.approx(51.09)
    assert ratios["2xa100-specdecpp"] == pytest.approx(23.4 / 112)


def test_profiles_rise_with_rows_and_tokens_and_verify_few_tokens_for_nothing() -> None:
    measured = {"h100-1b-eager", "h100-8b-eager", "h100-8b-graphs"}  # the others are rooflines
    for table in map(find_costs, set(profiles()) - measured):
        assert table.verify_ms(1, 8) == table.verify_ms(1, 1)
        assert table.verify_ms(64, 64 * 9) > 2 * table.verify_ms(64, 64)
    for table in map(find_costs, profiles()):
        assert table.verify_ms(64, 64 * 9) > table.verify_ms(64, 64) > table.verify_ms(1, 1)
        assert table.draft_ms(64, 1) > table.draft_ms(1, 1)
        assert table.draft_ms(8, 5) == pytest.approx(5 * table.draft_ms(8, 1))
        assert table.source


def test_an_engines_costs_become_a_table() -> None:
    costs = CostModel()
    with pytest.raises(BadInput, match="timed no draft"):
        costs_of_engine(costs, "here", "", batches=[1], depth=2)
    for _ in range(9):
        for batch in (1, 2):
            for gamma in (1, 3):
                costs.observe_draft(batch, gamma, 1.5 * gamma)
                costs.observe_verify(batch, batch * (gamma + 1), 4.0 + 0.5 * batch * (gamma + 1))
    table = costs_of_engine(costs, "here", "measured", batches=[1, 2], depth=4)
    assert table.draft_ms(2, 3) == pytest.approx(4.5, rel=0.02)
    for batch, tokens in ((1, 2), (1, 4), (2, 8), (2, 6), (1, 5)):
        assert table.verify_ms(batch, tokens) == pytest.approx(costs.verify_ms(batch, tokens), rel=0.02)


def test_costs_are_found_by_profile_or_by_file(tmp_path: Path) -> None:
    profile = find_costs("a100-c008")
    assert profile.name == "a100-c008" and profile.source.startswith("Online Speculative Decoding, Table 7")
    save_costs(tmp_path / "mine.json", profile)
    assert find_costs(str(tmp_path / "mine.json")).verify_ms(4, 9) == pytest.approx(profile.verify_ms(4, 9))
    with pytest.raises(BadBenchFile, match="h200-llama3"):
        find_costs("h2000")
