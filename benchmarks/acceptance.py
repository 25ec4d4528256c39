"""How often drafts are right on a target's own answers, by set of prompts: what each version of a draft has learned.

The target answers each prompt alone, greedily or sampled. Then every draft reads each answer once: at each of its
positions it is right where its likeliest token is the answer's (of greedy answers that is acceptance at temperature 0),
Σ min(p, q) is the chance that a token drawn from it is kept (at the answers' temperature and top-p; of greedy answers
at temperature 1), and the rounds that greedy chains would take give the tokens a round. A chain's tokens are those of
the answer as long as they are right, so what a draft says after the answer's tokens is what it would have drafted: no
decoding is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from osd.bench.contenders import osd_contender
from osd.bench.examine.reading import feature_distributions, rounds_of
from osd.bench.harness.plan import Count, SampledPlan, TargetPlan, data_sets, facts_of
from osd.bench.harness.prompts import Tokens
from osd.bench.harness.report import BenchResult
from osd.bench.harness.turns import measure_all
from osd.bench.harness.watch import Watch
from osd.drafters.scoring import distributions
from osd.models.features.base import FeatureDraft
from osd.models.features.files import load_feature_draft
from osd.models.features.target import FeatureTarget, read_features
from osd.models.model import Model
from osd.models.pair import Pair, load_model, row_limit
from osd.models.target_only import load_alone
from osd.models.vocabulary import check_vocabularies, load_tokenizer
from storage.errors import BadInput
from storage.sampling import GREEDY, Sampling
from storage.settings import ServeSettings, Settings
from storage.versions.feature_kinds import feature_kind

AT_ONE = Sampling(1.0)
"""The distributions themselves."""
GAMMA = 4
"""Tokens of a greedy chain."""


@dataclass(frozen=True, kw_only=True)
class AcceptancePlan(SampledPlan, TargetPlan):
    """How often each of several drafts, versions of one say, is right on the target's own answers, by set of prompts.

    Example: `python -m benchmarks acceptance --target ./target --draft ./v0,./v1 --prompts sql.jsonl,chat.jsonl`
    """

    draft: tuple[str, ...]
    """Drafts' folders, in order."""
    count: Count = 12
    """Prompts of each data set."""
    max_tokens: Count = 32
    """Tokens of an answer at most."""
    out: Path | None = None
    """Folder for a picture."""


def bench_acceptance(plan: AcceptancePlan, settings: Settings, watch: Watch) -> BenchResult:
    """Load the target and its drafts, and let them read. Raises PairError, BadInput."""
    named, serve = plan.target or settings.serve.target, settings.serve
    if named is None:
        raise BadInput(reason="Whose answers? Name a target with --target, or serve.target in osd.toml.")
    pair = load_alone(named, device=serve.device, dtype=serve.dtype, device_map=serve.device_map)
    models = {name: _load(folder, pair, serve) for name, folder in zip(_names(plan.draft), plan.draft, strict=True)}
    sets = data_sets(plan, pair.tokenizer, plan.count, row_limit(pair, serve) - plan.max_tokens)
    figures = read_all(pair, models, sets, settings, plan.max_tokens, watch, plan.sampling)
    facts = facts_of(plan, target=pair.target.name, gamma=GAMMA)
    tables = {f"{title}, by set of prompts": _rows(figures[name]) for name, title in TITLES.items()}
    files = {"acceptance by draft": draw(figures, plan.out)} if plan.out and not watch.stopped else {}
    return BenchResult("acceptance", facts, figures, tables, files, watch.stopped)


def _load(folder: str, pair: Pair, serve: ServeSettings) -> Model | FeatureDraft:
    """Load a draft for the target. Raises ModelNotLoaded, VocabularyMismatch, FeatureDraftMismatch."""
    if feature_kind(Path(folder)) is not None:
        return load_feature_draft(folder, FeatureTarget(pair.target.module, pair.target.name, pair.target.digest))
    model = load_model(folder, pair.device, serve.dtype)
    return replace(model, shared=check_vocabularies(pair.target, model, pair.tokenizer, load_tokenizer(folder)))


def _names(drafts: Sequence[str]) -> Sequence[str]:
    """Return the names of the drafts' folders; with those of the folders around them where two have the same name, and
    whole paths where that does not tell them apart either."""
    paths = [Path(draft) for draft in drafts]
    for names in ([path.name for path in paths], [f"{path.parent.name}/{path.name}" for path in paths]):
        if len(set(names)) == len(names):
            return names
    return drafts


TITLES = {"right": "Likeliest token is the target's", "overlap": "Σ min(p, q)", "round": "Tokens a round"}
UNITS = {"right": "share of positions", "overlap": "share of positions", "round": f"tokens, greedy chains of {GAMMA}"}
ALL = "all"
Values = dict[str, dict[str, float]]
"""By set, by draft."""


def read_all(
    pair: Pair, drafts: Mapping[str, Model | FeatureDraft], sets: Mapping[str, Sequence[Tokens]], settings: Settings,
    max_new_tokens: int, watch: Watch, sampling: Sampling = GREEDY,
) -> dict[str, Any]:  # fmt: skip
    """Return the measures by set and draft, and how many positions each set has."""
    alone = settings.changed(gamma={"rule": "fixed", "initial": 0}, drafters={"kind": "lookup"})
    target = osd_contender("target", pair, alone, max_new_tokens, sampling)
    answered = {name: target.decode(prompts) for name, prompts in sets.items()}
    both = {name: zip(prompts, answered[name], strict=True) for name, prompts in sets.items()}
    at = AT_ONE if sampling.greedy else sampling
    jobs = [AnsweredPrompt(name, p, tuple(text)) for name, pairs in both.items() for p, text in pairs if len(text) > 1]
    reads = measure_all(jobs, lambda job: read_answer(pair.target, drafts, job, at), watch)
    readings = [reading for each in reads for reading in each]
    figures: dict[str, Any] = {kind: _shares(readings, kind) for kind in TITLES}
    first = next(iter(drafts))
    figures["positions"] = {n: sum(r.positions for r in _of(readings, n, first)) for n in (*sets, ALL)}
    return figures


def _of(readings: Sequence[Reading], data_set: str, draft: str) -> list[Reading]:
    return [r for r in readings if r.draft == draft and data_set in (ALL, r.data_set)]


def _shares(readings: Sequence[Reading], kind: str) -> Values:
    sets, drafts = (dict.fromkeys(getattr(r, name) for r in readings) for name in ("data_set", "draft"))
    shares: Values = {}
    for data_set in (*sets, ALL):
        some = {draft: _of(readings, data_set, draft) for draft in drafts}
        shares[data_set] = {draft: _mean(readings, kind) for draft, readings in some.items()}
    return shares


def _mean(readings: Sequence[Reading], kind: str) -> float:
    if kind == "round":
        return sum(r.emitted for r in readings) / sum(r.rounds for r in readings)
    return float(sum(getattr(r, kind) for r in readings) / sum(r.positions for r in readings))


def _rows(values: Values) -> list[dict[str, Any]]:
    return [{"": data_set} | shares for data_set, shares in values.items()]


def draw(figures: Mapping[str, Any], folder: Path) -> Path:
    """Draw the measures: a line a set over the drafts in their order."""
    from osd.bench.harness.picture import COLOURS, INK, dress, make_panels, save

    figure, panels = make_panels(len(TITLES), 4.0, 3.0)
    for axes, (kind, title) in zip(panels, TITLES.items(), strict=True):
        for colour, (name, values) in zip((*COLOURS[:-1],) * 9, figures[kind].items(), strict=False):
            look = {"color": INK, "linewidth": 2.5} if name == ALL else {"color": colour}
            axes.plot([*values], [*values.values()], "o-", label=name, **look)
        axes.set(title=title, xlabel="draft", ylabel=UNITS[kind], ylim=(1 if kind == "round" else 0, None))
        dress(axes)
    panels[-1].legend(fontsize=8)
    folder.mkdir(parents=True, exist_ok=True)
    return save(figure, folder, "acceptance")


class AnsweredPrompt(NamedTuple):
    """The target's answer to a prompt of a data set."""

    data_set: str
    prompt: Tokens
    tokens: Tokens

    def __str__(self) -> str:
        return self.data_set


@dataclass(frozen=True, slots=True)
class Reading:
    """What a draft says of one answer."""

    data_set: str
    draft: str
    positions: int
    right: float
    """Positions at which its likeliest token is the target's; of a feature draft the first token of a chain."""
    overlap: float
    """Σ min(p, q), summed over positions."""
    emitted: int
    """Tokens of the answer after its first, which the prefill brings."""
    rounds: int
    """Rounds that greedy chains of GAMMA tokens would take for them."""


@torch.no_grad()
def read_answer(
    target: Model, drafts: Mapping[str, Model | FeatureDraft], answer: AnsweredPrompt, at: Sampling = AT_ONE
) -> list[Reading]:
    """Let every draft read one answer, whose tokens were drawn after warping as ``at`` says."""
    text, count = [*answer.prompt, *target.start, *answer.tokens], len(answer.tokens)
    p = distributions(target.decoder(1, len(text)), text, count, at)
    said, found = torch.tensor(answer.tokens, device=p.device), []
    shared, read = FeatureTarget(target.module), dict[tuple[int, ...], Tensor]()
    for name, draft in drafts.items():
        if isinstance(draft, FeatureDraft):
            layers = draft.feature_layers(target.module)
            if layers not in read:
                read[layers] = read_features(target.module, torch.tensor([text], device=p.device), layers)[0]
            said_by = feature_distributions(shared, draft, read[layers], text, count, GAMMA)
            begin = 1  # a feature draft begins after the first token
        else:
            own = distributions(draft.decoder(1, len(text)), text, count, at, p.shape[1]).to(p.device)
            said_by, begin = [own] * GAMMA, 0
        first, theirs = said_by[0][begin:], p[begin:]
        right = torch.stack([each.argmax(-1) == said for each in said_by]).cpu().numpy()
        overlap = torch.minimum(theirs, first).sum()
        rounds, _ = rounds_of(right[:, 1:], GAMMA)
        found.append(
            Reading(answer.data_set, name, len(first), float(sum(right[0][begin:])), float(overlap), count - 1, rounds)
        )
    return found
