"""A language model in memory, ready to decode."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from osd.models.decoder import Decoder, vocabulary_size
from osd.models.encoder_decoder import start_of
from osd.models.forward import Builder
from osd.models.model_digest import model_digest
from osd.models.vocabulary import SharedIds


@dataclass(frozen=True)  # without slots, for what is asked for every round and found by a walk through the modules
class Model:
    """A causal or an encoder-decoder language model in memory, ready to decode."""

    name: str
    """The folder or hub name it came from."""
    module: PreTrainedModel
    limit: int
    """Positions that it can attend over exactly, those of an encoder's text included: see osd.models.limits."""
    build: Builder
    """Makes the forward pass that was checked for this architecture; see osd.models.proof.choose_forward."""
    shared: SharedIds | None = None
    """The target's ids as a draft takes them whose vocabulary is another in some places."""

    @cached_property
    def vocab_size(self) -> int:
        """Width of its logits."""
        return vocabulary_size(self.module)

    @cached_property
    def start(self) -> tuple[int, ...]:
        """The token that stands between what an encoder reads and the output; none without an encoder."""
        return start_of(self.module, self.name)

    @cached_property
    def digest(self) -> str | None:
        """Digest of its files; None for a model that came from none."""
        return model_digest(self.name)

    @cached_property
    def device(self) -> torch.device:
        """The device its weights are on, and stay on."""
        return next(self.module.parameters()).device

    def decoder(self, rows: int, length: int) -> Decoder:
        """Return a decoder over this model with a cache for ``rows`` rows of ``length`` positions."""
        forward = self.build(self.module)
        assert forward is not None
        decoder = Decoder(self.module, forward, rows, length, self.limit)
        decoder.shared = self.shared
        return decoder


@dataclass(frozen=True, slots=True)
class TextDraft:
    """A draft model with a vocabulary of its own: target and draft share texts, not tokens."""

    model: Model
    tokenizer: PreTrainedTokenizerBase
    eos_ids: frozenset[int]


def eos_ids(module: PreTrainedModel) -> frozenset[int]:
    """Return the tokens that end a text of this model."""
    generation = getattr(module, "generation_config", None)
    eos = getattr(generation, "eos_token_id", None)
    eos = module.config.eos_token_id if eos is None else eos
    return frozenset() if eos is None else frozenset([eos] if isinstance(eos, int) else eos)
