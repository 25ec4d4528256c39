"""Adaptix by `python -m benchmarks trees`, with a corpus of the target's own answers, and errors over prompts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.papers.claims import PaperFigure, mean_of, ratio_of_sums
from benchmarks.papers.entry import Curve, PaperExperiment, PaperFindings, PapersBench, PaperSizes, Picture
from benchmarks.papers.experiments.subjects import other_texts
from benchmarks.trees.methods import ALONE, FROZEN, GREEDY, MCTS, SEARCHES
from osd.bench.contenders import osd_contender
from osd.bench.harness.prompts import tokens_by_set
from osd.bench.harness.turns import ratio_of_turns
from osd.models.pair import Pair, load_pair, row_limit
from osd.prompts import encode

CORPUS_TEXTS, CORPUS_TOKENS = 64, 48
"""Prompts of each data set that the target answers for the corpus, none of which is measured."""
Line = dict[str, Any]


def lines_of(bench: PapersBench, sizes: PaperSizes) -> list[Line]:
    """Return what `python -m benchmarks trees` measured, unit by unit; it goes on in the shared folder."""
    return bench.once("trees", lambda: _measured(bench, sizes))  # type: ignore[no-any-return]


def _measured(bench: PapersBench, sizes: PaperSizes) -> list[Line]:
    from benchmarks.trees.bench import bench_trees

    serve = bench.settings.serve
    pair = load_pair(bench.target, bench.draft, device=serve.device, dtype=serve.dtype)
    out = bench.folder(f"trees-{sizes.texts}x{sizes.tokens}")
    longest = row_limit(pair, serve) - sizes.tokens
    sets = tokens_by_set(pair.tokenizer, bench.prompts, sizes.texts, longest, seed=bench.seed)
    corpus = corpus_of(bench, pair, out / "corpus.jsonl", sizes.texts)
    result = bench_trees(
        pair, bench.settings, sets, [corpus], out, bench.watch, new_tokens=sizes.tokens, answers=0, sensitivity=True
    )
    if result.interrupted:
        raise KeyboardInterrupt
    return [json.loads(line) for line in (out / "measured.jsonl").read_text("utf-8").splitlines()]


def corpus_of(bench: PapersBench, pair: Pair, path: Path, measured: int) -> Path:
    """Write prompts of the same kinds, none of them measured, with the target's greedy answers."""
    if path.exists():
        return path
    bench.watch.at("the target answers, for the corpus")
    limit = row_limit(pair, bench.settings.serve) - CORPUS_TOKENS
    others = [text for some in other_texts(bench, CORPUS_TEXTS, measured).values() for text in some]
    texts = [text for text in others if len(encode(pair.tokenizer, text)) < limit]
    alone = bench.settings.changed(gamma={"rule": "fixed", "initial": 0}, serve={"max_batch": 8, "record": "off"})
    contender = osd_contender("alone", pair, alone, CORPUS_TOKENS)
    answers = contender.decode([encode(pair.tokenizer, text) for text in texts])
    assert pair.tokenizer is not None
    said = pair.tokenizer.batch_decode(answers, skip_special_tokens=True)
    lines = [json.dumps({"prompt": text, "response": answer}) for text, answer in zip(texts, said, strict=True)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _pooled(lines: list[Line], method: str, what: str, part: str, **unit: Any) -> list[float]:
    """Return a method's figures of all prompts of the units of one part."""
    mine = [
        line for line in lines
        if line["unit"]["part"] == part and all(line["unit"][key] == value for key, value in unit.items())
    ]  # fmt: skip
    return [value for line in mine for value in line["methods"][method][what]]


def longer(lines: list[Line], one: str, other: str) -> PaperFigure:
    """Return accept length of one method ÷ another's, over the same prompts, trees as deep as they may be."""
    return ratio_of_sums(_pooled(lines, one, "lengths", "shape"), _pooled(lines, other, "lengths", "shape"))


def faster(lines: list[Line], one: str, other: str, **unit: Any) -> PaperFigure:
    """Return tokens a second of one method ÷ another's, in the median over the same prompts."""
    rates = [_pooled(lines, name, "rates", "speed", **unit) for name in (one, other)]
    value, error = ratio_of_turns(*rates)
    return PaperFigure(value or 0.0, error, len(rates[0]))


def methods(bench: PapersBench, sizes: PaperSizes) -> PaperFindings:
    """Adaptix, Table 1, Figure 3 and the text's n-gram orders: all methods."""
    lines = lines_of(bench, sizes)
    names = list(next(line for line in lines if line["unit"]["part"] == "shape")["methods"])
    own = _pooled(lines, MCTS.name, "lengths", "shape")
    pairs = {
        "longer_than_suffix": (MCTS.name, "suffix"), "longer_than_lookup": (MCTS.name, "prompt_lookup"),
        "tri_vs_bi_gram": ("tri_gram", "bi_gram"), "tri_vs_four_gram": ("tri_gram", "four_gram"),
        "tri_vs_four_gram_with_shorter": (MCTS.name, "four_gram_backoff"),
        "tree_vs_greedy": (MCTS.name, GREEDY.name),
        "most_vs_fewest_searches": (f"trigram_mcts_{SEARCHES[-1]}", f"trigram_mcts_{SEARCHES[0]}"),
    }  # fmt: skip
    figures = {"speed_up": faster(lines, MCTS.name, ALONE.name), "accept_length": mean_of(own)}
    figures |= {name: longer(lines, *pair) for name, pair in pairs.items()}
    sets = list(dict.fromkeys(line["unit"]["data_set"] for line in lines))
    rows = [
        {"method": name, "÷ target alone": faster(lines, name, ALONE.name).value}
        | {f"{each}, tokens a pass": _mean(_pooled(lines, name, "lengths", "shape", data_set=each)) for each in sets}
        for name in names
    ]
    return PaperFindings(figures, {"All methods": rows})


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def robustness(bench: PapersBench, sizes: PaperSizes) -> PaperFindings:
    """Adaptix, Figure 4 and Table 2: accept length by temperature, top-p and share of the corpus."""
    lines = lines_of(bench, sizes)

    def at(method: str, part: str, **unit: Any) -> list[float]:
        return _pooled(lines, method, "lengths", part, **unit)

    hot = at(MCTS.name, "sampling", temperature=1.0, top_p=None)
    figures = {
        "adaptive_vs_frozen": longer(lines, MCTS.name, FROZEN.name),
        "hot_vs_greedy": ratio_of_sums(hot, at(MCTS.name, "sampling", temperature=0.0)),
        "top_p_1_vs_0.25": ratio_of_sums(hot, at(MCTS.name, "sampling", temperature=1.0, top_p=0.25)),
        "whole_corpus_vs_tenth": ratio_of_sums(
            at(MCTS.name, "corpus", share=1.0), at(MCTS.name, "corpus", share=0.1)
        ),
    }  # fmt: skip
    curves = [Curve(name, _by(lines, "corpus", "share", name)) for name in (MCTS.name, GREEDY.name, FROZEN.name)]
    heat = [Curve(name, _by(lines, "sampling", "temperature", name)) for name in (MCTS.name, GREEDY.name, FROZEN.name)]
    pictures = {"corpus": Picture("share of the corpus", "tokens a pass", curves),
                "temperature": Picture("temperature", "tokens a pass", heat)}  # fmt: skip
    return PaperFindings(figures, pictures=pictures)


def _by(lines: list[Line], part: str, what: str, method: str) -> list[tuple[float, float]]:
    units: list[Mapping[str, Any]] = [line["unit"] for line in lines if line["unit"]["part"] == part]
    places = sorted({unit[what] for unit in units if unit["top_p"] is None})
    return [(x, _mean(_pooled(lines, method, "lengths", part, **{what: x, "top_p": None}))) for x in places]


SMALL, FULL = PaperSizes(2, 24, minutes=4), PaperSizes(16, 128, minutes=30)
METHODS, ROBUSTNESS = (PaperExperiment(run, SMALL, FULL, "trees") for run in (methods, robustness))
