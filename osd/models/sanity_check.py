"""Sanity check of a draft that was loaded aside, before it drafts for any request.

Files with the right digest may hold weights that give no numbers, and a pass may fail on this machine alone.
"""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from osd.models.decoder import Decoder, vocabulary_size
from osd.models.encoder_decoder import decoder_inputs
from osd.models.features.decoder import FeatureDecoder
from osd.models.lora.adapter import Adapter
from osd.models.lora.bank import AdapterRows
from storage.errors import DraftUnsound

TOKENS = 8
NO_MEMORY = (MemoryError, torch.OutOfMemoryError)
"""Errors that say nothing of the weights: with more memory they load."""


@torch.inference_mode()
def require_runs(decoder: Decoder, module: PreTrainedModel, version: str) -> None:
    """Run one pass over a few tokens, by the forward pass that will draft, without touching the decoder's own cache.

    Raises DraftUnsound when it fails or gives logits that are not finite.
    """
    tokens = tokens_to_try(module, decoder)
    try:
        logits = decoder.beside(1, 2 * tokens.shape[1]).read_whole(tokens)
    except NO_MEMORY:
        raise
    except Exception as error:
        raise DraftUnsound(version=version, reason=f"a pass failed: {type(error).__name__}: {error}") from error
    if bool(logits.isnan().any()) or not bool(logits.amax(-1).isfinite().all()):
        raise DraftUnsound(version=version, reason="it gives no finite numbers")


def tokens_to_try(module: PreTrainedModel, decoder: Decoder) -> torch.Tensor:
    """Return a few tokens from all over the vocabulary (1, T)."""
    count = min(TOKENS, decoder.cache.length)
    step = max(1, vocabulary_size(module) // count)
    return torch.arange(count, device=decoder.device).unsqueeze(0) * step


@torch.inference_mode()
def require_same(
    decoder: Decoder, adapter: Adapter | None, judged: PreTrainedModel, version: str, tolerance: float = 2e-3
) -> None:
    """Check that a pass of the decoder, under the adapter, gives what the model that was judged gives. Raises
    DraftUnsound."""
    tokens, beside, rows = tokens_to_try(judged, decoder), decoder.beside(1, 2 * TOKENS), AdapterRows()
    beside.adapters = rows.mix if rows.set_rows([adapter]) else None
    served = beside.read_whole(tokens).float()
    fed = decoder_inputs(judged, tokens.repeat(1, 2) if decoder.encodes else tokens, tokens.shape[1])
    wanted = judged(**fed, use_cache=False).logits.float()
    apart = float((served - wanted).abs().max() / wanted.abs().max().clamp(min=1.0))
    if not apart <= tolerance:
        reason = f"once loaded its logits differ by {apart:.2g} from those that were judged"
        raise DraftUnsound(version=version, reason=reason)


@torch.inference_mode()
def require_drafts(decoder: FeatureDecoder, version: str) -> None:
    """Run a feature draft over a few columns, without touching the decoder's own cache. Raises DraftUnsound when that
    fails or gives logits that are not numbers."""
    draft, target = decoder.draft, decoder.target
    beside = FeatureDecoder(draft, target, 1, TOKENS, decoder.limit)
    tokens = torch.arange(TOKENS, device=decoder.device).unsqueeze(0) * (draft.vocab_size // TOKENS)
    features = torch.ones(1, TOKENS, draft.feature_size, device=decoder.device, dtype=decoder.cache_dtype)
    try:
        hidden = beside.read([0], features, tokens, [TOKENS], ahead=1)
        logits = beside.logits(beside.go_on([TOKENS], hidden, tokens[:, 0]))
    except NO_MEMORY:
        raise
    except Exception as error:
        raise DraftUnsound(version=version, reason=f"a pass failed: {type(error).__name__}: {error}") from error
    if bool(logits.isnan().any()) or not bool(logits.amax(-1).isfinite().all()):
        raise DraftUnsound(version=version, reason="it gives no finite numbers")


def require_finite(adapter: Adapter, version: str) -> None:
    """Check that an adapter's weights are finite, without running it, for its base is in use. Raises DraftUnsound."""
    if not all(bool(tensor.isfinite().all()) for site in adapter.sites.values() for tensor in site.tensors):
        raise DraftUnsound(version=version, reason="its adapter has weights that are no finite numbers")
