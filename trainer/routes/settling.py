"""Settling of proposals and deletion of their candidates on disk, for commands that load no model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from storage.routes.proposals import ProposalState, RouteProposal
from storage.store import Store

FOLDER = "proposals"
"""Folder below the data directory with the candidates of open proposals."""


def candidates(store: Store) -> Path:
    """Return the folder in which each open split has the draft that was trained for it."""
    folder = store.directory / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def settle(
    store: Store, proposal: RouteProposal, state: ProposalState, facts: dict[str, Any] | None = None
) -> RouteProposal:
    """Mark a proposal applied or declined and delete its candidate. Raises WrongState, UnknownProposal."""
    settled = store.proposals.set_state(proposal.id, state, facts)
    action = "apply" if state is ProposalState.APPLIED else "decline"
    store.trail.note(f"router {action}", str(proposal.id), {"kind": proposal.kind.value, **(facts or {})})
    shutil.rmtree(candidates(store) / str(proposal.id), ignore_errors=True)
    return settled
