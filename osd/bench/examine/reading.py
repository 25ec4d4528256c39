"""What a draft says of answers: it reads each once, and nothing is served.

A chain's tokens are those of the answer for as long as they are right, so what a draft says behind the answer's tokens
is what it would have drafted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from osd.drafters.scoring import chain_logits, distributions
from osd.models.features.base import FeatureDraft
from osd.models.features.decoder import FeatureModel, feature_target
from osd.models.features.target import FeatureTarget, read_features
from osd.models.pair import Pair
from storage.sampling import Sampling

GAMMA = 8
"""Tokens of the longest chain."""
AT_ONE = Sampling(1.0)
"""The distributions themselves."""
CODE = re.compile(
    r"[{};]\s*$|^\s*(?:def|class|import|from|return|SELECT|for|while|#include)\b|^\s*\w+ = |\w\(.*\)|[=!]=|->"
)
"""Lines that are code."""
CALL = re.compile(r"tool_call|TOOL_CALL|python_tag")
"""Marks of tool calls."""
BEHIND = 16
"""Tokens that count as what follows a tool call."""
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class AnswerReading:
    """What a draft says of the n tokens of one answer that are drafted: all but the first."""

    text: tuple[int, ...]
    """Prompt and answer; the n tokens are its last."""
    topic: str
    right: Bools
    """(steps, n) whether the chain's token of this number is the answer's."""
    overlap: npt.NDArray[np.float32]
    """(n,) Σ min(p, q) of a chain's first token."""
    confidence: npt.NDArray[np.float32]
    """(n,) the draft's highest probability there."""
    likeliest: npt.NDArray[np.int64]
    """(n,) the token that has it."""
    looked_up: Bools
    """(n,) whether what followed the last two tokens where they stood before is the answer's token."""

    def __len__(self) -> int:
        return len(self.overlap)


@torch.no_grad()
def read_answer(pair: Pair, prompt: Sequence[int], answer: Sequence[int], topic: str) -> AnswerReading:
    """Let a pair's draft read one answer of two tokens or more."""
    text, count = [*prompt, *pair.target.start, *answer], len(answer)
    p = distributions(pair.target.decoder(1, len(text)), text, count, AT_ONE)
    said = torch.tensor(answer, device=p.device)
    if isinstance(pair.draft, FeatureModel):
        draft, shared = pair.draft.draft, feature_target(pair.target)
        tokens = torch.tensor([text], device=p.device)
        features = read_features(pair.target.module, tokens, draft.feature_layers(pair.target.module))[0]
        steps = feature_distributions(shared, draft, features, text, count, GAMMA)
    else:
        own = distributions(pair.draft.decoder(1, len(text)), text, count, AT_ONE, p.shape[1])
        steps = [own.to(p.device)] * GAMMA
    first = steps[0][1:]
    confidence, likeliest = first.max(-1)
    right = torch.stack([each.argmax(-1) == said for each in steps])[:, 1:]
    overlap = torch.minimum(p[1:], first).sum(-1)
    judged = right.cpu().numpy(), overlap.cpu().numpy(), confidence.cpu().numpy(), likeliest.cpu().numpy()
    return AnswerReading(tuple(text), topic, *judged, looked_up(text, count - 1))


def feature_distributions(
    target: FeatureTarget, draft: FeatureDraft, features: Tensor, text: Sequence[int], count: int, steps: int
) -> list[Tensor]:
    """Return the distributions (count, V) of each step of chains at the places of an answer; zeros before the text's
    beginning."""
    each = chain_logits(target, draft, features, text, count, steps)
    return [F.pad(logits.softmax(-1), (0, 0, count - len(logits), 0)) for logits in each]


def looked_up(text: Sequence[int], count: int) -> Bools:
    """Return whether prompt lookup would be right at the last ``count`` places of a text, (count,)."""
    known: dict[tuple[int, int], int] = {}
    found = np.zeros(len(text), bool)
    for place in range(2, len(text)):
        before = text[place - 2], text[place - 1]
        found[place] = known.get(before) == text[place]
        known[before] = text[place]
    return found[len(text) - count :]


def rounds_of(right: Bools, gamma: int) -> tuple[int, npt.NDArray[np.int64]]:
    """Return how many rounds greedy chains of ``gamma`` tokens would take for an answer, and (2, gamma) how often the
    chain's token of each number was judged, and right."""
    count, place, rounds, counts = right.shape[1], 0, 0, np.zeros((2, gamma), np.int64)
    while place < count:
        accepted = 0
        while accepted < min(gamma, count - place - 1):
            good = right[min(accepted, len(right) - 1), place + accepted]
            counts[:, accepted] += (1, int(good))
            if not good:
                break
            accepted += 1
        place, rounds = place + accepted + 1, rounds + 1
    return rounds, counts


def classes_of(pieces: Iterable[str]) -> list[str]:
    """Return the class of each token by its text: behind a tool call, white space, code, digits, name, punctuation,
    word. Code is told by its line."""
    pieces = list(pieces)
    lines, ends = "".join(pieces).split("\n"), 0
    code = [bool(CODE.search(line)) for line in lines]
    found, seen, fenced = list[str](), "", False
    for piece in pieces:
        line = seen.count("\n")
        fenced ^= "```" in piece
        called = CALL.search((seen + piece)[-32:])
        ends = BEHIND if called else max(0, ends - 1)
        found.append(_class(piece, code=code[line] or fenced, called=ends > 0))
        seen += piece
    return found


def _class(piece: str, *, code: bool, called: bool) -> str:
    word = piece.strip()
    if called:
        return "behind a tool call"
    if not word:
        return "white space"
    if code:
        return "code"
    if any(letter.isdigit() for letter in word):
        return "digits"
    if not any(letter.isalpha() for letter in word):
        return "punctuation"
    return "names" if word[0].isupper() else "words"


def pieces_of(tokenizer: Any, tokens: Sequence[int]) -> list[str]:
    """Return the text of each token by itself."""
    return [str(tokenizer.decode([token])) for token in tokens]
