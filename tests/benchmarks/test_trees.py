"""`benchmarks trees`: a small run over real models, its last line, going on after a break, what is made of it."""

from __future__ import annotations

import json
import random
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.trees.bench import TreesRun
from benchmarks.trees.corpora import Knowledge
from benchmarks.trees.methods import FROZEN, GREEDY, MCTS, METHODS, SHARES, TreesUnit, units_of
from benchmarks.trees.result import BIN, TreesCell, accept_length, by_context, by_corpus, faster, sampled
from osd.bench.harness.turns import Cell
from tests.benchmarks.conftest import Bench

ASKED = ("How many days has a leap year?", "def add(a, b):", "Name three colours.", "SELECT all users")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("sets")
    prompts, corpus = folder / "asked.jsonl", folder / "known.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ASKED))
    texts = [path.read_text()[:4000] for path in sorted(Path(sysconfig.get_path("stdlib")).glob("a*.py"))]
    corpus.write_text("".join(json.dumps({"prompt": "code", "response": text}) + "\n" for text in texts))
    return prompts, corpus


@pytest.mark.long
def test_the_command_measures_compares_draws_and_goes_on(
    bench: Bench, files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [
        "--prompts", files[0], "--corpus", files[1], "--count", 2, "--max-tokens", 6, "--answers", 1,
        "--no-sensitivity", "--out", tmp_path / "out", "--json",
    ]  # fmt: skip
    done = bench("trees", *asked)
    assert done.exit_code == 0, done.stderr
    line = json.loads(done.stdout.splitlines()[-1])["figures"]
    own = line["sets"]["asked"]
    assert list(own) == [method.name for method in METHODS] and line["identical"]
    assert all(each["accept_length"] >= 1 and each["tokens_per_s"] > 0 for each in own.values())
    assert own["target_alone"]["accept_length"] == 1 and line["bytes_per_trigram"] > 0
    assert set(line["draft_us"]) == {"10", "50", "150", "300"}
    assert {path.name for path in (tmp_path / "out").glob("*.png")} == {"trees-context.png"}

    monkeypatch.setattr(TreesRun, "measure", lambda *_: pytest.fail("it was measured before"))
    again = json.loads(bench("trees", *asked).stdout.splitlines()[-1])["figures"]
    assert again["sets"] == line["sets"]
    other = bench("trees", *asked[:-3], "--nodes", 9, *asked[-3:])
    assert other.exit_code != 0 and "another run" in other.stderr


def test_a_set_that_is_also_the_corpus_is_refused(bench: Bench, files: tuple[Path, Path]) -> None:
    done = bench("trees", "--prompts", files[1], "--corpus", files[1])
    assert done.exit_code != 0 and "know the answers" in done.stderr


def figures(tokens: int, passes: int, bins: dict[str, list[int]] | None = None) -> dict[str, Any]:
    return {"tokens": tokens, "passes": passes, "bins": bins or {}, "differing": 0}


def line_of(part: Any, name: str, **facts: Any) -> TreesCell:
    methods = {m.name: figures(6, 3) for m in (GREEDY, FROZEN)} | {MCTS.name: figures(8, 2)}
    return Cell(TreesUnit(part, name, (), **facts), methods)


def test_curves_are_geometric_means_over_sets() -> None:
    lines = [line_of("sampling", "a", temperature=1.0), line_of("sampling", "b", temperature=1.0)]
    lines[1].found[MCTS.name] = figures(9, 1)
    lines += [line_of("sampling", "a"), line_of("sampling", "a", temperature=1.0, top_p=0.5)]
    assert sampled(lines, "temperature")[MCTS.name] == [(0.0, 4.0), (1.0, 6.0)]
    assert sampled(lines, "top_p")[MCTS.name] == [(0.5, 4.0), (1.0, 6.0)]
    assert by_corpus([line_of("corpus", "a", share=0.1)])[FROZEN.name] == [(0.1, 2.0)]
    assert accept_length(figures(7, 2)) == 3.5


def test_by_context_passes_of_all_sets_count_alike_and_few_are_left_out() -> None:
    lines = [line_of("shape", "a"), line_of("shape", "b")]
    for line, tokens in zip(lines, (40, 80), strict=True):
        line.found[MCTS.name]["bins"] = {"1": [tokens, 20], "2": [9, 9]}
    assert by_context(lines)[MCTS.name] == [(1.5 * BIN, 3.0)]


def test_methods_compare_at_the_same_prompt() -> None:
    """Of a hundred prompts of very different speed; the machine is slow at every third of them, for both alike."""
    chance = random.Random(1)
    base = [chance.uniform(50, 500) / (3 if i % 3 == 0 else 1) for i in range(100)]
    rates = {
        "one": [1.2 * each * chance.gauss(1, 0.05) for each in base],
        "slow": [0.5 * each for each in base],
        "quick": [each * chance.gauss(1, 0.05) for each in base],
    }
    line: TreesCell = Cell(TreesUnit("speed", "a", ()), {name: {"rates": own} for name, own in rates.items()})
    ratio, error = faster(line, "one", ["slow", "quick"])
    assert ratio == pytest.approx(1.2, abs=0.03) and 0.004 < error < 0.02


def test_every_set_has_every_method_and_part_of_the_corpus() -> None:
    units = list(units_of("ab", sensitivity=True))
    assert {(u.part, u.data_set) for u in units} == {
        (part, name) for part in ("shape", "speed", "sampling", "corpus") for name in "ab"
    }
    assert [u.share for u in units if u.part == "corpus" and u.data_set == "a"] == list(SHARES)


def test_a_part_of_the_corpus_is_drawn_evenly() -> None:
    known = Knowledge([np.full(3, i) for i in range(100)])
    assert [int(text[0]) for text in known.part(0.05).texts] == [0, 24, 49, 74, 99]
    assert known.part(0.0).table(3).learned == 0 and known.part(1.0).tokens == known.tokens == 300
