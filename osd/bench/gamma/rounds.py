"""Recorded texts, with the draft's chain at every position: enough to replay any controller without a model.

A round that starts at output position t drafts a chain from the text before t. Whatever a controller decides, it
sees a beginning of that chain, so one chain of G tokens at each of the n positions holds every round that could
have been. :mod:`osd.bench.gamma.record` makes traces, :mod:`osd.bench.gamma.simulate` replays them.

Greedy: the match length at each position is exact, and so is a replay. Sampled: the text is one sample of the
target's, and the acceptance probabilities along a chain are exact given the text before it. What is approximated:
a replayed round goes on along the recorded text, not along the text which its own accepted tokens and its own
correction would have begun. Both are samples of the target, but in a real run how a text goes on, and so how easy
the next round is, hangs on which of its drafted tokens were accepted; here it does not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class RecordedText:
    """One request: its output of n tokens, and at each position the chain of G tokens drafted from there."""

    data_set: str
    temperature: float
    end: int
    """Output tokens at which the request would have been cut: n, or more where an end token came first."""
    prompt: Ints
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
    """(n, G) what an acceptance head says at each of the chain's passes, of the token before (Signal ``acceptance``);
    its first column means nothing. None without a head."""

    @property
    def length(self) -> int:
        """n."""
        return len(self.text)

    @property
    def depth(self) -> int:
        """G."""
        return int(self.drafted.shape[1])

    @property
    def greedy(self) -> bool:
        """Whether it was decoded at temperature 0."""
        return self.temperature == 0

    def matches(self, seed: int = 0) -> Ints:
        """(n,) how many tokens of each chain are accepted.

        Greedy: exact, the seed plays no part. Sampled: a coin thrown for each token of each chain, which is the same
        for every controller that is replayed with this seed.
        """
        stream = np.random.default_rng((seed, 1))  # not the one that the chains were drawn from
        coins = 0.5 if self.greedy else stream.random(self.acceptance.shape)
        kept = coins < self.acceptance
        return np.asarray(kept.cumprod(axis=1).sum(axis=1), np.int32)


@dataclass(frozen=True, slots=True)
class Recording:
    """What a file of traces holds (:mod:`osd.bench.gamma.rounds_file`)."""

    target: str
    """Folder or hub name."""
    target_digest: str
    """Digest of its weights."""
    draft: str
    draft_digest: str
    depth: int
    """G."""
    new_tokens: int
    """Tokens of an output at most."""
    seed: int
    traces: tuple[RecordedText, ...] = ()

    def of(self, data_set: str, temperature: float) -> tuple[RecordedText, ...]:
        """The traces of one data set at one temperature, in the order of its prompts."""
        return tuple(t for t in self.traces if t.data_set == data_set and t.temperature == temperature)

    @property
    def sets(self) -> list[tuple[str, float]]:
        """The data sets and temperatures it holds, in order."""
        return list(dict.fromkeys((trace.data_set, trace.temperature) for trace in self.traces))
