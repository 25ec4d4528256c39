"""The error that keeping k of V log-probabilities makes, measured on a pair beside its bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from benchmarks.topk_error import Array, bound, measure, smallest_k
from osd.bench.contenders import osd_contender
from osd.bench.harness.options import DraftOption, JsonOption, TargetOption
from osd.bench.harness.prompts import PromptFiles, tokens_by_set
from osd.bench.harness.report import BenchResult
from osd.bench.harness.turns import measure_all
from osd.bench.harness.watch import Watch, watching
from osd.models.pair import Pair, row_limit
from osd.server.start import choose_pair
from storage.records import RequestSamples
from storage.replay import segments
from storage.settings import Settings, load_settings

KS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TEMPERATURES = (0.5, 1.0, 2.0)
CODECS = ("none", "snappy", "zstd")
ERRORS = (0.1, 0.03, 0.01, 0.003, 0.001)
ROUNDING = 1e-9
CHUNK = 32
"""Positions at a time: each needs a few rows as long as the vocabulary."""
ANSWER = 48
"""Tokens of an answer."""


def command(
    target: TargetOption = None,
    draft: DraftOption = None,
    prompts: PromptFiles = None,
    count: Annotated[int, typer.Option(help="Prompts of each data set.", min=1)] = 16,
    each: Annotated[int, typer.Option(help="Positions of the answer to each prompt.", min=1)] = 8,
    out: Annotated[Path | None, typer.Option(help="Folder for a picture of errors and bounds.", metavar="DIR")] = None,
    json: JsonOption = False,
) -> None:
    """The error that keeping storage.top_k log-probabilities makes, beside its bound; and k for an error asked for.

    Example: `python -m benchmarks topk --target ./target --draft ./draft --prompts questions.jsonl --out topk`
    """
    serve = load_settings().serve
    pair = choose_pair(serve, target, draft).load(serve)
    with watching() as watch:
        sets = tokens_by_set(pair.tokenizer, prompts, count, row_limit(pair, serve) - ANSWER)
        texts = [tokens for each_set in sets.values() for tokens in each_set if len(tokens) > 1]
        figures = bench_topk(look(pair, texts, each), watch)
    settings = {"target": pair.target.name, "draft": pair.draft.name, "prompts": len(texts)}
    files = {} if out is None or watch.stopped else {"errors and bounds": draw(figures, out)}
    tables = {"Mean error over positions": figures["rows"]}
    raise typer.Exit(BenchResult("topk", settings, figures, tables, files, watch.stopped).show(as_json=json))


@dataclass(frozen=True, slots=True, eq=False)
class TopkPositions:
    """Positions of real text, and what both models say there."""

    target: Array
    """(m, V) log-probabilities at temperature 1."""
    draft: Array
    """(m, V)"""
    texts: list[list[int]]
    places: list[list[int]]
    """The positions that were taken of each text."""


def look(pair: Pair, prompts: Sequence[Sequence[int]], each: int, tokens: int = ANSWER, seed: int = 0) -> TopkPositions:
    """Return both models' distributions at ``each`` random positions of the target's own answer to every prompt."""
    rng = np.random.default_rng(seed)
    texts, places = [], []
    for prompt, answer in zip(prompts, _answers(pair, prompts, tokens), strict=True):
        texts.append([*prompt, *answer])
        spots = np.arange(len(prompt), len(texts[-1]))
        places.append(sorted(rng.choice(spots, min(each, len(spots)), replace=False)))
    both = [
        np.concatenate([_log_probs(model.module, t, at) for t, at in zip(texts, places, strict=True)])
        for model in (pair.target, pair.draft)
    ]
    size = min(both[0].shape[1], both[1].shape[1])
    return TopkPositions(
        _cut(both[0], size), _cut(both[1], size), [list(t) for t in texts], [[int(i) for i in at] for at in places]
    )


def _answers(pair: Pair, prompts: Sequence[Sequence[int]], tokens: int) -> Sequence[Sequence[int]]:
    """Return greedy answers, as the engine serves them."""
    settings = Settings().changed(serve={"max_batch": min(8, len(prompts))})
    return osd_contender("osd", pair, settings, tokens).decode([tuple(prompt) for prompt in prompts])


def _log_probs(module: Any, text: Sequence[int], at: Sequence[int]) -> Array:
    with torch.inference_mode():
        ids = torch.tensor([list(text)], device=next(module.parameters()).device)
        logits = module(input_ids=ids).logits[0, torch.tensor(at) - 1]
        return np.asarray(logits.double().log_softmax(-1).cpu())


def _cut(log_probs: Array, size: int) -> Array:
    """Leave the padding of the output layer out."""
    kept = log_probs[:, :size]
    return np.asarray(kept - np.log(np.exp(kept).sum(1, keepdims=True)))


def bench_topk(seen: TopkPositions, watch: Watch) -> dict[str, Any]:
    """Return errors and bounds by k and temperature, bytes by k and codec, and the k for some errors asked for."""
    size = seen.target.shape[1]
    ks = [k for k in KS if k < size]
    points = [(k, temperature) for temperature in TEMPERATURES for k in ks]
    rows = measure_all(points, lambda point: _row(seen, *point), watch)
    p = np.exp(seen.target)
    ranked = -np.sort(-p, axis=1)
    return {
        "positions": len(p), "vocabulary": size, "within": all(row["within"] for row in rows), "rows": rows,
        "k_for_error": {str(error): smallest_k(ranked, np.zeros(len(p)), error) for error in ERRORS},
        "bytes_per_position": {codec: {str(k): _bytes(seen, k, codec) for k in ks} for codec in CODECS},
        "bytes_of_a_full_row": 2 * size,
    }  # fmt: skip


def _row(seen: TopkPositions, k: int, temperature: float) -> dict[str, Any]:
    """Return means over positions, and whether no position is above its bound."""
    sums: dict[str, Array] = {}
    within = True
    for begin in range(0, len(seen.target), CHUNK):
        log_p, log_q = seen.target[begin : begin + CHUNK], seen.draft[begin : begin + CHUNK] / temperature
        p, q = np.exp(log_p), np.exp(log_q - log_q.max(1, keepdims=True))
        q /= q.sum(1, keepdims=True)
        ids = np.argsort(-p, axis=1, kind="stable")[:, :k]
        rest = p.copy()
        np.put_along_axis(rest, ids, 0.0, 1)
        most = asdict(bound(np.take_along_axis(p, ids, 1), rest.sum(1), q, ids, temperature))
        found = asdict(measure(p, q, k, temperature))
        within &= all(bool((found[name] <= most[name] + ROUNDING).all()) for name in found)
        for kind, errors in (("", found), ("_bound", most)):
            for name, values in errors.items():
                sums[name + kind] = sums.get(name + kind, 0.0) + values.sum()
    means = {name: float(total) / len(seen.target) for name, total in sums.items()}
    return {"k": k, "temperature": temperature, "within": within, **means}


def _bytes(seen: TopkPositions, k: int, codec: str) -> float:
    """Return the bytes of a segment with these positions, by position."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    batch, first = [], 0
    for number, (text, places) in enumerate(zip(seen.texts, seen.places, strict=True)):
        log_p = seen.target[first : first + len(places)]
        first += len(places)
        batch.append(_kept(number, text, places, log_p, k))
    sink = pa.BufferOutputStream()
    level = 1 if codec == "zstd" else None
    options = {**segments.writer_options(None), "compression": codec, "compression_level": level}
    pq.write_table(segments.table(batch), sink, **options)
    return round(len(sink.getvalue()) / len(seen.target), 1)


def _kept(number: int, text: list[int], places: list[int], log_p: Array, k: int) -> RequestSamples:
    ids = np.argsort(-log_p, axis=1, kind="stable")[:, :k]
    kept = np.take_along_axis(log_p, ids, 1)
    m = len(places)
    tokens = np.array(text, np.int32)
    return RequestSamples(
        f"{number:032x}", "default", "default", "default-000000", 0.0, 1, tokens, np.array(places, np.int32),
        np.zeros(m, np.uint8), tokens[places], ids.astype(np.int32), kept.astype(np.float16),
        (1 - np.exp(kept).sum(1)).clip(0).astype(np.float32), np.ones(m, np.float16),
    )  # fmt: skip


def draw(figures: dict[str, Any], folder: Path) -> Path:
    """Draw measured errors and bounds by k, a curve a temperature, side by side for the three errors."""
    from osd.bench.harness.picture import COLOURS, dress, make_panels, save

    titles = {"overlap": "in Σ min(p, q)", "kl": "in KL(p ‖ q), nats", "gradient": "in the gradient (L1)"}
    figure, panels = make_panels(3, 3.6, 3.0)
    for axes, (name, title) in zip(panels, titles.items(), strict=True):
        for colour, temperature in zip(COLOURS, TEMPERATURES, strict=False):
            rows = [row for row in figures["rows"] if row["temperature"] == temperature]
            ks = [row["k"] for row in rows]
            for key, style, what in ((name, "o-", "measured"), (f"{name}_bound", "--", "bound")):
                axes.plot(ks, [row[key] for row in rows], style, color=colour, label=f"{what}, τ = {temperature:g}")
        axes.set(xscale="log", yscale="log", xlabel="k", title=f"Error {title}")
        axes.set_xticks(ks, [str(k) for k in ks])
        axes.minorticks_off()
        dress(axes)
    panels[-1].legend(fontsize=8)
    folder.mkdir(parents=True, exist_ok=True)
    return save(figure, folder, "topk")
