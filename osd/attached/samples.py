"""The answers that an engine hands over, as they come over the wire, and the samples and outcomes made of them.

An engine says how many drafted tokens each step accepted, and the target's likeliest tokens at every position of its
answer; it does not say which token it refused. Where drafts are greedy that is the draft's likeliest token after the
text so far, so one pass of the very version that drafted recovers it. Where drafts are drawn at random, only what is
known is kept: the target's distributions, and the counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, Field, ValidationError, model_validator

from osd.recording.topk import TopKLogprobs
from storage.records import Outcome, RequestSamples, TokenKind

MOST_TOKENS = 1 << 20
Ints = npt.NDArray[np.int32]
Token = Annotated[int, Field(ge=0, lt=1 << 31)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=r"^[^\x00]*$")]
CONTROLLER = "vllm"
Recover = Callable[[str, Sequence[int], Sequence[int]], Sequence[int] | None]
"""Recovers refused tokens by the draft that drafted (:class:`osd.attached.passes.DraftPass`)."""
Score = Callable[[Sequence[int], int], TopKLogprobs]
"""Reads a text by the target: its distributions from a position on (:class:`osd.attached.passes.Scorer`)."""


class AnswerChoice(BaseModel):
    """One output of a request."""

    tokens: list[Token] = Field(min_length=1, max_length=MOST_TOKENS)
    top_ids: list[list[Token]] = []
    """(n, k) the likeliest tokens at each position, in any order; empty where the client asked for its own."""
    top_logprobs: list[list[Annotated[float, Field(le=1)]]] = []
    """(n, k) their log-probabilities, before any warping."""
    finish_reason: str | None = None

    @model_validator(mode="after")
    def _fits(self) -> AnswerChoice:
        if self.top_ids and not len(self.top_ids) == len(self.top_logprobs) == len(self.tokens):
            raise ValueError("there are not as many positions as tokens")
        if any(len(ids) != len(values) or not ids for ids, values in zip(self.top_ids, self.top_logprobs, strict=True)):
            raise ValueError("there are not as many log-probabilities as token ids")
        return self


class HarvestedAnswer(BaseModel):
    """One request that was answered."""

    id: Name = Field(min_length=8, max_length=64)
    prompt: list[Token] = Field(min_length=1, max_length=MOST_TOKENS)
    choices: list[AnswerChoice] = Field(min_length=1)
    accepted: list[int] | None = None
    """Accepted drafted tokens of each step after the first token; None where the engine does not say."""
    drafted: list[int] | None = None
    """Drafted tokens of each step."""
    version: str | None = None
    """Digest of the weights of the draft that served when the request came."""
    version_after: str | None = None
    """The same when it was answered."""
    target: Name | None = None
    """State of the target's weights before the request came; None where the engine does not say."""
    target_after: Name | None = None
    """The same once it was answered. Where it is another, nobody knows which tokens are whose."""
    temperature: Number | None = None
    key: str | None = None
    """SHA-256 of the API key that the client gave."""
    tenant: Name | None = None
    route: Name | None = None
    adapter: Name | None = None
    """The LoRA adapter that answered; None where the target itself did."""
    began: Number
    ended: Number

    @model_validator(mode="after")
    def _fits(self) -> HarvestedAnswer:
        if (self.accepted is None) != (self.drafted is None) or len(self.accepted or ()) != len(self.drafted or ()):
            raise ValueError("there are not as many accepted counts as drafted ones")
        if any(not 0 <= a <= d for a, d in zip(self.accepted or (), self.drafted or (), strict=True)):
            raise ValueError("a step accepted more than was drafted")
        return self

    def of_one_target(self, stamps: bool) -> bool:
        """Return whether the target's weights stayed while it was answered, by an engine that ``stamps`` answers with
        their state: else its counts are kept, and it teaches nothing."""
        return self.target == self.target_after and (self.target is not None or not stamps)


class HarvestBatch(BaseModel):
    """What an engine sends at once."""

    batch: str = Field(min_length=8, max_length=64)
    """Its id: a batch is taken once, however often it is sent."""
    done: list[str] = []
    """Ids of batches that will not be sent again."""
    engine: str = Field(min_length=1, max_length=255)
    """The engine's name, as `osd engines list` shows it."""
    answers: list[HarvestedAnswer]
    bad: list[str] = []
    """Why answers were left out: each by itself."""

    @model_validator(mode="before")
    @classmethod
    def _leave_out_bad(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not isinstance(given.get("answers"), list):
            return given
        answers, bad = [], []
        for place, one in enumerate(given["answers"]):
            try:
                answers.append(HarvestedAnswer.model_validate(one))
            except ValidationError as error:
                problem = error.errors()[0]
                bad.append(f"answers.{'.'.join(map(str, (place, *problem['loc'])))}: {problem['msg']}")
        return {**given, "answers": answers, "bad": bad}


@dataclass(frozen=True, slots=True)
class HarvestedFrom:
    """What is known of where an answer came from."""

    route: str
    tenant: str
    version: str
    """The draft version that served its end."""
    whole: bool
    """Whether that version served all of it."""
    greedy_drafts: bool
    target: str
    """The target's digest."""
    placeholders: frozenset[int] = frozenset()
    """Ids that stand for images and the like. Nothing is learned where one is the token to be predicted."""

    def is_multimodal(self, tokens: Sequence[int]) -> bool:
        """Return whether a text holds images, videos or sound, which are not handed over."""
        return not self.placeholders.isdisjoint(tokens)


class SpeculationSteps(NamedTuple):
    """How the n tokens of an answer came about."""

    kinds: npt.NDArray[np.uint8]
    """(n,) TokenKind."""
    refused: list[int]
    """Indices of the tokens that stand where a drafted one was refused."""
    aligned: bool
    """Whether the steps account for every token."""


def steps_of(count: int, accepted: Sequence[int], drafted: Sequence[int]) -> SpeculationSteps:
    """Lay steps over ``count`` tokens: the first is the prefill's, each step brings what it accepted and one more.

    The last step may have been cut by the end of the answer. Steps without a draft are not counted by vLLM, so where
    there were some, nobody can say which tokens are whose: the tokens are then all the target's own.
    """
    kinds = np.full(count, TokenKind.UNDRAFTED, np.uint8)
    refused, place = [], 1
    for kept, length in zip(accepted, drafted, strict=True):
        kinds[place : place + kept] = TokenKind.ACCEPTED
        place += kept
        if kept < length and place < count:
            kinds[place] = TokenKind.REJECTED
            refused.append(place)
        place += 1
    if place < count:
        return SpeculationSteps(np.full(count, TokenKind.UNDRAFTED, np.uint8), [], False)
    return SpeculationSteps(kinds, refused, True)


def samples_of(
    answer: HarvestedAnswer, number: int, origin: HarvestedFrom, k: int, recover: Recover, score: Score | None = None
) -> RequestSamples | None:
    """Make the samples of an answer's choice ``number``, at its positions of text. Where the engine gave no
    distributions for it ``score`` does, if it can read all of the text; without them, or where no position is one of
    text: None."""
    choice = answer.choices[number]
    begin, count, text = len(answer.prompt), len(choice.tokens), [*answer.prompt, *choice.tokens]
    if choice.top_ids:
        ids, logprobs, outside = tops(choice, k)
    elif score is not None and not origin.is_multimodal(text):
        ids, logprobs, outside = score(text, begin)
    else:
        return None
    tokens = np.array(text, np.int32)
    kinds, drafted = _drafted(answer, choice, origin, tokens, recover)
    greedy = answer.temperature == 0
    known = np.where((kinds == TokenKind.UNDRAFTED) | (not greedy), np.nan, kinds == TokenKind.ACCEPTED)
    of_text = np.isin(tokens[begin:], list(origin.placeholders), invert=True)
    if not of_text.any():
        return None
    return RequestSamples(
        request_id=request_id(answer, number), route=origin.route, tenant=origin.tenant, draft_version=origin.version,
        created_at=answer.ended, prompt_len=begin, tokens=tokens,
        positions=np.arange(begin, begin + count, dtype=np.int32)[of_text], kinds=kinds[of_text],
        drafted=drafted[of_text], topk_ids=ids[of_text], topk_logprobs=logprobs[of_text].astype(np.float16),
        outside=outside[of_text], acceptance=known[of_text].astype(np.float16),
        target=origin.target,
    )  # fmt: skip


def no_distributions(tokens: Sequence[int], begin: int) -> TopKLogprobs:
    """Take the place of a target that reads, where texts are enough: none of its tokens, all mass outside them."""
    m = len(tokens) - begin
    return TopKLogprobs(np.empty((m, 0), np.int32), np.empty((m, 0), np.float32), np.ones(m, np.float32))


def request_id(answer: HarvestedAnswer, number: int) -> str:
    """Return the id of an answer's choice in the store."""
    return answer.id if number == 0 else f"{answer.id}-{number}"


def _drafted(
    answer: HarvestedAnswer, choice: AnswerChoice, origin: HarvestedFrom, tokens: Ints, recover: Recover
) -> tuple[npt.NDArray[np.uint8], Ints]:
    """Return the kinds (n,) and drafted tokens (n,) of an answer; refused tokens that cannot be known make a position
    the target's own."""
    begin, count = len(answer.prompt), len(choice.tokens)
    kinds, refused, _ = steps_of(count, answer.accepted or (), answer.drafted or ())
    drafted = tokens[begin:].copy()
    if not refused:
        return kinds, drafted
    shown = origin.is_multimodal(tokens.tolist())  # images move what follows them
    can = origin.whole and origin.greedy_drafts and not shown
    nothing: list[int | None] = [None] * len(refused)
    named = recover(origin.version, tokens.tolist(), [begin + place for place in refused]) if can else None
    for place, token in zip(refused, named or nothing, strict=True):
        if token is None or token == choice.tokens[place]:  # what was emitted cannot have been refused
            kinds[place] = TokenKind.UNDRAFTED
        else:
            drafted[place] = token
    return kinds, drafted


def tops(choice: AnswerChoice, k: int) -> TopKLogprobs:
    """Return the engine's likeliest tokens at n positions, likeliest first: as many as every position has, at most
    ``k``. vLLM adds the emitted token where it is none of the likeliest: it falls off the end here."""
    width = min(k, min(map(len, choice.top_ids)))
    ids, values = np.empty((len(choice.tokens), width), np.int32), np.empty((len(choice.tokens), width), np.float32)
    for i, (given, logprobs) in enumerate(zip(choice.top_ids, choice.top_logprobs, strict=True)):
        order = np.argsort(-np.array(logprobs), kind="stable")[:width]
        ids[i], values[i] = np.array(given)[order], np.array(logprobs)[order]
    return TopKLogprobs(ids, values, np.clip(1 - np.exp(values).sum(1), 0, None).astype(np.float32))


def outcome_of(answer: HarvestedAnswer, origin: HarvestedFrom) -> Outcome:
    """Make the totals of an answer. The engine's times are the batch's and not ours to divide: none are given."""
    accepted, drafted = answer.accepted or [], answer.drafted or []
    emitted = sum(len(choice.tokens) for choice in answer.choices)
    undrafted = max(0, emitted - sum(accepted) - len(accepted))
    rejections = sum(kept < length for kept, length in zip(accepted, drafted, strict=True))
    return Outcome(
        request_id=answer.id, route=origin.route, tenant=origin.tenant, draft_version=origin.version,
        controller=CONTROLLER, finished_at=answer.ended, requests=1, rounds=len(accepted) + undrafted,
        drafted=sum(drafted), accepted=sum(accepted), rejections=rejections, emitted=emitted,
        prompt_tokens=len(answer.prompt), draft_ms=0.0, verify_ms=0.0, positions=positions_of(accepted, drafted),
    )  # fmt: skip


def positions_of(accepted: Sequence[int], drafted: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
    """Count (drafted, accepted, rejected) steps by position in the draft."""
    columns: list[tuple[int, int, int]] = []
    for kept, length in zip(accepted, drafted, strict=True):
        steps = [(1, int(place < kept), int(place == kept)) for place in range(length)]
        columns = [(a + d, b + e, c + f) for (a, b, c), (d, e, f) in zip_longest(columns, steps, fillvalue=(0, 0, 0))]
    return tuple(columns)
