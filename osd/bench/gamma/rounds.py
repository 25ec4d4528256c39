"""Recorded texts, with the draft's chain at every position: enough to replay any controller without a model.

A round that starts at output position t drafts a chain from the text before t. Whatever a controller decides, it
sees a beginning of that chain, so one chain of G tokens at each of the n positions holds every round that could
have been. :mod:`osd.bench.gamma.record` makes traces, :mod:`osd.bench.gamma.simulate` replays them.

Greedy: the match length at each position is exact, and so is a replay. Sampled: the text is one sample of the
target's, and the acceptance probabilities along a chain are exact given the text before it. What is approximated:
a replayed round goes on along the recorded text, not along the text which its own accepted tokens and its own
correction would have begun. Both are samples of the target, but how easy a text is to draft does not hang on
the coins of the rounds before, as it does in a real run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]

FORMAT = "1"
"""Version of the file's layout."""


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """One request: its output of n tokens, and at each position the chain of G tokens drafted from there."""

    data_set: str
    temperature: float
    prompt_len: int
    end: int
    """Output tokens at which the request would have been cut: n, or more where an end token came first."""
    text: Ints
    """(n,) the output, its end token included."""
    drafted: Ints
    """(n, G) the chain's tokens; [t, i] proposes output token t + i."""
    confidence: Floats
    """(n, G) the draft's probability of that token, temperature and cuts left out (Signal ``confidence``)."""
    peak: Floats
    """(n, G) the draft's largest probability there (Signal ``peak``)."""
    acceptance: Floats
    """(n, G) min(1, p ÷ q) of that token if all before it are accepted; greedy: 1 or 0, and 0 after the first 0."""
    head: Floats | None = None
    """(n, G) an acceptance head's estimate of ``acceptance`` (Signal ``acceptance``, a pass later); None without one."""

    @property
    def length(self) -> int:
        """n."""
        return len(self.text)

    @property
    def depth(self) -> int:
        """G."""
        return self.drafted.shape[1]

    def matches(self, seed: int = 0) -> Ints:
        """(n,) how many tokens of each chain are accepted. Greedy: exact, the seed plays no part. Sampled: one throw
        of a coin for each of the chain's tokens, the same for every controller that is replayed with this seed."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Recording:
    """What a file of traces holds."""

    target: str
    target_digest: str
    draft: str
    draft_digest: str
    depth: int
    """G."""
    new_tokens: int
    seed: int
    traces: tuple[Trace, ...]

    def of(self, data_set: str, temperature: float) -> tuple[Trace, ...]:
        """The traces of one data set at one temperature, in the order of its prompts."""
        raise NotImplementedError


def write_recording(path: Path, recording: Recording) -> None:
    """The whole file, by rename. Raises StoreWriteFailed."""
    raise NotImplementedError


def read_recording(path: Path) -> Recording:
    """Raises BadBenchFile for a file that is missing, damaged, or something else."""
    raise NotImplementedError


