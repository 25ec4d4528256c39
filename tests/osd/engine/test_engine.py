"""What a request may ask for, and how rows come and go."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

import osd
from osd.engine.engine import UNVERSIONED, Engine
from osd.models.pair import Pair, load_pair
from storage.errors import BadRequest, UnknownRoute
from storage.records import Request
from storage.sampling import Sampling
from tests.support.models import VOCABULARY, alone, prompts, random_pair
from tests.support.settings import changed, settings_of

SETTINGS = settings_of(serve__max_batch=3, serve__max_length=96, gamma__rule="fixed", gamma__initial=3)


@pytest.fixture(scope="module")
def pair() -> Pair:
    return random_pair("llama")


@pytest.fixture(scope="module")
def talking() -> Pair:
    folder = Path(osd.__file__).parent / "demo" / "pair"
    return load_pair(folder / "target", folder / "draft", device="cpu")


def test_tokens_stream_out_and_add_up_to_the_completion(pair: Pair) -> None:
    engine = Engine(pair, SETTINGS)
    asked = [Request(p, max_new_tokens=20) for p in prompts(7, seed=1)]
    for request in asked:
        engine.submit(request)
    streamed: dict[str, list[int]] = {}
    completions = {}
    while engine.busy:
        assert len(engine.rows) <= 3
        for progress in engine.step():
            streamed.setdefault(progress.request_id, []).extend(progress.tokens)
            if progress.completion:
                completions[progress.request_id] = progress.completion
    for request in asked:
        done = completions[request.id]
        assert streamed[request.id] == list(done.tokens)
        assert sum(r.emitted for r in done.rounds) == len(done.tokens) == 20
        assert done.finish_reason == "length"
        assert all(r.draft_version == UNVERSIONED for r in done.rounds)
        assert [o.emitted for o in done.outcomes] == [20]


def test_a_row_leaves_by_cancellation_and_the_others_go_on(pair: Pair) -> None:
    engine = Engine(pair, SETTINGS)
    asked = [Request(p, max_new_tokens=30) for p in prompts(5, seed=2)]
    for request in asked:
        engine.submit(request)
    engine.step()
    assert engine.cancel(asked[0].id) and engine.cancel(asked[4].id) and not engine.cancel("nobody")
    done = {}
    while engine.busy:
        done |= {p.request_id: p.completion for p in engine.step() if p.completion}
    reasons = [done[r.id].finish_reason for r in asked]
    assert reasons == ["cancelled", "length", "length", "length", "cancelled"]
    for request in asked[1:4]:
        assert list(done[request.id].tokens) == alone(pair.target.module, request.prompt_tokens, 30)
    partial = list(done[asked[0].id].tokens)
    assert partial == alone(pair.target.module, asked[0].prompt_tokens, len(partial)) and partial


@pytest.mark.parametrize("temperature", [1e-300, 1e-40, 1e-37])
def test_a_temperature_that_is_next_to_nothing_is_greedy(pair: Pair, temperature: float) -> None:
    (prompt,) = prompts(1, seed=4)
    sampling = Sampling(temperature, top_p=0.9, seed=1)
    (done,) = Engine(pair, SETTINGS).run([Request(prompt, max_new_tokens=20, sampling=sampling)])
    assert list(done.tokens) == alone(pair.target.module, prompt, 20)


def test_the_end_token_ends_a_text_unless_it_is_to_be_ignored() -> None:
    plain = random_pair("llama")
    prompt = prompts(1, seed=3)[0]
    text = alone(plain.target.module, prompt, 20)
    eos = text[9]
    ended = Engine(replace(plain, eos_ids=frozenset([eos])), SETTINGS)
    first = text.index(eos) + 1
    (done,) = ended.run([Request(prompt, max_new_tokens=20)])
    assert (list(done.tokens), done.finish_reason) == (text[:first], "stop")
    (done,) = ended.run([Request(prompt, max_new_tokens=20, ignore_eos=True)])
    assert (list(done.tokens), done.finish_reason) == (text, "length")


def test_a_stop_string_ends_the_text_before_it(talking: Pair) -> None:
    tokens = tuple(talking.tokenizer.encode("<|user|>\nhow many players are there?\n<|assistant|>\n"))
    engine = Engine(talking, changed(SETTINGS, serve__max_length=256))
    (whole,) = engine.run([Request(tokens, max_new_tokens=40)])
    stop = whole.text[12:17]
    (cut,) = engine.run([Request(tokens, max_new_tokens=40, stop=("never in there", stop))])
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.finish_reason == "stop"
    assert whole.tokens[: len(cut.tokens)] == cut.tokens and len(cut.tokens) < len(whole.tokens)


def test_a_seed_repeats_a_text_whoever_shares_the_batch(pair: Pair) -> None:
    sampling = Sampling(temperature=1.0, top_p=0.95, seed=7)
    request = Request(prompts(1, seed=8)[0], max_new_tokens=20, sampling=sampling)
    others = [Request(p, max_new_tokens=25, sampling=Sampling(0.8, seed=i)) for i, p in enumerate(prompts(4))]

    def text(asked: list[Request]) -> tuple[int, ...]:
        return {c.request.id: c.tokens for c in Engine(pair, SETTINGS).run(asked)}[request.id]

    assert text([request]) == text([*others, request]) == text([request, *others])
    unseeded = replace(request, sampling=replace(sampling, seed=None))
    assert len({text([replace(unseeded, id=request.id)]) for _ in range(4)}) > 1


def test_greedy_rows_stay_exact_beside_sampled_ones(pair: Pair) -> None:
    greedy = [Request(p, max_new_tokens=20) for p in prompts(3, seed=11)]
    sampled = [Request(p, max_new_tokens=20, sampling=Sampling(1.0, top_k=9)) for p in prompts(3, seed=12)]
    mixed = [request for both in zip(greedy, sampled, strict=True) for request in both]
    done = {c.request.id: c for c in Engine(pair, SETTINGS).run(mixed)}
    for request in greedy:
        assert list(done[request.id].tokens) == alone(pair.target.module, request.prompt_tokens, 20)


GOOD = Request((3, 4, 5), max_new_tokens=4)


@pytest.mark.parametrize(
    ("request_", "field", "says"),
    [
        (replace(GOOD, prompt_tokens=(3,) * 96), "prompt", "96 tokens"),
        (replace(GOOD, prompt_tokens=(3, VOCABULARY)), "prompt", f"token 1 is {VOCABULARY}"),
        (replace(GOOD, sampling=Sampling(temperature=math.nan)), "temperature", "nan"),
        (replace(GOOD, stop=("x",)), "stop", "no tokenizer"),
    ],
)
def test_a_bad_request_is_refused_by_name(pair: Pair, request_: Request, field: str, says: str) -> None:
    engine = Engine(pair, SETTINGS)
    with pytest.raises(BadRequest, match=says) as caught:
        engine.submit(request_)
    assert caught.value.facts["field"] == field and caught.value.exit_code == 2
    assert not engine.busy


def test_an_unknown_route_and_a_doubled_id_are_refused(pair: Pair) -> None:
    engine = Engine(pair, SETTINGS)
    with pytest.raises(UnknownRoute, match="default"):
        engine.submit(replace(GOOD, route="nowhere"))
    engine.submit(GOOD)
    with pytest.raises(BadRequest, match="already being served"):
        engine.submit(GOOD)
    (done,) = engine.run([])
    assert len(done.tokens) == 4


def test_a_prompt_that_leaves_less_room_than_asked_ends_at_the_rows_end(pair: Pair) -> None:
    (done,) = Engine(pair, SETTINGS).run([Request((3,) * 90, max_new_tokens=50)])
    assert (len(done.tokens), done.finish_reason) == (6, "length")
