"""What a draft from a table costs, measured small."""

from __future__ import annotations

import json

import pytest

from benchmarks import trigram


def test_the_bench_ends_with_json(bench, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trigram, "TURNS", 2)
    lines = tmp_path / "answers.jsonl"
    words = ["def", "the", "of", "and", "return", "value", "for", "each", "line", "in", "file"]
    texts = (" ".join(words[(i * j * j + j) % len(words)] for j in range(60)) for i in range(700))
    lines.write_text("".join(json.dumps({"response": text}) + "\n" for text in texts))
    done = bench("trigram", "--texts", lines)
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])["figures"]
    assert {(row["searches"], row["batch"]) for row in result["rows"]} == {
        (searches, batch) for searches in (10, 50, 150, 300) for batch in (1, 4, 8)
    }
    assert result["bytes_per_n_gram"] > 0 and result["build_mb_s"] > 0


def test_a_name_or_an_option_that_is_not_there_is_named(bench) -> None:
    assert bench("--help").exit_code == 0
    for words, says in ((("wrong",), "NAME is one of"), (("trigram", "--wrong"), "--wrong")):
        done = bench(*words)
        assert done.exit_code == 2 and done.stdout == "" and says in done.stderr
