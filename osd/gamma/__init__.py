"""Gamma rules: how many tokens to draft before the target looks. No torch here."""

from osd.gamma.base import CostModel, GammaController, GammaRule, Go, Observation, RowByRow, RowGamma, Signal
from osd.gamma.factory import CONTROLLERS, RULES, make_controller, make_pace, needs_head, require_rules
from osd.gamma.planner import GammaPlanner

__all__ = [
    "CONTROLLERS", "RULES", "CostModel", "GammaController", "GammaRule", "Go", "Observation", "GammaPlanner", "RowByRow",
    "RowGamma", "Signal", "make_controller", "make_pace", "needs_head", "require_rules",
]  # fmt: skip
