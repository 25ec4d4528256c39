"""Greedy output is the target's own, token for token, whatever drafts and however rows share a batch."""

from __future__ import annotations

import pytest

from osd.engine.engine import Engine
from osd.gamma.factory import CONTROLLERS
from osd.models.llama_forward_compiled import MOST_ALONE
from storage.records import Request
from tests.support.lossless import require_lossless
from tests.support.models import CONFIGS, alone, model_of, noisy, prompts, random_pair
from tests.support.settings import settings_of

pytestmark = pytest.mark.usefixtures("compiled")

COUNT = 24


def serve(engine: Engine, asked: list[Request]) -> list[list[int]]:
    require_lossless(engine)
    done = {c.request.id: list(c.tokens) for c in engine.run(asked)}
    return [done[request.id] for request in asked]


SIZES = ((1, 3, 8), (2, 5))
"""Each family is tried with all of them, and each of them in both ways; families × sizes × ways are for -m long."""


@pytest.mark.parametrize(
    ("kind", "most", "sizes"),
    [
        pytest.param(kind, most, SIZES[i], marks=() if (number + bool(most) + i) % 2 == 0 else pytest.mark.long)
        for number, kind in enumerate(CONFIGS)
        for most in (0, MOST_ALONE)
        for i in (0, 1)
    ],
)
def test_every_architecture_in_ragged_batches(
    kind: str, most: int, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With layers' products by PyTorch, and compiled with the rest of a layer."""
    monkeypatch.setattr("osd.models.llama_forward_compiled.MOST_ALONE", most)
    pair = random_pair(kind)
    asked = [Request(p, max_new_tokens=8 + 4 * i) for i, p in enumerate(prompts(9, seed=3))]
    expected = [alone(pair.target.module, r.prompt_tokens, r.max_new_tokens) for r in asked]
    for batch in sizes:
        engine = Engine(
            pair, settings_of(serve__max_batch=batch, serve__max_length=96, gamma__rule="fixed", gamma__initial=4)
        )
        assert serve(engine, asked) == expected, f"batch {batch}"


@pytest.mark.parametrize("controller", CONTROLLERS)
@pytest.mark.parametrize("batch", [1, 4])
def test_every_controller(controller: str, batch: int) -> None:
    pair = random_pair("llama", eos=5)
    asked = [Request(p, max_new_tokens=COUNT) for p in prompts(8, seed=4)]
    expected = [alone(pair.target.module, p.prompt_tokens, COUNT, eos=5) for p in asked]
    engine = Engine(
        pair, settings_of(serve__max_batch=batch, serve__max_length=96, gamma__rule=controller, gamma__initial=3)
    )
    assert serve(engine, asked) == expected


@pytest.mark.parametrize("noise", [0.0, 0.05, 3.0])
def test_drafts_that_are_always_sometimes_and_never_right(noise: float) -> None:
    pair = random_pair("llama", noise=noise)
    asked = [Request(p, max_new_tokens=COUNT) for p in prompts(6, seed=5)]
    engine = Engine(pair, settings_of(serve__max_batch=3, serve__max_length=96, gamma__rule="fixed", gamma__initial=5))
    done = list(engine.run(asked))
    for completion in done:
        assert list(completion.tokens) == alone(pair.target.module, completion.request.prompt_tokens, COUNT)
    accepted, drafted = (sum(getattr(r, name) for c in done for r in c.rounds) for name in ("accepted", "drafted"))
    assert accepted == drafted if noise == 0.0 else accepted < drafted  # else the cases would not differ
    assert accepted > 0 or noise == 3.0


def test_a_swap_in_the_middle_of_requests_changes_nothing() -> None:
    pair = random_pair("llama")
    others = [model_of(noisy(pair.target.module, noise, seed=9)) for noise in (3.0, 0.01, 0.5)]
    asked = [Request(p, max_new_tokens=40) for p in prompts(5, seed=6)]
    engine = Engine(pair, settings_of(serve__max_batch=4, serve__max_length=96, gamma__rule="fixed", gamma__initial=3))
    for request in asked:
        engine.submit(request)
    done: dict[str, list[int]] = {}
    steps = 0
    while engine.busy:
        done |= {p.request_id: list(p.completion.tokens) for p in engine.step() if p.completion}
        steps += 1
        if steps % 3 == 0:
            other = others[steps // 3 % len(others)]
            engine.pool.decoder.forward = other.build(other.module)
    assert steps > 9
    assert [done[r.id] for r in asked] == [alone(pair.target.module, r.prompt_tokens, 40) for r in asked]


def test_up_to_the_last_position_that_the_model_knows() -> None:
    """GPT-2 learns 256 positions and would fail on a 257th: a row at its end shares a batch with a young one."""
    pair = random_pair("gpt2")
    long = Request(prompts(1, longest=1)[0] * 245, max_new_tokens=50)
    short = Request(prompts(1)[0], max_new_tokens=30)
    engine = Engine(
        pair, settings_of(serve__max_batch=2, serve__max_length=2048, gamma__rule="fixed", gamma__initial=8)
    )
    expected = [alone(pair.target.module, long.prompt_tokens, 11), alone(pair.target.module, short.prompt_tokens, 30)]
    assert serve(engine, [long, short]) == expected
