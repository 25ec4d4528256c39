"""What is wrong with a feature draft."""

from __future__ import annotations

from storage.errors import PairError


class FeatureDraftNotLoaded(PairError):
    """{path} is no feature draft: {reason} A folder of one holds config.json and model.safetensors, as vLLM's loaders
    of Medusa, EAGLE and EAGLE-3 take them; `osd drafts new NAME --kind eagle` makes one."""


class FeatureDraftMismatch(PairError):
    """The feature draft {draft} does not fit the target {target}: {reason} It reads the hidden states of the target
    that it was trained for, and of no other."""
