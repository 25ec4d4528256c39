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

from benchmarks.figures import PaperFigure, farthest, mean_of
from benchmarks.papers.experiment import Curve, PaperExperiment, PaperFindings, PapersBench, Picture, shared
from benchmarks.routes.bench import TEACHING
from benchmarks.routes.traffic import TrafficItem, arrange
from osd.bench.contenders import run_in_order
from osd.demo.prompts import DOMAINS, prompts
from osd.demo.runner.circle import own_settings
from osd.engine.session import in_folder, serving
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


class MakeUp(PaperExperiment):
    """Both figures."""

    def run(self, bench: PapersBench) -> PaperFindings:
        """Serve streams of several seeds by both traits, and compare shares."""
        return told(self.streams(bench))

    @shared("traffic")
    def streams(self, bench: PapersBench) -> dict[str, list[RoutedPrompt]]:
        """Return the requests of all streams, by trait."""
        tokenizer, longest = bench.pair.tokenizer, bench.longest(self.tokens)
        found: dict[str, list[RoutedPrompt]] = {LANGUAGE: [], TOPIC: []}
        for seed in range(self.seeds):
            drawn = {name: prompts(name, self.texts + TEACHING, bench.seed + seed) for name in DOMAINS}
            teaching = {name: some[:TEACHING] for name, some in drawn.items()}
            items = arrange({name: some[TEACHING:] for name, some in drawn.items()}, "gradual", bench.seed + seed)
            items = [item for item in items if len(encode(tokenizer, item.prompt)) <= longest]
            for trait, some in found.items():
                bench.watch.at(f"traffic by {trait}: stream {seed + 1} of {self.seeds}")
                some += self._serve(bench, items, trait, teaching)
        return found

    def _serve(
        self, bench: PapersBench, items: Sequence[TrafficItem], trait: str, teaching: Teaching
    ) -> list[RoutedPrompt]:
        """Serve a stream over a store of its own, and return what each request was and was taken for."""
        pair = bench.pair
        with TemporaryDirectory(prefix="osd-traffic-") as folder:
            settings = own_settings(bench.settings, Path(folder), serve={"record": "off"}, drafters={"kind": "causal"})
            with open_store(settings) as store:
                store.versions.register_root(DEFAULT_DRAFT, Path(in_folder(pair.draft).name))
                _add_routes(store, trait, teaching)
                asked = [Request(encode(pair.tokenizer, i.prompt), self.tokens, text=i.prompt) for i in items]
                with serving(pair, settings, store) as engine:
                    told = [done.outcomes[-1].route for done in run_in_order(engine, asked)]
        true = [language_of(item.domain) if trait == LANGUAGE else item.domain for item in items]
        return [RoutedPrompt(*both, i / len(items)) for i, both in enumerate(zip(true, told, strict=True))]


def _add_routes(store: Store, trait: str, teaching: Teaching) -> None:
    """Give a store a route for each language or topic, all served by the one draft."""
    for name in dict.fromkeys(map(language_of, teaching)) if trait == LANGUAGE else teaching:
        store.routes.add(Route(name, DEFAULT_DRAFT, {trait: [name]}))
    if trait == TOPIC:
        store.examples.teach(((domain, text) for domain, texts in teaching.items() for text in texts), who="bench")


def told(served: Mapping[str, Sequence[RoutedPrompt]]) -> PaperFindings:
    """Return how far told shares are from true ones: of all requests the label that is furthest off, with its error
    over requests; and by stretch the furthest label, in the mean over stretches."""
    figures: dict[str, PaperFigure] = {}
    tables, pictures = {}, {}
    for trait, some in served.items():
        labels = list(dict.fromkeys(name for one in some for name in (one.true, one.told)))
        off = [mean_of([(one.told == name) - (one.true == name) for one in some]) for name in labels]
        shares = {name: share_by_stretch(some, name) for name in labels}
        gaps = np.array([[abs(told - true) for told, true in shares[name]] for name in labels]).max(0)
        figures |= {f"{trait}_share_off": farthest(off, 0), f"{trait}_off_by_stretch": mean_of(gaps)}
        tables[f"Shares by {trait}, told (true)"] = [
            {trait: name, "all": "{:.2f} ({:.2f})".format(*np.mean(parts, axis=0))}
            | {str(i): f"{told:.2f} ({true:.2f})" for i, (told, true) in enumerate(parts, 1)}
            for name, parts in shares.items()
        ]
        curves = [Curve(name, [(float(i), t) for i, (t, _) in enumerate(parts, 1)]) for name, parts in shares.items()]
        pictures[f"{trait} over time, as told"] = Picture("tenth of the stream", "share of requests", curves)
    return PaperFindings(figures, tables, pictures)


def share_by_stretch(some: Sequence[RoutedPrompt], name: str) -> list[tuple[float, float]]:
    """Return told and true shares of a language or topic in each stretch that has requests."""
    parts = [[one for one in some if int(one.place * STRETCHES) == stretch] for stretch in range(STRETCHES)]
    shares = ([(one.told == name, one.true == name) for one in part] for part in parts if part)
    return [(float(told), float(true)) for told, true in (np.mean(share, axis=0) for share in shares)]
