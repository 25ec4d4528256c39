"""Algorithm 1 of GammaTune, worked by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from osd.gamma.base import DraftDecision, Observation
from osd.gamma.rules.gammatune import GammaTuneController


def gammas(controller: GammaTuneController, accepted: list[int]) -> list[int]:
    """The gamma before each round and after the last; a round drafts all that was asked for."""
    row = controller.start()
    asked = [row.next_gamma(1)]
    for count in accepted:
        row.observe(Observation(asked[-1], asked[-1], count))
        asked.append(row.next_gamma(1))
    return asked


def test_a_trace_worked_by_hand() -> None:
    controller = GammaTuneController(4, 8, eta=0.5, delta=2)
    # γ̄ = 4
    # γ 4, A 4 = γ, so A 6:  4/2 + 6/2 = 5
    # γ 5, A 2:              5/2 + 2/2 = 3.5      -> 4
    # γ 4, A 0:              3.5/2     = 1.75     -> 2
    # γ 2, A 0:              0.875, at least 1    -> 1
    # γ 1, A 1 = γ, so A 3:  1/2 + 3/2 = 2
    # γ 2, A 2 = γ, so A 4:  2/2 + 4/2 = 3
    # γ 3, A 3 -> 5:         4
    # γ 4, A 4 -> 6:         5
    # γ 5, A 5 -> 7:         6
    # γ 6, A 6 -> 8:         7
    # γ 7, A 7 -> 9:         8
    # γ 8, A 8 -> 10:        9, at most 8         -> 8
    assert gammas(controller, [4, 2, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]) == [4, 5, 4, 2, 1, 2, 3, 4, 5, 6, 7, 8, 8]


def test_a_slow_average_keeps_its_inertia() -> None:
    controller = GammaTuneController(4, 12, eta=0.25, delta=1)
    # 4 -> A 0: 3 -> A 0: 2.25 -> A 3 = γ, so 4: 1.6875 + 1 = 2.6875 -> A 1: 2.015625 + 0.25 = 2.265625
    assert gammas(controller, [0, 0, 3, 1]) == [4, 3, 3, 3, 3]


def test_rounding_of_the_average_does_not_lengthen_the_window() -> None:
    # 0.8 · 6 + 0.2 · 6 is 6.000000000000001 in floating point
    row = GammaTuneController(6, 12, eta=0.2, delta=1).start()
    row.observe(Observation(8, 8, 6))
    assert row.next_gamma(1) == 6


def test_each_request_has_its_own_average() -> None:
    controller = GammaTuneController(4, 8, eta=0.5, delta=2)
    first, second = controller.start(), controller.start()
    first.observe(Observation(4, 4, 0))
    assert (first.next_gamma(1), second.next_gamma(1)) == (2, 4)


def test_plus_stops_below_tau_and_a_window_cut_short_counts_as_the_window() -> None:
    controller = GammaTuneController(4, 8, eta=0.5, delta=2, tau=0.4)
    row = controller.start()
    assert controller.signal == "peak"
    assert [row.keep_drafting(confidence) for confidence in (0.9, 0.4, 0.39)] == [
        DraftDecision.ON,
        DraftDecision.ON,
        DraftDecision.LAST,
    ]
    row.observe(Observation(gamma=4, drafted=3, accepted=3))  # A = 3 drafted, so 5: 4/2 + 5/2 = 4.5
    assert row.next_gamma(1) == 5
    row.observe(Observation(gamma=5, drafted=1, accepted=0))  # 4.5/2 = 2.25
    assert row.next_gamma(1) == 3
    row.observe(Observation(gamma=3, drafted=0, accepted=0))  # nothing drafted, nothing learned
    assert row.next_gamma(1) == 3


def test_without_tau_no_confidence_is_asked_for() -> None:
    controller = GammaTuneController(4, 8, eta=0.5, delta=2)
    assert controller.name == "gammatune"
    assert controller.signal == "none"
    assert GammaTuneController(4, 8, eta=0.5, delta=2, tau=0.4).name == "gammatune_plus"


@given(
    st.integers(0, 12),
    st.integers(1, 12),
    st.floats(0.01, 1),
    st.integers(1, 5),
    st.lists(st.floats(0, 1), max_size=40),
)
def test_gamma_stays_between_1_and_the_maximum(
    initial: int, maximum: int, eta: float, delta: int, shares: list[float]
) -> None:
    row = GammaTuneController(initial, maximum, eta=eta, delta=delta).start()
    for share in shares:
        gamma = row.next_gamma(1)
        assert 1 <= gamma <= maximum
        row.observe(Observation(gamma, gamma, round(share * gamma)))
