"""Models whose passes are compiled, and pairs, as tests of osd's rooms have them."""

from tests.osd.conftest import compiled, pair, settings

__all__ = ["compiled", "pair", "settings"]
