"""Adaptix: trees of n-grams by `python -m benchmarks trees`, with a corpus of the target's own answers, and errors over
prompts; and the memory of its matrix against REST's datastore of the same corpus."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import PaperFigure, exact, least, mean_of, ratio_of_sums
from benchmarks.papers.experiment import Curve, PaperExperiment, PaperFindings, PapersBench, Picture, shared
from benchmarks.trees.bench import MEASURED, TreesPlan, TreesRun, measure_trees
from benchmarks.trees.corpora import Knowledge, read_texts
from benchmarks.trees.methods import ALONE, FROZEN, GREEDY, MCTS, TreesUnit
from benchmarks.trees.result import TreesCell
from osd.bench.contenders import osd_contender
from osd.bench.harness.folder import RunFolder
from osd.bench.harness.prompts import MOST_LINES, Tokens, listed, texts_by_set
from osd.bench.harness.turns import measure_all, ratio_of_turns
from osd.drafters.ngram.corpus_stats import table_stats
from osd.models.vocabulary import load_tokenizer
from osd.prompts import Prompt, encode, read_prompts
from storage.errors import BadInput

FIELDS = ("category", "domain")
"""Fields of a line that name its category."""
NODES, DEPTH = 32, 16
"""Nodes and depth of trees at most, as `python -m benchmarks trees` has them."""
Lines = Sequence[TreesCell]


class TreesExperiment(PaperExperiment):
    """An experiment over the units of the bench."""

    corpus_texts: int
    """Prompts of each data set that the target answers for the corpus, none of which is measured."""
    corpus_tokens: int

    @shared("trees")
    def lines(self, bench: PapersBench) -> Lines:
        """Return what was measured, unit by unit; it goes on in the shared folder."""
        out = bench.folder(self.named("trees"))
        plan = TreesPlan(corpus=(self.corpus(bench, out),), max_tokens=self.tokens, answers=0, out=out)
        return measure_trees(plan, bench.pair, bench.sets(self.texts, self.tokens), bench.settings, bench.watch)[1]

    def corpus(self, bench: PapersBench, folder: Path, measured: Collection[str] = ()) -> Path:
        """Write prompts of the same kinds, none of them measured, with the target's greedy answers. ``measured``: those
        that are beside the bench's own."""
        path, pair = folder / f"corpus{'-unmeasured' * bool(measured)}.jsonl", bench.pair
        if path.exists():
            return path
        bench.watch.at("the target answers, for the corpus")
        limit = bench.longest(self.corpus_tokens)
        others = bench.others(self.corpus_texts, self.texts).values()
        unseen = [text for some in others for text in some if text not in measured]
        texts = [text for text in unseen if len(encode(pair.tokenizer, text)) < limit]
        alone = bench.settings.changed(gamma={"rule": "fixed", "initial": 0}, serve={"max_batch": 8, "record": "off"})
        contender = osd_contender("alone", pair, alone, self.corpus_tokens)
        answers = contender.decode([encode(pair.tokenizer, text) for text in texts])
        assert pair.tokenizer is not None
        said = pair.tokenizer.batch_decode(answers, skip_special_tokens=True)
        lines = [json.dumps({"prompt": text, "response": answer}) for text, answer in zip(texts, said, strict=True)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path


def pooled(lines: Lines, method: str, what: str, part: str, **unit: Any) -> list[float]:
    """Return a method's figures of all prompts of the units of one part."""
    mine = [c for c in lines if c.job.part == part and all(getattr(c.job, k) == v for k, v in unit.items())]
    return [value for cell in mine for value in cell.found[method][what]]


def longer(lines: Lines, one: str, other: str) -> PaperFigure:
    """Return accept length of one method ÷ another's, over the same prompts, trees as deep as they may be."""
    return ratio_of_sums(pooled(lines, one, "lengths", "shape"), pooled(lines, other, "lengths", "shape"))


def faster(lines: Lines, one: str, other: str, **unit: Any) -> PaperFigure:
    """Return tokens a second of one method ÷ another's, in the median over the same prompts."""
    rates = [pooled(lines, name, "rates", "speed", **unit) for name in (one, other)]
    value, error = ratio_of_turns(*rates)
    return PaperFigure(value or 0.0, error, len(rates[0]))


class Methods(TreesExperiment):
    """Adaptix, Table 1, Figures 3 and 5 and the text's n-gram orders: all methods."""

    longer: dict[str, tuple[str, str]]
    """Figures that are the accept length of one method ÷ another's."""

    def run(self, bench: PapersBench) -> PaperFindings:
        """Compare methods on the same prompts."""
        lines = self.lines(bench)
        names = list(next(line for line in lines if line.job.part == "shape").found)
        figures = {
            "speed_up": faster(lines, MCTS.name, ALONE.name),
            "accept_length": mean_of(pooled(lines, MCTS.name, "lengths", "shape")),
        } | {name: longer(lines, *pair) for name, pair in self.longer.items()}
        sets = list(dict.fromkeys(line.job.data_set for line in lines))
        rows = [
            {"method": name, "÷ target alone": faster(lines, name, ALONE.name).value}
            | {f"{s}, tokens a pass": float(np.mean(pooled(lines, name, "lengths", "shape", data_set=s))) for s in sets}
            for name in names
        ]
        return PaperFindings(figures, {"All methods": rows})


class Robustness(TreesExperiment):
    """Adaptix, Figure 4 and Table 2: accept length by temperature, top-p and share of the corpus."""

    def run(self, bench: PapersBench) -> PaperFindings:
        """Compare conditions on the same prompts."""
        lines = self.lines(bench)

        def at(part: str, **unit: Any) -> list[float]:
            return pooled(lines, MCTS.name, "lengths", part, **unit)

        hot = at("sampling", temperature=1.0, top_p=None)
        figures = {
            "adaptive_vs_frozen": longer(lines, MCTS.name, FROZEN.name),
            "hot_vs_greedy": ratio_of_sums(hot, at("sampling", temperature=0.0)),
            "top_p_1_vs_0.25": ratio_of_sums(hot, at("sampling", temperature=1.0, top_p=0.25)),
            "whole_corpus_vs_tenth": ratio_of_sums(at("corpus", share=1.0), at("corpus", share=0.1)),
        }  # fmt: skip
        pictures = {
            part: Picture(told, "tokens a pass", [
                Curve(method.name, _by(lines, unit_part, what, method.name)) for method in (MCTS, GREEDY, FROZEN)
            ])
            for part, told, unit_part, what in (
                ("corpus", "share of the corpus", "corpus", "share"),
                ("temperature", "temperature", "sampling", "temperature"),
            )
        }  # fmt: skip
        return PaperFindings(figures, pictures=pictures)


def _by(lines: Lines, part: str, what: str, method: str) -> list[tuple[float, float]]:
    units = [line.job for line in lines if line.job.part == part and line.job.top_p is None]
    return [
        (x, float(np.mean(pooled(lines, method, "lengths", part, **{what: x, "top_p": None}))))
        for x in sorted({getattr(unit, what) for unit in units})
    ]


class Categories(TreesExperiment):
    """Adaptix, stability: the tree's speed ÷ the target alone by category: that of the prompts' lines, else their data
    sets."""

    def run(self, bench: PapersBench) -> PaperFindings:
        """Compare categories. Raises BadInput where all prompts are of one."""
        texts = by_category(bench)
        lines = self._categories(bench, texts) if texts else self.lines(bench)
        names = dict.fromkeys(line.job.data_set for line in lines)
        found = {name: faster(lines, MCTS.name, ALONE.name, data_set=name) for name in names}
        if len(found) < 2:
            reason = "All prompts are of one category; give --prompts spec_bench.jsonl.gz, or several files."
            raise BadInput(reason=reason)
        slowest, fastest = least(found.values()), max(found.values(), key=lambda figure: figure.value)
        figures = {"least_speed_up": slowest, "most_vs_least": _quotient(fastest, slowest)}
        rows = [{"category": name, "÷ target alone": str(figure)} for name, figure in found.items()]
        return PaperFindings(figures, {"Speed-up by category": rows})

    def _categories(self, bench: PapersBench, texts: Mapping[str, Sequence[str]]) -> Lines:
        """Time prompts of each category, those alone of which there are enough."""
        out, pair, longest = bench.folder(self.named("trees-categories")), bench.pair, bench.longest(self.tokens)
        sets, measured = dict[str, list[Tokens]](), set[str]()
        for name, some in texts.items():
            read = ((text, encode(pair.tokenizer, text)) for text in some)
            fitting = [(text, tokens) for text, tokens in read if len(tokens) <= longest][: self.texts]
            if len(fitting) >= min(self.texts, 2):
                sets[name] = [tokens for _, tokens in fitting]
                measured |= {text for text, _ in fitting}
        known = Knowledge(read_texts(pair, [self.corpus(bench, out, measured)]))
        facts = {"sets": {name: len(some) for name, some in sets.items()}, "tokens": self.tokens}
        plan = TreesPlan(corpus=(), max_tokens=self.tokens, nodes=NODES, depth=DEPTH)
        run = TreesRun(plan, pair, bench.settings, known, sets)
        folder = RunFolder(out, facts, MEASURED, TreesCell)
        units = [TreesUnit("speed", name, (ALONE.name, MCTS.name)) for name in sets]
        lines = measure_all(units, run.measure, bench.watch, folder=folder, work=run.work)
        if bench.watch.stopped:
            raise KeyboardInterrupt
        return lines


def by_category(bench: PapersBench) -> dict[str, list[str]]:
    """Return the prompts of ``--prompts`` by the category that their lines name; nothing where they name none."""
    found: dict[str, list[str]] = {}
    for path in listed(bench.prompts):
        for line in islice(read_prompts(Path(path)), MOST_LINES):
            if isinstance(line, Prompt) and (name := next(filter(None, map(line.fields.get, FIELDS)), None)):
                found.setdefault(str(name), []).append(line.text)
    return found if len(found) > 1 else {}


def _quotient(one: PaperFigure, other: PaperFigure) -> PaperFigure:
    """Return the ratio of figures of different texts."""
    value = one.value / max(other.value, 1e-9)
    if one.error is None or other.error is None:
        return PaperFigure(value)
    spread = float(np.hypot(one.error / max(one.value, 1e-9), other.error / max(other.value, 1e-9)))
    return PaperFigure(value, value * spread, min(one.count or 0, other.count or 0))


class TreeMemory(PaperExperiment):
    """Adaptix, memory: bytes of the matrix and of suffixes of the same corpora, the texts of each data set, by their
    size."""

    shares: tuple[float, ...]

    def run(self, bench: PapersBench) -> PaperFindings:
        """Count the bytes of both."""
        tokenizer = load_tokenizer(bench.target)
        rows, curves = [], []
        matrix: dict[float, list[float]] = {share: [] for share in self.shares}
        suffixes: dict[float, list[float]] = {share: [] for share in self.shares}
        for name, texts in texts_by_set(bench.prompts, self.texts, seed=bench.seed).items():
            known, points = Knowledge([np.array(encode(tokenizer, text), np.int64) for text in texts]), []
            for share in self.shares:
                part = known.part(share)
                ours, theirs = float(table_stats(part.table(3))["table_bytes"]), float(part.index.bytes)
                matrix[share].append(ours)
                suffixes[share].append(theirs)
                points.append((share * known.tokens, ours / theirs))
                rows.append({"corpus": name, "tokens": part.tokens, "matrix, bytes a token": ours / part.tokens,
                             "REST-like, bytes a token": theirs / part.tokens})  # fmt: skip
            curves.append(Curve(name, points))
        against = {share: ratio_of_sums(matrix[share], suffixes[share]) for share in self.shares}
        figures = {
            "matrix_vs_rest": against[1.0],
            "whole_vs_part_of_corpus": exact(against[1.0].value / against[self.shares[0]].value),
        }
        picture = Picture("tokens of the corpus", "÷ REST-like", curves)
        return PaperFindings(figures, {"Memory": rows}, {"memory": picture})
