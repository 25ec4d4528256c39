"""What a forward pass over a ragged cache is."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from transformers import PreTrainedModel

from osd.models.kv_cache import RaggedCache

Forward = Callable[[Tensor, RaggedCache, Tensor | None], Tensor]
"""Tokens (B, T), a cache that was aimed, and which token of each row to score (None: all) → logits."""
Fill = Callable[[Tensor, RaggedCache], None]
"""The same without logits: only the cache is filled. A forward pass may have it under the name ``read``."""
Builder = Callable[[PreTrainedModel], Forward | None]
"""A module's weights → a pass over them; None where this kind of pass does not know the model."""
