"""What a request's text said before, and that goodput is told of it before a token is drawn."""

from __future__ import annotations

import random

import pytest
import torch

from osd.drafters.signals import PassInfo, Signals
from osd.gamma.goodput.contexts import Peak, before_of
from osd.gamma.goodput.repeats import REACH, BatchRepeats, RepeatedNgrams, signal_of
from osd.sequence import SequenceState
from osd.verification.compiled_sampling import ReadOff
from router.base import Decision
from storage.records import Request
from storage.sampling import Sampling


def said_plainly(text: list[int], before: int, last: int, token: int) -> bool:
    return any(text[i : i + 3] == [before, last, token] for i in range(len(text) - 2))


def test_it_knows_what_followed_the_same_two_tokens() -> None:
    chance, repeats, text = random.Random(5), RepeatedNgrams(), [3, 4]
    for _ in range(40):
        repeats.learn(text)
        for _ in range(20):
            three = [chance.randrange(5) for _ in range(3)]
            assert repeats.said(*three) == said_plainly(text, *three)
        text += [chance.randrange(5) for _ in range(chance.randrange(4))]


def test_of_a_long_prompt_the_end_is_looked_at() -> None:
    repeats = RepeatedNgrams()
    repeats.learn([7, 8, 9, *range(100, 100 + REACH)])
    assert not repeats.said(7, 8, 9)
    assert repeats.said(100, 101, 102)


def test_large_vocabularies_do_not_mix_tokens_up() -> None:
    repeats, largest = RepeatedNgrams(), (1 << 24) - 1
    repeats.learn([0, 1, largest])
    assert repeats.said(0, 1, largest)
    assert not repeats.said(0, 0, largest)
    assert not repeats.said(1, 1, largest)
    assert not repeats.said(-1, 1, largest)


@pytest.mark.parametrize("peak", [0.0, 0.4, 1.0])
def test_the_whole_part_of_a_signal_is_the_echo(peak: float) -> None:
    for said in (False, True):
        value, *_ = signal_of(peak, said)
        assert int(value) == said
        assert value - said == pytest.approx(peak)


def values(signals: list[Peak]) -> list[float]:
    return [value for value, *_ in signals]


def row_of(*tokens: int) -> SequenceState:
    return SequenceState(Request(tokens), Request(tokens), Decision("default", "default"), 64)


def test_signals_are_of_the_likeliest_token_and_not_of_the_one_drawn() -> None:
    rows = [row_of(1, 2, 3, 1, 2), row_of(1, 2, 3, 4, 1), row_of(9)]
    logits = torch.zeros(3, 6)
    logits[:, 3] = 2.0
    peak = float(logits.softmax(-1)[0, 3])
    for drawn in ([3, 3, 3], [0, 1, 2]):
        signals = Signals(logits, torch.tensor(drawn), PassInfo(BatchRepeats(rows), [torch.tensor([2, 2, 2])]))
        # after 2 2, 1 2 and 9 2
        assert values(signals.read("peak_echo")) == pytest.approx([peak, 1 + peak, peak])
        signals = Signals(logits, torch.tensor(drawn), PassInfo(BatchRepeats(rows)))
        assert values(signals.read("peak_echo")) == pytest.approx([1 + peak, peak, peak])


def test_a_signal_knows_its_context_and_the_token_that_a_greedy_row_would_draft() -> None:
    warm = SequenceState(Request((4, 5), sampling=Sampling(1.0)), Request((4, 5)), Decision("default", "default"), 64)
    logits = torch.zeros(2, 6)
    logits[:, 3] = 2.0
    echoes = BatchRepeats([row_of(4, 5), warm])
    first = Signals(logits, torch.tensor([3, 0]), PassInfo(echoes)).read("peak_echo")
    then = Signals(logits, torch.tensor([3, 0]), PassInfo(echoes, [torch.tensor([2, 1])])).read("peak_echo")
    known = [*first, *then]
    assert [around for _, *around, _ in known] == [[-1, 4, 5, 3], [-1, 4, 5, 3], [4, 5, 2, 3], [4, 5, 1, 3]]
    assert [peak[-1] for peak in known] == [3, -1, 3, -1]  # what was drawn is not the likeliest, and must not matter


def test_what_is_read_off_already_gives_the_same() -> None:
    rows, logits = [row_of(1, 2, 3, 1, 2)], torch.zeros(1, 6)
    logits[0, 3] = 2.0
    plain = Signals(logits, torch.tensor([3]), PassInfo(BatchRepeats(rows))).read("peak_echo")
    known = ReadOff(torch.tensor([3]), [float(logits.softmax(-1).max())], None)
    read = Signals(logits, known.choices, PassInfo(BatchRepeats(rows), (), known)).read("peak_echo")
    assert read == [pytest.approx(peak) for peak in plain]


def test_the_chains_of_a_round_are_followed_however_many_tokens_come_between_two_questions() -> None:
    chance = random.Random(9)
    rows = [row_of(*(chance.randrange(4) for _ in range(length))) for length in (1, 2, 3, 30)]
    for _ in range(20):
        echoes, chains = BatchRepeats(rows), [[] for _ in rows]  # type: list[list[int]]
        for new in (chance.randrange(5) for _ in range(6)):
            drafted = [[chance.randrange(4) for _ in rows] for _ in range(new)]
            for chain, tokens in zip(chains, zip(*drafted, strict=True), strict=bool(new)):
                chain.extend(tokens)
            echoes.hear(drafted)
            peaks, likeliest = [chance.random() for _ in rows], [chance.randrange(4) for _ in rows]
            asked = list(zip(rows, chains, peaks, likeliest, strict=True))
            assert echoes.signals(peaks, likeliest) == [plainly(*each) for each in asked]
        for row in rows:
            row.tokens += [chance.randrange(4) for _ in range(chance.randrange(3))]


def plainly(row: SequenceState, chain: list[int], peak: float, token: int) -> Peak:
    """Of a text, and what was drafted since."""
    third, second, last = before_of([*row.tokens, *chain])
    return peak + said_plainly(row.tokens, second, last, token), third, second, last, token, token
