"""The acceptance head in the draft loop: its network, its files, the embeddings that it reads, and losslessness."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from osd.drafters.chain import Signals
from osd.engine.engine import Engine
from osd.models.acceptance_head import AcceptanceHead, HeadConfig, HeadPass, digest_of_model, load_head, save_head
from osd.models.hf_forward import HuggingFaceForward
from osd.models.pair import Pair, load_pair
from storage.errors import HeadMismatch, HeadNotLoaded
from storage.records import Request
from storage.sampling import Sampling
from tests.lossless.test_distribution import LEVEL, PROMPT, SAMPLES, exact, p_value
from tests.support.models import CONFIGS, alone, prompts, random_module, random_pair
from tests.support.settings import settings_of

WIDTH = 32  # of the random models
NOBODY = "0" * 64


def random_head(depth: int = 3, width: int = WIDTH, draft: str = NOBODY, seed: int = 0) -> AcceptanceHead:
    """A head that says very different things of different tokens."""
    torch.manual_seed(seed)
    head = AcceptanceHead(HeadConfig(width, depth, 6.0, draft, draft)).requires_grad_(False)
    head.out.weight.normal_(0, 2 / math.sqrt(width))
    head.out.bias.fill_(1.0)
    return head


def by_hand(weights: dict[str, Tensor], depth: int, embedding: list[Tensor]) -> Tensor:
    """f_θ of one embedding, number by number."""

    def linear(name: str, x: list[Tensor]) -> list[Tensor]:
        weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
        return [bias[i] + sum(weight[i, j] * x[j] for j in range(len(x))) for i in range(len(bias))]

    for layer in range(depth):
        change = linear(f"residual.{layer}", embedding)
        embedding = [x + c / (1 + torch.exp(-c)) for x, c in zip(embedding, change, strict=True)]
    return linear("out", embedding)[0]


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_values_and_gradients_are_those_of_the_loop(depth: int) -> None:
    head = random_head(depth, width=5).double().requires_grad_(True)
    embeddings = torch.randn(4, 5, dtype=torch.double, requires_grad=True)
    parameters = [embeddings, *head.parameters()]
    plain = torch.stack([by_hand(dict(head.named_parameters()), depth, list(row)) for row in embeddings])
    weights = torch.randn(4, dtype=torch.double)
    ours = head(embeddings)
    torch.testing.assert_close(ours, plain)
    for got, expected in zip(
        torch.autograd.grad((ours * weights).sum(), parameters),
        torch.autograd.grad((plain * weights).sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(got, expected)
    with torch.inference_mode():
        served = HeadPass(head.float(), torch.device("cpu"))(embeddings.float())
    torch.testing.assert_close(served, plain.sigmoid().float())


def test_every_layer_has_weights_of_its_own() -> None:
    head = random_head(3)
    assert len({p.data_ptr() for p in head.parameters()}) == 2 * 4
    first, second, _ = (layer.weight for layer in head.residual)
    assert not torch.equal(first, second)


def test_a_new_head_is_a_constant() -> None:
    head = AcceptanceHead(HeadConfig(WIDTH, 2, 6.0, NOBODY, NOBODY))
    assert head(torch.randn(7, WIDTH)).tolist() == [0.0] * 7


def test_the_estimate_undoes_the_weight_of_rejections() -> None:
    """Trained with w_rej = 6 on tokens kept with chance 0.9, a constant settles at 0.9 ÷ (0.9 + 6 · 0.1) = 0.6."""
    head = AcceptanceHead(HeadConfig(WIDTH, 0, 6.0, NOBODY, NOBODY))
    torch.nn.init.constant_(head.out.bias, math.log(0.6 / 0.4))
    embedding = torch.randn(1, WIDTH)
    assert head(embedding).sigmoid().item() == pytest.approx(0.6)
    assert head.estimate(embedding).sigmoid().item() == pytest.approx(0.9)


def test_a_folder_gives_the_same_head(tmp_path: Path) -> None:
    head = random_head()
    save_head(head, tmp_path)
    again = load_head(tmp_path)
    assert again.config == head.config
    embeddings = torch.randn(5, WIDTH)
    assert torch.equal(again(embeddings), head(embeddings))


REST = '"reject_weight": 6, "draft": "", "trained_for": ""}'


@pytest.mark.parametrize(
    "config",
    [None, "", "[]", '{"hidden_size": 32}', '{"hidden_size": 31, "depth": 3, ' + REST,
     '{"hidden_size": 32, "depth": -1, ' + REST],
)  # fmt: skip
def test_what_is_no_head_is_refused(tmp_path: Path, config: str | None) -> None:
    save_head(random_head(), tmp_path)
    path = tmp_path / "acceptance_head.json"
    path.unlink() if config is None else path.write_text(config)
    with pytest.raises(HeadNotLoaded, match=r"no acceptance head.*trainer head"):
        load_head(tmp_path)


@torch.inference_mode()
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("kind", CONFIGS)
def test_the_embedding_is_what_the_output_layer_was_given(kind: str, plain: bool) -> None:
    """Of the newest token, in a ragged batch, from the fused pass and from the module's own."""
    pair = random_pair(kind)
    model = replace(pair.draft, build=HuggingFaceForward) if plain else pair.draft
    decoder, rows = model.decoder(2, 40), [list(p) for p in prompts(2, seed=11)]
    decoder.cache.wants_embedding = True
    for index, row in enumerate(rows):
        decoder.prefill(index, row)
    new = torch.tensor([[5, 9], [7, 0]])
    lengths = [len(row) for row in rows]
    decoder.logits(new, lengths, last=torch.tensor([1, 0]))
    first = decoder.cache.embedding
    decoder.logits(torch.tensor([[3], [4]]), [lengths[0] + 2, lengths[1] + 1])
    second = decoder.cache.embedding
    assert first is not None and second is not None and first.shape == second.shape == (2, 1, WIDTH)
    texts = [[*rows[0], 5, 9, 3], [*rows[1], 7, 4]]
    for index, text in enumerate(texts):
        given: list[Any] = []
        head = model.module.get_output_embeddings()
        handle = head.register_forward_pre_hook(lambda _, args, given=given: given.append(args[0]))
        model.module(input_ids=torch.tensor([text]), use_cache=False)
        handle.remove()
        torch.testing.assert_close(torch.stack([first[index, 0], second[index, 0]]), given[0][0, -2:], **NEAR)


NEAR: dict[str, float] = {"rtol": 1e-3, "atol": 1e-4}


def test_without_a_head_the_signal_is_no_number() -> None:
    assert all(math.isnan(x) for x in Signals(torch.zeros(3, 4), torch.zeros(3, dtype=torch.long)).read("acceptance"))


def serve(pair: Pair, head: AcceptanceHead | None, **settings: Any) -> Engine:
    engine = Engine(pair, settings_of(serve__max_length=96, gamma__rule="specdecpp", **settings))
    engine.pool.head = None if head is None else HeadPass(head, pair.device)
    return engine


@pytest.mark.parametrize("batch", [1, 4])
def test_greedy_text_is_the_targets_own_with_a_random_head(batch: int) -> None:
    pair = random_pair("llama", eos=5)
    asked = [Request(p, max_new_tokens=24) for p in prompts(8, seed=4)]
    done = list(serve(pair, random_head(), serve__max_batch=batch).run(asked))
    for c in done:
        assert list(c.tokens) == alone(pair.target.module, c.request.prompt_tokens, 24, eos=5)
    lengths = Counter(r.drafted for c in done for r in c.rounds)
    assert len(lengths) > 4  # the head ends rounds at many lengths


@torch.inference_mode()
def test_the_rule_stops_where_the_heads_product_says_so() -> None:
    """Each round against Algorithm 1 on embeddings from plain forward passes of the draft."""
    pair, head, threshold = random_pair("llama"), random_head(), 0.6
    engine = serve(pair, head, serve__max_batch=1, gamma__specdecpp__threshold=threshold, gamma__max=10)
    (done,) = engine.run([Request(prompts(1, seed=8)[0], max_new_tokens=40)])
    text, start = [*done.request.prompt_tokens, *done.tokens], len(done.request.prompt_tokens)
    checked = 0
    for number, r in enumerate(done.rounds):
        if number and start + 10 < len(text):  # the first round knows of no head; the last ones have no room
            assert r.drafted == expected_length(pair.draft.module, head, text[:start], threshold, 10)
            checked += 1
        start += r.emitted
    assert checked > 8


def expected_length(draft: Any, head: AcceptanceHead, text: list[int], threshold: float, most: int) -> int:
    tokens, kept = list(text), 1.0
    for i in range(1, most + 1):
        out = draft(input_ids=torch.tensor([tokens]), use_cache=False, output_hidden_states=True)
        if i > 1:
            kept *= float(head(out.hidden_states[-1][0, -1]).sigmoid())
        tokens.append(int(out.logits[0, -1].argmax()))
        if 1 - kept > threshold:
            return i
    return most


@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(1.0, top_k=4)])
def test_sampled_text_follows_the_target_while_a_head_ends_rounds(sampling: Sampling) -> None:
    """As in test_distribution: chi-square at 1e-4 over all texts of two tokens; false alarms 2 in 10,000 seeds."""
    pair = random_pair("llama", noise=0.35, vocabulary=9)
    engine = serve(
        pair, random_head(seed=2), serve__max_batch=64, gamma__initial=3, gamma__max=3, gamma__specdecpp__threshold=0.3
    )
    plain = Request(PROMPT, max_new_tokens=5, ignore_eos=True)
    asked = (replace(plain, id=str(seed), sampling=replace(sampling, seed=seed)) for seed in range(SAMPLES))
    done = list(engine.run(asked))
    ends = Counter(c.rounds[0].drafted for c in done)
    assert min(ends[2], ends[3]) > SAMPLES // 20  # after y_2, by what the head says of y_1, or not
    assert p_value(Counter(c.tokens[:2] for c in done), exact(pair, sampling)) > LEVEL


def test_a_head_of_another_draft_is_refused_by_name(tmp_path: Path) -> None:
    for name, seed in (("target", 0), ("draft", 1), ("other", 2)):
        random_module("llama", seed=seed).save_pretrained(tmp_path / name)
    pair = load_pair(tmp_path / "target", tmp_path / "draft", device="cpu")
    heads = {
        "own": random_head(draft=str(digest_of_model(tmp_path / "draft"))),
        "narrow": random_head(width=16, draft=str(digest_of_model(tmp_path / "draft"))),
        "others": random_head(draft=str(digest_of_model(tmp_path / "other"))),
    }
    for name, head in heads.items():
        (tmp_path / "heads" / name).mkdir(parents=True)
        save_head(head, tmp_path / "heads" / name)

    def engine(name: str) -> Engine:
        own = {"rule": "specdecpp", "specdecpp": {"head": tmp_path / "heads" / name}}
        return Engine(pair, settings_of(serve__max_length=64, gamma=own))

    assert engine("own").pool.head is not None
    with pytest.raises(HeadMismatch, match=r"narrow does not belong .*it reads 16 numbers, not 32"):
        engine("narrow")
    with pytest.raises(HeadMismatch, match=r"others does not belong .*it was trained for weights"):
        engine("others")
    with pytest.raises(HeadNotLoaded):
        engine("nothing")
