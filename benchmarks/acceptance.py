"""How often drafts are right on a target's own answers, by set of prompts: what each version of a draft has learned.

The target answers each prompt alone, greedily or sampled. Then every draft reads each answer once: at each of its
positions it is right where its likeliest token is the answer's (of greedy answers that is acceptance at temperature 0),
Σ min(p, q) is the chance that a token drawn from it is kept (at the answers' temperature and top-p; of greedy answers
at temperature 1), and the rounds that greedy chains would take give the tokens a round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.answer_reading import AT_ONE, GAMMA, AnsweredPrompt, Reading, read_answer
from osd.bench.contenders import osd_contender
from osd.bench.harness.options import JsonOption, TargetOption, TemperatureOption, TopPOption, sampling_of
from osd.bench.harness.prompts import PromptFiles, Tokens, listed, tokens_by_set
from osd.bench.harness.report import BenchResult
from osd.bench.harness.turns import measure_all
from osd.bench.harness.watch import Watch, watching
from osd.models.features.base import FeatureDraft
from osd.models.features.files import load_feature_draft
from osd.models.features.target import FeatureTarget
from osd.models.model import Model
from osd.models.pair import Pair, load_model, row_limit
from osd.models.target_only import load_alone
from osd.models.vocabulary import check_vocabularies, load_tokenizer
from storage.errors import BadInput
from storage.sampling import GREEDY, Sampling
from storage.settings import ServeSettings, Settings, load_settings
from storage.versions.feature_kinds import feature_kind


def command(
    draft: Annotated[
        list[str],
        typer.Option(help="Drafts' folders, in order; of several families FAMILY/NUMBER.", metavar="DIR,…"),
    ],
    target: TargetOption = None,
    prompts: PromptFiles = None,
    count: Annotated[int, typer.Option(help="Prompts of each data set.", min=1)] = 12,
    max_tokens: Annotated[int, typer.Option(help="Tokens of an answer at most.", min=1)] = 32,
    temperature: TemperatureOption = 0.0,
    top_p: TopPOption = 1.0,
    out: Annotated[Path | None, typer.Option(help="Folder for a picture.", metavar="DIR")] = None,
    json: JsonOption = False,
) -> None:
    """How often each of several drafts, versions of one say, is right on the target's own answers, by set of prompts.

    Examples: `python -m benchmarks acceptance --target ./target --draft ./v0,./v1 --prompts sql.jsonl,chat.jsonl`,
    `… --draft eagle/0,eagle/100,medusa/0,medusa/100` (a line a family over the answers that its drafts learned from)
    """
    settings, drafts, sampling = load_settings(), listed(draft), sampling_of(temperature, top_p)
    named = target or settings.serve.target
    if named is None:
        raise BadInput(reason="Whose answers? Name a target with --target, or serve.target in osd.toml.")
    serve = settings.serve
    pair = load_alone(named, device=serve.device, dtype=serve.dtype, device_map=serve.device_map)
    models = {name: _load(folder, pair, serve) for name, folder in zip(_names(drafts), drafts, strict=True)}
    with watching() as watch:
        sets = tokens_by_set(pair.tokenizer, prompts, count, row_limit(pair, serve) - max_tokens)
        figures = bench_acceptance(pair, models, sets, settings, max_tokens, watch, sampling)
    facts = {"target": pair.target.name, "drafts": drafts, "prompts": count, "max_new_tokens": max_tokens}
    facts |= {"temperature": temperature, "top_p": top_p}
    tables = {f"{title}, by set of prompts": _rows(figures[name]) for name, title in TITLES.items()}
    files = {"acceptance by draft": draw(figures, out)} if out and not watch.stopped else {}
    raise typer.Exit(
        BenchResult("acceptance", facts | {"gamma": GAMMA}, figures, tables, files, watch.stopped).show(as_json=json)
    )


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


def bench_acceptance(
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
    """Draw the measures: a line a set over the drafts in their order, or a line a family of drafts over their numbers.
    Numbers are taken for the answers that each draft has learned from."""
    from osd.bench.harness.picture import COLOURS, INK, dress, make_panels, save

    figure, panels = make_panels(len(TITLES), 4.0, 3.0)
    places, lines, label = _lines(figures)
    for axes, (kind, title) in zip(panels, TITLES.items(), strict=True):
        for colour, (name, drafts) in zip((*COLOURS[:-1],) * 9, lines.items(), strict=False):
            look = {"color": INK, "linewidth": 2.5} if name == ALL else {"color": colour}
            values = figures[kind][name if name in figures[kind] else ALL]
            axes.plot([places[draft] for draft in drafts], [values[d] for d in drafts], "o-", label=name, **look)
        axes.set(title=title, xlabel=label, ylabel=UNITS[kind], ylim=(1 if kind == "round" else 0, None))
        dress(axes)
    panels[-1].legend(fontsize=8)
    folder.mkdir(parents=True, exist_ok=True)
    return save(figure, folder, "acceptance")


def _lines(figures: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, list[str]], str]:
    """Return where each draft stands, the drafts of each line, and what the horizontal axis is."""
    names, learned = list(figures["right"][ALL]), "answers learned from (names of the drafts)"
    families = {name: name.rpartition("/")[::2] for name in names}
    if not all(number.isdecimal() for _, number in families.values()):
        return {name: name for name in names}, dict.fromkeys(figures["right"], names), "draft"
    places: dict[str, Any] = {name: int(number) for name, (_, number) in families.items()}
    if not any(family for family, _ in families.values()):
        return places, dict.fromkeys(figures["right"], names), learned
    lines: dict[str, list[str]] = {}
    for name, (family, _) in families.items():
        lines.setdefault(family, []).append(name)
    return places, lines, "answers learned from"
