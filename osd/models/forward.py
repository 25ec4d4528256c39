"""What a forward pass over a ragged cache is: what it takes, and what it can do.

Which passes may serve a model is decided at load, by proof (:func:`osd.models.proof.choose_forward`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor
from transformers import PreTrainedModel

from osd.logits import RaggedLogits
from osd.models.captured_pass import CapturedDraft
from osd.models.fixed_pass import Chooser, PassInput
from osd.models.kv_cache import RaggedCache


class CompiledForward(Protocol):
    """A pass over few tokens with the same weights as the pass that it belongs to, compiled."""

    @property
    def trusted(self) -> bool | None:
        """Whether it says what the other pass says; None until it was tried."""

    waited: bool
    """Whether passes that it would have taken went the other way, before it was compiled."""

    drafts: bool
    """Whether it may draft several tokens in one go."""

    def takes(self, fed: PassInput, cache: RaggedCache) -> bool:
        """Return whether it is there for what is fed; asked before every pass."""

    def __call__(self, tokens: Tensor, cache: RaggedCache, fed: PassInput, last: Tensor | None) -> Tensor:
        """Compute logits (B, T, V), (1, N, V) of a packed pass, or with ``last`` (B,) those after one token of each
        row, (B, 1, V)."""

    def fill(self, tokens: Tensor, cache: RaggedCache, fed: PassInput) -> None:
        """Fill the cache alone."""

    def prepare(self) -> bool:
        """Make something ready that was asked for, between two steps; return whether it did."""

    def draft(
        self, tokens: Tensor, starts: Sequence[int], counts: Sequence[int], cache: RaggedCache, most: int,
        chooser: Chooser | None,
    ) -> CapturedDraft | None:  # fmt: skip
        """Feed the first ``counts[i]`` of tokens (B, T) from ``starts[i]`` on, and draft at most ``most`` tokens after
        them in one go, chosen by ``chooser``, or the likeliest without; None where it does not do that."""

    def adopt(self, other: object) -> bool:
        """Copy another pass's weights over its own, which are nobody else's; return whether it can."""

    def compare(self, said: RaggedLogits, expected: RaggedLogits, counts: Sequence[int]) -> bool:
        """Decide whether it is trusted from now on, by its logits beside the other pass's."""


Encode = Callable[[Tensor, RaggedCache], None]
"""Lets a model's encoder read tokens (1, T), and fills the aimed cache with cross-attention's keys and values."""


class ForwardPass(Protocol):
    """One way to compute a model over a ragged cache."""

    @property
    def packs(self) -> bool:
        """Whether a pass costs only its real tokens, however they are spread over the rows."""

    @property
    def alone(self) -> bool:
        """Whether it computes one row at a time, for other rows would change what it says."""

    @property
    def encode(self) -> Encode | None:
        """The pass of an encoder, which reads what is fed from position 0 on, in one piece; None without an encoder."""

    compiled: CompiledForward | None
    """The pass for few tokens; None where there is none."""

    def __call__(self, tokens: Tensor, cache: RaggedCache, last: Tensor | None) -> Tensor:
        """Compute the logits of tokens (B, T) over a cache that was aimed: (B, T, V), or with ``last`` (B,) those after
        one token of each row, (B, 1, V). A packed pass computes (1, N, V)."""

    def fill(self, tokens: Tensor, cache: RaggedCache) -> None:
        """Fill the aimed cache with keys and values of tokens (B, T) alone."""


Builder = Callable[[PreTrainedModel], ForwardPass | None]
"""A module's weights → a pass over them; None where this kind of pass does not know the model."""
