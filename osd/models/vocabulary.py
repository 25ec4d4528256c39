"""Whether token ids mean the same to a target and a draft, and what to do about those that only one of them knows."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from transformers import PreTrainedTokenizerBase

from osd.models.encoder_decoder import has_encoder
from osd.models.shared_ids import SharedIds
from storage.errors import KindMismatch, VocabularyMismatch

MOSTLY = 0.9
"""Least share of the target's tokens that a draft has to know."""


class HasVocabulary(Protocol):
    """A model, as far as its vocabulary is concerned: :class:`osd.models.pair.Model`."""

    @property
    def name(self) -> str:
        """Return the folder or hub name it came from."""
        ...

    @property
    def module(self) -> Any:
        """Return the module."""
        ...

    @property
    def vocab_size(self) -> int:
        """Return the width of its logits."""
        ...

    @property
    def device(self) -> torch.device:
        """Return the device its weights are on."""
        ...


def check_vocabularies(
    target: HasVocabulary,
    draft: HasVocabulary,
    ours: PreTrainedTokenizerBase | None,
    theirs: PreTrainedTokenizerBase | None,
) -> SharedIds | None:
    """Check that what both models know has one id, by their tokenizers. Returns what only one knows; None where that is
    nothing, and the draft has a row for every id. Raises VocabularyMismatch, and KindMismatch where one has an encoder
    and the other has none."""
    if has_encoder(target.module) is not has_encoder(draft.module):
        raise KindMismatch(target=target.name, draft=draft.name)
    if ours is None or theirs is None:
        if target.vocab_size != draft.vocab_size:
            reason = f"{draft.vocab_size} tokens against {target.vocab_size}, and no tokenizer to compare"
            raise VocabularyMismatch(draft=draft.name, target=target.name, reason=reason)
        return None
    mine, other = ours.get_vocab(), theirs.get_vocab()
    if difference := _difference(mine, other):
        raise VocabularyMismatch(draft=draft.name, target=target.name, reason=difference)
    one_sided = {mine[token] for token in mine.keys() - other.keys()}
    one_sided |= {other[token] for token in other.keys() - mine.keys()}
    return _shared(one_sided, target, draft)


def _difference(mine: dict[str, int], other: dict[str, int]) -> str | None:
    """Say why two vocabularies cannot be used together; None if they can."""
    both = mine.keys() & other.keys()
    differing = sorted(token for token in both if mine[token] != other[token])
    if differing:
        first = differing[0]
        return f"{len(differing)} tokens have other ids, for example {first!r}: {other[first]} and {mine[first]}"
    if len(both) < MOSTLY * len(mine):
        return f"the draft knows {len(both)} of {len(mine)} tokens"
    return None


def _shared(one_sided: set[int], target: HasVocabulary, draft: HasVocabulary) -> SharedIds | None:
    width, rows = target.vocab_size, table_rows(draft.module)
    barred = sorted(each for each in one_sided if each < width)
    unread = [*barred, *range(rows, width)]
    if not unread:
        return None
    stand_ins = torch.arange(width)
    stand_ins[unread] = next(each for each in range(width) if each not in one_sided)
    return SharedIds(stand_ins.to(draft.device), torch.tensor(barred, dtype=torch.long, device=draft.device))


def table_rows(module: Any) -> int:
    """Return how many ids a model can be fed."""
    return int(module.get_input_embeddings().weight.shape[0])
