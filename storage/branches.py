"""What the target says behind refused tokens: positions of texts that the draft alone would have gone on with.

The verify pass scores every drafted token, those behind the first refusal too, given the draft's own tokens before
them: samples of the student that cost the target nothing (Online Speculative Decoding, Eq. 4).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class Branches:
    """r branches of one request's text, with n drafted tokens in all.

    A branch is the text before a refused token, and from there the draft's own tokens, the refused one first. The
    target's distribution is kept after each of them, where the text itself went another way.
    """

    begins: npt.NDArray[np.int32]
    """(r,) index in the request's tokens of the position where the branch leaves them; ascending, at least 1."""
    lengths: npt.NDArray[np.int32]
    """(r,) the branch's tokens, at least 1."""
    tokens: npt.NDArray[np.int32]
    """(n,) drafted tokens, branch after branch."""
    topk_ids: npt.NDArray[np.int32]
    """(n, k) the target's likeliest tokens after each, likeliest first."""
    topk_logprobs: npt.NDArray[np.float16]
    """(n, k) their natural log-probabilities at temperature 1, before any warping."""
    outside: npt.NDArray[np.float32]
    """(n,) the target's probability mass outside those k."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def count(self) -> int:
        """Number of branches."""
        return len(self.begins)

    def branch_numbers(self) -> npt.NDArray[np.int64]:
        """Return the branch that each token belongs to: (n,)."""
        return np.repeat(np.arange(self.count), self.lengths)

    def within(self) -> npt.NDArray[np.int64]:
        """Return each token's index in its branch: (n,)."""
        ends = np.cumsum(self.lengths, dtype=np.int64)
        return np.arange(len(self)) - np.repeat(ends - self.lengths, self.lengths)

    def texts(self, tokens: npt.NDArray[np.int32]) -> Iterator[npt.NDArray[np.int32]]:
        """Yield each branch as a text: the request's ``tokens`` (t,) up to it, then its own."""
        ends = np.cumsum(self.lengths).tolist()
        for begin, length, end in zip(self.begins.tolist(), self.lengths.tolist(), ends, strict=True):
            yield np.concatenate([tokens[:begin], self.tokens[end - length : end]])

    def where(self, kept: npt.NDArray[np.bool_]) -> Branches | None:
        """Return the branches that ``kept`` (r,) selects; None where it selects none."""
        if not kept.any():
            return None
        there = kept[self.branch_numbers()]
        return Branches(
            self.begins[kept], self.lengths[kept], self.tokens[there], self.topk_ids[there],
            self.topk_logprobs[there], self.outside[there],
        )  # fmt: skip

    def cut(self, k: int) -> Branches:
        """Return the same with the ``k`` likeliest tokens; what is cut is added to the mass outside."""
        if self.topk_ids.shape[1] <= k:
            return self
        rest = np.exp(self.topk_logprobs[:, k:].astype(np.float32)).sum(axis=1)
        outside = (self.outside + rest).clip(0, 1)
        return replace(
            self, topk_ids=self.topk_ids[:, :k], topk_logprobs=self.topk_logprobs[:, :k], outside=outside
        )  # fmt: skip

    def misfit(self, text: int, k: int) -> str | None:
        """Return what does not fit together, of a request with ``text`` tokens and ``k`` kept at a position."""
        n = len(self.tokens)
        flat = self.outside.shape == (n,) and self.begins.shape == self.lengths.shape == (self.count,)
        wide = self.topk_ids.shape == self.topk_logprobs.shape == (n, k)
        if not (flat and wide and self.tokens.ndim == 1):
            return "the shapes of its branches do not fit"
        inside = self.count and self.begins.min() >= 1 and self.begins.max() < text
        return None if inside and self.lengths.min() >= 1 and self.lengths.sum() == n else "a branch begins nowhere"


def joined(some: Sequence[Branches]) -> Branches | None:
    """Return the branches of several sets of one request's, one after another; None where there are none."""
    if len(some) < 2:
        return some[0] if some else None
    names = Branches.__slots__
    return Branches(*(np.concatenate([getattr(each, name) for each in some]) for name in names))
