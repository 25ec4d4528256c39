"""Positions behind refused tokens in training: which are taken, what they weigh, and how a batch holds them.

A branch is the text up to a refused token and then the draft's own tokens (:mod:`storage.branches`). One request has
many, and all share its text: a row holds the text once and every branch behind it, each seeing the text up to where it
leaves and itself, at the positions that it would have there. For a model that computes that otherwise than the texts by
themselves, each branch becomes a request of its own (:func:`unfold`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from storage.branches import Branches
from storage.records import RequestSamples
from storage.settings import LearnSettings

BEHIND = 3
"""In place of a TokenKind, in memory alone: a position of an unfolded branch."""


def without_branches(samples: RequestSamples) -> RequestSamples:
    """Return the request's text alone."""
    return samples if samples.branches is None else replace(samples, branches=None)


def count(samples: RequestSamples) -> int:
    """Return the number of positions to learn from, branches included."""
    return len(samples) + len(samples.branches or ())


def text_length(samples: RequestSamples) -> int:
    """Return the number of the text's tokens that predict its last position, and from which its last branch leaves."""
    last = int(samples.positions[-1]) if len(samples) else 0
    return last if samples.branches is None else max(last, int(samples.branches.begins.max()))


def context_length(samples: RequestSamples) -> int:
    """Return the number of tokens that are fed: the text's and the branches'."""
    return text_length(samples) + len(samples.branches or ())


def unfold(samples: RequestSamples) -> list[RequestSamples]:
    """Return the text, where it has positions, and each branch as a request of its own."""
    branches = samples.branches
    if branches is None:
        return [samples]
    texts = enumerate(branches.texts(samples.tokens))
    own = [_as_request(samples, branches, text, branches.branch_numbers() == number) for number, text in texts]
    return [without_branches(samples)] * bool(len(samples)) + own


def _as_request(
    samples: RequestSamples, branches: Branches, text: npt.NDArray[np.int32], mine: npt.NDArray[np.bool_]
) -> RequestSamples:
    ids, n = branches.topk_ids[mine], int(mine.sum())
    tokens = np.append(text, ids[-1, :1]).astype(np.int32)  # what follows the last one: the target's likeliest
    positions = np.arange(len(tokens) - n, len(tokens), dtype=np.int32)
    return replace(
        samples, tokens=tokens, positions=positions, kinds=np.full(n, BEHIND, np.uint8), drafted=tokens[positions],
        topk_ids=ids, topk_logprobs=branches.topk_logprobs[mine], outside=branches.outside[mine], acceptance=None,
        branches=None, hidden_states=None,
    )  # fmt: skip


def visible(samples: RequestSamples, size: int) -> npt.NDArray[np.bool_]:
    """Return which tokens of a row each of its tokens sees: (size, size), of which padding sees itself alone."""
    text, fed = text_length(samples), context_length(samples)
    seen = np.eye(size, dtype=bool)
    seen[:text, :text] = np.tri(text, dtype=bool)
    if samples.branches is not None:
        of, begins = samples.branches.branch_numbers(), samples.branches.begins
        seen[text:fed, :text] = np.arange(text) < begins[of][:, None]
        seen[text:fed, text:fed] = np.tri(len(of), dtype=bool) & (of[:, None] == of)
    return seen


def places(samples: RequestSamples, size: int) -> npt.NDArray[np.int64]:
    """Return the position of each of a row's tokens in its own text: (size,), 0 for padding."""
    found = np.zeros(size, np.int64)
    text, branches = text_length(samples), samples.branches
    found[:text] = np.arange(text)
    if branches is not None:
        found[text : text + len(branches)] = branches.begins[branches.branch_numbers()] + branches.within()
    return found


@dataclass(frozen=True, slots=True)
class SampleWeights:
    """What a position weighs in the loss; over all that are trained on their mean is 1, but for requests that weigh
    less (an earlier target's)."""

    text: float = 1.0
    """A position of a text: the teacher's."""
    behind: float = 1.0
    """A position of a branch: the student's."""

    @classmethod
    def of(cls, samples: Sequence[RequestSamples], learn: LearnSettings) -> SampleWeights:
        """Return weights by which texts have the share β = ``learn.mix`` of the loss in mixed sampling, where there are
        positions of both kinds."""
        behind = sum(len(s.branches or ()) + int((s.kinds == BEHIND).sum()) for s in samples)
        whole = sum(map(count, samples))
        if learn.sampling != "mixed" or not 0 < behind < whole:
            return cls()
        return cls(learn.mix * whole / (whole - behind), (1 - learn.mix) * whole / behind)

    def at(self, samples: RequestSamples) -> npt.NDArray[np.float32]:
        """Return the weights of a request's positions, its branches' last: (m + n,)."""
        own = np.where(samples.kinds == BEHIND, self.behind, self.text)
        whole = np.append(own, np.full(len(samples.branches or ()), self.behind))
        return (whole * samples.weight).astype(np.float32)
