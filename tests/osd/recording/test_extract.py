"""What is kept of rounds, and what it becomes: many at once beside one position after another."""

from __future__ import annotations

import gc
import random
import weakref
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest
import torch

from osd.logits import RaggedLogits
from osd.recording.assemble import SampleAssembler
from osd.recording.extract import PendingBlock, RecordedRound, gather, launch
from osd.recording.queue import RoundBatch
from osd.recording.topk import Reducer, reduce_plain
from osd.sequence import Completion, RequestOutput
from osd.verification.result import VerifyResult
from storage.records import Outcome, Request, RequestSamples, Round, TokenKind

VOCABULARY, K = 40, 5
REDUCER = Reducer(K, compiled=False)


class Text:
    """A request under way: rounds add to it."""

    def __init__(self, chance: random.Random, number: int) -> None:
        prompt = tuple(chance.choices(range(VOCABULARY), k=chance.randint(1, 9)))
        self.request = Request(prompt, id=f"r{number}", learn=chance.random() < 0.8)
        self.tokens: list[int] = []

    def ended(self, reason: str) -> Completion:
        at = 100.0 + len(self.tokens)
        outcome = Outcome(self.request.id, "default", "public", "v1", "fixed", at, 1, 1, 1, 1, 0, 1, 1, 0.0, 0.0)
        rounds = (Round(1, 1, 1, 1, 0.0, 0.0, "v1", 1),)
        return Completion(self.request, "there", tuple(self.tokens), None, reason, rounds, (outcome,), 0.0)


def take_round(chance: random.Random, texts: list[Text]) -> RecordedRound:
    """A chain or a tree for each, some of it accepted, and perhaps cut by a limit."""
    size = chance.randint(0, 4)
    nodes = size + 1 if chance.random() < 0.5 else 2 * size + 3
    rows = [[*chance.choices(range(VOCABULARY), k=size)] for _ in texts]
    depths = [chance.randint(0, size) for _ in texts]
    accepted = [chance.randint(0, depth) for depth in depths]
    follows = chance.choices(range(VOCABULARY), k=len(texts))
    paths = None if nodes == size + 1 else [[0, *sorted(chance.sample(range(1, nodes), size))] for _ in texts]
    progress = []
    for text, drafted, many, last in zip(texts, rows, accepted, follows, strict=True):
        brought = [*drafted[:many], last][: chance.randint(1, many + 1)]
        text.tokens += brought
        length = len(text.request.prompt_tokens) + len(text.tokens)
        progress.append(RequestOutput(text.request, tuple(brought), length))
    chances = torch.rand(len(texts), nodes - 1) if chance.random() < 0.5 else None
    counts = [depth + 1 if paths is None else nodes for depth in depths]
    scored = RaggedLogits.packed(3 * torch.randn(sum(counts), VOCABULARY), counts)
    verdict = VerifyResult(accepted, rows, follows, depths, chances, paths=paths)
    return RecordedRound(progress, verdict, scored)


class Position(NamedTuple):
    """One that is to be kept."""

    owner: str
    at: int
    kind: TokenKind
    drafted: int
    logits: torch.Tensor
    chance: float


def plain_positions(taken: RecordedRound, mode: str) -> Iterator[Position]:
    """A round's, one after another."""
    verdict = taken.verdict
    for row, step in enumerate(taken.progress):
        request, length, count = step.request, step.length, len(step.tokens)
        if not request.learn:
            continue
        accepted, depth, drafted = verdict.accepted[row], verdict.depths[row], verdict.drafted[row]
        emitted = [*drafted[:accepted], verdict.follows[row]][:count]
        for i, token in enumerate(emitted):
            rejected = i == accepted < depth
            kind = TokenKind.ACCEPTED if i < accepted else TokenKind.REJECTED if rejected else TokenKind.UNDRAFTED
            place = i if verdict.paths is None else verdict.paths[row][i]
            known = verdict.chances is not None and place < verdict.chances.shape[1]
            chance = float(verdict.chances[row, place]) if known and verdict.chances is not None else 0.0
            if verdict.chances is None:
                chance = float(kind is TokenKind.ACCEPTED)
            if mode == "verified" or kind is TokenKind.REJECTED:
                at, judged = length - count + i, taken.scored.at(row, [place])[0]
                yield Position(request.id, at, kind, drafted[i] if rejected else token, judged, chance)


def require_same(samples: RequestSamples, expected: list[Position], ended: Completion) -> None:
    assert samples.positions.tolist() == [position.at for position in expected]
    assert samples.kinds.tolist() == [position.kind for position in expected]
    assert samples.drafted.tolist() == [position.drafted for position in expected]
    plain = reduce_plain(torch.stack([position.logits for position in expected]), K)
    assert np.array_equal(samples.topk_ids, plain.ids)
    assert np.array_equal(samples.topk_logprobs, plain.logprobs.astype(np.float16))
    assert np.array_equal(samples.outside, plain.outside)
    assert samples.acceptance is not None
    for chance, position in zip(samples.acceptance.tolist(), expected, strict=True):
        undrafted = position.kind is TokenKind.UNDRAFTED
        assert np.isnan(chance) if undrafted else chance == pytest.approx(position.chance, abs=1e-3)
    assert samples.tokens.tolist() == [*ended.request.prompt_tokens, *ended.tokens]
    assert samples.created_at == ended.outcomes[0].finished_at and samples.route == "there"
    assert samples.prompt_len == len(ended.request.prompt_tokens) and samples.draft_version == "v1"


def batch_of(launched: list[PendingBlock]) -> RoundBatch:
    batch = RoundBatch()
    for each in launched:
        batch.add_launched(each)
    return batch


@pytest.mark.parametrize("mode", ["verified", "rejected"])
@pytest.mark.parametrize("device", ["cpu", "other"])
@pytest.mark.parametrize("seed", range(20))
def test_many_rounds_at_once_are_one_position_after_another(mode: str, seed: int, device: str) -> None:
    """Rounds of chains and trees come a few at a time; requests end, or are cancelled, at any moment; what ended is
    taken now and then, and nothing stays behind."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    texts = [Text(chance, i) for i in range(4)]
    assembler, waiting, ended, number = SampleAssembler(), [], [], 4
    expected: dict[str, list[Position]] = defaultdict(list)
    found: dict[str, RequestSamples] = {}
    completions: dict[str, Completion] = {}
    for step in range(60):
        waiting.append(take_round(chance, chance.sample(texts, chance.randint(1, len(texts)))))
        for position in plain_positions(waiting[-1], mode):
            expected[position.owner].append(position)
        if step == 59 or chance.random() < 0.3:
            counted = sum(len(list(plain_positions(taken, mode))) for taken in waiting)
            launched = [each for taken in waiting if (each := launch(taken, mode, K))]
            assert RoundBatch(waiting).kept(mode) == batch_of(launched).kept(mode) == counted
            if device == "cpu":
                assembler.add(gather(waiting, mode, REDUCER))
            for one in launched if device == "other" else ():
                assembler.add(one.block())
            waiting = []
            for i in range(len(texts)):
                if step == 59 or chance.random() < 0.2:
                    ended.append(texts[i].ended(chance.choice(["stop", "length", "cancelled"])))
                    texts[i], number = Text(chance, number), number + 1
            if step == 59 or chance.random() < 0.5:
                found |= {samples.request_id: samples for samples in assembler.samples_of(ended)}
                completions |= {each.request.id: each for each in ended}
                ended = []
    assert len(assembler) == 0
    kept = {name for name, each in completions.items() if each.finish_reason != "cancelled" and expected[name]}
    assert kept and set(found) == kept
    for name, samples in found.items():
        require_same(samples, expected[name], completions[name])


def test_of_nothing_nothing_is_kept() -> None:
    assert gather([], "verified", REDUCER) is None
    assembler = SampleAssembler()
    assembler.add(None)
    assert len(assembler) == 0 and assembler.samples_of([]) == []


def test_of_logits_on_a_gpu_the_likeliest_stay_alone() -> None:
    """What was launched keeps no whole row of a vocabulary."""
    chance = random.Random(3)
    taken = take_round(chance, [Text(chance, number) for number in range(6)])
    lines, held = weakref.ref(taken.scored.lines), launch(taken, "verified", K)
    assert held is not None
    positions = int(held.spans.lengths.sum())
    del taken
    gc.collect()
    assert lines() is None
    assert all(each.untyped_storage().nbytes() <= positions * K * 8 for each in held.kept)
