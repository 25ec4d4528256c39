"""Where each gamma rule wins: made texts, ratios, the picture, and runs that go on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gamma.rounds import write_recording
from benchmarks.regions import SPREADS, RegionsPlan, bench_regions, made_text, recorded_places
from osd.bench.harness.watch import Watch
from storage.settings import Settings
from tests.support.traces import recording, sampled_trace


@pytest.mark.parametrize("spread", SPREADS)
def test_made_texts_have_the_acceptance_that_is_asked_for(spread: str) -> None:
    texts = [made_text(0.7, spread, (0, seed), 400) for seed in range(10)]
    chances = np.concatenate([text.acceptance[:, 0] for text in texts])
    assert chances.mean() == pytest.approx(0.7, abs=0.03)  # the wide one's error is 0.005
    assert (chances.std() > 0.25) == (spread != "narrow")
    for text in texts[:2]:
        assert np.array_equal(text.acceptance[1:, 0], text.acceptance[:-1, 1])  # a position's chance is its own
        odds, said = (each / (1 - each) for each in (text.acceptance[:, :-1], text.head[:, 1:]))  # type: ignore[index]
        assert said == pytest.approx(odds / 6, rel=1e-3)
        assert np.array_equal(text.peak, text.acceptance) != (spread == "hidden")


def test_a_run_goes_on_and_a_rule_with_a_head_is_left_out_of_texts_without(tmp_path: Path) -> None:
    bare = [sampled_trace(20, 12, seed, data_set) for seed in (0, 1) for data_set in ("a", "b")]
    write_recording(tmp_path / "pair.parquet", recording(*bare))
    plan = RegionsPlan(
        out=tmp_path / "run", rounds=(tmp_path / "pair.parquet",), costs=("a100-c008",), means=(0.5, 0.9),
        rules=("goodput", "goodput with head"), texts=2, tokens=24,
    )  # fmt: skip
    result = bench_regions(plan, Settings(), Watch())
    log = tmp_path / "run" / "measured.jsonl"
    lines = log.read_text().splitlines()
    assert len(lines) == 6 * (13 + 2) + (13 + 1)
    rows = result.figures["regions"]
    assert [row["texts"] for row in rows] == [each for each in SPREADS for _ in range(2)] + ["pair, T=1"]
    assert all(0.5 < row["goodput"][0] < 1.5 for row in rows) and "goodput with head" not in rows[-1]
    assert (tmp_path / "run" / "regions.png").stat().st_size > 10_000
    log.write_text("".join(line + "\n" for line in lines[:30]))
    assert bench_regions(plan, Settings(), Watch()).line() == result.line()


def test_the_first_text_of_each_set_is_served_before_and_not_counted(tmp_path: Path) -> None:
    texts = [sampled_trace(10, 12, seed, data_set) for seed, data_set in enumerate("abab")]
    texts.append(replace(texts[0], temperature=0.0))
    write_recording(tmp_path / "pair.parquet", recording(*texts))
    places = recorded_places(tmp_path / "pair.parquet")
    (_, alone), (name, mean) = sorted(places)
    assert name == "pair, T=1" and alone == pytest.approx(texts[0].acceptance[:, 0].mean())
    assert mean == pytest.approx(np.mean([text.acceptance[:, 0].mean() for text in texts[:4]]))
    before, counted = places[name, mean]
    assert [text.text.tolist() for text in before] == [text.text.tolist() for text in texts[:2]]
    assert [text.text.tolist() for text in counted] == [text.text.tolist() for text in texts[2:4]]
