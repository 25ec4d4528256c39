"""The error that keeping k of V makes, measured on a pair beside its bound: `osd bench topk`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from osd.bench.contenders import osd_contender
from osd.bench.topk_error import Array, bound, measure, smallest_k
from osd.models.pair import Pair
from storage.records import RequestSamples
from storage.replay import segments
from storage.settings import Settings

KS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TEMPERATURES = (0.5, 1.0, 2.0)
CODECS = ("none", "snappy", "zstd")
ERRORS = (0.1, 0.03, 0.01, 0.003, 0.001)
ROUNDING = 1e-9
CHUNK = 32
"""Positions at a time: each needs a few rows as long as the vocabulary."""
Report = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """Positions of real text, and what both models say there."""

    target: Array
    """(m, V) log-probabilities at temperature 1."""
    draft: Array
    """(m, V)"""
    texts: list[list[int]]
    places: list[list[int]]
    """Of each text, the positions that were taken."""


def look(pair: Pair, prompts: Sequence[Sequence[int]], each: int, tokens: int = 48, seed: int = 0) -> Seen:
    """Both models' distributions at ``each`` random positions of the target's own answer to every prompt."""
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
    return Seen(
        _cut(both[0], size), _cut(both[1], size), [list(t) for t in texts], [[int(i) for i in at] for at in places]
    )


def _answers(pair: Pair, prompts: Sequence[Sequence[int]], tokens: int) -> Sequence[Sequence[int]]:
    """Greedy, as the engine serves them."""
    settings = Settings().changed(serve={"max_batch": min(8, len(prompts))})
    return osd_contender("osd", pair, settings, tokens).decode([tuple(prompt) for prompt in prompts])


def _log_probs(module: Any, text: Sequence[int], at: Sequence[int]) -> Array:
    with torch.inference_mode():
        ids = torch.tensor([list(text)], device=next(module.parameters()).device)
        logits = module(input_ids=ids).logits[0, torch.tensor(at) - 1]
        return np.asarray(logits.double().log_softmax(-1).cpu())


def _cut(log_probs: Array, size: int) -> Array:
    """Padding of the output layer left out."""
    kept = log_probs[:, :size]
    return np.asarray(kept - np.log(np.exp(kept).sum(1, keepdims=True)))


def bench_topk(seen: Seen, report: Report = lambda done, total: None) -> dict[str, Any]:
    """Errors and bounds by k and temperature, bytes by k and codec, and the k for some errors asked for."""
    size = seen.target.shape[1]
    ks = [k for k in KS if k < size]
    rows = []
    for number, (k, temperature) in enumerate([(k, t) for t in TEMPERATURES for k in ks]):
        rows.append(_row(seen, k, temperature))
        report(number + 1, len(ks) * len(TEMPERATURES))
    p = np.exp(seen.target)
    ranked = -np.sort(-p, axis=1)
    return {
        "positions": len(p), "vocabulary": size, "within": all(row["within"] for row in rows), "rows": rows,
        "k_for_error": {str(error): smallest_k(ranked, np.zeros(len(p)), error) for error in ERRORS},
        "bytes_per_position": {codec: {str(k): _bytes(seen, k, codec) for k in ks} for codec in CODECS},
        "bytes_of_a_full_row": 2 * size,
    }  # fmt: skip


def _row(seen: Seen, k: int, temperature: float) -> dict[str, Any]:
    """Means over positions, and whether no position is above its bound."""
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


def _bytes(seen: Seen, k: int, codec: str) -> float:
    """Of a segment with these positions, by position."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    batch, first = [], 0
    for number, (text, places) in enumerate(zip(seen.texts, seen.places, strict=True)):
        log_p = seen.target[first : first + len(places)]
        first += len(places)
        batch.append(_kept(number, text, places, log_p, k))
    sink = pa.BufferOutputStream()
    options = {**segments.WRITE, "compression": codec, "compression_level": 1 if codec == "zstd" else None}
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


def draw(result: dict[str, Any], path: Path) -> None:
    """Measured and bound by k, a curve a temperature, side by side for the three errors."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    titles = {"overlap": "in Σ min(p, q)", "kl": "in KL(p ‖ q), nats", "gradient": "in the gradient (L1)"}
    figure = Figure(figsize=(12, 4), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (name, title) in zip(figure.subplots(1, 3), titles.items(), strict=True):
        for color, temperature in enumerate(TEMPERATURES):
            rows = [row for row in result["rows"] if row["temperature"] == temperature]
            ks = [row["k"] for row in rows]
            axes.plot(ks, [row[name] for row in rows], f"C{color}o-", label=f"measured, τ = {temperature:g}")
            axes.plot(ks, [row[f"{name}_bound"] for row in rows], f"C{color}--", label=f"bound, τ = {temperature:g}")
        axes.set(xscale="log", yscale="log", xlabel="k", title=f"Error {title}")
        axes.set_xticks(ks, [str(k) for k in ks])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    what = f"{result['positions']} positions, vocabulary {result['vocabulary']:,}, mean over positions"
    figure.suptitle(f"What keeping k log-probabilities costs: {what}")
    figure.savefig(path, dpi=110)
