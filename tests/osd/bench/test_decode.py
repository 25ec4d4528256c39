"""The decode bench on a tiny pair: every contender decodes the same texts, and the ratios are those of its rates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from osd.bench import decode as bench
from osd.bench.contenders import ASSISTED, Contender
from osd.bench.decode import DecodedTurns, decode_all
from osd.bench.harness.watch import Watch
from osd.bench.plans import DecodePlan
from storage.settings import load_settings
from tests.support.features import feature_pair
from tests.support.models import prompts, random_pair


def test_all_ways_give_the_targets_text_and_ratios_follow_from_rates() -> None:
    pair = random_pair("llama", eos=5)
    plan = DecodePlan(batch=(1, 2), max_tokens=9, turns=1, recorded=6)
    settings = load_settings(serve={"max_length": 64})
    result = decode_all(plan, pair, prompts(6, seed=40, longest=8), settings, Watch()).figures
    assert result["identical"] is True and result["differing"] == 0
    assert set(result["transformers"]) == {"plain", *ASSISTED}
    assert set(result["osd"]) == set(result["osd_blended"]) == set(result["target_alone"]) == {"1", "2"}
    best = max(result["transformers"][rule]["1"] for rule in ASSISTED)
    assert result["ratio_vs_best_assisted"] == pytest.approx(result["osd"]["1"] / best, abs=2e-3)
    assert result["ratio_batch_2_vs_1"] == pytest.approx(result["osd"]["2"] / result["osd"]["1"], abs=2e-3)
    assert set(result["recording_cost"]) == set(result["recorder_share"]) == {"1", "2"}
    assert min(result["recorder_share"].values()) > 0


@pytest.mark.parametrize("drafter", ["causal", "tree"])
def test_a_draft_that_reads_hidden_states_stands_beside_the_target_alone(drafter: str) -> None:
    settings = load_settings(serve={"max_length": 64}, drafters={"kind": drafter})
    asked = prompts(4, seed=42, longest=8)
    plan = DecodePlan(batch=(1,), max_tokens=9, turns=1, recorded=0)
    result = decode_all(plan, feature_pair("eagle", eos=5), asked, settings, Watch()).figures
    assert result["identical"] is True and result["ratio_vs_target_alone"]["1"] > 0
    assert set(result["transformers"]) == {"plain"} and result["ratio_vs_best_assisted"] is None


def test_a_ratio_is_taken_within_a_turn() -> None:
    """The machine was half as fast in the second turn, and twice as fast in the third one's second half; what is best
    of the others differs."""
    ours, slow, fast = (DecodedTurns(rates) for rates in ([300.0, 150.0, 290.0], [100.0, 50.0, 200.0], [90, 60, 210]))
    assert ours.ratio(slow) == 3.0
    assert ours.ratio(slow, fast) == 2.5


def test_a_text_that_differs_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """One wrong token in osd's output must make ``identical`` false."""
    pair, asked = random_pair("llama"), prompts(4, seed=41, longest=8)
    honest = bench._contenders

    def lying(*args: object) -> dict[str, Contender]:
        found = honest(*args)  # type: ignore[arg-type]
        wrong = found["osd@1"]
        found["osd@1"] = replace(wrong, decode=lambda p: [[*text[:-1], text[-1] ^ 1] for text in wrong.decode(p)])
        return found

    monkeypatch.setattr(bench, "_contenders", lying)
    settings = load_settings(serve={"max_length": 64})
    plan = DecodePlan(batch=(1,), max_tokens=5, turns=1, recorded=0)
    result = decode_all(plan, pair, asked, settings, Watch()).figures
    assert result["identical"] is False and result["differing"] == 4
