"""`osd corpus`, from files and from the replay store."""

from __future__ import annotations

import gzip
import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from typer.testing import Result

from osd.drafters.ngram import OtherTokenizer
from osd.drafters.ngram.corpus import Builder, BuildProgress, open_corpus
from osd.drafters.ngram.files import load_table
from osd.server.start import SHIPPED
from tests.osd.cli.conftest import Done, Filled, Osd
from tests.storage.make import samples as strange

WORDS = ("draft", "guess", "token", "target", "check", "pass", "tree", "table", "count", "accept", "reject", "learn")


def text_of(seed: int, words: int = 60) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(words))


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "answers.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps({"prompt": f"p{i}", "response": text_of(i)}) + "\n" for i in range(700))
    return path


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    made = Tokenizer(WordLevel({word: i for i, word in enumerate(["?", *sorted(set(WORDS))])}, unk_token="?"))
    made.pre_tokenizer = Whitespace()
    made.save(str(tmp_path / "words.json"))
    return tmp_path / "words.json"


def build(osd: Osd, *words: object) -> dict[str, Any]:
    done = osd("corpus", "build", *words, "--json")
    assert done.exit_code == 0, done.stderr
    return dict(json.loads(done.stdout))


def require_refusal(done: Done, says: str) -> None:
    assert isinstance(done, Result)
    assert done.exit_code in (2, 3, 4, 5) and says in done.stderr


def test_a_corpus_of_lines_is_built_looked_at_and_exported(
    osd: Osd, lines: Path, tokenizer: Path, tmp_path: Path
) -> None:
    built = build(osd, lines, "--tokenizer", tokenizer, "--out", tmp_path / "c")
    assert (built["documents"], built["tokens"]) == (700, 700 * 60)
    corpus = open_corpus(tmp_path / "c")
    assert all(len(text) == 60 for text in corpus.documents())
    shown = json.loads(osd("corpus", "stats", tmp_path / "c", "--json", "--top", "2").stdout)
    assert shown["n_grams"]["3"] == built["n_grams"]["3"] > 1000 and len(shown["top"]) == 2
    assert shown["coverage"]["1"] < shown["coverage"]["4"] < shown["coverage"]["16"] <= 1
    assert "coverage 16" in osd("corpus", "stats", tmp_path / "c").stdout
    osd("corpus", "export", tmp_path / "c", "--sglang", tmp_path / "body.json", "--id", "mine")
    body = json.loads((tmp_path / "body.json").read_text())
    assert body == {"corpus_id": "mine", "documents": [text_of(i) for i in range(700)]}


def test_without_a_tokenizer_it_is_that_of_the_pair(osd: Osd, lines: Path, tmp_path: Path) -> None:
    assert build(osd, lines, "--out", tmp_path / "c")["documents"] == 700


def test_a_target_that_is_named_alone_is_enough(osd: Osd, lines: Path, tmp_path: Path) -> None:
    done = osd("corpus", "build", lines, "--out", tmp_path / "c", OSD_SERVE__TARGET=str(SHIPPED / "target"))
    assert done.exit_code == 0, done.stderr


def test_coverage_is_counted_as_by_hand(osd: Osd, lines: Path, tokenizer: Path, tmp_path: Path) -> None:
    build(osd, lines, "--tokenizer", tokenizer, "--out", tmp_path / "c", "--order", "3")
    shown = json.loads(osd("corpus", "stats", tmp_path / "c", "--json").stdout)
    counts: dict[tuple[int, int], dict[int, int]] = {}
    texts = [text.tolist() for text in open_corpus(tmp_path / "c").documents()]
    for a, b, c in ((t[i], t[i + 1], t[i + 2]) for t in texts for i in range(len(t) - 2)):
        counts.setdefault((a, b), {}).setdefault(c, 0)
        counts[a, b][c] += 1
    least = sum(max(found.values()) for found in counts.values()) / sum(len(text) - 2 for text in texts)
    assert shown["coverage"]["1"] == pytest.approx(least, abs=1e-9)


def test_plain_text_is_cut_into_documents_and_none_is_lost(osd: Osd, tokenizer: Path, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(text_of(i, 12) for i in range(500)))
    built = build(osd, path, "--tokenizer", tokenizer, "--out", tmp_path / "c")
    assert built["tokens"] == 6000 and built["bytes"] == path.stat().st_size and built["documents"] > 3


def test_kept_requests_make_a_corpus(osd: Osd, filled: Filled, tokenizer: Path, tmp_path: Path) -> None:
    built = build(osd, "--replay", "--tokenizer", SHIPPED / "target", "--out", tmp_path / "c")
    assert (built["documents"], built["tokens"]) == (6, 6 * 8)
    filled.store.samples.add([strange(0)])
    done = osd("corpus", "build", "--replay", "--tokenizer", tokenizer, "--out", tmp_path / "d")
    require_refusal(done, "is not the one they came with")


def test_a_build_that_was_killed_goes_on_and_ends_the_same(
    osd: Osd, lines: Path, tokenizer: Path, tmp_path: Path
) -> None:
    """Killed for real, in the middle of its second batch of documents."""
    code = (
        "import os, signal; from osd.drafters.ngram.corpus import Builder; add = Builder.add\n"
        "def dying(self, *given, **named):\n"
        "    add(self, *given, **named)\n"
        "    with (self.aside / 'tokens.bin').open('ab') as file: file.write(b'half a batch')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "Builder.add = dying\n"
        "from osd.cli.main import main; main()"
    )
    words = ["corpus", "build", lines, "--tokenizer", tokenizer, "--out", tmp_path / "c"]
    ended = subprocess.run([sys.executable, "-c", code, *map(str, words)], capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL and not (tmp_path / "c").exists()
    assert osd(*words).exit_code == 0 and osd(*words[:-1], tmp_path / "whole").exit_code == 0
    one, other = open_corpus(tmp_path / "c"), open_corpus(tmp_path / "whole")
    assert one.facts == other.facts and np.array_equal(one.tokens, other.tokens)
    assert np.array_equal(one.ends, other.ends)
    tables = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("c", "whole")]
    assert tables[0] == tables[1]
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith(".")} == set()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"prompt": "x"}\n', "line 1 has no text in a field 'response'; fields with text: prompt"),
        ('{"response": "x"}\nno\n', "line 2 is not JSON"),
        ("[1]\n", "line 1 is not a JSON object"),
        ("", "hold no text"),
        ('{"response": ""}\n', "hold no text"),
    ],
)
def test_files_that_cannot_be_used_are_named(osd: Osd, tokenizer: Path, tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    require_refusal(osd("corpus", "build", path, "--tokenizer", tokenizer, "--out", tmp_path / "c"), says)
    assert not (tmp_path / "c").exists()


def test_what_is_missing_is_named(osd: Osd, lines: Path, tokenizer: Path, tmp_path: Path) -> None:
    for words, says in (
        (["build", tmp_path / "none.txt", "--tokenizer", tokenizer, "--out", tmp_path / "c"], "no such file"),
        (["build", "--tokenizer", tokenizer, "--out", tmp_path / "c"], "nothing to make it of"),
        (["build", lines, "--tokenizer", lines, "--out", tmp_path / "c"], "no tokenizer.json"),
        (["build", lines, "--tokenizer", tokenizer, "--out", tmp_path], "exists"),
        (["build", lines, "--tokenizer", tokenizer, "--out", tmp_path / "c", "--order", "6"], "not one of 2, 3, 4"),
        (["stats", tmp_path / "none"], "no corpus"),
    ):
        require_refusal(osd("corpus", *words), says)


def test_another_tokenizer_is_refused(osd: Osd, lines: Path, tokenizer: Path, tmp_path: Path) -> None:
    Builder(tmp_path / "c", BuildProgress((str(lines),), ("response",), "other"))._note(
        BuildProgress((str(lines),), ("response",), "other")
    )
    done = osd("corpus", "build", lines, "--tokenizer", tokenizer, "--out", tmp_path / "c")
    require_refusal(done, "another tokenizer")
    osd("corpus", "build", lines, "--tokenizer", tokenizer, "--out", tmp_path / "d")
    with pytest.raises(OtherTokenizer, match="another tokenizer"):
        load_table(tmp_path / "d", "0" * 64)


def test_cut_off_tokens_are_refused(osd: Osd, lines: Path, tokenizer: Path, tmp_path: Path) -> None:
    build(osd, lines, "--tokenizer", tokenizer, "--out", tmp_path / "c")
    (tmp_path / "c" / "tokens.bin").write_bytes(b"1234")
    require_refusal(osd("corpus", "stats", tmp_path / "c"), "build it anew")
