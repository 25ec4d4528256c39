"""Offline training of a head, from files of prompts to a folder: the paper's way, as a baseline for online learning.

Its data is a prompt, the target's answer, and token mixing (section 4.4 of SpecDec++).

At every position of an answer X_1 … X_N the draft proposes Y_i ~ q(· | x_prompt, X_1 … X_{i−1}), which the target
accepts with probability P_i = min(1, p(Y_i | …) / q(Y_i | …)). Feeding each Y_i after its own prefix would take a pass
a token. So one sequence Z is fed that takes r % of its tokens from X and the others from Y, and only those from Y are
learned from: more tokens, after prefixes that differ slightly from the target's text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from osd.engine.engine import Engine
from osd.models.acceptance_head import AcceptanceHead, digest_of_model, save_head
from osd.models.encoder_decoder import require_decoder_only
from osd.models.features.decoder import FeatureModel
from osd.models.model import Model
from osd.models.pair import Pair
from osd.prompts import encode, read_prompts
from osd.verification.warping import Warp, draw
from storage.errors import BadInput, BadPromptFile, TrainingFailed
from storage.records import Request
from storage.sampling import Sampling
from storage.settings import Settings
from trainer.distil.checkpoints import new_folder
from trainer.distil.step import NotFinite
from trainer.heads.examples import Drafted, embed
from trainer.heads.fit import fit
from trainer.heads.learner import new_head
from trainer.lease import RunStopped, Stop, until_stopped


@dataclass(frozen=True, slots=True)
class Proposals:
    """The draft's proposals along an answer of N tokens."""

    drafted: Tensor
    """(N,) Y."""
    chances: Tensor
    """(N,) P, float32."""


@torch.inference_mode()
def propose(pair: Pair, prompt: Sequence[int], answer: Sequence[int], sampling: Sampling, chance: Any) -> Proposals:
    """Propose Y and compute P at every position of an answer. ``chance`` is a numpy generator. Raises DecoderOnly."""
    require_decoder_only(pair.draft.module, "an acceptance head", pair.draft.name)
    text = [*prompt, *answer]
    p, q = (_distributions(model, text, len(prompt), sampling, pair.vocab_size) for model in (pair.target, pair.draft))
    drafted = draw(q, torch.from_numpy(chance.random(len(answer))).to(q.device))
    index = drafted.unsqueeze(1)
    return Proposals(drafted.cpu(), (p.gather(1, index) / q.gather(1, index)).clamp(max=1).squeeze(1).cpu())


def mix(
    prompt: Sequence[int], answer: Sequence[int], proposals: Proposals, share: float, chance: Any
) -> Drafted | None:
    """Mix Z with ``share`` of its tokens from the answer, the rest being what is learned from; None if all are."""
    from_target = chance.random(len(answer)) < share
    drafted = proposals.drafted.numpy()
    mixed = np.where(from_target, np.asarray(answer, np.int64), drafted)
    if from_target.all():
        return None
    tokens = np.concatenate([np.asarray(prompt, np.int64), mixed])
    positions = len(prompt) + np.flatnonzero(~from_target)
    return Drafted(tokens, positions, drafted[~from_target], proposals.chances.numpy()[~from_target])


def _distributions(model: Model, text: list[int], start: int, sampling: Sampling, vocabulary: int) -> Tensor:
    """Return the distribution of each token from ``start`` on, shape (N, V); at temperature 0 all mass is on the
    likeliest."""
    read = torch.tensor([text], device=model.device)
    fed = read if model.shared is None else model.shared.stand_ins[read]
    logits = model.module(input_ids=fed, use_cache=False).logits[:, start - 1 : -1]
    missing = vocabulary - logits.shape[-1]
    logits = F.pad(logits, (0, missing), value=float("-inf")) if missing else logits
    # with a sampling row in it, as an all-greedy batch has no distributions
    warp = Warp.of([sampling, Sampling(1.0)], vocabulary, logits.device)
    assert warp is not None
    return warp(logits.expand(2, -1, -1))[0]


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
    if isinstance(pair.draft, FeatureModel):
        reason = f"{pair.draft.name} reads the target's hidden states; its acceptance head learns from traffic alone"
        raise BadInput(reason=f"{reason} (learn.head, gamma.rule = specdecpp).")
    report(f"answering {len(prompts)} prompts")
    items = material(pair, prompts, answers(pair, settings, prompts, recipe), recipe, settings.learn.seed)
    if not items:
        raise BadInput(reason="The prompts leave nothing to train a head on: none has an answer that fits.")
    report(f"training on {sum(map(len, items))} drafted tokens")
    try:
        head, done = fit_offline(pair, settings, items, until_stopped(stop))
    except (NotFinite, RunStopped) as error:
        raise TrainingFailed(run="offline", draft=pair.draft.name, reason=str(error)) from error
    with new_folder(out) as aside:
        save_head(head, aside)
    return {"out": str(out), "prompts": len(items), "epochs": settings.learn.head_epochs, **done}
