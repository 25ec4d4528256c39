"""A simple proposer for tests: random trees, in which the target's own text is hidden now and then; and a drafter whose
trees have drawn tokens and certain ones."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace

from osd.draft import Draft, as_trees, draft_of, without_branches
from osd.draft_tree import Tree, graft
from osd.drafters.base import DraftRequest
from osd.drafters.tree import TreeDrafter
from osd.sequence import SequenceState


class Guessing:
    """Sometimes nothing, sometimes a chain, mostly a random tree; with chance ``hit`` what is proposed along the way is
    what the text goes on with. Siblings may be named twice. Chances come from the row's own text."""

    name = "guessing"

    def __init__(self, vocabulary: int, known: Mapping[tuple[int, ...], Sequence[int]], hit: float = 0.7) -> None:
        """``known``: the target's text after each prompt."""
        self.vocabulary, self.known, self.hit = vocabulary, known, hit
        self.shapes = ("nothing", "chain", "tree", "tree", "tree")
        self.asked: list[tuple[int, int]] = []
        self.learned: dict[str, list[int]] = {}
        self.here: set[str] = set()

    def join(self, row: SequenceState) -> None:
        self.here.add(row.request.id)

    def leave(self, row: SequenceState) -> None:
        self.here.remove(row.request.id)

    def learn(self, row: SequenceState, start: int) -> None:
        assert row.request.id in self.here
        self.learned.setdefault(row.request.id, []).extend(row.tokens[start:])

    def recall(self, row: SequenceState, start: int) -> None:
        assert row.request.id in self.here and not row.request.learn

    def propose(
        self, rows: Sequence[SequenceState], depths: Sequence[int], nodes: Sequence[int]
    ) -> list[SimpleNamespace]:
        self.asked += zip(depths, nodes, strict=True)
        return [self._tree(row, most + 2) for row, most in zip(rows, nodes, strict=True)]

    def _tree(self, row: SequenceState, most: int) -> SimpleNamespace:
        """Of whatever depth, and larger than was asked for: the drafter has to cut."""
        chance = random.Random(str(row.tokens))
        truth = list(self.known.get(row.request.prompt_tokens, ()))[len(row.output) :]
        shape = chance.choice(self.shapes)
        tokens: list[int] = []
        parents: list[int] = []
        way = -1
        for i in range(0 if shape == "nothing" else most):
            parent = i - 1 if shape == "chain" else chance.choice((way, chance.randrange(-1, i)))
            told = parent == way and truth and chance.random() < self.hit
            tokens.append(truth.pop(0) if told else chance.randrange(self.vocabulary))
            parents.append(parent)
            way = i if told else way
        return SimpleNamespace(tokens=tokens, parents=parents)


class BranchingDrafter(TreeDrafter):
    """Drafts the draft's chain with a proposer's branches: in one tree, drawn tokens and certain ones."""

    def join(self, row: SequenceState, draft: str) -> None:
        super().join(row, draft)
        row.drafter_seen = 0

    def version(self, row: SequenceState) -> str:
        return self.pool.version(row)

    def propose(self, request: DraftRequest) -> Draft:
        gammas = [min(gamma, row.draft_room()) for row, gamma in zip(request.rows, request.gammas, strict=True)]
        draft = self.pool.propose(replace(request, gammas=gammas))
        trees, room = list(as_trees(draft, sampled=request.sampled)), self.pruner.room(request.rows)
        asked = [i for i, gamma in enumerate(request.gammas) if gamma]
        if asked and self.pool.failures.may_ask(self.proposer.name):
            self._branch(trees, request, asked, room)
        left = draft_of(
            self.pruner.prune(trees, request.rows, self.pool.costs), draft.q, draft.passes, self.pruner.target.device
        )
        return without_branches(left, sampled=request.sampled)

    def _branch(self, trees: list[Tree], request: DraftRequest, asked: list[int], room: int) -> None:
        rows = [request.rows[i] for i in asked]
        try:
            named = self.proposer.propose(rows, [request.gammas[i] for i in asked], [room] * len(asked))
            for i, proposal in zip(asked, named, strict=True):
                graft(trees[i], proposal, request.gammas[i], room + len(trees[i]), self.pool.vocabulary)
        except Exception as error:
            self.pool.failures.note_failure(self.proposer.name, error, rows)

    def commit(self, row: SequenceState, length_before: int, accepted: int, draft: Draft) -> None:
        super().commit(row, length_before, accepted, draft)
        row.drafter_seen = 0

    def measure(self, whole_ms: float) -> None:
        self.pool.measure(whole_ms)
