"""Text features for linear models: hashed n-grams of characters and words, found with a few numpy calls.

A text becomes code points with one 0 between words. With prefix sums S_i = Σ_{j<i} c_j P^j (mod 2^64), every substring
[s, e) has the hash (S_e − S_s) P^(−s), whatever stands before it: one subtraction and one product give all n-grams of
one length.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.uint64]
Hashes = NDArray[np.uint64]
Buckets = NDArray[np.int64]

BASE = 0x9E3779B97F4A7C15
"""P, an odd number so that it has an inverse mod 2^64; 2^64 divided by the golden ratio."""
MIX = 0xD6E8FEB86659FD93
PLANES = 0x20000
"""Code points below this are looked up; those above are ideographs, which are letters."""
WORD, PAIR = 101, 102
"""Salts of words and of pairs of words; the salt of a character n-gram is its length."""


@dataclass(frozen=True, slots=True)
class Features:
    """The kinds of n-grams taken, and the number of buckets. Equal settings give equal buckets."""

    chars: tuple[int, ...] = (2, 3, 4)
    """Lengths of character n-grams, which may begin or end with the space beside a word but not span it."""
    words: bool = True
    pairs: bool = False
    """Whether pairs of neighbouring words are taken."""
    digits: bool = True
    """Whether digits belong to words; otherwise they separate words."""
    bits: int = 18
    """log2 of the number of buckets."""
    limit: int = 2000
    """Maximum characters read of a text: half from its start, half from its end."""

    def buckets(self, text: str) -> Buckets:
        """Return the bucket of each of the text's n-grams, in [0, 2^bits), with repeats; empty for an empty text."""
        return self.into_buckets(self.hashes(text))

    def into_buckets(self, hashes: list[Hashes]) -> Buckets:
        """Return the buckets of n-grams of all kinds, in their order."""
        return (np.concatenate(hashes) >> np.uint64(64 - self.bits)).astype(np.int64)

    def hashes(self, text: str) -> list[Hashes]:
        """Return n-gram hashes by kind: characters by length in the order of ``chars``, then words, then pairs."""
        codes = normalise(ends(text, self.limit), self.digits)
        if codes.size < 3:
            return [np.empty(0, np.uint64)]
        up, down = _powers(codes.size)
        sums = np.zeros(codes.size + 1, np.uint64)
        np.cumsum(codes * up, out=sums[1:])
        space = codes == 0
        return [*self._chars(space, sums, down), *self._words(np.flatnonzero(space), sums, down)]

    def _chars(self, space: NDArray[np.bool_], sums: Hashes, down: Hashes) -> list[Hashes]:
        """Return each length's n-grams that contain no inner space."""
        before = np.zeros(space.size + 1, np.int32)  # number of spaces before each position
        np.cumsum(space, out=before[1:])
        found = []
        for n in self.chars:
            starts = space.size - n + 1
            if starts < 1:
                break
            if n <= 2:
                whole = ~space[:starts] if n == 1 else before[2:] - before[:-2] < 2
            else:
                whole = before[n - 1 : n - 1 + starts] == before[1 : 1 + starts]
            found.append(_salted(((sums[n:] - sums[:-n]) * down[:starts])[whole], n))
        return found

    def _words(self, spaces: NDArray[np.int64], sums: Hashes, down: Hashes) -> list[Hashes]:
        """Return hashes of words and, if wanted, of pairs of neighbours."""
        starts, found = spaces[:-1] + 1, []
        words = (sums[spaces[1:]] - sums[starts]) * down[starts]
        if self.words:
            found.append(_salted(words, WORD))
        if self.pairs:
            found.append(_salted(words[:-1] * np.uint64(BASE) + words[1:], PAIR))
        return found


def ends(text: str, limit: int) -> str:
    """Return the two ends of a text within ``limit`` characters (and a space), where the question usually is."""
    return text if len(text) <= limit else f"{text[: limit // 2]} {text[-(limit // 2) :]}"


def normalise(text: str, digits: bool = True) -> Codes:
    """Return the text's code points in lower case and NFKC, with one 0 before, between and after words."""
    plain = unicodedata.normalize("NFKC", text).lower()
    raw = np.frombuffer(plain.encode("utf-32-le", "surrogatepass"), np.uint32)
    codes = np.zeros(raw.size + 2, np.uint64)
    np.multiply(raw, _letters(digits)[np.minimum(raw, PLANES)], out=codes[1:-1])
    kept = codes != 0
    kept[1:] |= kept[:-1]
    kept[0] = True
    found: Codes = codes[kept]
    return found


@cache
def _letters(digits: bool) -> NDArray[np.uint8]:
    """Return 1 for code points that belong to words: letters, their combining marks, and digits if wanted."""
    kinds = "LMN" if digits else "LM"
    return np.array([*(unicodedata.category(chr(code))[0] in kinds for code in range(PLANES)), True], np.uint8)


def _powers(size: int) -> tuple[Hashes, Hashes]:
    """Return P^i and P^(−i) mod 2^64 for i below ``size``."""
    up, down = _powers_to(1 << max(10, (size - 1).bit_length()))
    return up[:size], down[:size]


@cache
def _powers_to(size: int) -> tuple[Hashes, Hashes]:
    """Return the same powers, cached for each power of two."""
    factors = np.full((2, size), [[BASE], [pow(BASE, -1, 1 << 64)]], np.uint64)
    factors[:, 0] = 1
    up, down = np.cumprod(factors, axis=1)
    return up, down


def _salted(hashes: Hashes, salt: int) -> Hashes:
    """Return one kind's n-gram hashes, well mixed into the high bits."""
    mixed = (hashes + np.uint64(salt * BASE % (1 << 64))) * np.uint64(MIX)
    salted: Hashes = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(BASE)
    return salted
