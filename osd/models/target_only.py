"""A pair without a draft model: a target alone in memory.

What stands in the draft's place says so when it is asked for anything that only a model has.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, cast

import torch

from osd.models.encoder_decoder import require_decoder_only
from osd.models.model import Model, TextDraft, eos_ids
from osd.models.needs_draft import NeedsDraft
from osd.models.pair import Pair, choose_device, load_model
from osd.models.vocabulary import load_tokenizer
from storage.errors import ModelNotLoaded

EVERYWHERE = 1 << 30
"""Position limit of what has no limit."""


class NullModel(Model):
    """Null object in place of a pair's draft model."""

    __slots__ = ()

    def __init__(self, device: torch.device) -> None:
        for name, value in (("name", "none"), ("limit", EVERYWHERE), ("build", lambda _: device)):
            object.__setattr__(self, name, value)

    @property
    def module(self) -> NoReturn:
        """No module: raises NeedsDraft."""
        raise NeedsDraft(what="This")

    @property
    def device(self) -> torch.device:
        """The target's device."""
        return cast(torch.device, cast(Any, self.build)(None))


def load_alone(
    target: str | Path, *, device: str = "auto", dtype: str = "auto", device_map: str | None = None, once: bool = False
) -> Pair:
    """Load a target as a pair without a draft model; ``once`` as in :func:`osd.models.pair.load_pair`. Raises
    PairError."""
    model = load_model(target, choose_device(device), dtype, device_map, "all" if once else "")
    return Pair(model, NullModel(model.device), load_tokenizer(target), eos_ids(model.module))


def load_with_text_draft(
    target: str | Path, draft: str | Path, *, device: str = "auto", dtype: str = "auto", once: bool = False
) -> Pair:
    """Load a target alone, and beside it a draft whose vocabulary is its own. Raises ModelNotLoaded,
    CannotServeRagged, and DecoderOnly where one of them has an encoder."""
    pair, tokenizer = load_alone(target, device=device, dtype=dtype, once=once), load_tokenizer(draft)
    require_decoder_only(pair.target.module, "drafters.kind = universal", pair.target.name)
    for name, has_none in ((target, pair.tokenizer is None), (draft, tokenizer is None)):
        if has_none:
            raise ModelNotLoaded(path=name, reason="It has no tokenizer, and models of two vocabularies share text.")
    assert tokenizer is not None
    model = load_model(draft, pair.device, dtype)
    require_decoder_only(model.module, "drafters.kind = universal", model.name)
    return replace(pair, text_draft=TextDraft(model, tokenizer, eos_ids(model.module)))


def has_draft(pair: Pair) -> bool:
    """Return whether there is a draft model in memory."""
    return not isinstance(pair.draft, NullModel)
