"""Taught examples, proposals, a draft's own options."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.errors import BadInput, UnknownDraft, UnknownProposal, UnknownTopic, WrongState
from storage.routes.examples import TEXT_LENGTH, TeachResult
from storage.routes.proposals import ProposalKind, ProposalState
from storage.store import Store
from tests.storage.make import add_root

SQL, GO = "SELECT name FROM people", "func main() {}"


def test_examples_are_kept_once_in_their_order(store: Store) -> None:
    assert store.examples.teach([("sql", SQL), ("go", GO), ("sql", SQL)]) == TeachResult(new=2, moved=0, known=0)
    assert store.examples.teach([("sql", "DROP TABLE x"), ("go", GO)]) == TeachResult(new=1, moved=0, known=1)
    assert store.examples.list() == [("sql", SQL), ("go", GO), ("sql", "DROP TABLE x")]
    assert store.examples.counts() == {"go": 1, "sql": 2}


def test_the_trail_counts_examples_and_does_not_repeat_them(store: Store) -> None:
    store.examples.teach([("sql", SQL)], "ada@tower")
    store.examples.teach([("go", SQL)], "ada@tower")
    store.examples.teach([("go", SQL)], "ada@tower")
    store.examples.forget("go", "ada@tower")
    trail = store.routes.history()
    assert [(change.action, change.before, change.after) for change in reversed(trail)] == [
        ("router teach", {}, {"topics": ["sql"], "new": 1, "moved": 0}),
        ("router teach", {}, {"topics": ["go"], "new": 0, "moved": 1}),
        ("router forget", {"topic": "go", "examples": 1}, {}),
    ]
    assert store.examples.list() == [] and store.routes.revision() == trail[0].id


@pytest.mark.parametrize(
    "pair", [("", SQL), ("x" * 201, SQL), ("sql", " "), ("sql", "a\0b"), ("sql", "a" * (TEXT_LENGTH + 1))]
)
def test_one_bad_example_keeps_all_of_them_out(store: Store, pair: tuple[str, str]) -> None:
    with pytest.raises(BadInput):
        store.examples.teach([("go", GO), pair])
    assert (store.examples.list(), store.routes.revision()) == ([], 0)


def test_forgetting_what_was_not_taught(store: Store) -> None:
    store.examples.teach([("sql", SQL)])
    with pytest.raises(UnknownTopic, match="known: sql"):
        store.examples.forget("go")


def test_a_preview_is_what_comes(store: Store) -> None:
    store.examples.teach([("sql", SQL), ("go", GO)])
    more = [("sql ", "DROP TABLE x"), ("sql", GO), ("rust", "fn main() {}"), ("c", "fn main() {}")]
    wanted = store.examples.preview(more)
    assert store.examples.list() == [("sql", SQL), ("go", GO)]
    store.examples.teach(more)
    assert (
        store.examples.list() == wanted == [("sql", SQL), ("sql", GO), ("sql", "DROP TABLE x"), ("c", "fn main() {}")]
    )
    with pytest.raises(BadInput):
        store.examples.preview([("sql", " ")])


def test_many_examples_at_once(store: Store) -> None:
    pairs = [(f"topic {number % 7}", f"text {number}") for number in range(6_000)]
    assert store.examples.preview(pairs) == pairs
    assert store.examples.teach(pairs).new == 6_000
    assert store.examples.teach(pairs).known == 6_000
    assert store.examples.list() == pairs


def test_proposals_are_settled_once(store: Store) -> None:
    first = store.proposals.add(ProposalKind.SPLIT, {"route": "default", "gain": 0.1})
    second = store.proposals.add(ProposalKind.MERGE, {"routes": ["a", "b"]})
    assert [each.id for each in store.proposals.list()] == [second.id, first.id]
    done = store.proposals.set_state(first.id, ProposalState.APPLIED, {"by": "ada"})
    assert (done.state, done.facts) == (ProposalState.APPLIED, {"route": "default", "gain": 0.1, "by": "ada"})
    assert store.proposals.get(first.id) == done == store.proposals.set_state(first.id, ProposalState.APPLIED)
    with pytest.raises(WrongState, match="is applied, and making it declined needs open"):
        store.proposals.set_state(first.id, ProposalState.DECLINED)
    assert store.proposals.list(ProposalState.OPEN) == [second]
    with pytest.raises(UnknownProposal, match="no proposal 99"):
        store.proposals.set_state(99, ProposalState.APPLIED)


def test_a_draft_may_have_options_of_its_own(store: Store, tmp_path: Path) -> None:
    add_root(store, tmp_path / "sql", "sql")
    assert store.versions.options("sql") == {}
    assert store.versions.set_options("sql", {"method": "lora", "lora_rank": 4}) == store.versions.options("sql")
    assert store.versions.options("default") == {}
    with pytest.raises(UnknownDraft):
        store.versions.options("nobody")
    for wrong in ({"loss": "jsd"}, {"method": "lora!"}, {"lora_rank": 0}, {"lora_rank": True}, {"lora_rank": "8"}):
        with pytest.raises(BadInput):
            store.versions.set_options("sql", wrong)
    assert store.versions.options("sql") == {"method": "lora", "lora_rank": 4}
