"""Every table and figure of five papers: what is claimed, what is run for it, and by which rule it is judged.

The rules stand here before anything is run. tests/osd/bench/papers holds the list against the papers' own texts.
"""

from __future__ import annotations

from osd.bench.papers.catalogue.adaptix import ADAPTIX
from osd.bench.papers.catalogue.gammatune import GAMMATUNE
from osd.bench.papers.catalogue.on_the_fly import ON_THE_FLY
from osd.bench.papers.catalogue.osd import OSD
from osd.bench.papers.catalogue.specdecpp import SPECDECPP
from osd.bench.papers.entry import Paper

PAPERS: tuple[Paper, ...] = (OSD, ON_THE_FLY, SPECDECPP, GAMMATUNE, ADAPTIX)
