"""`osd engines teacher`: how a second vLLM is started that hands over hidden states, and what that takes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from osd.cli.context import CommandContext
from osd.cli.engines import app
from osd.cli.options import Name
from osd.cli.out import note, say
from storage import records
from storage.errors import BadInput
from storage.outcomes.outcome_window import Window
from storage.records import DEFAULT_DRAFT
from storage.versions.feature_kinds import FEATURE_KINDS

DAY = 86_400.0


@app.command()
def teacher(
    here: CommandContext,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER"), "Where it writes them; vLLM and the trainer see it."],
    draft: Annotated[Name, "The draft that learns from them."] = DEFAULT_DRAFT,
    bound_mb: Annotated[int, typer.Option(metavar="MB", min=1), "What may lie in FOLDER at most."] = 1024,
) -> None:
    """Say how a second vLLM is started that reads answers again for the trainer (learn.teacher = engine), and how many
    bytes that moves. Its target is serve.target; of that the trainer loads embeddings, final norm and output layer."""
    import torch

    from osd.attached.vllm.hidden_states import bytes_a_token, extracted_layers, start_options
    from osd.models.features.files import load_feature_draft
    from osd.models.features.target import FeatureTarget
    from osd.models.features.without_layers import load_without_layers
    from osd.models.model_digest import model_digest

    target, learn = here.settings.serve.target, here.settings.learn
    if target is None:
        raise BadInput(reason="serve.target has to name the target, as a folder or hub name that vLLM sees too.")
    shared = FeatureTarget(load_without_layers(target, torch.device("cpu"), None), target, model_digest(target))
    with here.store() as store:
        version = store.versions.current(draft, shared.digest)
        reads = version.kind in FEATURE_KINDS
        found = load_feature_draft(store.versions.folder(version), shared) if reads else None
        day = store.outcomes.acceptance((), Window(since=records.now() - DAY, draft=version.draft))
    layers = extracted_layers(found.feature_layers(shared.module) if found else (), shared.layers)
    size, tokens = bytes_a_token(layers, shared), sum(row.prompt_tokens + row.emitted for row in day)
    say(shlex.join(["vllm", "serve", target, *start_options(layers, str(folder.absolute()), bound_mb)]))
    note(f"Hidden states {', '.join(map(str, layers))} of {shared.layers}: {size:,} bytes a token.")
    note(f"The last day's {tokens:,} tokens of {draft} are {size * tokens / 1e9:.2f} GB, each time they are read.")
    kept = f"at most {bound_mb:,} MB wait in {folder}, and {learn.teacher_cache_mb:,} MB (learn.teacher_cache_mb)"
    note(f"Nothing of it is stored: {kept} stay in the trainer's memory, so that epochs and the gate read once.")
