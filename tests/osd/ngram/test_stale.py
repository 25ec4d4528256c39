"""Cached machine code is thrown away with the sources that it was made of."""

from __future__ import annotations

from pathlib import Path

from osd.ngram.stale import forget_stale


def test_cached_code_goes_when_any_source_changes(tmp_path: Path) -> None:
    (tmp_path / "cells.py").write_text("a = 1\n")
    assert forget_stale(tmp_path)
    index = tmp_path / "__pycache__" / "counts.learn-1.py311.nbi"
    index.touch()
    assert not forget_stale(tmp_path) and index.exists()
    (tmp_path / "cells.py").write_text("a = 2\n")
    assert forget_stale(tmp_path) and not index.exists()
    assert not forget_stale(tmp_path / "none")
