"""Log-probabilities of the prompt: those of transformers, whatever is beside them and however the prompt is read."""

from __future__ import annotations

import pytest
import torch

from osd.engine.engine import Engine
from osd.logits import Scores
from osd.models import decoder
from osd.sequence import Completion
from storage.records import Request
from storage.settings import Settings
from tests.support.models import CONFIGS, VOCABULARY, alone, prompts, random_pair
from tests.support.settings import settings_of


def settings(**more: object) -> Settings:
    return settings_of(
        **{"serve__max_batch": 3, "serve__max_length": 240, "gamma__rule": "fixed", "serve__prefill_tokens": 64} | more
    )


@torch.inference_mode()
def plain(module: torch.nn.Module, prompt: tuple[int, ...]) -> torch.Tensor:
    """(P − 1, V) the log-probabilities at each token but the first, from one pass of the module."""
    logits = module(input_ids=torch.tensor([prompt]), use_cache=False).logits[0, :-1]
    return logits.float().log_softmax(-1)


def check(found: Scores | None, module: torch.nn.Module, prompt: tuple[int, ...], top: int) -> None:
    wanted = plain(module, prompt)
    if len(prompt) == 1:
        assert found is None
        return
    assert found is not None and len(found.chosen) == len(prompt) - 1
    own = wanted.gather(1, torch.tensor(prompt[1:])[:, None])
    assert found.chosen == pytest.approx(own[:, 0].tolist(), abs=1e-3)
    assert [len(line) for line in found.top_ids] == [top] * len(own)
    if top:
        assert torch.allclose(torch.tensor(found.top), wanted.topk(top).values, atol=1e-3)
        assert torch.allclose(wanted.gather(1, torch.tensor(found.top_ids)), wanted.topk(top).values, atol=1e-3)
    low, high = (wanted > own + 1e-3).sum(1), (wanted > own - 1e-3).sum(1)
    assert all(a < rank <= max(a + 1, b) for a, rank, b in zip(low.tolist(), found.ranks, high.tolist(), strict=True))


def serve(engine: Engine, asked: list[Request]) -> list[Completion]:
    done = {completion.request.id: completion for completion in engine.run(asked)}
    return [done[request.id] for request in asked]


@pytest.mark.parametrize("kind", CONFIGS)
def test_they_are_transformers_own_beside_other_rows(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "LOGPROBS_CHUNK", 16)
    pair = random_pair(kind)
    some = prompts(9, seed=4, longest=130)
    asked = [
        Request(prompt, max_new_tokens=5 * (i % 3), prompt_logprobs=i % 4) if i % 3 != 1 else Request(prompt, 6)
        for i, prompt in enumerate(some)
    ]  # every third neighbour asks for none, some for nothing else
    for request, completion in zip(asked, serve(Engine(pair, settings()), asked), strict=True):
        assert list(completion.tokens) == alone(pair.target.module, request.prompt_tokens, request.max_new_tokens)
        if request.prompt_logprobs is None:
            assert completion.prompt_scores is None
        else:
            check(completion.prompt_scores, pair.target.module, request.prompt_tokens, request.prompt_logprobs)
        if not request.max_new_tokens:
            assert (completion.finish_reason, completion.tokens, completion.outcomes) == ("length", (), ())


def test_a_prefix_cache_takes_none_away() -> None:
    pair = random_pair()
    prompt = tuple(torch.randint(2, VOCABULARY, (150,), generator=torch.Generator().manual_seed(5)).tolist())
    engine = Engine(pair, settings(serve__prefix_cache_mb=4))
    asked = [Request(prompt, 3), Request(prompt, 3, prompt_logprobs=2), Request(prompt, 0, prompt_logprobs=0)]
    for request in asked:
        [completion] = engine.run([request])
        if request.prompt_logprobs is not None:
            check(completion.prompt_scores, pair.target.module, prompt, request.prompt_logprobs)
    before = engine.stats.prefix_hits
    assert before == 0, "a prompt that is scored is computed"
    list(engine.run([Request(prompt, 3)]))
    assert engine.stats.prefix_hits > before, "and kept for those that are not"


def test_logits_are_bounded_by_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    pair, rows = random_pair(), []
    engine = Engine(pair, settings(serve__prefill_tokens=4096))
    scored = decoder.score

    def counting(logits: torch.Tensor, tokens: list[int], top: int) -> Scores:
        rows.append(len(logits))
        return scored(logits, tokens, top)

    monkeypatch.setattr(decoder, "score", counting)
    list(engine.run([Request(tuple(range(2, 90)) * 2, 0, prompt_logprobs=1)]))
    assert sum(rows) == 175 and max(rows) == decoder.LOGPROBS_CHUNK


def test_a_prompt_as_long_as_a_row_can_be_scored() -> None:
    pair = random_pair()
    engine = Engine(pair, settings())
    prompt = (prompts(1, seed=7)[0] * 240)[: engine.limit]
    [completion] = engine.run([Request(prompt, 0, prompt_logprobs=0)])
    check(completion.prompt_scores, pair.target.module, prompt, 0)
