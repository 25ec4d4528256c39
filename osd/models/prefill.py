"""Prefill: prompts into a cache. The pieces of several rows share passes, where padding does not eat what sharing
saves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from osd.models.decoder import CHUNK, Decoder

PADDED = 1.25
"""Most work of a shared pass relative to what its rows need: in queries times keys, and in tokens where it cannot
pack."""


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Tokens of one row that are prefilled next."""

    place: int
    """The row's number in the cache."""
    start: int
    """Position of the first token."""
    tokens: Sequence[int]


def read_pieces(decoder: Decoder, pieces: Sequence[PrefillChunk]) -> None:
    """Fill the rows' caches, in passes of CHUNK tokens at most."""
    short = [piece for whole in pieces for piece in _cut(decoder, whole)]
    for run in _runs(decoder, short):
        decoder.read(run[0].place, [piece.tokens for piece in run], [piece.start for piece in run])


def _cut(decoder: Decoder, piece: PrefillChunk) -> Iterator[PrefillChunk]:
    if decoder.encodes and not piece.start:
        yield piece
        return
    for at in range(0, len(piece.tokens), CHUNK):
        yield PrefillChunk(piece.place, piece.start + at, piece.tokens[at : at + CHUNK])


def _runs(decoder: Decoder, pieces: Sequence[PrefillChunk]) -> Iterator[list[PrefillChunk]]:
    """Yield pieces of neighbouring rows that share a pass."""
    run: list[PrefillChunk] = []
    for piece in pieces:
        if run and not _fit(decoder, [*run, piece]):
            yield run
            run = []
        run.append(piece)
    if run:
        yield run


def _fit(decoder: Decoder, run: Sequence[PrefillChunk]) -> bool:
    """Return whether these may be one pass: consecutive rows, few tokens, little padding, and none beyond a row."""
    width, tokens = max(len(piece.tokens) for piece in run), sum(len(piece.tokens) for piece in run)
    seen = sum(len(piece.tokens) * (piece.start + len(piece.tokens)) for piece in run)
    span = max(piece.start for piece in run) + width
    return (
        all(after.place == before.place + 1 for before, after in pairwise(run))
        and tokens <= CHUNK
        and (decoder.packs or width * len(run) <= PADDED * tokens)
        and width * len(run) * span <= PADDED * seen
        and span <= decoder.cache.length
    )
