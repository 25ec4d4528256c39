"""The rule for trees against a plain one, and the plain one against exact enumeration."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor

from osd.draft_tree import Tree
from osd.verification.rejection_sampling_trees import (
    TreeBatch,
    TreeVerifyResult,
    accept_tree_greedy,
    accept_tree_sampled,
)
from tests.support.plain_trees import PlainTree, emitted, forest, walk, without

VOCABULARY = 5


def tables(generator: torch.Generator, *shape: int, holes: bool) -> Tensor:
    """Random distributions, some with tokens of probability 0."""
    weights = torch.randn(*shape, VOCABULARY, generator=generator, dtype=torch.double).mul(2).softmax(-1)
    if holes:
        weights = weights * (torch.rand(*shape, VOCABULARY, generator=generator) < 0.7)
        weights[..., 0] += 1e-3
    return weights / weights.sum(-1, keepdim=True)


def draw_from(q: Tensor, generator: torch.Generator) -> int:
    return int(torch.multinomial(q, 1, generator=generator))


def random_tree(generator: torch.Generator, q: Tensor, size: int, drawn: int) -> PlainTree:
    """At most ``size`` nodes; at every node some children drawn from its q without replacement, others certain."""
    tree = PlainTree([], [], [])
    for _ in range(20):
        if len(tree.tokens) >= size:
            break
        node = int(torch.randint(0, len(tree.tokens) + 1, (1,), generator=generator))
        taken = [tree.tokens[c - 1] for c in tree.children(node)]
        turn = len(tree.drawn(node))
        certain = turn < len(taken) or turn == drawn or bool(torch.rand(1, generator=generator) < 0.4)
        left = q[node].clone()
        left[taken] = 0
        if certain:
            free = [token for token in range(VOCABULARY) if token not in taken]
            token = free[int(torch.randint(0, len(free), (1,), generator=generator))] if free else -1
        else:
            token = draw_from(left, generator) if left.sum() > 0 else -1
        if token >= 0:
            tree.tokens.append(token)
            tree.parents.append(node)
            tree.turns.append(-1 if certain else turn)
    return tree


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("drawn", [0, 1, 2, 3])
def test_what_comes_out_is_exactly_p(seed: int, drawn: int) -> None:
    """Summed over all that can be drawn, without replacement: no sampling. Children that are certain change nothing of
    it, whatever they hang on: they only decide whether the token that is drawn last counts as drafted."""
    generator = torch.Generator().manual_seed(seed)
    p, q = tables(generator, 2, holes=seed % 2 == 1)
    out, support = torch.zeros_like(p), [token for token in range(VOCABULARY) if q[token] > 0]
    for order in itertools.permutations(support, min(drawn, len(support))):
        chance, left = 1.0, q
        for token in order:
            chance *= float(left[token])
            left = without(left, token) if token != order[-1] else left
        out += chance * emitted(p, q, order)[0]
    assert torch.allclose(out, p, atol=1e-12, rtol=0)


@pytest.mark.parametrize("seed", range(4))
def test_certain_children_are_kept_as_often_as_can_be(seed: int) -> None:
    """What comes out is p, and a kept token is one of the children: no rule keeps one more often than p(children)."""
    generator = torch.Generator().manual_seed(seed)
    p = tables(generator, 1, holes=False)
    tree = PlainTree([1, 3], [0, 0], [-1, -1])
    points = (torch.arange(20_000, dtype=torch.double) + 0.5) / 20_000
    many, draws = forest([tree] * len(points), None), points.repeat(2, 1).T
    walked = accept_tree_sampled(lambda node: p.expand(len(node), -1), many, torch.zeros(len(points), 2, 0), draws)
    kept = (walked.path[:, 1] > 0).double().mean()
    assert float(kept) == pytest.approx(float(p[0, [1, 3]].sum()), abs=2e-4)


@given(st.integers(0, 10_000), st.integers(0, 2), st.booleans())
@settings(max_examples=150)
def test_rows_walk_as_the_plain_rule_does(seed: int, drawn: int, holes: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    p, q = tables(generator, 2, 3, 9, holes=holes)
    trees = [random_tree(generator, q[i], size, drawn) for i, size in enumerate((8, 3, seed % 3))]
    together = forest(trees, q)
    tests = torch.rand(3, together.height + 1, max(1, together.draws), generator=generator, dtype=torch.double)
    draws = torch.rand(3, together.height + 1, generator=generator, dtype=torch.double)
    rows = torch.arange(3)
    walked = accept_tree_sampled(lambda node: p[rows, node], together, tests, draws)
    for i, tree in enumerate(trees):
        path, token, chances = walk(p[i], q[i], tree, tests[i], draws[i])
        nothing = [-1] * (together.height + 1 - len(path))
        assert walked.path[i].tolist() == [*path, *nothing]
        assert int(walked.follows[i]) == token
        assert walked.chances[i, : len(path)].tolist() == pytest.approx(chances, nan_ok=True)
        assert walked.chances[i, len(path) :].isnan().all()


@pytest.mark.parametrize(("drawn", "certain"), [(0, 2), (1, 0), (1, 2), (2, 1)])
def test_texts_of_two_tokens_follow_p(drawn: int, certain: int) -> None:
    """60,000 trees through the fast rule, their children drawn anew for each; what a tree does not decide is drawn from
    p. Level 1e-4: with these four cases a false alarm has odds of at most 1 in 2,500 for fresh seeds."""

    def plain(p: Tensor, trees: TreeBatch, tests: Tensor, draws: Tensor) -> TreeVerifyResult:
        rows = torch.arange(len(p))
        return accept_tree_sampled(lambda node: p[rows, node], trees, tests, draws)

    two_tokens_follow(drawn, certain, plain)


def two_tokens_follow(
    drawn: int, certain: int, judge: Callable[[Tensor, TreeBatch, Tensor, Tensor], TreeVerifyResult]
) -> None:
    """``judge`` takes p (B, N + 1, V) at each node, the trees, tests and draws."""
    count, generator = 60_000, torch.Generator().manual_seed(drawn * 10 + certain)
    p, q = tables(generator, 2, VOCABULARY + 1, holes=False)  # by the token before; the last line is the root's
    roots = torch.full((count, 1), VOCABULARY)
    first = siblings(q, roots, drawn, certain, generator)
    tokens = torch.cat([first, siblings(q, first[:, :1], drawn, certain, generator)], 1)
    state, family = torch.cat([roots, tokens], 1), drawn + certain
    parents = torch.tensor([0] * family + [1] * family).expand(count, -1)
    turns = torch.tensor([*range(drawn), *[-1] * certain] * 2).expand(count, -1)
    trees = TreeBatch(tokens, parents, turns, q[state[:, :2]] if drawn else None, drawn, 2)
    tests, draws = (torch.rand(count, 3, n, generator=generator, dtype=torch.double) for n in (drawn, 1))
    walked = judge(p[state], trees, tests, draws[..., 0])
    after_one = torch.multinomial(p, count, replacement=True, generator=generator)
    seen: Counter[tuple[int, int]] = Counter()
    for i, (path, follows) in enumerate(zip(walked.path.tolist(), walked.follows.tolist(), strict=True)):
        text = [int(state[i, node]) for node in path[1:] if node > 0] + [follows]
        seen[text[0], text[1] if len(text) > 1 else int(after_one[text[0], i])] += 1
    pairs = list(itertools.product(range(VOCABULARY), repeat=2))
    wanted = [float(p[VOCABULARY, a] * p[a, b]) * count for a, b in pairs]
    assert sum(times > 5 for times in wanted) > 15
    assert chisquare([seen[pair] for pair in pairs], wanted).pvalue > 1e-4


def siblings(q: Tensor, parents: Tensor, drawn: int, certain: int, generator: torch.Generator) -> Tensor:
    """(n, drawn + certain) children of n nodes, given by their tokens (n, 1): drawn without replacement (the largest of
    log q + Gumbel noise), then the likeliest of the others."""
    chances = q[parents[:, 0]]
    noise = -(-torch.rand(chances.shape, generator=generator, dtype=torch.double).log()).log()
    taken = (chances.log() + noise).topk(drawn).indices
    return torch.cat([taken, chances.scatter(1, taken, 0.0).topk(certain).indices], 1)


@given(st.integers(0, 10_000))
@settings(max_examples=60)
def test_greedy_goes_the_targets_way(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    q = tables(generator, 12, holes=False)
    plain = random_tree(generator, q, 10, 0)
    tree = Tree()
    for token, parent in zip(plain.tokens, plain.parents, strict=True):
        tree.add(parent, token)
    choices = torch.randint(0, VOCABULARY, (len(tree) + 1,), generator=generator).tolist()
    path = [0]
    while found := [c for c in plain.children(path[-1]) if plain.tokens[c - 1] == choices[path[-1]]]:
        path.append(found[0])
    assert accept_tree_greedy(tree, choices) == path


def test_a_certain_child_that_was_drawn_too_has_no_second_chance() -> None:
    """Where it was refused, p < q, and nothing of p is left for it."""
    p, q = torch.tensor([[0.1, 0.9]]), torch.tensor([[[0.8, 0.2]]])
    tree = forest([PlainTree([0], [0], [0])], q)
    for last in (0.0, 0.5, 0.999):
        walked = accept_tree_sampled(lambda node: p, tree, torch.tensor([[[0.5]] * 2]), torch.tensor([[last] * 2]))
        assert walked.path[0].tolist() == [0, -1] and int(walked.follows) == 1
