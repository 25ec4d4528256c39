"""Offline training of a head, from files of prompts to a folder: the paper's way, as a baseline for online learning."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from osd.engine.engine import Engine
from osd.models.acceptance_head import AcceptanceHead, digest_of_model, save_head
from osd.models.pair import Pair
from osd.prompts import encode, read_prompts
from storage.errors import BadInput, BadPromptFile, TrainingFailed
from storage.files.files import TemporaryPath, writing
from storage.records import Request
from storage.sampling import Sampling
from storage.settings import Settings
from trainer.distil.step import NotFinite
from trainer.heads.examples import Drafted, embed
from trainer.heads.fit import fit
from trainer.heads.loop import new_head
from trainer.heads.mixing import mix, propose
from trainer.lease import RunStopped
from trainer.shutdown import Stop

Tokens = tuple[int, ...]
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Recipe:
    """The recipe of the offline data. The defaults are the paper's (appendix D.1), except the temperature."""

    mixing: float = 0.15
    """r, the share of fed tokens that are the target's own."""
    sampling: Sampling = field(default_factory=Sampling)
    """Sampling of answers and proposals, which should be that of the head's traffic."""
    max_tokens: int = 128
    """Maximum number of tokens in an answer."""


def prompts_of(pair: Pair, files: Sequence[Path], count: int | None) -> list[Tokens]:
    """Return the first ``count`` prompts of each file as tokens. Raises BadPromptFile for an invalid line."""
    found: list[Tokens] = []
    for path in files:
        for number, line in enumerate(read_prompts(path)):
            if number == count:
                break
            if isinstance(line, BadPromptFile):
                raise line
            found.append(encode(pair.tokenizer, line.text))
    return found


def spread(files: Sequence[Sequence[Tokens]], count: int) -> list[Tokens]:
    """Return ``count`` prompts, taken from the files in turn. Raises BadInput when there are fewer."""
    chosen = [p for turn in zip_longest(*files) for p in turn if p is not None][:count]
    if len(chosen) < count:
        raise BadInput(reason=f"The files hold {len(chosen)} prompts and {count} are asked for.")
    return chosen


def answers(pair: Pair, settings: Settings, prompts: Sequence[Tokens], recipe: Recipe) -> list[Tokens]:
    """Return the target's answers; an empty one where a prompt leaves no room."""
    limit = min(settings.serve.max_length, pair.limit)
    fitting = [i for i, prompt in enumerate(prompts) if len(prompt) + recipe.max_tokens < limit]
    asked = {str(i): Request(prompts[i], recipe.max_tokens, recipe.sampling, id=str(i)) for i in fitting}
    own = settings.changed(gamma={"rule": "analytic", "routes": {}, "specdecpp": {"head": None}})
    done = {c.request.id: c.tokens for c in Engine(pair, own).run(asked.values())}
    return [done.get(str(i), ()) for i in range(len(prompts))]


def material(
    pair: Pair, prompts: Sequence[Tokens], replies: Sequence[Tokens], recipe: Recipe, seed: int
) -> list[Drafted]:
    """Return the mixed sequence of every prompt and answer."""
    chance = np.random.default_rng(seed)
    found = []
    for prompt, reply in zip(prompts, replies, strict=True):
        if reply:
            proposals = propose(pair, prompt, reply, recipe.sampling, chance)
            found.append(mix(prompt, reply, proposals, recipe.mixing, chance))
    return [item for item in found if item is not None]


def fit_offline(
    pair: Pair, settings: Settings, items: Sequence[Drafted], between: Callable[[], None] = lambda: None
) -> tuple[AcceptanceHead, dict[str, Any]]:
    """Train a new head for ``learn.head_epochs`` with a cosine schedule. Raises NotFinite."""
    examples = embed(pair.draft.module, items, between)
    digest = digest_of_model(Path(pair.draft.name)) or ""
    head = new_head(pair.draft.module, settings.learn, digest, digest, float(examples.chances.mean()))
    return head, asdict(fit(head, examples, settings.learn, between, schedule="cosine"))


def train_offline(
    pair: Pair,
    settings: Settings,
    prompts: Sequence[Tokens],
    out: Path,
    recipe: Recipe,
    stop: Stop | None = None,
    report: Report = lambda _: None,
) -> dict[str, Any]:
    """Answer the prompts, mix, train, and write ``out``, a folder that must be new; return a summary for JSON.

    Raises BadInput, StoreWriteFailed, and TrainingFailed when it was stopped; nothing is written then.
    """
    if out.exists():
        raise BadInput(reason=f"{out} exists; give the name of a new folder.")
    stop = stop or threading.Event()

    def between() -> None:
        if stop.is_set():
            raise RunStopped("it was stopped")

    report(f"answering {len(prompts)} prompts")
    items = material(pair, prompts, answers(pair, settings, prompts, recipe), recipe, settings.learn.seed)
    if not items:
        raise BadInput(reason="The prompts leave nothing to train a head on: none has an answer that fits.")
    report(f"training on {sum(map(len, items))} drafted tokens")
    try:
        head, done = fit_offline(pair, settings, items, between)
    except (NotFinite, RunStopped) as error:
        raise TrainingFailed(run="offline", draft=pair.draft.name, reason=str(error)) from error
    with TemporaryPath(out.absolute().parent, out.name, folder=True) as aside:
        with writing(aside.path):
            save_head(head, aside.path)
        aside.rename(out.absolute())
    return {"out": str(out), "prompts": len(items), "epochs": settings.learn.head_epochs, **done}
