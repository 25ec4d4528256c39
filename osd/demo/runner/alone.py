"""The target without a draft: is the text the same, and how long does it take?

Twice: by transformers' own ``generate``, and by osd's own loop with a gamma of 0. The second tells what drafting itself
wins, the first what somebody wins who has been using transformers. Both decode as many at a time as were in flight when
osd served the same requests: more at a time take less each, and a stream that waits for its trainer has few.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from osd.demo.runner.feed import Free, RequestFeed, Spent
from osd.engine.engine import Engine
from osd.models.pair import Pair
from osd.sequence import Completion
from storage.errors import BadRequest
from storage.records import Request, ratio
from storage.settings import Settings


def _never(error: BadRequest) -> None:
    """They were served before."""
    raise error


@dataclass(frozen=True, slots=True)
class Check:
    """One request decoded again by the target alone."""

    request_id: str
    same: bool
    """Whether every token is the same."""
    tokens: int
    alone_seconds: float
    """What ``generate`` took, its share where several were decoded together."""
    osd_seconds: float
    """What osd took for the same tokens."""
    plain_seconds: float | None = None
    """What osd's own loop took without drafting, its share of all that it decoded with it."""


class TargetAlone:
    """Decodes requests again, greedily, in the same dtype, as many at a time as osd served together."""

    def __init__(self, pair: Pair, settings: Settings) -> None:
        self._pair, self._most = pair, settings.serve.max_batch
        plain = settings.changed(gamma={"rule": "fixed", "initial": 0}, drafters={"kind": "causal"})
        self._plain = Engine(pair, plain)
        self._held: list[tuple[Completion, Spent]] = []
        self._checked: list[tuple[Request, Spent]] = []
        self.checks: list[Check] = []

    def hold(self, completion: Completion, spent: Spent) -> None:
        """Take a finished greedy request, and what osd needed for it; decode when enough are held."""
        self._held.append((completion, spent))
        self._checked.append((replace(completion.request, route=None), spent))
        if len(self._held) >= self._together([spent for _, spent in self._held]):
            self._check()

    def finish(self) -> None:
        """Decode what is still held, and by osd's own loop all that was checked since the last time."""
        if self._held:
            self._check()
        checked, self._checked = self._checked, []
        feed = RequestFeed(self._plain, Free(), "(none)", self._together([spent for _, spent in checked]))
        served = feed.serve((request for request, _ in checked), refused=_never)
        seconds = {completion.request.id: spent.seconds for finished in served for completion, spent in finished}
        for index in range(len(self.checks) - len(checked), len(self.checks)):
            check = self.checks[index]
            self.checks[index] = replace(check, plain_seconds=seconds[check.request_id])

    def _together(self, spent: Sequence[Spent]) -> int:
        """As many at a time as these had company."""
        return min(self._most, max(1, round(statistics.fmean(each.company for each in spent)))) if spent else 1

    def _check(self) -> None:
        held, self._held = self._held, []
        texts, seconds = self._generate([completion for completion, _ in held])
        for (completion, spent), text in zip(held, texts, strict=True):
            # Padding changes rounding; what differs in company must differ alone too before it counts.
            same = text == completion.tokens or (len(held) > 1 and self._differs_not_alone(completion))
            share = seconds * len(completion.tokens) / sum(len(c.tokens) for c, _ in held)
            self.checks.append(Check(completion.request.id, same, len(completion.tokens), share, spent.seconds))

    @property
    def failed(self) -> int:
        """Checked requests whose text was not the target's."""
        return sum(not check.same for check in self.checks)

    @property
    def tokens_per_second(self) -> float | None:
        """What the target does alone."""
        return ratio(sum(c.tokens for c in self.checks), sum(c.alone_seconds for c in self.checks))

    @property
    def speedup(self) -> float | None:
        """Time of the target alone ÷ time of osd, over the same requests."""
        return ratio(sum(c.alone_seconds for c in self.checks), sum(c.osd_seconds for c in self.checks))

    @property
    def speedup_by_drafting(self) -> float | None:
        """Time of osd's own loop without drafting ÷ time of osd, over the same requests."""
        timed = [check for check in self.checks if check.plain_seconds is not None]
        return ratio(sum(c.plain_seconds or 0.0 for c in timed), sum(c.osd_seconds for c in timed))

    def _differs_not_alone(self, completion: Completion) -> bool:
        return self._generate([completion])[0][0] == completion.tokens

    @torch.inference_mode()
    def _generate(self, completions: Sequence[Completion]) -> tuple[list[tuple[int, ...]], float]:
        """The target's texts and the seconds that they took together."""
        prompts = [completion.request.prompt_tokens for completion in completions]
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        module: Any = self._pair.target.module
        before = len(self._pair.target.start) or longest  # what generate puts before an answer
        room = max(completion.request.max_new_tokens for completion in completions)
        begun = time.perf_counter()
        out = module.generate(
            ids.to(self._pair.device), attention_mask=mask.to(self._pair.device), max_new_tokens=room, do_sample=False,
            num_beams=1, eos_token_id=sorted(self._pair.eos_ids) or None, pad_token_id=0, use_cache=True,
        )[:, before:].tolist()  # fmt: skip
        seconds = time.perf_counter() - begun
        return [self._cut(c, text) for c, text in zip(completions, out, strict=True)], seconds

    def _cut(self, completion: Completion, text: list[int]) -> tuple[int, ...]:
        """The text up to its own end: padding after it and another row's room do not belong to it."""
        text = text[: completion.request.max_new_tokens]
        ends = [i for i, token in enumerate(text) if token in self._pair.eos_ids]
        return tuple(text[: ends[0] + 1] if ends else text)
