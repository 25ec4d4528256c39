"""`osd router proposals`, `decline`, `apply`: what is shown, and what is refused."""

from __future__ import annotations

import json

import pytest

from storage.routes.proposals import ProposalKind, ProposalState
from tests.osd.cli.conftest import Filled

EVIDENCE = {"before": 0.3, "after": 0.5, "difference": 0.2, "apart": 0.05, "apart_error": 0.021}
FACTS = {
    "name": "sql", "draft": "default", "routes": ["default"], "words": ["select", "from"], "requests": 40, "share": 0.4,
    "evidence": EVIDENCE, "members": ["secret-request"], "examples": {"sql": ["secret-request"]},
}  # fmt: skip


@pytest.fixture
def found(filled: Filled) -> int:
    return filled.store.proposals.add(ProposalKind.SPLIT, FACTS).id


def test_open_proposals_are_listed_with_what_they_would_win(osd, filled, found):
    done = osd("router", "proposals", "--json")
    (row,) = json.loads(done.stdout)
    assert (row["id"], row["kind"], row["subject"], row["before"], row["after"]) == (found, "split", "sql", 0.3, 0.5)
    assert "secret-request" not in done.stdout
    table = osd("router", "proposals").stdout
    assert "sql" in table and "+0.050" in table and "0.021" in table and "select from" in table


def test_declined_ones_are_listed_only_with_all(osd, filled, found):
    assert osd("router", "decline", str(found), "--json").exit_code == 0
    assert filled.store.proposals.get(found).state is ProposalState.DECLINED
    assert json.loads(osd("router", "proposals", "--json").stdout) == []
    assert len(json.loads(osd("router", "proposals", "--all", "--json").stdout)) == 1


def test_a_proposal_that_is_not_there_is_said_to_be_missing(osd, filled):
    for command in (("apply", "7", "--yes"), ("decline", "7")):
        assert osd("router", *command).exit_code == 3


def test_applying_asks_first(osd, filled, found):
    assert osd("router", "apply", str(found)).exit_code != 0
    assert filled.store.proposals.get(found).state is ProposalState.OPEN


def test_merging_a_route_with_itself_is_refused(osd, filled):
    done = osd("router", "merge", "default", "default", "--yes")
    assert done.exit_code == 2 and "one draft already" in done.stderr


def test_where_nothing_is_kept_the_trainer_is_not_asked(osd, monkeypatch):
    """It takes seconds to start, and would find nothing."""
    monkeypatch.setattr("osd.cli.router_discover.ask_trainer", None)
    done = osd("router", "discover")
    assert done.exit_code == 0 and "32 requests at least, and 0 of this traffic were kept" in done.stderr
    assert osd("router", "discover", "--route", "none").exit_code == 3
    assert "there is nothing to split" in osd("router", "split", "default", "--yes").stderr


def test_drift_comes_with_the_command_for_it(osd, filled):
    number = filled.store.proposals.add(ProposalKind.DRIFT, {"routes": ["default"], "requests": 200}).id
    assert f"{number}: No trainer lives, so no draft follows: start `osd trainer`." in osd("router", "proposals").stderr
    (row,) = json.loads(osd("router", "proposals", "--json").stdout)
    assert "osd trainer" in row["advice"]
    filled.store.proposals.set_state(number, ProposalState.DECLINED)
    assert "advice" not in json.loads(osd("router", "proposals", "--all", "--json").stdout)[0]
