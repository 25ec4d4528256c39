"""A draft that reads a finished text says what the engine found out by drafting."""

from __future__ import annotations

import torch

from osd.engine import Engine
from osd.models import Pair
from osd.online.alone import TargetAlone
from osd.online.scoring import Reader
from osd.row import Completion
from storage.records import Request
from storage.settings import ServeSettings
from tests.osd.models import model_of, prompts, random_module, random_pair

GAMMA = 3


def serve(pair: Pair, batch: int = 3, count: int = 8, room: int = 40) -> list[Completion]:
    engine = Engine(pair, ServeSettings(max_batch=batch, gamma="fixed", gamma_initial=GAMMA, max_length=128))
    return list(engine.run(Request(prompt, room) for prompt in prompts(count, seed=5)))


def rounds(hits: list[bool], room: int) -> list[tuple[int, int]]:
    """Drafted and accepted in each round of a draft that agrees at these positions, at a fixed gamma."""
    found, at = [], 0
    while at < len(hits):
        drafted = min(GAMMA, room - at - 1)
        ahead = hits[at : at + drafted]
        accepted = [*ahead, False].index(False)
        found.append((drafted, accepted))
        at += accepted + 1
    return found


def test_reading_the_text_tells_every_round_that_the_engine_had() -> None:
    pair = random_pair(noise=0.3)
    reader = Reader(pair.draft, 128)
    texts = serve(pair)
    for completion in texts:
        told = rounds(reader.hits(completion), len(completion.tokens))
        assert told == [(r.drafted, r.accepted) for r in completion.rounds]
    assert len({r.accepted for completion in texts for r in completion.rounds}) == GAMMA + 1  # it says something


def test_reading_agrees_with_a_plain_forward_pass() -> None:
    pair = random_pair(noise=0.3)
    reader = Reader(pair.draft, 128)
    for completion in serve(pair, count=3):
        tokens = [*completion.request.prompt_tokens, *completion.tokens]
        with torch.inference_mode():
            said = pair.draft.module(input_ids=torch.tensor([tokens])).logits[0].argmax(-1).tolist()
        first = len(completion.request.prompt_tokens)
        assert reader.hits(completion) == [said[i - 1] == tokens[i] for i in range(first, len(tokens))]


def test_the_target_alone_finds_the_same_texts_alone_and_in_company() -> None:
    for together in (1, 3):
        pair = random_pair(eos=1)
        alone = TargetAlone(pair, ServeSettings(max_batch=together, max_length=128))
        texts = serve(pair)
        for completion in texts:
            alone.hold(completion, 0.1)
        alone.finish()
        assert [check.request_id for check in alone.checks] == [completion.request.id for completion in texts]
        assert alone.failed == 0
        assert alone.speedup and alone.speedup_by_drafting
        assert all(check.plain_seconds for check in alone.checks)


def test_a_text_of_another_target_is_noticed() -> None:
    pair = random_pair()
    other = Pair(model_of(random_module("llama", seed=9)), pair.draft, None, pair.eos_ids)
    for together in (1, 3):
        alone = TargetAlone(other, ServeSettings(max_batch=together, max_length=128))
        for completion in serve(pair, count=3):
            alone.hold(completion, 0.1)
        assert alone.failed == 3
