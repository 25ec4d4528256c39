"""Gamma rules: how many tokens to draft before the target looks. No torch here."""

from osd.gamma.base import CostModel, DraftDecision, GammaController, GammaRule, Observation, RowByRow, RowGamma, Signal
from osd.gamma.factory import CONTROLLERS, RULES, make_controller, make_planner, needs_head, require_rules
from osd.gamma.planner import GammaPlanner

__all__ = [
    "CONTROLLERS",
    "RULES",
    "CostModel",
    "DraftDecision",
    "GammaController",
    "GammaPlanner",
    "GammaRule",
    "Observation",
    "RowByRow",
    "RowGamma",
    "Signal",
    "make_controller",
    "make_planner",
    "needs_head",
    "require_rules",
]  # fmt: skip
