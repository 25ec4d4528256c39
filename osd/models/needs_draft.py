"""Which drafters need no draft model, and the error where one is needed and none is named."""

from __future__ import annotations

from storage.errors import PairError

UNIVERSAL = "universal"
"""The drafter whose draft model has a vocabulary of its own."""
MODEL_DRAFTERS = ("causal", "tree", "blended", UNIVERSAL)
"""Values of ``drafters.kind`` that need a draft model; for others a target alone is enough."""


class NeedsDraft(PairError):
    """{what} needs a draft model, and the pair has none. Give --draft (or serve.draft); without a draft model
    drafters.kind may be trigram or lookup."""
