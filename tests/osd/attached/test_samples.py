"""Samples and outcomes of answers: what each token was, and which tokens were refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from osd.attached.samples import HarvestedAnswer, HarvestedFrom, outcome_of, positions_of, samples_of, steps_of
from storage.records import TokenKind
from tests.support.fake_vllm import FakeEngine

STEPS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)).map(lambda pair: (min(pair), max(pair))), max_size=8)
ORIGIN = HarvestedFrom("sql", "acme", "sql-000001-aa", True, True, "t" * 64)


def plain_kinds(steps: list[tuple[int, int]], count: int) -> list[TokenKind]:
    """One token after the other."""
    kinds = [TokenKind.UNDRAFTED]
    for accepted, drafted in steps:
        kinds += [TokenKind.ACCEPTED] * accepted
        kinds.append(TokenKind.REJECTED if accepted < drafted else TokenKind.UNDRAFTED)
    return kinds[:count]


@given(steps=STEPS, cut=st.integers(0, 3))
def test_steps_are_laid_over_the_tokens(steps: list[tuple[int, int]], cut: int) -> None:
    total = 1 + sum(accepted + 1 for accepted, _ in steps)
    last = steps[-1][0] if steps else 0
    count = total - min(cut, last)  # the end may cut the last step
    found = steps_of(count, [a for a, _ in steps], [d for _, d in steps])
    expected = plain_kinds(steps, count)
    assert found.aligned and [TokenKind(int(kind)) for kind in found.kinds] == expected
    assert found.refused == [i for i, kind in enumerate(expected) if kind is TokenKind.REJECTED]


@given(steps=STEPS, more=st.integers(1, 5))
def test_where_steps_do_not_account_for_all_tokens_nothing_is_claimed(steps: list[tuple[int, int]], more: int) -> None:
    total = 1 + sum(accepted + 1 for accepted, _ in steps)
    found = steps_of(total + more, [a for a, _ in steps], [d for _, d in steps])
    assert not found.aligned and not found.refused and set(found.kinds.tolist()) == {TokenKind.UNDRAFTED}


@given(steps=STEPS)
def test_positions_add_up_to_the_totals(steps: list[tuple[int, int]]) -> None:
    accepted, drafted = [a for a, _ in steps], [d for _, d in steps]
    counted = positions_of(accepted, drafted)
    sums = np.array(counted).reshape(-1, 3).sum(0)
    assert sums.tolist() == [sum(drafted), sum(accepted), sum(a < d for a, d in steps)]


def answer_of(fake: FakeEngine, prompt: list[int], most: int, **changes: Any) -> HarvestedAnswer:
    tokens, tops, accepted, drafted = fake.decode(prompt, most)
    choice = {
        "tokens": tokens, "top_ids": [[i for i, _ in top[:6]] for top in tops],
        "top_logprobs": [[value for _, value in top[:6]] for top in tops], "finish_reason": "length",
    }  # fmt: skip
    facts = {"id": "a" * 32, "prompt": prompt, "accepted": accepted, "drafted": drafted, "began": 1.0, "ended": 2.0}
    return HarvestedAnswer(**{**facts, "choices": [choice], "temperature": 0.0, **changes})


def recover_with(fake: FakeEngine) -> Any:
    def recover(version: str, tokens: Any, positions: Any) -> list[int]:
        import torch

        guesses = fake.draft(torch.tensor([list(tokens)])).logits[0].argmax(-1)
        return [int(guesses[position - 1]) for position in positions]

    return recover


@pytest.mark.parametrize("seed", range(4))
def test_recovered_tokens_are_those_that_were_refused(fake: FakeEngine, seed: int) -> None:
    prompt = [5 + seed, 20, 33 + seed]
    answer = answer_of(fake, prompt, 24)
    samples = samples_of(answer, 0, ORIGIN, 6, recover_with(fake))
    assert samples is not None
    rejected = samples.kinds == TokenKind.REJECTED
    assert samples.drafted[rejected].tolist() == fake.refused[tuple(prompt)] and rejected.any()
    assert (samples.drafted[~rejected] == samples.tokens[samples.positions[~rejected]]).all()
    assert samples.topk_ids[:, 0].tolist() == answer.choices[0].tokens  # greedy: the likeliest was emitted
    mass = np.exp(samples.topk_logprobs.astype(np.float64)).sum(1) + samples.outside
    assert np.allclose(mass, 1, atol=5e-3)


@pytest.mark.parametrize(
    "origin", [HarvestedFrom("r", "t", "v", False, True, "x"), HarvestedFrom("r", "t", "v", True, False, "x")]
)
def test_what_cannot_be_known_is_not_claimed(fake: FakeEngine, origin: HarvestedFrom) -> None:
    samples = samples_of(answer_of(fake, [5, 20, 33], 24), 0, origin, 6, recover_with(fake))
    assert samples is not None and not (samples.kinds == TokenKind.REJECTED).any() and len(samples) == 24


def test_an_outcome_counts_what_the_engine_counted(fake: FakeEngine) -> None:
    answer = answer_of(fake, [5, 20, 33], 24)
    outcome = outcome_of(answer, ORIGIN)
    assert answer.accepted is not None and answer.drafted is not None
    assert (outcome.accepted, outcome.drafted) == (sum(answer.accepted), sum(answer.drafted))
    assert outcome.emitted == 24 and outcome.rounds >= len(answer.accepted)


@pytest.mark.parametrize(
    "wrong", [{"accepted": [1], "drafted": None}, {"accepted": [3], "drafted": [2]}, {"prompt": []}, {"choices": []}]
)
def test_answers_that_contradict_themselves_are_refused(fake: FakeEngine, wrong: dict[str, Any]) -> None:
    whole = answer_of(fake, [5, 20, 33], 6).model_dump()
    with pytest.raises(ValueError, match=r"."):
        HarvestedAnswer(**{**whole, **wrong})
