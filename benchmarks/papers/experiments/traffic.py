"""Make-up of served traffic, as a whole and over time, by language and by topic: OSD's Figures 2 and 10.

Prompts of all domains that ship with osd come in one stream, each domain's share rising and falling. The stream is
served twice, with a route for each language and with one for each taught topic; a request's outcome keeps the route
that it took, and so what the router took it for. That is held against what the prompts are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from benchmarks.papers.claims import PaperFigure, mean_of
from benchmarks.papers.entry import Curve, PaperExperiment, PaperFindings, PapersBench, PaperSizes, Picture
from benchmarks.routes.bench import TEACHING
from benchmarks.routes.traffic import TrafficItem, arrange
from osd.demo.prompts import DOMAINS, prompts
from osd.demo.runner.circle import own_settings
from osd.engine.session import in_folder, serving
from osd.models.pair import Pair, load_pair, row_limit
from osd.prompts import encode
from storage.records import DEFAULT_DRAFT, Request, Route
from storage.store import Store, open_store

STRETCHES = 10
"""Parts of a stream, as in Figure 10."""
OTHER_LANGUAGES = {"finnish": "fi"}
"""Languages of domains; the others' is English."""
LANGUAGE, TOPIC = "language", "topic"
Teaching = Mapping[str, Sequence[str]]
"""Examples of each domain, which are not served."""


class RoutedPrompt(NamedTuple):
    """What a served request was, and what it was taken for."""

    true: str
    told: str
    place: float
    """Where it stood in its stream, from 0 to 1."""


def language_of(domain: str) -> str:
    """Return the language of a domain's prompts."""
    return OTHER_LANGUAGES.get(domain, "en")


def make_up(bench: PapersBench, sizes: PaperSizes) -> PaperFindings:
    """Serve streams of several seeds by both traits, and compare shares."""
    served: dict[str, list[RoutedPrompt]] = bench.once("traffic", lambda: _streams(bench, sizes))
    return told(served)


def _streams(bench: PapersBench, sizes: PaperSizes) -> dict[str, list[RoutedPrompt]]:
    serve = bench.settings.serve
    pair = load_pair(bench.target, bench.draft, device=serve.device, dtype=serve.dtype)
    longest, found = (
        row_limit(pair, serve) - sizes.tokens,
        {LANGUAGE: list[RoutedPrompt](), TOPIC: list[RoutedPrompt]()},
    )
    for seed in range(sizes.seeds):
        drawn = {name: prompts(name, sizes.texts + TEACHING, bench.seed + seed) for name in DOMAINS}
        teaching = {name: some[:TEACHING] for name, some in drawn.items()}
        items = arrange({name: some[TEACHING:] for name, some in drawn.items()}, "gradual", bench.seed + seed)
        items = [item for item in items if len(encode(pair.tokenizer, item.prompt)) <= longest]
        for trait, some in found.items():
            bench.watch.at(f"traffic by {trait}: stream {seed + 1} of {sizes.seeds}")
            some += _serve(bench, pair, items, trait, teaching, sizes.tokens)
    return found


def _serve(
    bench: PapersBench, pair: Pair, items: Sequence[TrafficItem], trait: str, teaching: Teaching, tokens: int
) -> list[RoutedPrompt]:
    """Serve a stream over a store of its own, and return what each request was and was taken for."""
    with TemporaryDirectory(prefix="osd-traffic-") as folder:
        settings = own_settings(bench.settings, Path(folder), serve={"record": "off"}, drafters={"kind": "causal"})
        with open_store(settings) as store:
            store.versions.register_root(DEFAULT_DRAFT, Path(in_folder(pair.draft).name))
            _add_routes(store, trait, teaching)
            asked = [Request(encode(pair.tokenizer, item.prompt), tokens, text=item.prompt) for item in items]
            with serving(pair, settings, store) as engine:
                routes = {done.request.id: done.outcomes[-1].route for done in engine.run(asked)}
    true = [language_of(item.domain) if trait == LANGUAGE else item.domain for item in items]
    return [
        RoutedPrompt(name, routes[r.id], i / len(items)) for i, (name, r) in enumerate(zip(true, asked, strict=True))
    ]


def _add_routes(store: Store, trait: str, teaching: Teaching) -> None:
    """Give a store a route for each language or topic, all served by the one draft."""
    if trait == LANGUAGE:
        for language in dict.fromkeys(map(language_of, teaching)):
            store.routes.add(Route(language, DEFAULT_DRAFT, {"language": [language]}))
        return
    for domain in teaching:
        store.routes.add(Route(domain, DEFAULT_DRAFT, {"topic": [domain]}))
    store.examples.teach(((domain, text) for domain, texts in teaching.items() for text in texts), who="bench")


def told(served: Mapping[str, Sequence[RoutedPrompt]]) -> PaperFindings:
    """Return how far told shares are from true ones: of all requests the label that is furthest off, with its error
    over requests; and by stretch the furthest label, in the mean over stretches."""
    figures: dict[str, PaperFigure] = {}
    tables, pictures = {}, {}
    for trait, some in served.items():
        labels = list(dict.fromkeys(name for one in some for name in (one.true, one.told)))
        off = {name: mean_of([(one.told == name) - (one.true == name) for one in some]) for name in labels}
        figures[f"{trait}_share_off"] = max(off.values(), key=lambda each: abs(each.value))
        shares = {name: share_by_stretch(some, name) for name in labels}
        gaps = np.array([[abs(t - o) for t, o in shares[name]] for name in labels]).max(0)
        figures[f"{trait}_off_by_stretch"] = mean_of(gaps)
        tables[f"Shares by {trait}, told (true)"] = [
            {trait: name, "all": f"{_mean(told):.2f} ({_mean(true):.2f})"}
            | {str(i + 1): f"{t:.2f} ({o:.2f})" for i, (t, o) in enumerate(shares[name])}
            for name in labels for told, true in [zip(*shares[name], strict=True)]
        ]  # fmt: skip
        curves = [Curve(name, [(i + 1.0, t) for i, (t, _) in enumerate(shares[name])]) for name in labels]
        pictures[f"{trait} over time, as told"] = Picture("tenth of the stream", "share of requests", curves)
    return PaperFindings(figures, tables, pictures)


def share_by_stretch(some: Sequence[RoutedPrompt], name: str) -> list[tuple[float, float]]:
    """Return told and true shares of a language or topic in each stretch that has requests."""
    parts = [[one for one in some if int(one.place * STRETCHES) == stretch] for stretch in range(STRETCHES)]
    return [(_mean([one.told == name for one in part]), _mean([one.true == name for one in part]))
            for part in parts if part]  # fmt: skip


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


MAKE_UP = PaperExperiment(make_up, PaperSizes(24, 8, 2, minutes=1.5), PaperSizes(400, 32, 3, minutes=10))
