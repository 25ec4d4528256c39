"""Choosing a controller by name, and what every controller promises."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import osd.gamma
from osd.gamma.base import CostModel, DraftDecision, Observation
from osd.gamma.factory import CONTROLLERS, make_controller
from storage.errors import BadSetting
from tests.support.settings import settings_of
from tests.support.worlds import play_alone

FIRST = {"confidence": 12, "goodput": 1}
"""Controllers that gamma.initial says nothing to: one always asks for gamma.max, one begins with a single token."""
SIGNALS = {"goodput": "peak_token", "gammatune_plus": "peak", "confidence": "confidence", "specdecpp": "acceptance"}


@pytest.mark.parametrize("name", list(CONTROLLERS))
def test_each_name_makes_the_controller_of_that_name(name: str) -> None:
    controller = make_controller(settings_of(gamma__rule=name, gamma__initial=3).gamma, CostModel())
    assert controller.name == name
    assert controller.plan([controller.start()], [20], 1) == [FIRST.get(name, 3)]
    assert controller.signal == SIGNALS.get(name, "none")


def test_an_unknown_name_lists_those_there_are() -> None:
    with pytest.raises(BadSetting, match=r"gamma\.rule: there is no 'clairvoyant'; known: " + ", ".join(CONTROLLERS)):
        make_controller(settings_of(gamma__rule="clairvoyant").gamma, CostModel())


@pytest.mark.parametrize("name", list(CONTROLLERS))
def test_an_initial_gamma_above_the_maximum_is_refused(name: str) -> None:
    settings = settings_of(gamma__rule=name, gamma__initial=9, gamma__max=8)
    with pytest.raises(BadSetting, match=r"gamma\.initial: 9 is more than gamma\.max \(8\)"):
        make_controller(settings.gamma, CostModel())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("initial", -1),
        ("max", 0),
        ("analytic__history", 0),
        ("analytic__estimator", "guess"),
        ("gammatune__eta", 0.0),
        ("gammatune__eta", 1.5),
        ("gammatune_plus__delta", 0),
        ("confidence__threshold", 0.0),
        ("confidence__threshold", 1.0),
        ("gammatune_plus__threshold", 1.5),
        ("confidence__adapts", "perhaps"),
        ("q_learning__warmup", -1),
        ("q_learning__seed", "x"),
        ("q_learning__alpha", 0.0),
        ("q_learning__discount", 1.0),
        ("q_learning__epsilon", 1.5),
        ("q_learning__rest", -0.1),
        ("confidence__tokens", 0),
    ],
)
def test_a_setting_out_of_range_is_named(key: str, value: object) -> None:
    with pytest.raises(BadSetting, match=rf"gamma\.{key}".replace("__", r"\.")):
        settings_of(**{f"gamma__{key}": value})


def test_the_settings_reach_their_controllers() -> None:
    def after(rounds: int, **changes: object) -> int:
        settings = settings_of(gamma__rule="gammatune", gamma__initial=4, **changes)
        row = make_controller(settings.gamma, CostModel()).start()
        for _ in range(rounds):
            gamma = row.next_gamma(1)
            row.observe(Observation(gamma, gamma, gamma))
        return row.next_gamma(1)

    assert after(1, gamma__gammatune__eta=1.0, gamma__gammatune__delta=3) == 7
    assert after(1, gamma__gammatune__eta=0.5, gamma__gammatune__delta=2) == 5
    assert after(9, gamma__gammatune__eta=1.0, gamma__gammatune__delta=3, gamma__max=8) == 8
    for name in ("gammatune_plus", "confidence"):
        sure = make_controller(settings_of(gamma={"rule": name, name: {"threshold": 0.7}}).gamma, CostModel()).start()
        assert (sure.keep_drafting(0.7), sure.keep_drafting(0.69)) == (DraftDecision.ON, DraftDecision.LAST)


def test_the_settings_of_the_confidence_threshold_reach_it() -> None:
    def threshold(**changes: object) -> list[DraftDecision]:
        row = make_controller(settings_of(gamma__rule="confidence", **changes).gamma, CostModel()).start()
        answers = [row.keep_drafting(p) for p in (0.9, 0.9, 0.9, 0.9, 0.9, 0.6)]
        row.observe(Observation(6, 6, 5))  # 0.6 was too little
        return [answers[-1], row.keep_drafting(0.6)]

    assert threshold() == [DraftDecision.ON, DraftDecision.ON]
    assert threshold(gamma__confidence__adapts=True) == [DraftDecision.ON, DraftDecision.LAST]


def test_the_settings_of_q_learning_reach_it() -> None:
    def choices(**changes: int) -> list[int]:
        controller = make_controller(settings_of(gamma__rule="q_learning", **changes).gamma, CostModel())
        return play_alone(controller, [0] * 40)

    first, again, other = (choices(gamma__q_learning__seed=seed) for seed in (1, 1, 2))
    assert first == again != other
    without, after = (choices(gamma__q_learning__warmup=requests)[1:].count(0) for requests in (0, 25))
    assert without > 30 > after  # nothing pays: the least
    assert set(choices(gamma__q_learning={"warmup": 0, "epsilon": 0.0})[1:]) == {0}


@pytest.mark.parametrize("changed", [{"alpha": 0.5}, {"discount": 0.2}, {"rest": 0.5}])
def test_the_constants_of_q_learning_reach_its_table(changed: dict[str, float]) -> None:
    own = {"alpha": 0.25, "discount": 0.8, "rest": 0.125, "epsilon": 0.0, "warmup": 0} | changed
    gamma = settings_of(gamma__rule="q_learning", gamma__initial=0, gamma__q_learning=own).gamma
    controller = make_controller(gamma, CostModel())
    play_alone(controller, [0, 0, 0])  # rests, twice by choice
    first = own["alpha"] * own["rest"]
    second = first + own["alpha"] * (own["rest"] + own["discount"] * first - first)
    assert controller._values[0][0] == pytest.approx(second)


def test_a_confident_draft_ends_at_transformers_number_of_tokens() -> None:
    def most(**changes: int) -> int:
        gamma = settings_of(gamma__rule="confidence", gamma__max=24, **changes).gamma
        return make_controller(gamma, CostModel()).start().next_gamma(1)

    assert most() == settings_of().gamma.confidence.tokens == 20
    assert most(gamma__confidence__tokens=5) == 5
    assert most(gamma__confidence__tokens=30) == 24


def test_fixed_is_fixed() -> None:
    controller = make_controller(settings_of(gamma__rule="fixed", gamma__initial=0).gamma, CostModel())
    row = controller.start()
    row.observe(Observation(0, 0, 0))
    assert controller.plan([row, row], [9, 9], 8) == [0, 0]
    assert controller.signal == "none"


def test_rejected_is_fewer_accepted_than_drafted() -> None:
    assert Observation(4, 4, 3).rejected
    assert not Observation(4, 2, 2).rejected  # cut short by a length limit, accepted whole
    assert not Observation(0, 0, 0).rejected


@given(st.sampled_from(list(CONTROLLERS)), st.integers(0, 8), st.lists(st.floats(0, 1), max_size=30))
def test_gamma_stays_within_its_limits(name: str, initial: int, shares: list[float]) -> None:
    settings = settings_of(gamma__rule=name, gamma__initial=initial, gamma__max=8)
    costs = CostModel()
    controller = make_controller(settings.gamma, costs)
    row = controller.start()
    for share in shares:
        [gamma] = controller.plan([row], [20], 1)
        assert 0 <= gamma <= 8
        costs.observe_draft(1, gamma, gamma * 0.5)
        costs.observe_verify(1, gamma + 1, 4.0)
        row.observe(Observation(gamma, gamma, round(share * gamma)))


def test_no_torch_and_no_numpy_here() -> None:
    for path in Path(osd.gamma.__file__).parent.glob("*.py"):
        if path.name == "compiled.py":  # it imports numpy once numba is there
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.split(".")[0] for name in names} & {"torch", "numpy", "transformers"}, path.name
