"""Sanity check of a draft that was loaded aside, before it drafts for any request.

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
    """Run one pass over a few tokens, by the forward pass that will draft, without touching the decoder's own cache.

    Raises DraftUnsound when it fails or gives logits that are not finite.
    """
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
    """Check that an adapter's weights are finite, without running it, for its base is in use. Raises DraftUnsound."""
    if not all(bool(tensor.isfinite().all()) for site in adapter.sites.values() for tensor in site.tensors):
        raise DraftUnsound(version=version, reason="its adapter has weights that are no finite numbers")
