"""A draft model with a vocabulary of its own: what it says is told to the target as text.

After "universal assisted generation" of transformers: the end of the text is encoded for the draft, which continues it
greedily; what it adds is decoded and encoded for the target. The tokens that come of it are certain, as a look-up's
are, so rows that sample stay exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedTokenizerBase

from osd.draft_tree import TokenProposal
from osd.models.model import TextDraft
from osd.sequence import SequenceState

WINDOW = 512
"""Most target tokens of the text's end that the draft is given; beyond, it goes on from half of them."""
LENGTH = 2048
"""Most positions of the draft's cache."""
TAIL = 8
"""Tokens before a place at which texts meet, so that the tokens around it are those of a whole text."""
BROKEN = "\ufffd"
"""How an incomplete character is decoded."""


class DraftedText:
    """What the draft has read of one row."""

    __slots__ = ("anchor", "place", "read")

    def __init__(self, place: int) -> None:
        self.place, self.anchor = place, 0
        self.read: list[int] = []
        """The draft's tokens that its cache holds; they are of the text from the row's token ``anchor`` on."""


class UniversalProposer:
    """Proposes what a draft with another tokenizer says."""

    name = "universal"

    def __init__(self, draft: TextDraft, tokenizer: PreTrainedTokenizerBase, rows: int) -> None:
        """``tokenizer``: the target's; ``rows``: of a batch."""
        self.draft, self.tokenizer = draft, tokenizer
        self.length = min(LENGTH, draft.model.limit)
        self.decoder = draft.model.decoder(rows, self.length)
        self._free = list(range(rows))
        self._rows: dict[str, DraftedText] = {}

    def join(self, row: SequenceState) -> None:
        """Give a row a place in the draft's cache."""
        self._rows[row.request.id] = DraftedText(self._free.pop())

    def leave(self, row: SequenceState) -> None:
        """Free a row's place."""
        self._free.append(self._rows.pop(row.request.id).place)

    def learn(self, row: SequenceState, start: int) -> None:
        """Do nothing: its samples would be in the target's tokens."""

    def recall(self, row: SequenceState, start: int) -> None:
        """Do nothing."""

    def propose(
        self, rows: Sequence[SequenceState], depths: Sequence[int], nodes: Sequence[int]
    ) -> list[TokenProposal]:
        """Propose a chain for each row; see :class:`osd.drafters.tree.Proposer`."""
        most = [min(depth, count) for depth, count in zip(depths, nodes, strict=True)]
        chains = [self._propose(row, count)[:count] for row, count in zip(rows, most, strict=True)]
        return [TokenProposal(chain, range(-1, len(chain) - 1)) for chain in chains]

    def _propose(self, row: SequenceState, count: int) -> list[int]:
        state = self._rows[row.request.id]
        if row.length - state.anchor > WINDOW:
            state.anchor = row.length - WINDOW // 2
        text = decoded(self.tokenizer, row.tokens[state.anchor :])
        ids = encoded(self.draft.tokenizer, text)
        if text.endswith(BROKEN) or not 0 < len(ids) <= self.length - count:
            return []
        return self._as_target(row.tokens[-TAIL:], self._added(ids, self._say(state, ids, count)))

    def _say(self, state: DraftedText, ids: list[int], count: int) -> list[int]:
        """Return up to ``count`` tokens that the draft says after ``ids``, and note what its cache holds then."""
        kept = next((i for i, (a, b) in enumerate(zip(state.read, ids, strict=False)) if a != b), len(state.read))
        kept = min(kept, len(ids) - 1)
        self.decoder.prefill(state.place, ids[kept:-1], kept)
        said: list[int] = []
        newest = ids[-1]
        while len(said) < count:
            fed = torch.tensor([[newest]], device=self.decoder.device)
            logits = self.decoder.logits(fed, [len(ids) - 1 + len(said)], first=state.place)
            newest = int(logits[0, -1].argmax())
            if newest in self.draft.eos_ids:
                break
            said.append(newest)
        state.read = [*ids, *said[:-1]]
        return said

    def _added(self, ids: list[int], said: list[int]) -> str:
        """Return the text that these tokens add."""
        before, whole = (decoded(self.draft.tokenizer, each) for each in (ids[-TAIL:], ids[-TAIL:] + said))
        return whole[len(before) :].rstrip(BROKEN) if whole.startswith(before) else ""

    def _as_target(self, tail: Sequence[int], added: str) -> list[int]:
        """Encode a text for the target, behind the row's last tokens, or alone where it would change those."""
        if not added:
            return []
        before = decoded(self.tokenizer, tail)
        own, whole = encoded(self.tokenizer, before), encoded(self.tokenizer, before + added)
        return whole[len(own) :] if whole[: len(own)] == own else encoded(self.tokenizer, added)


def decoded(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """Return the text of tokens, as it is."""
    return str(tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))


def encoded(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Return the tokens of a text alone."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids
