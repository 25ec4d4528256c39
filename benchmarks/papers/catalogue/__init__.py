"""Every table and figure of five papers: what is claimed, what is run for it, and by which rule it is judged.

The rules stand here before anything is run. tests/benchmarks/papers holds the list against the papers' own texts.
"""

from __future__ import annotations

from benchmarks.papers.catalogue.adaptix import ADAPTIX
from benchmarks.papers.catalogue.gammatune import GAMMATUNE
from benchmarks.papers.catalogue.on_the_fly import ON_THE_FLY
from benchmarks.papers.catalogue.osd import OSD
from benchmarks.papers.catalogue.specdecpp import SPECDECPP
from benchmarks.papers.entry import Paper

PAPERS: tuple[Paper, ...] = (OSD, ON_THE_FLY, SPECDECPP, GAMMATUNE, ADAPTIX)
