"""``osd bench trees``: the corpus, the run, its figures and pictures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from osd.bench.contenders import Tokens
from osd.bench.trees.corpora import Knowledge, Report, own_answers, read_texts
from osd.bench.trees.plan import Plan
from osd.bench.trees.result import summary
from osd.bench.trees.run import Runner
from osd.bench.trigram import END, draft_times
from osd.drafters.ngram.corpus_stats import table_stats
from osd.drafters.ngram.errors import BadCorpus
from osd.models.pair import Pair
from storage.files.files import writing
from storage.settings import Settings

BENCH, ANSWERS = "bench.json", "answers.json"


def bench_trees(
    pair: Pair,
    settings: Settings,
    data_sets: Mapping[str, list[Tokens]],
    corpus: Sequence[Path],
    out: Path,
    *,
    new_tokens: int = 128,
    answers: int = 64,
    nodes: int = 32,
    depth: int = 16,
    sensitivity: bool = True,
    told: Report = lambda done, total, name: None,
) -> tuple[dict[str, Any], dict[str, Path]]:
    """The command's last line, and the files that were left in ``out``.

    Raises BadCorpus for files without answers, BadSetting when ``out`` holds a run of another plan.
    """
    facts = {
        "target": pair.target.name, "draft": pair.draft.name, "corpus": [path.name for path in corpus],
        "answers": answers, "threads": settings.serve.threads,
    }  # fmt: skip
    plan = Plan(data_sets, new_tokens, nodes, depth, settings.gamma.rule, sensitivity, facts)
    known = Knowledge(read_texts(pair, corpus) + _answers(pair, settings, corpus, answers, out, told))
    if known.tokens < 8 * END:
        raise BadCorpus(path=corpus[0], reason=f"{8 * END} tokens are the least; give more --corpus.")
    runner = Runner(plan, pair, settings, known, out)
    lines = runner.run(told)
    table, text = known.table(3), np.concatenate(known.texts[: END * 8])
    times = {str(row["searches"]): row["us"] for row in draft_times(table, text, (1,))}
    line = summary(lines, times, table_stats(table)["bytes_per_n_gram"])
    line["corpus"] = {"files": facts["corpus"], "texts": len(known.texts), "tokens": known.tokens}
    return line, leave(line, out)


def _answers(pair: Pair, settings: Settings, corpus: Sequence[Path], each: int, out: Path, told: Report) -> list[Any]:
    """The target's answers, kept in ``out`` for the next time. A run of another plan finds out later."""
    path = out / ANSWERS
    if path.exists():
        return [np.array(text, np.int64) for text in json.loads(path.read_text("utf-8"))]
    texts = own_answers(pair, settings, corpus, each, told)
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([text.tolist() for text in texts]), encoding="utf-8")
    return texts


def leave(line: Mapping[str, Any], out: Path) -> dict[str, Path]:
    """Write figures and pictures; the files by what they are. Raises StoreWriteFailed."""
    from osd.bench.trees.picture import draw_context, draw_methods, draw_sensitivity
    from osd.demo.runner.picture import save

    with writing(out):
        (out / BENCH).write_text(json.dumps(line, indent=1) + "\n", encoding="utf-8")
        files = {"figures": out / BENCH, "methods": save(draw_methods(line), out, "trees")[1]}
        files["by context"] = save(draw_context(line), out, "trees-context")[1]
        if line["by_corpus"]:
            files["by sampling and corpus"] = save(draw_sensitivity(line), out, "trees-sensitivity")[1]
    return files
