"""`python -m benchmarks gamma` as a person calls it, with the pair that ships with osd."""

import json

import pytest

from benchmarks.gamma.rounds import read_recording
from osd.gamma.factory import CONTROLLERS

SMALL = [
    "--controllers", "fixed,analytic", "--initial-gammas", "1,3", "--temperatures", "0", "--batch-sizes", "1",
    "--count", 1, "--turns", 1, "--max-tokens", 6,
]  # fmt: skip


@pytest.fixture
def asked(tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"What is {i} plus {i + 2}?"}) + "\n" for i in range(4)))
    return path


@pytest.mark.long
def test_a_run_and_its_replay(bench, asked, tmp_path):
    done = bench("gamma", *SMALL, "--prompts", asked, "--out", tmp_path / "run", "--json")
    assert done.exit_code == 0, done.stderr
    line = json.loads(done.stdout.splitlines()[-1])
    figures = line["figures"]
    assert set(figures["data_sets"]) == {"questions"} and figures["texts_differing"] == 0
    assert set(figures["overall"]["controllers"]) == {"fixed", "analytic"}
    assert figures["overall"]["controllers"]["analytic"]["vs_best_assisted"] > 0
    again = bench("gamma", *SMALL, "--prompts", asked, "--out", tmp_path / "run", "--json")
    assert again.exit_code == 0 and json.loads(again.stdout.splitlines()[-1]) == line  # nothing was left to measure

    recorded, costs = tmp_path / "run" / "rounds.parquet", tmp_path / "run" / "costs.json"
    replayed = bench("gamma", "--simulate", recorded, "--costs", costs, "--out", tmp_path / "sim")
    assert replayed.exit_code == 0, replayed.stderr
    assert "specdecpp is left out" in replayed.stderr
    assert "of the oracle" in replayed.stdout
    simulated = json.loads(replayed.stdout.splitlines()[-1])
    assert {"goodput", "analytic", "fsm"} & set(simulated["figures"]["overall"]["controllers"])
    for costs in ("a100-c008", "h200-llama3"):
        elsewhere = bench("gamma", "--simulate", recorded, "--costs", costs, "--controllers", "analytic", "--json")
        assert elsewhere.exit_code == 0, elsewhere.stderr


def test_heads_of_halves_speak_of_the_temperatures_that_are_asked_for(bench, asked, tmp_path):
    path = tmp_path / "pair.parquet"
    plain = ["--prompts", asked, "--count", 2, "--max-tokens", 4, "--depth", 3, "--out", path, "--json"]
    assert bench("rounds", *plain, "--temperatures", "0,1").exit_code == 0
    done = bench("rounds", *plain, "--temperatures", "1", "--head", "halves")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["figures"].keys() == {
        "binary_kl_learned_t1", "binary_kl_constant_t1"
    }  # fmt: skip
    traces = read_recording(path).traces
    assert [trace.temperature for trace in traces] == [0.0, 0.0, 1.0, 1.0]
    assert [trace.head is not None for trace in traces] == [False, False, True, True]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--controllers", "analytic,fms"], f"--controllers: 'fms' is none of all, {', '.join(CONTROLLERS)}"),
        (["--controllers", ","], "--controllers: '' is none of all"),
        (["--batch-sizes", "1,many"], "--batch-sizes: '1,many' is not a list of numbers from 1 on"),
        (["--batch-sizes", "0"], "--batch-sizes: '0' is not a list of numbers"),
        (["--initial-gammas", "0,4"], "--initial-gammas: '0,4' is not a list of numbers from 1 on"),
        (["--initial-gammas", ""], "--initial-gammas: '' is not a list of numbers"),
        (["--temperatures", "0,-1"], "--temperatures: '0,-1' is not a list of numbers"),
        (["--temperatures", "inf"], "--temperatures: 'inf' is not a list of numbers"),
        (
            ["--simulate", "nowhere.parquet"],
            "--simulate needs costs: costs.json of a run, or one of 2xa100-specdecpp, a100-c008",
        ),
        (["--simulate", "nowhere.parquet", "--costs", "a100-c008"], "nowhere.parquet"),
        (["--target", "only-half"], "give --draft too"),
        (["--prompts", "nowhere.jsonl"], "nowhere.jsonl: cannot be read"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(bench, tmp_path, arguments, words):
    done = bench("gamma", "--out", tmp_path / "run", *arguments)
    told = [line for line in done.stderr.splitlines() if line.startswith("osd: ")]
    assert (done.exit_code, done.stdout, len(told)) == (2, "", 1), done.stderr
    assert words in told[0]
    assert not (tmp_path / "run").exists()


def test_a_file_that_is_no_recording(bench, asked, tmp_path):
    done = bench("gamma", "--simulate", asked, "--costs", "a100-c008", "--out", tmp_path / "run")
    assert done.exit_code == 2 and "questions.jsonl" in done.stderr
    costs = bench("gamma", "--simulate", asked, "--costs", "warp-drive", "--out", tmp_path / "run")
    assert costs.exit_code == 2 and "warp-drive" in costs.stderr and "a100-c008" in costs.stderr


def test_another_runs_folder_is_refused(bench, asked, tmp_path):
    bench("gamma", *SMALL, "--prompts", asked, "--out", tmp_path / "run")
    done = bench("gamma", *SMALL, "--max-tokens", 7, "--prompts", asked, "--out", tmp_path / "run")
    assert done.exit_code == 2
    assert "max_tokens is 6 there and 7 now" in done.stderr
