"""How often drafts are right on a target's own answers, by set of prompts: what each version of a draft has learned.

The target answers each prompt greedily, alone. Then every draft reads each answer once: at each of its positions it is
right where its likeliest token is the target's (acceptance at temperature 0), and Σ min(p, q) is the chance that a
token drawn from it is kept (at temperature 1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer

from osd.bench.contenders import osd_contender
from osd.bench.harness.options import JsonOption, TargetOption
from osd.bench.harness.prompts import PromptFiles, Tokens, listed, tokens_by_set
from osd.bench.harness.report import BenchResult
from osd.bench.harness.turns import measure_all
from osd.bench.harness.watch import Watch, watching
from osd.drafters.scoring import distributions
from osd.models.pair import Model, Pair, load_model, row_limit
from osd.server.start import choose_pair
from storage.sampling import Sampling
from storage.settings import Settings, load_settings

ALL = "all"
AT_ONE = Sampling(1.0)
"""The distributions themselves."""


def command(
    draft: Annotated[list[str], typer.Option(help="Drafts' folders, in order.", metavar="DIR,…")],
    target: TargetOption = None,
    prompts: PromptFiles = None,
    count: Annotated[int, typer.Option(help="Prompts of each data set.", min=1)] = 12,
    max_tokens: Annotated[int, typer.Option(help="Tokens of an answer at most.", min=1)] = 32,
    out: Annotated[Path | None, typer.Option(help="Folder for a picture.", metavar="DIR")] = None,
    json: JsonOption = False,
) -> None:
    """How often each of several drafts, versions of one say, is right on the target's own answers, by set of prompts.

    Example: `python -m osd.bench acceptance --target ./target --draft ./v0,./v1 --prompts sql.jsonl,chat.jsonl`
    """
    settings, drafts = load_settings(), listed(draft)
    pair = choose_pair(settings.serve, target, drafts[0]).load(settings.serve)
    first, *others = _names(drafts)
    models = {first: pair.draft}
    for name, folder in zip(others, drafts[1:], strict=True):
        models[name] = load_model(folder, pair.device, settings.serve.dtype)
    with watching() as watch:
        sets = tokens_by_set(pair.tokenizer, prompts, count, row_limit(pair, settings.serve) - max_tokens)
        figures = bench_acceptance(pair, models, sets, settings, max_tokens, watch)
    facts = {"target": pair.target.name, "drafts": drafts, "prompts": count, "max_new_tokens": max_tokens}
    tables = {f"{title}, by set of prompts": _rows(figures[name]) for name, title in TITLES.items()}
    files = {"acceptance by draft": draw(figures, out)} if out and not watch.stopped else {}
    raise typer.Exit(BenchResult("acceptance", facts, figures, tables, files, watch.stopped).show(as_json=json))


def _names(drafts: Sequence[str]) -> Sequence[str]:
    """Return the names of the drafts' folders; whole paths where two have the same name."""
    short = [Path(draft).name for draft in drafts]
    return short if len(set(short)) == len(short) else drafts


TITLES = {"right": "Likeliest token is the target's", "overlap": "Σ min(p, q)"}
Values = dict[str, dict[str, float]]
"""By set, by draft."""


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
    """Positions at which its likeliest token is the target's."""
    overlap: float
    """Σ min(p, q), summed over positions."""


def bench_acceptance(
    pair: Pair, drafts: Mapping[str, Model], sets: Mapping[str, Sequence[Tokens]], settings: Settings,
    max_new_tokens: int, watch: Watch,
) -> dict[str, Any]:  # fmt: skip
    """Return both measures by set and draft, and how many positions each set has."""
    alone = settings.changed(gamma={"rule": "fixed", "initial": 0})
    target = osd_contender("target", pair, alone, max_new_tokens)
    answered = {name: target.decode(prompts) for name, prompts in sets.items()}
    both = {name: zip(prompts, answered[name], strict=True) for name, prompts in sets.items()}
    jobs = [AnsweredPrompt(name, p, tuple(text)) for name, pairs in both.items() for p, text in pairs if text]
    readings = [r for each in measure_all(jobs, lambda job: _read(pair.target, drafts, job), watch) for r in each]
    figures: dict[str, Any] = {kind: _shares(readings, kind) for kind in TITLES}
    first = next(iter(drafts))
    figures["positions"] = {n: sum(r.positions for r in _of(readings, n, first)) for n in (*sets, ALL)}
    return figures


def _read(target: Model, drafts: Mapping[str, Model], answer: AnsweredPrompt) -> list[Reading]:
    text, count = [*answer.prompt, *answer.tokens], len(answer.tokens)
    p = distributions(target.decoder(1, len(text)), text, count, AT_ONE)
    said = torch.tensor(answer.tokens, device=p.device)
    found = []
    for name, draft in drafts.items():
        q = distributions(draft.decoder(1, len(text)), text, count, AT_ONE, p.shape[1]).to(p.device)
        overlap, right = torch.minimum(p, q).sum(), (q.argmax(-1) == said).sum()
        found.append(Reading(answer.data_set, name, count, float(right), float(overlap)))
    return found


def _of(readings: Sequence[Reading], data_set: str, draft: str) -> list[Reading]:
    return [r for r in readings if r.draft == draft and data_set in (ALL, r.data_set)]


def _shares(readings: Sequence[Reading], kind: str) -> Values:
    sets, drafts = (dict.fromkeys(getattr(r, name) for r in readings) for name in ("data_set", "draft"))
    shares: Values = {}
    for data_set in (*sets, ALL):
        some = {draft: _of(readings, data_set, draft) for draft in drafts}
        shares[data_set] = {d: sum(getattr(r, kind) for r in s) / sum(r.positions for r in s) for d, s in some.items()}
    return shares


def _rows(values: Values) -> list[dict[str, Any]]:
    return [{"": data_set} | shares for data_set, shares in values.items()]


def draw(figures: Mapping[str, Any], folder: Path) -> Path:
    """Draw both measures, a line a set over the drafts in their order. Names that are all numbers are taken for the
    answers that each draft has learned from."""
    from osd.bench.harness.picture import COLOURS, INK, dress, make_panels, save

    figure, panels = make_panels(len(TITLES), 4.0, 3.0, sharey=True)
    places: list[Any] = list(figures["right"][ALL])
    numbered = all(name.isdecimal() for name in places)
    label = "answers learned from (names of the drafts)" if numbered else "draft"
    places = [int(name) for name in places] if numbered else places
    for axes, (kind, title) in zip(panels, TITLES.items(), strict=True):
        for colour, (data_set, shares) in zip((*COLOURS[:-1],) * 9, figures[kind].items(), strict=False):
            look = {"color": INK, "linewidth": 2.5} if data_set == ALL else {"color": colour}
            axes.plot(places, list(shares.values()), "o-", label=data_set, **look)
        axes.set(title=title, xlabel=label, ylim=(0, None))
        dress(axes)
    panels[0].set_ylabel("share of positions")
    panels[-1].legend(fontsize=8)
    folder.mkdir(parents=True, exist_ok=True)
    return save(figure, folder, "acceptance")
