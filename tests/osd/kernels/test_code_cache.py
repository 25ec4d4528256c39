"""Kept machine code is found only by the sources that it was made of."""

from __future__ import annotations

from pathlib import Path

from osd.drafters.ngram import search
from osd.drafters.ngram.search import draft_rows
from osd.kernels.code_cache import MARK, digest_of, forget_others, sources_beside
from osd.kernels.topk import reduce_rows

SOURCES = sources_beside(search.__file__)


def test_any_change_of_any_source_is_another_digest(tmp_path: Path) -> None:
    (tmp_path / "cells.py").write_text("a = 1\n")
    before = digest_of(tmp_path)
    assert digest_of(tmp_path) == before
    (tmp_path / "cells.py").write_text("a = 2\n")
    after = digest_of(tmp_path)
    (tmp_path / "cells.py").rename(tmp_path / "other.py")
    assert len({before, after, digest_of(tmp_path)}) == 3


def test_code_is_kept_under_the_digest() -> None:
    assert draft_rows._cache._impl.filename_base.endswith(f"{MARK}{SOURCES}")


def test_each_folder_has_a_digest_of_its_own() -> None:
    assert digest_of(Path(search.__file__).parent) == SOURCES
    assert not reduce_rows._cache._impl.filename_base.endswith(SOURCES)


def test_code_of_other_sources_goes_and_other_modules_keep_theirs(tmp_path: Path) -> None:
    ours, old = f"counts.learn-1.py311{MARK}{SOURCES}.1.nbc", f"counts.learn-1.py311{MARK}{'0' * 16}.1.nbc"
    unmarked, other = "counts.learn-1.py311.nbi", "topk.reduce_rows-1.py311.nbi"
    for name in (ours, old, unmarked, other):
        (tmp_path / name).touch()
    assert set(forget_others(tmp_path, "counts", SOURCES)) == {old, unmarked}
    assert {path.name for path in tmp_path.iterdir()} == {ours, other}
