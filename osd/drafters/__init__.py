"""Drafters propose tokens for the target to check."""

from osd.drafters.base import Draft, Drafter, Drafting
from osd.drafters.causal import CausalDrafter

__all__ = ["CausalDrafter", "Draft", "Drafter", "Drafting"]
