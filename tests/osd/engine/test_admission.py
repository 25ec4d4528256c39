"""What a router is told before and after prefill."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from osd.engine.engine import Engine
from osd.models.decoder import SCORED
from osd.models.pair import Pair, load_pair
from osd.prompts import encode
from osd.server.start import SHIPPED
from router.base import Decision
from storage.records import Outcome, Request, Route
from tests.support.adapters import let_in
from tests.support.models import model_of, noisy, prompts, random_pair
from tests.support.settings import settings_of


class Asking:
    """Routes everything to a route of two drafts and takes the second after prefill."""

    def __init__(self, *, text: bool = False, perplexity: bool = False) -> None:
        self.reads_text, self.reads_perplexity = text, perplexity
        self.requests: list[Request] = []
        self.perplexities: list[float | None] = []
        self.observed: list[tuple[Request, str, Sequence[Outcome]]] = []

    def route(self, request: Request) -> Decision:
        self.requests.append(request)
        candidates = () if request.route == "one" else ("other",)
        return Decision(Route("mixed", candidates=candidates))

    def choose(self, request: Request, decision: Decision, perplexity: float | None) -> Decision:
        self.perplexities.append(perplexity)
        return Decision(decision.route, reason="perplexity", chosen="other")

    def observe(self, request: Request, decision: Decision, outcomes: Sequence[Outcome]) -> None:
        self.observed.append((request, decision.draft, outcomes))


@torch.inference_mode()
def plain_perplexity(pair: Pair, prompt: tuple[int, ...]) -> float:
    logits = pair.target.module(torch.tensor([prompt]), use_cache=False).logits[0, :-1]
    scored, tokens = logits.float()[-SCORED:], torch.tensor(prompt[1:])[-SCORED:]
    return math.exp(float(torch.nn.functional.cross_entropy(scored, tokens)))


def test_a_router_that_reads_perplexity_chooses_after_prefill() -> None:
    pair, router = random_pair(), Asking(perplexity=True)
    engine = Engine(pair, settings_of(serve__max_batch=2, serve__max_length=256, gamma__rule="fixed"), router=router)
    assert let_in(engine, "other", model_of(noisy(pair.target.module, 0.05))) == "taken"
    texts = [prompts(1, seed=3)[0], tuple(prompts(1, seed=2)[0] * 12)[:200], (5,)]
    done = {c.request.prompt_tokens: c for c in engine.run(Request(p, 8) for p in texts)}
    expected = [plain_perplexity(pair, p) for p in texts[:2]]
    assert router.perplexities[:2] == pytest.approx(expected, rel=1e-3) and router.perplexities[2] is None
    assert {o.draft_version for c in done.values() for o in c.outcomes} == {"other-v1"}
    alone = Engine(pair, settings_of(serve__max_batch=2, serve__max_length=256, gamma__rule="fixed", gamma__initial=0))
    assert {c.request.prompt_tokens: c.tokens for c in alone.run(Request(p, 8) for p in texts)} == {
        c.request.prompt_tokens: c.tokens for c in done.values()
    }
    (done_one,) = engine.run([Request(texts[0], 4, route="one")])
    assert len(router.perplexities) == 3 and done_one.outcomes[0].draft_version != "other-v1"
    assert {(r.id, draft) for r, draft, _ in router.observed} >= {(done_one.request.id, "default")}
    assert all(outcomes for _, _, outcomes in router.observed) and len(router.observed) == 4


def test_a_router_that_reads_text_gets_it_and_others_do_not_pay_for_it() -> None:
    pair = load_pair(SHIPPED / "target", SHIPPED / "draft")
    tokens = encode(pair.tokenizer, "How many days has a leap year?")
    for reads in (True, False):
        router = Asking(text=reads)
        engine = Engine(pair, settings_of(serve__max_length=128), router=router)
        (done,) = engine.run([Request(tokens, 4)])
        text = router.requests[0].text
        assert (text is not None and "leap year?" in text and "<|" not in text) if reads else text is None
        assert done.request.text is None and router.observed[0][0].text == text
    given = Asking(text=True)
    list(Engine(pair, settings_of(serve__max_length=128), router=given).run([Request(tokens, 4, text="as it was")]))
    assert given.requests[0].text == "as it was"
