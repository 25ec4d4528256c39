"""Decoding on the device that osd chooses on this machine: a GPU where there is one, else the CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from osd.engine.engine import Engine
from osd.models.model import Model
from osd.models.pair import Pair, choose_device
from osd.recording.recorder import Recorder
from storage.records import Request
from storage.sampling import Sampling
from storage.settings import Settings
from storage.store import Store
from tests.lossless.test_distribution import LEVEL, exact, p_value, sample
from tests.support.models import alone, model_of, noisy, prompts, random_pair
from tests.support.samples import each_position
from tests.support.settings import settings_of

DEVICE = choose_device("auto")
COUNT = 24


def there(model: Model) -> Model:
    return model_of(model.module.to(DEVICE), model.name)


def pair_there(**options: object) -> Pair:
    both = random_pair(**options)  # type: ignore[arg-type]
    return replace(both, target=there(both.target), draft=there(both.draft))


CASES = [("llama", drafter) for drafter in ("causal", "blended", "trigram")] + [("gpt2", "causal")]


@pytest.mark.parametrize(("kind", "drafter"), CASES)
def test_greedy_text_is_the_targets(kind: str, drafter: str) -> None:
    pair = pair_there(kind=kind)
    asked = [Request(p * 2, max_new_tokens=COUNT - i) for i, p in enumerate(prompts(7, seed=31))]
    settings = settings_of(
        serve__max_batch=3, serve__max_length=96, drafters__kind=drafter, gamma__rule="fixed", gamma__initial=4
    )
    done = {c.request.id: list(c.tokens) for c in Engine(pair, settings).run(asked)}
    assert pair.device.type == DEVICE.type
    for request in asked:
        assert done[request.id] == alone(pair.target.module, request.prompt_tokens, request.max_new_tokens)


def test_sampled_text_has_the_targets_distribution() -> None:
    """The level is that of test_distribution: a false alarm comes once in 10,000 fresh seeds."""
    sampling = Sampling(0.7, top_k=6, top_p=0.9)
    pair = pair_there(noise=0.35, vocabulary=9)
    here = replace(pair, target=model_of(random_pair(noise=0.35, vocabulary=9).target.module))
    assert p_value(sample(pair, sampling, 2, 8), exact(here, sampling)) > LEVEL


@torch.inference_mode()
def test_what_is_recorded_is_what_the_target_says(store: Store, settings: Settings) -> None:
    pair = pair_there()
    asked = [Request(p, max_new_tokens=17) for p in prompts(5, seed=32)]
    recorder = Recorder(store, settings, "test")
    list(Engine(pair, settings, recorder=recorder).run(asked))
    recorder.close()
    for samples in store.samples.read([r.id for r in asked]):
        fed = torch.tensor([samples.tokens.tolist()], device=DEVICE)
        logits = pair.target.module(input_ids=fed, use_cache=False).logits[0]
        for one in each_position(samples):
            top = logits[one.position - 1].log_softmax(-1).topk(8)
            assert one.topk_ids[0] == top.indices[0]
            assert torch.allclose(torch.tensor(one.topk_logprobs).float(), top.values.cpu(), atol=1e-2)


def test_a_swap_in_the_middle_of_requests_changes_nothing() -> None:
    pair = pair_there()
    other = there(model_of(noisy(random_pair().target.module, 3.0, seed=9)))
    asked = [Request(p, max_new_tokens=40) for p in prompts(3, seed=33)]
    engine = Engine(pair, settings_of(serve__max_batch=4, serve__max_length=96, gamma__rule="fixed", gamma__initial=3))
    for request in asked:
        engine.submit(request)
    done: dict[str, list[int]] = {}
    for step in range(1000):
        done |= {p.request_id: list(p.completion.tokens) for p in engine.step() if p.completion}
        if step == 4:
            engine.pool.decoder.forward = other.build(other.module)
        if not engine.busy:
            break
    assert step > 4
    assert [done[r.id] for r in asked] == [alone(pair.target.module, r.prompt_tokens, 40) for r in asked]
