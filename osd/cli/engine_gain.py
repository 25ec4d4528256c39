"""What drafting gains on attached engines, in rows and in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osd.cli.out import Row
    from storage.store import Store


def engine_gains(store: Store) -> list[Row]:
    """Return a row for each attached engine that measures what drafting gains, and below it one for each batch size."""
    rows: list[Row] = []
    for engine in store.engines.list():
        if said := engine.facts.get("gain"):
            rows += [_engine_row(engine.name, said), *(_batch_row(engine.name, said, one) for one in said["batches"])]
    return rows


def _engine_row(name: str, said: Mapping[str, Any]) -> Row:
    rate, gain = said["tokens_per_second"], said["gain"]
    return {
        "engine": name, "rows": None, "rate": rate, "without": rate / gain if rate and gain else None, "gain": gain,
        "error": said["error"], "accepted": said["accepted"], "verdict": verdict(said),
    }  # fmt: skip


def _batch_row(name: str, said: Mapping[str, Any], batch: Mapping[str, Any]) -> Row:
    facts = {field: batch[field] for field in ("rows", "length", "gain", "error", "break_even")}
    tried = "" if batch["length"] else f"of {batch['best']} drafted, if it drafted"
    return {"engine": name, "accepted": said["accepted"], "verdict": tried, **facts}


def verdict(said: Mapping[str, Any] | None) -> str | None:
    """Say in a few words whether an engine drafts, and why; None where it does not measure that."""
    if not said:
        return None
    drafts = any(batch["length"] for batch in said["batches"])
    if said["fixed"]:
        return "drafts with lengths that were set" if drafts else "paused"
    if drafts:
        return f"drafts: {said['gain']:.2f} × without"
    known = [batch["break_even"] for batch in said["batches"] if batch["break_even"] is not None]
    if not known:
        return "drafts nothing yet: it measures what drafting costs"
    now = "nothing" if said["accepted"] is None else f"{said['accepted']:.2f}"
    return f"drafts nothing yet: pays from {min(known):.2f} accepted, now {now}"
