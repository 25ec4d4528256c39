"""Attached engines as people see them: what each answers, what drafting gains on it, and what another start would, in
rows and in words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from shlex import quote
from typing import TYPE_CHECKING, Any

from osd.attached.base import PROXIED, SGLANG
from storage import records
from storage.versions.feature_kinds import speculative_config

if TYPE_CHECKING:
    from storage.access.engines import AttachedEngine
    from storage.insights.outlook import Line
    from storage.store import Store

Row = Mapping[str, Any]
HOUR, RUNS = 3600.0, 1000
"""Seconds of which learning is told, and runs of them at most."""
FIRST_LENGTH = 4
"""num_speculative_tokens of a first start with a draft."""


def engine_rows(store: Store) -> list[Row]:
    """Return a row for each engine: what it serves, whether it is reached (``up``), what it answered (``requests``,
    ``alpha``, ``age``: seconds since the last), how many it ``dropped``, and what drafting gains."""
    counts = {row.by["engine"]: row for row in store.outcomes.acceptance(["engine"])}
    newest = store.outcomes.newest()
    reached = {server.id for server in store.servers.list() if server.state.value != "gone"}
    rows: list[Row] = []
    for engine in store.engines.list():
        said, at, gain = counts.get(engine.name), newest.get(engine.name), engine.facts.get("gain")
        attended = engine.holder is not None and engine.lease_until > records.now()
        up = attended and engine.name in reached
        state = f"attended to by {engine.holder}" if up else f"does not answer; {engine.holder} asks it"
        rows.append({
            "name": engine.name, "url": engine.url, "draft": engine.draft, "target": engine.facts.get("target"),
            "version": ", ".join(store.versions.served_by(engine.name).values()) or None,
            "requests": said.requests if said else 0, "alpha": said.alpha if said else None,
            "answered_at": at, "age": None if at is None else max(0.0, records.now() - at),
            "dropped": engine.facts.get("harvest", {}).get("dropped", 0), "gain": gain and gain["gain"],
            "drafting": drafting(store, engine), "restart": restart(store, engine), "up": up,
            "added_at": engine.added_at,
            "state": state if attended else "nobody attends to it; run osd attach",
        })  # fmt: skip
    return rows


def engine_gains(store: Store) -> list[Row]:
    """Return a row for each attached engine that measures what drafting gains, and below it one for each batch size."""
    rows: list[Row] = []
    for engine in store.engines.list():
        if said := engine.facts.get("gain"):
            rows += [
                _engine_row(store, engine.name, said, drafting(store, engine)),
                *(_batch_row(engine.name, said, one) for one in said["batches"]),
            ]
    return rows


def _engine_row(store: Store, name: str, said: Mapping[str, Any], words: str | None) -> Row:
    rate, gain = said["tokens_per_second"], said["gain"]
    harvesting, learning = said.get("harvesting"), learning_beside(store, said)
    tpot = 1000 * said["seconds_per_token"] if said.get("seconds_per_token") else None
    net = gain and gain * (1 - (harvesting or 0.0)) * (1 - (learning or 0.0))
    return {
        "engine": name, "rows": None, "rate": rate, "without": rate / gain if rate and gain else None, "gain": gain,
        "error": said["error"], "accepted": said["accepted"], "verdict": words,
        "tpot_ms": tpot, "tpot_without_ms": tpot * gain if tpot and gain else None,
        "harvesting": harvesting, "learning": learning, "net": net,
    }  # fmt: skip


def learning_beside(store: Store, said: Mapping[str, Any]) -> float | None:
    """Return the share of the last hour's processor time that training runs took of an engine's machine; None where the
    machine is not known."""
    host, cores = said.get("host"), said.get("cores")
    if not host or not cores:
        return None
    since, here = records.now() - HOUR, f"{host}:"
    ended = [run for run in store.runs.list(limit=RUNS) if (run.finished_at or 0) > since]
    took = [float(run.result.get("processor_seconds", 0.0)) for run in ended if run.holder.startswith(here)]
    return min(1.0, sum(took) / (HOUR * int(cores)))


def _batch_row(name: str, said: Mapping[str, Any], batch: Mapping[str, Any]) -> Row:
    facts = {field: batch[field] for field in ("rows", "length", "gain", "error", "break_even")}
    tried = "" if batch["length"] else f"of {batch['best']} drafted, if it drafted"
    return {"engine": name, "accepted": said["accepted"], "verdict": tried, **facts}


def drafting(store: Store, engine: AttachedEngine) -> str | None:
    """Say in a few words whether an engine drafts, and why; None where it does not measure that."""
    from storage.insights.outlook import gate_line

    version = store.versions.find(engine.draft, engine.facts.get("digest"))
    return verdict(engine.facts.get("gain"), gate_line(store, version.draft) if version else ())


def verdict(said: Mapping[str, Any] | None, line: Line = ()) -> str | None:
    """Say it by what the engine measured, and by how its draft's acceptance rose with answers (``line``)."""
    from storage.insights.outlook import answers_to_go
    from storage.insights.statistics import tokens_per_round

    if not said:
        return None
    drafts = any(batch["length"] for batch in said["batches"])
    if said["fixed"]:
        return "drafts with lengths that were set" if drafts else "paused"
    if drafts:
        return f"drafts: {said['gain']:.2f} × without"
    known = [(one["break_even"], one["best"]) for one in said["batches"] if one["break_even"] is not None]
    if not known:
        return "drafts nothing yet: it measures what drafting costs"
    accepted, (goal, length) = said["accepted"], min(known)
    now = "nothing" if accepted is None else f"{accepted:.2f}"
    if goal >= 1:
        return f"drafts nothing: on this machine nothing that is accepted would pay for drafting; now {now}"
    if accepted is not None and accepted >= goal:
        return f"drafts nothing yet: it would pay from {goal:.2f} accepted, now {now}, which is not proven yet"
    shares = [(answers, (tokens_per_round(alpha, length) - 1) / length) for answers, alpha in line]
    left = answers_to_go(shares, goal)  # of what is drafted, as the goal is
    to_go = "" if left is None else f"; about {float(f'{left:.2g}'):,.0f} answers to go"
    return f"drafts nothing yet: pays from {goal:.2f} accepted, now {now}{to_go}"


def restart(store: Store, engine: AttachedEngine) -> str | None:
    """Say where another start would be faster, and its command, of an engine that keeps the draft length that it was
    started with, or that has no draft; None for others, where nothing is known, and where it is well as it is."""
    from storage.insights.statistics import tokens_per_round

    facts, version = engine.facts, store.versions.find(engine.draft, engine.facts.get("digest"))
    alpha = version.evidence.get("after") if version else None
    if version is None or alpha is None or facts.get("live_gamma", True) or facts["kind"] == SGLANG:
        return None
    length, plain = facts["gamma"] or FIRST_LENGTH, f"vllm serve {quote(facts['target'])}"
    tokens = tokens_per_round(alpha, length)
    brings = f"{tokens:.2f} tokens a step at the gate's acceptance {alpha:.2f}"
    served, share = store.versions.served_by(engine.name).get(version.draft), (tokens - 1) / length
    needed = min(_break_evens(store, engine), default=None)
    if facts["method"] and (facts["kind"] != PROXIED or served in (None, version.id)):
        return _without_draft(f"`{plain}`", brings, share, tokens, needed)
    drafts = json.dumps(speculative_config(version.kind, "./draft", length))
    command = f"`osd drafts export {version.id} ./draft`, then `{plain} --speculative-config {quote(drafts)}`"
    worth = "worth it" if facts["method"] else _with_draft(share, tokens, needed)
    return f"{worth}, {version.id} brings {brings}: {command}"


def _with_draft(share: float, tokens: float, needed: float | None) -> str:
    """Say whether a first start with a draft would be faster."""
    if needed is None:
        return f"worth it where a step with the draft takes less than {tokens:.2f} × one without (not measured here)"
    return "worth it" if share >= needed else f"not worth it yet ({share:.2f} of what is drafted, {needed:.2f} needed)"


def _without_draft(command: str, brings: str, share: float, tokens: float, needed: float | None) -> str | None:
    """Say whether a start without a draft would be faster; None where it would not."""
    if needed is None:
        cost = f"a step takes less than {tokens:.2f} × one without, which was not measured"
        return f"the draft brings {brings}, and pays where {cost}; without it: {command}"
    loses = f"{share:.2f} of what is drafted is accepted, and engines beside it need {needed:.2f}"
    return f"faster without the draft, which brings {brings}: {loses}: {command}" if share < needed else None


def _break_evens(store: Store, engine: AttachedEngine) -> list[float]:
    """Return the acceptances from which drafting pays, of engines with the same target and draft that measure it."""
    same = engine.draft, engine.facts["digest"]
    return [
        batch["break_even"]
        for one in store.engines.list() if (one.draft, one.facts.get("digest")) == same and one.facts.get("gain")
        for batch in one.facts["gain"]["batches"] if batch["break_even"] is not None
    ]  # fmt: skip
