"""What goodput does while it knows little of a draft: it tries, and believes bad news less than later."""

from __future__ import annotations

from collections.abc import Sequence

from osd.gamma.base import CostModel
from osd.gamma.goodput.asking import EARLY
from osd.gamma.goodput.goodput_row import GoodputRow
from osd.gamma.goodput.weigher import Weigher

FIRST_JUDGED = 8
"""Judged tokens before the rule speaks; until then a few rows try a token each, and in every other round two: what one
more pass costs, beside the first, is known from the beginning."""
_FIRST_TIMED = 4
"""Drafts that must have been timed by then. The first of a batch takes several times what others do, and a rule that
went by it would not draft again for seconds."""
TRIED_ENOUGH = 64
"""Judged tokens after which it speaks in any case: where requests are short all drafts begin late."""
_ROWS = 4
"""Rows that try so few tokens, whatever gamma.initial is: a draft may be hopeless."""
_HOPEFUL, _DOUBT = 1.3, 4.0
"""How far what a draft is hoped to win may fall short of its cost and one still begins: where nobody drafts nothing is
learned, and a domain that gains is noticed late. From 1.15 to 1.5 it is the same. More by the second ÷ judged tokens:
of the first eight or ten, few may be right where half usually are, and an engine that rests then does so for long."""
FREE = 2
"""Probes that come at once, with the next requests that begin before TRIED_ENOUGH tokens were judged: one text tells
little of a draft, however many tokens it has. A batch has tried several texts, and its rounds are dear."""


class Beginning:
    """The first rounds of one engine."""

    def __init__(self, costs: CostModel, weigher: Weigher) -> None:
        self._costs, self._weigher = costs, weigher
        self._tries = 0

    @property
    def knows_little(self) -> bool:
        """Whether the rule has nothing to go by yet."""
        judged = self._weigher.judged
        return judged < FIRST_JUDGED or (self._costs.timely < _FIRST_TIMED and judged < TRIED_ENOUGH)

    @property
    def hopeful(self) -> float:
        """Factor by which a draft's cost may exceed what it is hoped to win."""
        return _HOPEFUL + _DOUBT / self._weigher.judged

    def tries(self, rooms: Sequence[int]) -> list[int]:
        """Return each row's γ: a token or two of some rows, as far as ``rooms`` allow, and 0 of the others."""
        self._tries += 1
        left, gammas = _ROWS, []
        for room in rooms:
            gammas.append(min(2 - self._tries % 2, room) if left else 0)
            left -= gammas[-1] > 0
        return gammas

    def frees(self, asked: GoodputRow | None, batch: int) -> bool:
        """Return whether probing this row of so many may cost no credit."""
        young = asked is not None and asked.emitted <= EARLY
        return young and batch < _ROWS and self._weigher.judged < TRIED_ENOUGH
