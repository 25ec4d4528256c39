"""Choosing a controller by name, and what every controller promises."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import osd.gamma
from osd.gamma.base import CostModel, Go, Observation
from osd.gamma.factory import CONTROLLERS, make_controller
from storage.errors import BadSetting
from storage.settings import ServeSettings, load_settings
from tests.support.worlds import play_alone

FIRST = {"confidence": 12, "goodput": 1}
"""Controllers that gamma_initial says nothing to: one always asks for gamma_max, one begins with a single token."""
SIGNALS = {"goodput": "peak_echo", "gammatune_plus": "peak", "confidence": "confidence", "specdecpp": "acceptance"}


@pytest.mark.parametrize("name", list(CONTROLLERS))
def test_each_name_makes_the_controller_of_that_name(name: str) -> None:
    controller = make_controller(load_settings(serve={"gamma": name, "gamma_initial": 3}).serve, CostModel())
    assert controller.name == name
    assert controller.plan([controller.start()], [20], 1) == [FIRST.get(name, 3)]
    assert controller.signal == SIGNALS.get(name, "none")


def test_the_settings_and_the_controllers_know_the_same_names() -> None:
    with pytest.raises(BadSetting, match=r"serve\.gamma") as caught:
        load_settings(serve={"gamma": "clairvoyant"})
    assert all(name in str(caught.value) for name in CONTROLLERS)


def test_an_unknown_name_lists_those_there_are() -> None:
    settings = ServeSettings.model_construct(gamma="clairvoyant")
    with pytest.raises(BadSetting, match=", ".join(CONTROLLERS)):
        make_controller(settings, CostModel())


@pytest.mark.parametrize("name", list(CONTROLLERS))
def test_an_initial_gamma_above_the_maximum_is_refused(name: str) -> None:
    settings = ServeSettings(gamma=name, gamma_initial=9, gamma_max=8)  # type: ignore[arg-type]
    with pytest.raises(BadSetting, match=r"serve\.gamma_initial: 9 is more than serve\.gamma_max \(8\)"):
        make_controller(settings, CostModel())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("gamma_initial", -1),
        ("gamma_max", 0),
        ("gamma_history", 0),
        ("gamma_estimator", "guess"),
        ("gamma_eta", 0.0),
        ("gamma_eta", 1.5),
        ("gamma_delta", 0),
        ("gamma_confidence", 0.0),
        ("gamma_confidence", 1.0),
        ("gamma_confidence", 1.5),
        ("gamma_confidence_adapts", "perhaps"),
        ("gamma_warmup", -1),
        ("gamma_seed", "x"),
    ],
)
def test_a_setting_out_of_range_is_named(key: str, value: object) -> None:
    with pytest.raises(BadSetting, match=rf"serve\.{key}"):
        load_settings(serve={key: value})


def test_the_settings_reach_their_controllers() -> None:
    def after(rounds: int, **changes: object) -> int:
        settings = ServeSettings(gamma="gammatune", gamma_initial=4, **changes)  # type: ignore[arg-type]
        row = make_controller(settings, CostModel()).start()
        for _ in range(rounds):
            gamma = row.next_gamma(1)
            row.observe(Observation(gamma, gamma, gamma))
        return row.next_gamma(1)

    assert after(1, gamma_eta=1.0, gamma_delta=3) == 7
    assert after(1, gamma_eta=0.5, gamma_delta=2) == 5
    assert after(9, gamma_eta=1.0, gamma_delta=3, gamma_max=8) == 8
    for name in ("gammatune_plus", "confidence"):
        sure = make_controller(ServeSettings(gamma=name, gamma_confidence=0.7), CostModel()).start()
        assert (sure.keep_drafting(0.7), sure.keep_drafting(0.69)) == (Go.ON, Go.LAST)


def test_the_settings_of_the_confidence_threshold_reach_it() -> None:
    def threshold(**changes: object) -> list[Go]:
        row = make_controller(ServeSettings(gamma="confidence", **changes), CostModel()).start()  # type: ignore[arg-type]
        answers = [row.keep_drafting(p) for p in (0.9, 0.9, 0.9, 0.9, 0.9, 0.6)]
        row.observe(Observation(6, 6, 5))  # 0.6 was too little
        return [answers[-1], row.keep_drafting(0.6)]

    assert threshold() == [Go.ON, Go.ON]
    assert threshold(gamma_confidence_adapts=True) == [Go.ON, Go.LAST]


def test_the_settings_of_q_learning_reach_it() -> None:
    def choices(**changes: int) -> list[int]:
        controller = make_controller(ServeSettings(gamma="q_learning", **changes), CostModel())  # type: ignore[arg-type]
        return play_alone(controller, [0] * 40)

    assert choices(gamma_seed=1) == choices(gamma_seed=1) != choices(gamma_seed=2)
    assert choices(gamma_warmup=0)[1:].count(1) > 30 > choices(gamma_warmup=25)[1:].count(1)  # nothing pays: the least


def test_fixed_is_fixed() -> None:
    controller = make_controller(ServeSettings(gamma="fixed", gamma_initial=0), CostModel())
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
    settings = ServeSettings(gamma=name, gamma_initial=initial, gamma_max=8)  # type: ignore[arg-type]
    costs = CostModel()
    controller = make_controller(settings, costs)
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
