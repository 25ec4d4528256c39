"""N-grams found by a few numpy calls against ones found one at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.features import BASE, MIX, PAIR, WORD, Features, ends, normalise

ALL = Features(chars=(1, 2, 3, 4, 5), words=True, pairs=True, bits=16)
M64 = (1 << 64) - 1


def reference(text: str, features: Features) -> Counter[int]:
    """The same n-grams, cut out as strings of code points and hashed by Horner's rule."""
    codes = [int(code) for code in normalise(ends(text, features.limit), features.digits)]
    return Counter(_bucket(value, salt, features.bits) for value, salt in _found(codes, features))


def _found(codes: list[int], features: Features) -> Iterator[tuple[int, int]]:
    if len(codes) < 3:
        return
    for n in features.chars:
        for start in range(len(codes) - n + 1):
            piece = codes[start : start + n]
            inside = piece[1:-1] if n > 1 else piece
            if 0 not in inside and any(piece):
                yield _poly(piece), n
    words = [_poly(word) for word in _words(codes)]
    if features.words:
        yield from ((word, WORD) for word in words)
    if features.pairs:
        yield from (((one * BASE + two) & M64, PAIR) for one, two in pairwise(words))


def _words(codes: list[int]) -> list[list[int]]:
    words: list[list[int]] = [[]]
    for code in codes:
        words[-1].append(code) if code else words.append([])
    return [word for word in words if word]


def _poly(piece: list[int]) -> int:
    value = 0
    for code in reversed(piece):
        value = (value * BASE + code) & M64
    return value


def _bucket(value: int, salt: int, bits: int) -> int:
    mixed = ((value + salt * BASE) * MIX) & M64
    return (((mixed ^ (mixed >> 32)) * BASE) & M64) >> (64 - bits)


@given(st.text(max_size=60))
def test_the_fast_way_finds_what_the_slow_way_finds(text: str) -> None:
    assert Counter(ALL.buckets(text).tolist()) == reference(text, ALL)


@pytest.mark.parametrize(
    "features",
    [
        Features(chars=(), words=True, pairs=True, bits=12),
        Features(chars=(2, 3), words=False, pairs=False, bits=17),
        Features(chars=(1, 4), words=True, digits=False, bits=20, limit=20),
    ],
)
@pytest.mark.parametrize(
    "text", ["Grüße aus 東京, 2 x!", "  one  two three, four five six seven  ", "नमस्ते दुनिया", "\ud800 a𠀀b"]
)
def test_every_setting_agrees_with_the_slow_way(features: Features, text: str) -> None:
    assert Counter(features.buckets(text).tolist()) == reference(text, features)


@pytest.mark.parametrize("text", ["", " ", "?!", "\n\t", "…", "=== ---"])
def test_nothing_to_read_has_no_features(text: str) -> None:
    assert ALL.buckets(text).size == 0


def test_case_form_and_spaces_do_not_matter_but_order_does() -> None:
    same = ["Café au lait", "CAFE\u0301   AU, LAIT!", "cafe\u0301 au lait"]
    first, *others = [ALL.buckets(text).tolist() for text in same]
    assert others == [first, first]
    assert sorted(ALL.buckets("lait au café").tolist()) != sorted(first)


def test_a_piece_has_one_bucket_wherever_it_stands() -> None:
    word = Features(chars=(), words=True, bits=30)
    far = word.buckets("word " * 300 + "answer")
    assert far[-1] == word.buckets("answer")[0] and len(set(far.tolist())) == 2


def test_digits_separate_words_where_they_say_nothing() -> None:
    plain = Features(chars=(1,), words=True, digits=False)
    np.testing.assert_array_equal(plain.buckets("a1b"), plain.buckets("a b"))
    assert ALL.buckets("a1b").size != ALL.buckets("a b").size


def test_of_a_long_text_both_ends_are_read() -> None:
    text = "start " + "x" * 5000 + " end"
    assert ends(text, 20) == "start xxxx xxxxxx end"
    assert ends("short", 20) == "short"
    words = Features(chars=(), words=True, limit=20)
    assert {words.buckets(w)[0] for w in ("start", "end")} <= set(words.buckets(text).tolist())


def test_buckets_are_spread_evenly() -> None:
    """10,000 words into 1,024 buckets: χ² has mean 1,023 and deviation 45; six deviations off is one chance in 10^8."""
    words = Features(chars=(), words=True, bits=10)
    counts = np.bincount(words.buckets(" ".join(f"w{i}q" for i in range(250))), minlength=1024)
    for start in range(250, 10_000, 250):
        counts += np.bincount(words.buckets(" ".join(f"w{i}q" for i in range(start, start + 250))), minlength=1024)
    chi = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
    assert counts.sum() == 10_000 and 750 < chi < 1300
