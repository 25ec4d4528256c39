"""`python -m benchmarks`: what a person may type wrong."""

from __future__ import annotations

import pytest

from benchmarks.__main__ import BENCHES


def test_a_name_or_an_option_that_is_not_there_is_named(bench) -> None:
    assert bench("--help").exit_code == 0
    for words, says in ((("wrong",), "NAME is one of"), (("rounds", "--wrong"), "--wrong")):
        done = bench(*words)
        assert done.exit_code == 2 and done.stdout == "" and says in done.stderr


@pytest.mark.parametrize("name", BENCHES)
def test_every_bench_says_what_its_options_are(bench, name: str) -> None:
    done = bench(name, "--help")
    assert done.exit_code == 0 and "--json" in done.stdout, done.stderr


def test_a_mean_acceptance_that_is_none_is_refused(bench) -> None:
    done = bench("regions", "--out", "regions", "--means", "0.5,1")
    assert done.exit_code != 0 and "--means" in done.stderr and "less than 1" in done.stderr
