"""Traffic of several domains in one stream, as in sections 5.3, A.6 and A.8 of the OSD paper, and the ways of serving
it that are compared, each over a store of its own.

single       one draft learns from everything
routed       a full draft for each domain, found by topic
routed_lora  an adapter over the shared base for each domain
by_language  a full draft for each language that domains are in, found by language
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from router.classifier_models import spoken
from router.language import shipped
from storage.records import DEFAULT_DRAFT, Route
from storage.store import Store
from storage.versions.forks import fork

APART = "apart"
BY_LANGUAGE = "by_language"
Domains = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class TrafficItem:
    """A request to come. Nobody but the bench knows its domain."""

    domain: str
    prompt: str
    learn: bool = True
    """Whether drafts may learn from it."""


def arrange(domains: Domains, order: str, seed: int = 0) -> list[TrafficItem]:
    """Return all prompts of all domains, each domain's in its own order.

    mixed: request by request. abrupt: one domain after another. gradual: each domain's share falls while the next one's
    rises, so that two overlap at any time. linear: the same in a straight line from the first request to the last.
    apart: as mixed, but drafts learn from the first domain alone in the first half, and from the others alone then.
    """
    left = {name: iter(prompts) for name, prompts in domains.items()}
    items = [TrafficItem(name, next(left[name])) for name in ORDERS[order](domains, random.Random(seed))]
    if order != APART:
        return items
    first, half = next(iter(domains)), len(items) // 2
    return [replace(item, learn=(item.domain == first) == (place < half)) for place, item in enumerate(items)]


def _mixed(domains: Domains, chance: random.Random) -> list[str]:
    names = [name for name, prompts in domains.items() for _ in prompts]
    chance.shuffle(names)
    return names


def _abrupt(domains: Domains, chance: random.Random) -> list[str]:
    return [name for name, prompts in domains.items() for _ in prompts]


def _gradual(domains: Domains, chance: random.Random) -> list[str]:
    """Let every domain's requests arrive around its own place in the stream: evenly over twice the time that they would
    take alone, so that at the middle between two places both are as frequent."""
    times: list[tuple[float, str]] = []
    begin = 0
    for name, prompts in domains.items():
        middle, width = begin + len(prompts) / 2, len(prompts)
        times += [(middle + width * (chance.random() + chance.random() - 1), name) for _ in prompts]
        begin += len(prompts)
    return [name for _, name in sorted(times)]


def _linear(domains: Domains, chance: random.Random) -> list[str]:
    """Let every domain's requests arrive around its own place on the way from the first request to the last, the first
    domain's at the begin and the last one's at the end: of two domains, one's share falls in a straight line and the
    other's rises."""
    times: list[tuple[float, str]] = []
    step = 1 / max(1, len(domains) - 1)
    for place, (name, prompts) in enumerate(domains.items()):
        middle = place * step
        drawn = (abs(chance.triangular(middle - step, middle + step, middle)) for _ in prompts)
        times += [(1 - abs(1 - time), name) for time in drawn]
    return [name for _, name in sorted(times)]


ORDERS: dict[str, Callable[[Domains, random.Random], list[str]]] = {
    "mixed": _mixed,
    "abrupt": _abrupt,
    "gradual": _gradual,
    "linear": _linear,
    APART: _mixed,
}


def languages_of(teaching: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the language that most examples of each domain are in; a domain whose language is hard to tell is left
    out."""
    examples = [(domain, text) for domain, texts in teaching.items() for text in texts]
    return {domain: labels[0] for domain, labels in spoken(examples, shipped()).items() if labels}


def set_up(store: Store, arm: str, draft: Path, teaching: Mapping[str, Sequence[str]]) -> list[str]:
    """Give the store the arm's drafts, routes and taught topics; return the names of the drafts that learn.

    ``teaching``: examples of each domain, which are not served.
    """
    root = store.versions.register_root(DEFAULT_DRAFT, draft)
    if arm == "single":
        return [DEFAULT_DRAFT]
    if arm == BY_LANGUAGE:
        languages = list(dict.fromkeys(languages_of(teaching).values()))
        for language in languages:
            fork(store.versions, language, root.id)
            store.routes.add(Route(language, language, {"language": [language]}), who="python -m benchmarks routes")
        return [DEFAULT_DRAFT, *languages]
    for domain in teaching:
        fork(store.versions, domain, root.id)
        store.versions.set_options(domain, {"method": "lora" if arm == "routed_lora" else "full"})
        store.routes.add(Route(domain, domain, {"topic": [domain]}), who="python -m benchmarks routes")
    store.examples.teach(((domain, text) for domain, texts in teaching.items() for text in texts), who="bench")
    return list(teaching)
