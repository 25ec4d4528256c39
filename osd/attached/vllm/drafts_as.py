"""Tells by what an engine accepts whether it drafts with the weights of a folder.

Where drafts are greedy, a step accepts exactly the tokens that the draft would have drafted there, so one pass of the
folder's model over an answer says what each step should have accepted. Drafts that guess alike cannot be told apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from osd.models.weights import read_weights
from storage.versions.feature_kinds import feature_kind


@dataclass(frozen=True, slots=True)
class SpeculatedAnswer:
    """A greedy answer, and what each step after its first token accepted and drafted."""

    prompt: Sequence[int]
    tokens: Sequence[int]
    accepted: Sequence[int]
    drafted: Sequence[int]


@torch.inference_mode()
def agreement(folder: Path, answers: Sequence[SpeculatedAnswer]) -> float | None:
    """Return the share of steps that accepted what the folder's model would have had right; None where there are none.

    The step that an answer's end may have cut is left out. None for a feature draft, too, which guesses by what the
    target has computed.
    """
    if feature_kind(folder):
        return None
    module: Any = read_weights(folder, torch.float32)
    module.eval()
    judged = [same for one in answers for same in _steps(module, one)]
    return sum(judged) / len(judged) if judged else None


def _steps(module: Any, answer: SpeculatedAnswer) -> list[bool]:
    tokens = [*answer.prompt, *answer.tokens]
    guesses = module(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].argmax(-1).tolist()
    judged, place = [], len(answer.prompt) + 1
    for accepted, drafted in zip(answer.accepted, answer.drafted, strict=True):
        if place + drafted >= len(tokens):
            break
        right = [guesses[at - 1] == tokens[at] for at in range(place, place + drafted)]
        judged.append((right.index(False) if False in right else drafted) == accepted)
        place += accepted + 1
    return judged
