"""`python -m benchmarks`: what a person may type wrong."""

from __future__ import annotations


def test_a_name_or_an_option_that_is_not_there_is_named(bench) -> None:
    assert bench("--help").exit_code == 0
    for words, says in ((("wrong",), "NAME is one of"), (("rounds", "--wrong"), "--wrong")):
        done = bench(*words)
        assert done.exit_code == 2 and done.stdout == "" and says in done.stderr
