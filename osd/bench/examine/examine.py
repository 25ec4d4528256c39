"""Examines a draft: the target answers the user's prompts, or has answered them by what the store holds, the draft
reads the answers, and one page says what comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from osd.bench.contenders import run_in_order
from osd.bench.examine.figures import Figures, figures_of
from osd.bench.examine.page import Examined, leave
from osd.bench.examine.reading import GAMMA, read_answer
from osd.bench.examine.verdict import verdict
from osd.bench.harness.prompts import texts_by_set
from osd.bench.plans import Examination
from osd.engine.engine import Engine
from osd.engine.pass_costs import probe
from osd.models.features.base import FeatureDraftMismatch
from osd.models.features.decoder import FeatureModel
from osd.models.features.files import FOR_TARGET
from osd.models.pair import Pair, load_pair, row_limit
from osd.models.vocabulary import load_tokenizer
from osd.prompts import encode
from router.clusters import find_clusters
from router.throughput import Costs
from storage.errors import BadInput, ModelNotLoaded, VocabularyMismatch
from storage.records import DEFAULT_DRAFT, Request
from storage.settings import Settings
from storage.versions.feature_kinds import AT_ONCE, read_config

SAMPLE = 24
"""Prompts with which other templates are tried."""
Answered = tuple[Sequence[int], Sequence[int], str]
"""Tokens of a prompt and of its answer, and the topic."""


def examine(asked: Examination, target: str, folder: Path, stored: Sequence[Answered], settings: Settings) -> Examined:
    """Load the pair, read, and write what was found. ``stored``: answered texts, where there are no prompts. Raises
    ModelNotLoaded, FeatureDraftNotLoaded, BadInput, BadPromptFile, StoreWriteFailed."""
    try:
        pair = load_pair(target, folder, device=settings.serve.device, dtype=settings.serve.dtype)
    except (FeatureDraftMismatch, VocabularyMismatch) as error:
        named = [f"This draft does not go with this target: {error.facts['reason']} Take one that was made for it."]
        return leave(Examined(asked.draft, target, named, None, {}), asked.out)
    work = ExaminedPair(pair, settings, asked)
    answered = work.answer(work.prompts(raw=asked.raw)) if asked.prompts else list(stored)
    figures = work.figures(answered)
    own, differs = _own_tokenizer(folder, pair)
    templates = work.templates(own) if asked.prompts else {}
    bound = FOR_TARGET in read_config(folder)  # another's digest was refused above
    found = verdict(figures, templates, differs, bound=bound)
    return leave(Examined(asked.draft, target, found, figures, {}), asked.out)


def _own_tokenizer(folder: Path, pair: Pair) -> tuple[Any, str | None]:
    """Return the tokenizer in a draft's folder where it has another chat template than the target's, and what differs
    between the two in words."""
    try:
        own = load_tokenizer(folder)
    except ModelNotLoaded:
        return None, None
    template, differs = getattr(own, "chat_template", None), list[str]()
    if template == getattr(pair.tokenizer, "chat_template", None):
        template = None
    if template:
        differs.append("another chat template")
    if getattr(own, "eos_token_id", None) not in {None, *pair.eos_ids}:
        differs.append("another end token")
    return own if template else None, " and ".join(differs) or None


class ExaminedPair:
    """A pair that answers and reads."""

    def __init__(self, pair: Pair, settings: Settings, asked: Examination) -> None:
        self._pair, self._asked, self._settings = pair, asked, settings
        alone = settings.changed(gamma={"rule": "fixed", "initial": 0}, drafters={"kind": "causal"})
        self._engine = engine = Engine(pair, alone)
        probe(engine.target, engine.pool, pair, alone)  # whatever the rule weighs: what γ makes is told by it

    def prompts(self, *, raw: bool, tokenizer: Any = None) -> list[tuple[tuple[int, ...], str]]:
        """Return the prompts as tokens, with the file that each is from; of what is too long nothing."""
        files = [str(path) for path in self._asked.prompts or ()]
        room = row_limit(self._pair, self._settings.serve) - self._asked.max_tokens
        texts = texts_by_set(files, self._asked.count)
        found = [
            (encode(tokenizer or self._pair.tokenizer, text, raw=raw), name)
            for name, each in texts.items() for text in each
        ]  # fmt: skip
        if not (fitting := [one for one in found if len(one[0]) <= room]):
            raise BadInput(reason=f"No prompt has {room} tokens or fewer; raise serve.max_length.")
        return fitting

    def answer(self, prompts: Sequence[tuple[tuple[int, ...], str]]) -> list[Answered]:
        """Let the target answer."""
        asked = [Request(tokens, self._asked.max_tokens) for tokens, _ in prompts]
        done = run_in_order(self._engine, asked)
        return [(tokens, one.tokens, name) for (tokens, name), one in zip(prompts, done, strict=True)]

    def figures(self, answered: Sequence[Answered]) -> Figures:
        """Let the draft read answers. Raises BadInput where none has two tokens."""
        usable = _with_topics([one for one in answered if len(one[1]) > 1], self._pair.tokenizer)
        if not usable:
            raise BadInput(reason="No text has an answer of two tokens or more; give other prompts.")
        readings = [read_answer(self._pair, *one) for one in usable]
        empty = len(answered) - len(usable)
        return figures_of(readings, self._pair.tokenizer, self._pair.eos_ids, self.costs(), empty)

    def costs(self) -> Costs | None:
        """Return what rounds cost; a draft that drafts all tokens at once makes one pass, however many they are."""
        costs, draft = self._engine.pass_costs.of(DEFAULT_DRAFT, GAMMA), self._pair.draft
        if costs is None or not (isinstance(draft, FeatureModel) and draft.draft.kind in AT_ONCE):
            return costs
        alone, *others = costs.verify_ms
        return Costs(0.0, [alone, *(ms + costs.draft_ms for ms in others)])

    def templates(self, own: Any) -> dict[str, Figures]:
        """Return the figures of some prompts in other templates: without the target's, or with it, and in the
        draft's."""
        tokenizer, ways = self._pair.tokenizer, dict[str, Any]()
        if tokenizer is not None and tokenizer.chat_template:
            name = "in the target's chat template" if self._asked.raw else "without a chat template"
            ways[name] = {"raw": not self._asked.raw}
        if own is not None:
            ways["in the template of its own folder"] = {"raw": False, "tokenizer": own}
        found = {}
        for name, way in ways.items():
            prompts = self.prompts(**way)
            found[name] = self.figures(self.answer(prompts[:: -(-len(prompts) // SAMPLE)]))
        return found


def _with_topics(answered: Sequence[Answered], tokenizer: Any) -> list[Answered]:
    """Name the topic of texts that are all from one place by what tells them apart."""
    if tokenizer is None or len({topic for *_, topic in answered}) > 1:
        return list(answered)
    clusters = find_clusters([list(prompt) for prompt, *_ in answered], most=6)
    names = [" ".join(tokenizer.decode([token]).strip() for token in words[:4]) for words in clusters.typical]
    labels = zip(answered, clusters.labels.tolist(), strict=True)
    return [(prompt, answer, names[label] or topic) for (prompt, answer, topic), label in labels]
