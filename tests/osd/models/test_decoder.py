"""A packed pass computes what a padded one does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from osd.models import ragged_attention
from osd.models.decoder import Decoder
from osd.models.forward import ForwardPass
from osd.models.kv_cache import RaggedCache
from tests.support.models import random_pair

COUNTS = [(1, 5, 3), (5, 1, 1), (2, 2, 2), (1, 1, 5)]


def fed(decoder: Decoder, counts: tuple[int, ...]) -> torch.Tensor:
    """Three rows of different length; then five tokens each, of which ``counts`` are meant."""
    generator = torch.Generator().manual_seed(3)
    lengths = (9, 4, 14)
    for row, length in enumerate(lengths):
        decoder.prefill(row, torch.randint(0, 40, (length,), generator=generator).tolist())
    tokens = torch.randint(0, 40, (3, 5), generator=generator)
    first = decoder.scored(tokens, lengths, counts).table(5)
    again = decoder.logits(tokens[:, :1], [n + c for n, c in zip(lengths, counts, strict=True)])
    return torch.cat([first, again], dim=1)


class Unpacked:
    """Another pass, which computes padding too."""

    packs, alone, encode, compiled = False, False, None, None

    def __init__(self, inner: ForwardPass) -> None:
        self._inner = inner

    def __call__(self, tokens: Tensor, cache: RaggedCache, last: Tensor | None) -> Tensor:
        return self._inner(tokens, cache, last)

    def fill(self, tokens: Tensor, cache: RaggedCache) -> None:
        self._inner.fill(tokens, cache)


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("call", [0, ragged_attention.CALL])
@torch.inference_mode()
def test_the_logits_that_count_are_those_of_the_padded_pass(
    kind: str, counts: tuple[int, ...], call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether rows attend together or each by itself."""
    monkeypatch.setattr(ragged_attention, "CALL", call)
    target = random_pair(kind).target
    packed, padded = target.decoder(3, 40), target.decoder(3, 40)
    assert packed.packs
    padded.forward = Unpacked(padded.forward)
    assert not padded.packs
    for row, (got, expected) in enumerate(zip(fed(packed, counts), fed(padded, counts), strict=True)):
        meant = [*range(counts[row]), 5]  # and a token fed after them sees the same keys and values
        torch.testing.assert_close(got[meant], expected[meant], atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_a_packed_pass_computes_less() -> None:
    target = random_pair("llama").target
    decoder = target.decoder(3, 40)
    widths: list[int] = []
    head = decoder.forward.head  # type: ignore[attr-defined]
    decoder.forward.compiled = None  # type: ignore[attr-defined]
    decoder.forward.head = lambda hidden: (widths.append(hidden.shape[0] * hidden.shape[1]), head(hidden))[1]  # type: ignore[attr-defined]
    for counts in ((1, 5, 3), (5, 5, 5)):
        decoder.scored(torch.zeros(3, 5, dtype=torch.long), [0, 0, 0], counts)
    decoder.logits(torch.zeros(3, 5, dtype=torch.long), [0, 0, 0])
    assert widths == [9, 15, 15]
