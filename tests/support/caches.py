"""Where the rows of a cache lie: as on this CPU, or as on a device where memory does not come with what is written."""

from __future__ import annotations

import pytest

LAYOUTS = ("lazy", "whole", "paged")


def laid_out(patch: pytest.MonkeyPatch, layout: str) -> None:
    """Lay caches out so from here on."""
    if layout != "lazy":
        patch.setattr("osd.models.kv_blocks.comes_when_written", lambda device: False)
        patch.setattr("osd.models.kv_cache.WHOLE", 0 if layout == "paged" else 1 << 30)
