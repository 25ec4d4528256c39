"""Lossy acceptance: beside plain loops over paths, in distribution by exact enumeration, exact at temperature 0, and
what is recorded, told and refused."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from osd.draft import Draft
from osd.draft_tree import Tree
from osd.drafters.tree import TreeDrafter
from osd.engine.engine import Engine
from osd.logits import RaggedLogits
from osd.models.pair import Pair
from osd.recording.recorder import Recorder
from osd.sequence import SequenceState
from osd.verification.lossy import LossyRule, judge_lossy, paths_of
from osd.verification.rejection_sampling import acceptance_chance
from osd.verification.warping import Warp
from storage.errors import BadSetting
from storage.names import lossy_mode, lossy_name
from storage.records import Request, TokenKind
from storage.sampling import Sampling
from storage.settings import Settings
from storage.store import Store
from tests.lossless.test_distribution import LEVEL, p_value
from tests.lossless.test_lossless import serve
from tests.support.models import VOCABULARY, alone, prompts, random_pair
from tests.support.proposers import Guessing
from tests.support.samples import each_position
from tests.support.settings import settings_of

MODES = ["typical", "adaptix"]
V, SAMPLES, PROMPT = 9, 2000, (3, 7, 2)
SAMPLING = Sampling(1.0, top_k=0, top_p=1.0, min_p=0.0)


def rule_of(mode: str, epsilon: float = 0.2, delta: float = 0.6) -> LossyRule:
    return LossyRule(mode, epsilon, delta)


def same(rows: int) -> Warp:
    """What leaves distributions as they are."""
    return Warp([SAMPLING] * rows, V, torch.device("cpu"))


def logits_of(p: torch.Tensor) -> RaggedLogits:
    """Logits whose distributions are p (B, T, V)."""
    return RaggedLogits.of(p.log())


class Row:
    """A sequence of which only its numbers are asked for."""

    def __init__(self, seed: int) -> None:
        self._chance = np.random.default_rng(seed)

    def chances(self, count: int) -> Any:
        return self._chance.random(count)


def random_tree(chance: random.Random, size: int) -> Tree:
    tree = Tree(drawn=chance.randint(0, 2))
    while len(tree) < size:
        parent = len(tree) if len(tree) < tree.drawn else chance.randint(0, len(tree))
        tree.add(parent, chance.randrange(V))
    return tree


def plain_paths(tree: Tree, node: int = 0) -> Iterator[list[int]]:
    children = [child for child, parent in enumerate(tree.parents, 1) if parent == node]
    if not children:
        yield [node]
    for child in children:
        yield from ([node, *rest] for rest in plain_paths(tree, child))


def plain_path(rule: LossyRule, tree: Tree, p: torch.Tensor, row: Row) -> list[int]:
    """By hand: each path in the order of its leaf, each token in turn."""
    best = [0]
    for path in sorted(plain_paths(tree), key=lambda one: one[-1]):
        numbers = list(row.chances(len(path) - 1)) if rule.mode == "adaptix" else []
        taken = [0]
        for place, (before, node) in enumerate(pairwise(path)):
            likely = float(p[before, tree.tokens[node - 1]])
            entropy = -sum(float(x) * math.log(float(x)) for x in p[before] if x > 0)
            bar = min(rule.epsilon, rule.delta * math.exp(-entropy))
            if not (numbers[place] < likely if rule.mode == "adaptix" else likely > bar):
                break
            taken.append(node)
        best = taken if len(taken) > len(best) else best
    return best


@pytest.mark.parametrize("mode", MODES)
def test_the_longest_path_that_is_taken_wins(mode: str) -> None:
    chance, rule = random.Random(5), rule_of(mode)
    torch.manual_seed(0)
    lengths: Counter[int] = Counter()
    for seed in range(40):
        size = chance.randint(1, 8)
        trees = [random_tree(chance, size) for _ in range(3)]
        p = (2.5 * torch.randn(3, size + 1, V)).softmax(-1)
        q = torch.rand(3, max(1, max(tree.drawn for tree in trees)), V).softmax(-1)
        tokens = torch.tensor([tree.tokens for tree in trees])
        draft = Draft(tokens, (size,) * 3, q, size, trees=tuple(trees))
        uniforms = torch.rand(3, 2 * size + 1, dtype=torch.float64)
        rows: Any = [Row(seed + i) for i in range(3)]
        found = judge_lossy(rule, rows, logits_of(p), draft, same(len(p)), uniforms, keep_chances=True)
        assert found.paths is not None and found.chances is not None and found.shared is None
        for i, tree in enumerate(trees):
            path = plain_path(rule, tree, p[i], Row(seed + i))
            assert found.paths[i] == path and found.accepted[i] == len(path) - 1
            assert found.depths[i] == tree.reach(path[-1]) and found.drafted[i] == tree.follow(path)
            end = p[i, path[-1]]
            if mode == "typical":
                assert found.follows[i] == int(end.argmax())
            else:
                assert found.follows[i] == int((end.double().cumsum(0) <= uniforms[i, -1] * end.double().sum()).sum())
            for place, node in enumerate(path):
                below = [c for c, parent in enumerate(tree.parents, 1) if parent == node]
                child = path[place + 1] if place + 1 < len(path) else (below or [0])[0]
                if child and node < size:
                    token = tree.tokens[child - 1]
                    proposed = float(q[i, node, token]) if child <= tree.drawn else 1.0
                    expected = min(1.0, float(p[i, node, token]) / proposed)
                    assert float(found.chances[i, node]) == pytest.approx(expected, rel=1e-5)
            lengths[len(path)] += 1
    assert len(lengths) > 2


@pytest.mark.parametrize("mode", MODES)
def test_a_chain_is_a_tree_of_one_path(mode: str) -> None:
    torch.manual_seed(1)
    p, q = (2 * torch.randn(4, 4, V)).softmax(-1), torch.rand(4, 3, V).softmax(-1)
    tokens, lengths = torch.randint(0, V, (4, 3)), (3, 0, 2, 3)
    uniforms = torch.rand(4, 7, dtype=torch.float64)
    rows: Any = [Row(i) for i in range(4)]
    draft = Draft(tokens, lengths, q, 3)
    found = judge_lossy(rule_of(mode), rows, logits_of(p), draft, same(len(p)), uniforms, keep_chances=True)
    assert found.paths is None and found.depths == list(lengths) and found.drafted == tokens.tolist()
    for i, length in enumerate(lengths):
        tree = Tree(tokens[i, :length].tolist(), list(range(length)))
        assert found.accepted[i] == len(plain_path(rule_of(mode), tree, p[i], Row(i))) - 1
    assert found.chances is not None
    drafted = torch.arange(3) < torch.tensor(lengths)[:, None]
    exact = acceptance_chance(p, q, tokens)  # what exact verification keeps
    torch.testing.assert_close(found.chances[drafted], exact[drafted])


def test_paths_are_those_from_the_root_to_each_leaf() -> None:
    tree = Tree([1, 2, 3, 4], [0, 1, 1, 0])
    assert paths_of(tree) == [[0, 1, 2], [0, 1, 3], [0, 4]] and paths_of(Tree()) == []


@torch.inference_mode()
def distributions(pair: Pair) -> tuple[torch.Tensor, torch.Tensor]:
    warp = Warp([SAMPLING], V, torch.device("cpu"))
    p, q = (warp(m.module(torch.tensor([PROMPT])).logits[:, -1:])[0, 0].double() for m in (pair.target, pair.draft))
    return p, q


@pytest.mark.parametrize("mode", MODES)
def test_the_first_token_has_the_distribution_that_the_rule_gives(mode: str) -> None:
    """One drafted token a round, by exact enumeration; two tests at level 1e-4, seeds fixed. It is not the target's
    own: that is what makes it lossy."""
    pair = random_pair("llama", noise=0.35, vocabulary=V)
    settings = settings_of(
        serve__max_batch=64, serve__max_length=32, gamma__rule="fixed", gamma__initial=1, serve__lossy=mode
    )
    p, q = distributions(pair)
    bar = min(0.09, 0.3 * math.exp(float((p * p.log()).sum())))
    expected = torch.zeros(V, dtype=torch.float64)
    for drafted in range(V):
        taken = float(p[drafted] > bar) if mode == "typical" else float(p[drafted])
        after = torch.nn.functional.one_hot(p.argmax(), V).double() if mode == "typical" else p
        expected += q[drafted] * (taken * torch.nn.functional.one_hot(torch.tensor(drafted), V) + (1 - taken) * after)
    plain = (Request(PROMPT, 2, Sampling(1.0, 0, 1.0, seed, 0.0), ignore_eos=True) for seed in range(SAMPLES))
    seen = Counter(c.tokens[:1] for c in Engine(pair, settings).run(plain))
    assert p_value(seen, {(token,): float(expected[token]) for token in range(V)}) > LEVEL
    assert p_value(seen, {(token,): float(p[token]) for token in range(V)}) < 0.01


@pytest.mark.parametrize("trees", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_at_temperature_0_both_are_exact(mode: str, trees: bool) -> None:
    """Alone and beside rows that sample."""
    pair = random_pair("llama")
    settings = settings_of(
        serve__max_batch=4, serve__max_length=96, gamma__rule="fixed", gamma__initial=3, serve__lossy=mode
    )
    engine = Engine(pair, settings)
    if trees:
        engine.drafting = TreeDrafter(engine.pool, Guessing(VOCABULARY, {}), 10, engine.target)
    asked = [Request(p, 16, Sampling(float(i % 2), seed=i)) for i, p in enumerate(prompts(6, seed=3))]
    done = {c.request.id: c for c in engine.run(asked)}
    for request in asked[::2]:
        assert list(done[request.id].tokens) == alone(pair.target.module, request.prompt_tokens, 16)
        assert done[request.id].outcomes[0].controller == "fixed"
    assert {done[r.id].outcomes[0].controller for r in asked[1::2]} == {f"fixed (lossy {mode})"}


@torch.inference_mode()
@pytest.mark.parametrize("mode", MODES)
def test_what_is_recorded_is_the_targets_own(mode: str, pair: Pair, store: Store, settings: Settings) -> None:
    """Its distribution at every position of the text that came of it, and min(1, p/q) of every drafted token."""
    settings = settings.changed(serve={"lossy": mode}, gamma={"rule": "fixed", "initial": 3})
    asked = [Request(p, 17, Sampling(0.8, seed=i)) for i, p in enumerate(prompts(4, seed=20))]
    recorder = Recorder(store, settings, "test")
    list(Engine(pair, settings, recorder=recorder).run(asked))
    recorder.close()
    for request, samples in zip(asked, store.samples.read([r.id for r in asked]), strict=True):
        text = torch.tensor([samples.tokens.tolist()])
        warp = Warp([request.sampling], pair.vocab_size, pair.device)
        logits, proposed = (m.module(text).logits for m in (pair.target, pair.draft))
        for sample in each_position(samples):
            top = logits[0, sample.position - 1].log_softmax(-1).topk(8)
            assert np.allclose(sample.topk_logprobs.astype(np.float32), top.values, atol=1e-2)
            if sample.kind is TokenKind.UNDRAFTED:
                continue
            p, q = (warp(each[:, sample.position - 1 : sample.position])[0, 0] for each in (logits, proposed))
            assert sample.acceptance == pytest.approx(float((p / q)[sample.drafted].clamp(max=1)), abs=2e-3)


def test_the_suites_of_losslessness_refuse_an_engine_with_a_lossy_mode(pair: Pair) -> None:
    for mode in MODES:
        with pytest.raises(AssertionError, match=f"serve.lossy = {mode}"):
            serve(Engine(pair, settings_of(serve__lossy=mode)), [])
    assert serve(Engine(pair, settings_of()), []) == []


def test_settings_that_are_no_mode_are_named() -> None:
    with pytest.raises(BadSetting, match=r"serve\.lossy: Input should be '', 'typical' or 'adaptix' \(got 'eager'\)"):
        Settings().changed(serve={"lossy": "eager"})
    for key in ("typical_epsilon", "typical_delta"):
        for value in (0.0, 1.0):
            with pytest.raises(BadSetting, match=rf"serve\.{key}: "):
                Settings().changed(serve={key: value})
    assert LossyRule.of(Settings().serve) is None


def test_totals_keep_lossy_requests_apart() -> None:
    assert lossy_name("fixed", "") == "fixed" and lossy_mode("fixed") == ""
    assert lossy_mode(lossy_name("goodput", "typical")) == "typical"
    row = SequenceState(Request((1,), sampling=SAMPLING), Request((1,)), SimpleNamespace(), 9)  # type: ignore[arg-type]
    row.begin(SimpleNamespace(name="fixed", start=lambda: None), "adaptix")
    assert row.lossy == "adaptix"
