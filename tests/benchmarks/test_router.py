"""The bench of the router as a person calls it, with a small folder of files named as the real ones."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from benchmarks.router.folder import BenchSides, LabelledFolder, fraction, is_kept
from router.language import load_languages

WORDS = {
    "de": ("der Hund die Katze das Haus", "läuft schläft wartet steht", "heute morgen wieder nicht"),
    "fr": ("le chien la chatte une maison", "court dort attend reste", "demain encore aujourd'hui jamais"),
    "ru": ("собака кошка дом поезд", "бежит спит ждёт стоит", "сегодня завтра опять никогда"),
}
INTENTS = {
    "travel": ("flight", "book a flight to paris please", "find me a flight tomorrow"),
    "kitchen": ("recipe", "how do i cook rice", "give me a recipe for soup"),
    "oos": ("oos", "who won the game", "what is a quark"),
}


RESULTS = {
    *(f"language_accuracy_{name}" for name in (
        "all", "20", "xquad", "xquad_question", "short", "mixed", "code_fenced", "code_bare")),
    "topic_accuracy_clinc10", "intent_accuracy_clinc150", "oos_auroc", "oos_auroc_never_seen", "unsure_inside",
    "unsure_outside", "banking77_accuracy", "latency_us_median", "latency_us_p99",
}  # fmt: skip


def write(path: Path, rows: list[dict[str, str]]) -> None:
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def sentences(count: int) -> list[dict[str, str]]:
    rows = []
    for place in range(count):
        for language, parts in WORDS.items():
            words = [part.split()[place * 7 // (n + 1) % len(part.split())] for n, part in enumerate(parts)]
            rows.append({"prompt": " ".join(words), "language": language, "response": f"English sentence {place}"})
    return rows


def intents(count: int) -> list[dict[str, str]]:
    return [
        {"prompt": f"{texts[place % 2]} {place}", "label": label, "topic": topic}
        for place in range(count)
        for topic, (label, *texts) in INTENTS.items()
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    there = tmp_path / "data"
    there.mkdir()
    write(there / "tatoeba.jsonl.gz", sentences(60))
    write(there / "clinc150.jsonl", intents(60))
    write(there / "banking77.jsonl.gz", [row | {"topic": "banking"} for row in intents(40)])
    write(
        there / "xquad.jsonl.gz",
        [row | {"context": "der Hund steht"} for row in sentences(4) if row["language"] == "de"],
    )
    write(
        there / "mbxp.jsonl",
        [{"prompt": "sum", "response": "    for (int i = 0; i < n; i++) {\n        s += i;\n    }"}],
    )
    return there


@pytest.mark.slow
def test_one_folder(bench, folder):
    done = bench("router", "--train", folder, "--json")
    assert done.exit_code == 0, done.stderr
    (line,) = done.stdout.splitlines()
    result = json.loads(line)["figures"]
    assert set(result) >= RESULTS and None not in result.values()
    assert result["language_accuracy_all"] > 0.9 and result["language_accuracy_xquad"] == 1
    assert result["topic_accuracy_clinc10"] == 1 and result["oos_auroc"] > 0.9
    assert 0 < result["latency_us_median"] <= result["latency_us_p99"]


def test_two_folders_and_missing_files(bench, folder, tmp_path):
    other = tmp_path / "test"
    other.mkdir()
    write(other / "tatoeba.jsonl", sentences(9))
    done = bench("router", "--train", folder, "--test", other)
    assert done.exit_code == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    result = last["figures"]
    assert last["settings"]["tested_on"] == "--test" and result["language_accuracy_all"] == 1
    assert result.get("topic_accuracy_clinc10") is None and "latency_us_median" not in result
    assert "has no clinc150.jsonl.gz" in done.stderr and "language_accuracy_20" in done.stdout


def test_an_interrupt_is_no_traceback(bench, folder, monkeypatch):
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("benchmarks.router.guesses.measure_languages", stop)
    done = bench("router", "--train", folder)
    assert done.exit_code == 130 and "Stopped." in done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["interrupted"] is True


def test_bad_folders(bench, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    for path, words in (
        (tmp_path / "nowhere", "is no folder"),
        (empty, "holds none of the files"),
    ):
        done = bench("router", "--train", path)
        assert (done.exit_code, done.stdout) == (2, "") and words in done.stderr and str(path) in done.stderr
    assert bench("router").exit_code == 2


def test_broken_lines_are_named_and_passed_over(bench, folder, tmp_path):
    path = folder / "tatoeba.jsonl"
    (folder / "tatoeba.jsonl.gz").unlink()
    lines = [json.dumps(row) for row in sentences(30)]
    path.write_text("\n".join(["{", '{"prompt": "no language"}', '{"prompt": 3}', *lines]) + "\n")
    said: list[str] = []
    assert len(LabelledFolder(folder, said.append).rows("tatoeba")) == 90
    for words in ("line 1 is not JSON", 'line 2 has no "language"', 'line 3 has no "prompt"'):
        assert any(words in each and str(path) in each for each in said), said
    path.write_text("{\n")
    done = bench("router", "--train", folder)
    assert done.exit_code == 2 and "has no line that can be used" in done.stderr
    (folder / "tatoeba.jsonl.gz").write_bytes(b"not gzip")
    done = bench("router", "--train", folder)
    assert done.exit_code == 2 and "tatoeba.jsonl.gz: cannot be read" in done.stderr


def test_parallel_sentences_are_on_one_side(folder):
    learned, tested = BenchSides(LabelledFolder(folder, print), None).split("tatoeba", "response")
    assert len(learned) + len(tested) == 180 and tested
    assert not {row.facts["response"] for row in learned} & {row.facts["response"] for row in tested}
    assert is_kept("Hello,  WORLD") == is_kept("hello world")
    kept = sum(is_kept(f"sentence {i}") for i in range(4000)) / 4000
    assert 0.12 < kept < 0.18 and 0 <= fraction("x") < 1  # 0.15 ± five deviations


def test_a_language_model_of_ones_own(bench, folder, tmp_path):
    done = bench("router", "--train", folder, "--out", tmp_path / "own.npz")
    assert done.exit_code == 0, done.stderr
    model = load_languages(tmp_path / "own.npz")
    assert model.labels == ("de", "en", "fr", "ru") and model.predict("die Katze schläft").label == "de"
    (folder / "tatoeba.jsonl.gz").unlink()
    done = bench("router", "--train", folder, "--out", tmp_path / "none.npz")
    assert done.exit_code == 2 and "has no tatoeba.jsonl" in done.stderr and not (tmp_path / "none.npz").exists()
