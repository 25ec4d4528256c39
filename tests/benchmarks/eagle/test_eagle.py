"""Trees of an EAGLE draft by told time: rounds, depths, what rules see, and Tables 10 and 11."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from benchmarks.eagle import bench as eagle
from benchmarks.eagle.learn import trained_eagle
from benchmarks.eagle.paper_trees import EXPANDED
from benchmarks.eagle.told import ToldEngine
from benchmarks.gamma.costed import CostedRound, CostedText, CostedTexts
from benchmarks.gamma.costs import CostCells, CostTable, Piece, Pieces, find_costs
from osd.bench.harness.watch import Watch
from osd.models.features.decoder import FeatureDecoder, feature_target
from osd.models.features.files import load_feature_draft
from osd.models.features.target import read_features
from osd.models.pair import Pair
from osd.models.target_only import load_alone
from tests.support.features import feature_pair
from tests.support.models import prompts
from tests.support.settings import settings_of
from tests.trainer.feature_drafts import tiny_target
from tests.trainer.models import random_prompts

COSTS, NEW, NODES = "a100-c013", 12, 12
SETS = {"one": prompts(3, seed=1, longest=8), "two": prompts(2, seed=2, longest=8)}
TABLE = CostTable("some", "", CostCells([(1, 1, 2.0)]), Pieces((Piece(start_ms=5, token_ms=0.5),)))


def run(pair: Pair) -> eagle.DepthRun:
    return eagle.DepthRun(pair, settings_of(serve__max_length=64), SETS, NEW, 1, NODES)


def pair() -> Pair:
    return feature_pair("eagle")


def engine(arm: eagle.DepthArm, costs: CostTable = TABLE) -> ToldEngine:
    return ToldEngine(arm.engine(pair(), settings_of(serve__max_length=64), NODES), costs)


def test_a_round_takes_what_the_table_says_and_its_tree_is_as_deep_as_asked() -> None:
    told = engine(eagle.FIXED[3])
    text = told.decode("one", SETS["one"][0], NEW)
    rounds = text.rounds
    assert len(text.tokens) == NEW
    assert all(each.passes == 3 and 3 <= each.drafted <= NODES for each in rounds[:-3]) and len(rounds) > 3
    assert CostedRound(3, 9, 2).draft_ms(TABLE) == 6.0 and CostedRound(3, 9, 2).verify_ms(TABLE) == 10.0
    told_ms = told._engine.stats.round_ms
    assert sum(told_ms) == pytest.approx(sum(each.draft_ms(TABLE) + each.verify_ms(TABLE) for each in rounds))


@torch.no_grad()
def best_paths(made: Pair, text: Sequence[int], most: int) -> dict[tuple[int, ...], float]:
    """The likeliest two-token continuations and their beginnings by EAGLE-2's rule, pass by pass."""
    target = feature_target(made.target)
    decoder = FeatureDecoder(made.draft.draft, target, 1, 64, 64)  # type: ignore[attr-defined]
    known = torch.tensor([list(text)])
    features = read_features(target.module, known, decoder.layers)[0][:, :-1]
    hidden = decoder.read([0], features, known[:, 1:], [len(text) - 1])
    first, found = decoder.logits(hidden).softmax(-1)[0].topk(EXPANDED), {}
    for chance, token in zip(*(each.tolist() for each in first), strict=True):
        found[token,] = chance
        after = decoder.logits(decoder.go_on([len(text) - 1], hidden, torch.tensor([token]))).softmax(-1)[0]
        found |= {(token, int(t)): chance * float(c) for c, t in zip(*after.topk(EXPANDED), strict=True)}
    return dict(sorted(found.items(), key=lambda pair: -pair[1])[:most])


def test_the_papers_tree_has_the_best_of_all_that_ten_nodes_a_level_are_expanded_to() -> None:
    told, prompt = engine(eagle.FIXED[2]), max(SETS["one"], key=len)
    told.decode("one", prompt, NEW)
    (tree,) = told._clock.drafts[0].trees
    paths: dict[int, tuple[int, ...]] = {0: ()}
    for node, (parent, token) in enumerate(zip(tree.parents, tree.tokens, strict=True), start=1):
        paths[node] = (*paths[parent], token)
    expected = best_paths(pair(), prompt, NODES)
    assert len(tree) == NODES and set(list(paths.values())[1:]) == set(expected)
    assert max(map(len, expected)) == 2 and sum(len(path) == 1 for path in expected) < NODES


def test_all_arms_say_what_the_target_says_and_count_the_texts_after_the_warm_ones() -> None:
    measure = run(pair()).measure
    cells = [measure(job) for job in eagle.jobs_of([COSTS])]
    assert len(cells) == len(eagle.ARMS) and eagle.differing(cells) == 0
    texts = eagle.texts_by_arm(cells, COSTS)
    assert all(each.data_sets.tolist() == ["one", "two", "one"] for each in texts.values())
    alone, deep = eagle.table_11(texts[eagle.ALONE.name]), eagle.table_11(texts[eagle.FIXED[4].name])
    assert alone["depth"] == alone["nodes"] == 0 and alone["serving, tokens/s"] == alone["verification, tokens/s"]
    assert 3 < deep["depth"] <= 4 and deep["acceptance"] == pytest.approx((deep["tokens a round"] - 1) / deep["depth"])
    speeds, details = eagle.speeds_of(cells, [COSTS]), eagle.details_of(cells, [COSTS])
    (rows,), (columns,) = speeds.values(), details.values()
    assert [row[""] for row in rows] == [arm.name for arm in eagle.ARMS] == [row[""] for row in columns]
    assert next(row for row in rows if row[""] == eagle.FIXED[6].name)["one ÷ depth 6"].startswith("1.00")


def test_costs_decide_which_depth_a_rule_sets() -> None:
    """Where a pass of the draft costs as much as one of the target, a rule soon leaves it alone; where it costs
    nothing, it drafts on."""
    verify = Pieces((Piece(start_ms=10.0),))
    depth = {}
    for name, ms in (("dear", 10.0), ("free", 0.001)):
        told = engine(eagle.ANALYTIC, CostTable(name, "", CostCells([(1, 1, ms)]), verify))
        for prompt in prompts(6, seed=3, longest=8):
            rounds = told.decode("any", prompt, 24).rounds
        depth[name] = sum(each.passes for each in rounds) / len(rounds)
    assert depth["dear"] < 1 < depth["free"]


def test_only_osds_own_arms_leave_nodes_out_for_their_cost() -> None:
    settings = settings_of(serve__max_length=64)
    sized = {arm.name: arm.engine(pair(), settings, NODES).drafting.pruner.sized for arm in eagle.ARMS}  # type: ignore[attr-defined]
    assert {name for name, own in sized.items() if own} == {eagle.ANALYTIC_SIZED.name, eagle.GOODPUT.name}


def test_where_nodes_cost_nothing_none_is_left_out_for_its_cost() -> None:
    flat = CostTable("flat", "", CostCells([(1, 1, 0.5)]), Pieces((Piece(start_ms=10.0),)))
    nodes = []
    for sized in (False, True):
        told = engine(eagle.DepthArm("three", depth=3, sized=sized), flat)
        for tokens in [*range(1, NODES + 2)] * 4:  # once it is known that they cost nothing
            told._engine.costs.observe_verify(1, tokens, 10.0)
        texts = [told.decode("any", prompt, 24) for prompt in prompts(4, seed=4, longest=8)]
        nodes.append([each.drafted for text in texts for each in text.rounds])
    assert nodes[0] == nodes[1] and max(nodes[0]) == NODES


def test_columns_are_sums_over_texts_and_sets_are_told_apart() -> None:
    rounds = [CostedRound(2, 8, 1), CostedRound(0, 0, 0)]
    texts = CostedTexts.of([CostedText("a", (1, 2, 3), rounds), CostedText("b", (1, 2), rounds[:1])], TABLE)
    assert texts.draft_ms.tolist() == [4.0, 4.0] and texts.verify_ms.tolist() == [9.5 + 5.5, 9.5]
    found = eagle.table_11(texts)
    assert found["serving, tokens/s"] == pytest.approx(1e3 * 5 / 32.5)
    assert found["speculation, tokens/s"] == pytest.approx(1e3 * 16 / 8)
    assert found["verification, tokens/s"] == pytest.approx(1e3 * 19 / 24.5)
    assert found["acceptance"] == 2 / 4 and texts.only("b").tokens.tolist() == [2.0]
    assert eagle.table_11(texts.only("a"))["depth"] == 1.0 and find_costs(COSTS).draft_ms(1, 1) < 2


@pytest.mark.long
def test_a_draft_of_random_weights_learns_from_answers_and_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "target"
    tiny_target().save_pretrained(target)
    alone = load_alone(target, device="cpu")
    asked, settings = [tuple(map(int, each[:4])) for each in random_prompts(200)], settings_of(serve__max_length=64)
    folder = trained_eagle(alone, settings, asked, 12, tmp_path, Watch())
    draft = load_feature_draft(folder, feature_target(alone.target))
    assert draft.kind == "eagle" and (folder / "model.safetensors").stat().st_size > 0
    made = folder.stat().st_mtime_ns
    assert trained_eagle(alone, settings, asked, 12, tmp_path, Watch()) == folder and folder.stat().st_mtime_ns == made
