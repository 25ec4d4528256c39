"""A processor with a state tells the same after any way there as one that reads the text afresh; rows that ask for
nothing are left alone."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from osd.draft import Draft
from osd.draft_tree import Tree
from osd.logits import RaggedLogits
from osd.verification.logits_processors import (
    AllowedTokens,
    StatefulProcessor,
    SuppressTokens,
    paths,
    process_draft,
    process_target,
)

TOKENS = st.integers(0, 4)
V = 6


class Spelling(StatefulProcessor):
    """Forbids to say the newest token again, and refuses the token 4 after 3; a stack as state."""

    def __init__(self, start: int) -> None:
        super().__init__(start)
        self.stack: list[int] = []

    def advance(self, token: int) -> bool:
        if self.stack[-1:] == [3] and token == 4:
            return False
        self.stack.append(token)
        return True

    def rollback(self, tokens: Sequence[int]) -> None:
        assert self.stack[len(self.stack) - len(tokens) :] == list(tokens)
        del self.stack[len(self.stack) - len(tokens) :]

    def change(self, logits: torch.Tensor) -> None:
        logits += torch.tensor([float(self.stack.count(token)) for token in range(V)])
        logits[self.stack[-1:]] = -torch.inf


def rows(*processors: list[object]) -> list[SimpleNamespace]:
    return [SimpleNamespace(tokens=[1, 2], decoded=[1, 2], processors=each) for each in processors]


@given(
    st.lists(TOKENS, min_size=1, max_size=4), st.integers(0, 4),
    st.lists(st.tuples(st.lists(st.lists(TOKENS, max_size=4), max_size=6), st.lists(TOKENS, max_size=3)), max_size=5),
)  # fmt: skip
def test_a_state_follows_drafts_that_branch_and_texts_that_grow(
    text: list[int], start: int, rounds: list[tuple[list[list[int]], list[int]]]
) -> None:
    """Each round asks about some drafts, then the text grows by tokens that need not have been drafted."""
    text, start = text.copy(), min(start, len(text))
    living = Spelling(start)
    for drafts, grown in rounds:
        for drafted in drafts:
            ours, afresh = torch.zeros(V), torch.zeros(V)
            living.apply(ours, text, drafted)
            Spelling(start).apply(afresh, text, drafted)
            assert torch.equal(ours, afresh)
        text += grown


def test_every_position_of_a_chain_and_every_node_of_a_tree_is_asked_with_its_own_path() -> None:
    asked: list[tuple[int, ...]] = []

    class Listening:
        def apply(self, logits: torch.Tensor, text: Sequence[int], drafted: Sequence[int]) -> None:
            asked.append((*text, *drafted))
            logits[0] = len(asked)

    batch = rows([], [Listening()])
    lines = torch.zeros(4 + 3, V, dtype=torch.float64)
    chains = Draft(torch.tensor([[1, 1, 1], [5, 4, 9]]), (3, 2), None, 0)
    changed = process_target(RaggedLogits.packed(lines, (4, 3)), batch, chains)  # type: ignore[arg-type]
    assert asked == [(1, 2), (1, 2, 5), (1, 2, 5, 4)]
    assert changed.lines[:, 0].tolist() == [0, 0, 0, 0, 1, 2, 3] and not lines.any()
    asked.clear()
    tree = Tree([5, 4, 3], [0, 1, 0])
    forest = Draft(torch.tensor([[1, 1, 1], [5, 4, 3]]), (3, 3), None, 0, trees=(Tree([1, 1, 1], [0, 1, 2]), tree))
    process_target(RaggedLogits.packed(torch.zeros(8, V), (4, 4)), batch, forest)  # type: ignore[arg-type]
    assert asked == [(1, 2), (1, 2, 5), (1, 2, 5, 4), (1, 2, 3)]
    assert paths([5, 4, 3], [0, 1, 0]) == [[], [5], [5, 4], [3]]


def test_logits_that_nobody_changes_are_the_same_object() -> None:
    scored = RaggedLogits.packed(torch.zeros(2, V), (1, 1))
    assert process_target(scored, rows([], []), Draft(torch.zeros(2, 0), (0, 0), None, 0)) is scored  # type: ignore[arg-type]


def test_drafts_are_changed_where_they_go_on() -> None:
    batch = rows([SuppressTokens([1])], [SuppressTokens([1])], [])
    logits = process_draft(batch, [True, False, True], torch.zeros(3, 0), torch.zeros(3, 1, V))  # type: ignore[arg-type]
    assert torch.isneginf(logits[0, 0]).tolist() == [False, True, False, False, False, False]
    assert not logits[1:].any()


@pytest.mark.parametrize("order", [1, -1])
def test_one_that_would_leave_nothing_is_passed_over(order: int) -> None:
    processors = [AllowedTokens([2, 3]), SuppressTokens([2, 3])][::order]
    logits = process_draft(rows(processors), [True], torch.zeros(1, 0), torch.zeros(1, 1, V))  # type: ignore[arg-type]
    assert torch.isneginf(logits[0, 0]).tolist() == [(token in (2, 3)) != (order == 1) for token in range(V)]
