"""What the RL bench makes of its rollouts and of the rows of its store."""

from __future__ import annotations

import re

import pytest

from benchmarks.rl import PAGE, TIMED, rates, smoothed, summed_up


def test_rates_are_those_of_all_requests_and_of_the_last_quarter() -> None:
    rollouts = [[(10, 1.0, 0.5), (30, 3.0, 1.5)], [(40, 1.0, 1.0)], [(40, 1.0, 1.0)], [(80, 1.0, 0.5)]]
    assert rates(rollouts) == {
        "rollout_tokens_per_second": 200 / 7, "tokens_per_cpu_second": 200 / 4.5,
        "rollout_tokens_per_second_last": 80.0, "tokens_per_cpu_second_last": 160.0,
    }  # fmt: skip
    assert rates([]) == {}


def test_an_arm_is_summed_up_over_its_updates_and_its_last_quarter() -> None:
    quiet = {"emitted": 10, "rounds": 10, "seconds": 1.0, "drafted": 0, "accepted": 0, "rejections": 0}
    drafting = {"emitted": 15, "rounds": 10, "seconds": 1.0, "drafted": 10, "accepted": 5, "rejections": 5}
    learned = {"runs": ["published", "rejected"], "heir": [True, False, None]}
    plain = [{**quiet, "runs": [], "heir": [], "reward": reward} for reward in (0.1, 0.2, 0.3)]
    found = summed_up([*plain, {**drafting, **learned, "reward": None}])
    assert (found["alpha"], found["alpha_last"]) == (0.5, 0.5)
    assert (found["tokens_a_round"], found["tokens_a_round_last"]) == (45 / 40, 1.5)
    assert found["drafted_a_round"] == 0.25 and found["reward_last"] == 0.3, "an update without a reward counts not"
    assert (found["runs"], found["published"], found["heirs"], found["heirs_good"]) == (2, 1, 3, 1)
    assert summed_up(plain)["alpha"] is None


def test_means_of_the_picture_leave_out_what_is_not_known() -> None:
    rows = [{"update": at, "reward": value} for at, value in enumerate([1.0, None, 3.0, 5.0])]
    assert smoothed(rows, "reward") == ([0, 2, 3], pytest.approx([1.0, 2.0, 3.0]))


def test_what_stands_before_the_pages_loop_fits_it() -> None:
    """The page has one loop, with the rate and the ports that the bench puts its own in the place of."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    compile(TIMED + code, "loop", "exec")
    assert code.count("lr=1e-4") == 1 and code.count(":8000/") == code.count(":8001/") == 1
