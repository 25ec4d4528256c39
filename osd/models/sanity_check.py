"""Whether a draft that was loaded aside runs, before it drafts for anybody.

Files with the right digest may hold weights that give no numbers, and a pass may fail on this machine alone.
"""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from osd.models.decoder import Decoder, vocabulary_size
from osd.models.lora.adapter import Adapter
from storage.errors import DraftUnsound

TOKENS = 8


@torch.inference_mode()
def require_runs(decoder: Decoder, module: PreTrainedModel, version: str) -> None:
    """One pass over a few tokens, by the forward pass that will draft. Raises DraftUnsound: it fails, or a position has
    no likeliest token. The decoder's own cache is not touched."""
    count = min(TOKENS, decoder.cache.length)
    step = max(1, vocabulary_size(module) // count)
    tokens = torch.arange(count, device=decoder.device).unsqueeze(0) * step
    try:
        logits = decoder.beside(1, count).logits(tokens, [0])
    except Exception as error:
        raise DraftUnsound(version=version, reason=f"a pass failed: {type(error).__name__}: {error}") from error
    if bool(logits.isnan().any()) or not bool(logits.amax(-1).isfinite().all()):
        raise DraftUnsound(version=version, reason="it gives no finite numbers")


def require_finite(adapter: Adapter, version: str) -> None:
    """Raises DraftUnsound for an adapter with a weight that is no number; it is not run, for its base is in use."""
    if not all(bool(tensor.isfinite().all()) for site in adapter.sites.values() for tensor in site.tensors):
        raise DraftUnsound(version=version, reason="its adapter has weights that are no finite numbers")
