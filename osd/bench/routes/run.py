"""All arms of the bench, one after another; an arm that is done is not run again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from osd.bench.routes.picture import draw, save
from osd.bench.routes.result import ArmResult, summary
from osd.bench.routes.stream import Setting, Watch, run_arm
from osd.bench.routes.traffic import arrange
from osd.demo.runner.circle import own_settings
from osd.demo.runner.results import write_json
from osd.demo.runner.source import Segment
from osd.models.pair import load_pair
from storage.errors import BadBenchFile
from storage.settings import Settings

TEACHING = 80
"""Prompts of each file from which topics are taught; they are not served."""


def run_bench_routes(
    settings: Settings, *, target: str, draft: str, segments: Sequence[Segment], arms: Sequence[str], out: Path,
    watch: dict[str, Watch], order: str = "mixed", max_new_tokens: int = 64, batch: int | None = None,
    arrival: str = "lockstep", check_every: int = 40, seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Serve the mixed prompts once with each arm, and compare. Returns what the last line says.

    ``segments``: of each domain the prompts, of which the last TEACHING teach and the others are served. ``out`` keeps
    what is done: the same call over the same folder goes on. Raises PairError, StoreError, TrainingFailed,
    BadBenchFile.
    """
    served = {segment.name: segment.prompts[:-TEACHING] for segment in segments}
    teaching = {segment.name: list(segment.prompts[-TEACHING:]) for segment in segments}
    plan = {"target": target, "draft": draft, "order": order, "seed": seed, "tokens": max_new_tokens,
            "arrival": arrival, "requests": {name: len(prompts) for name, prompts in served.items()}}  # fmt: skip
    done = _resume(out, plan)
    pair = load_pair(target, draft, device=settings.serve.device, dtype=settings.serve.dtype)
    setting = Setting(pair, arrange(served, order, seed), teaching, max_new_tokens, arrival, check_every)
    serve = {"target": target, "draft": draft} | ({} if batch is None else {"max_batch": batch})
    for arm in arms:
        if arm not in done:
            own = own_settings(settings, _fresh(out, arm), serve=serve, router={"poll_seconds": 0.2})
            done[arm] = run_arm(setting, arm, own, out, watch[arm])
            write_json({"plan": plan, "arms": {name: result.to_dict() for name, result in done.items()}}, _kept(out))
    chosen = {arm: done[arm] for arm in arms}
    line = summary(chosen, list(served))
    write_json({**line, "plan": plan}, out / "summary.json")
    save(draw(chosen, list(served), order), out)
    return line


def _kept(out: Path) -> Path:
    return out / "arms.json"


def _fresh(out: Path, arm: str) -> Path:
    """A data directory for an arm: what an interrupted run left is beside it."""
    return next(path for i in range(1, 1 << 20) if not (path := out / f"{arm}-{i}").exists())


def _resume(out: Path, plan: dict[str, Any]) -> dict[str, ArmResult]:
    """Arms that are done. Raises BadBenchFile for a folder of another plan."""
    out.mkdir(parents=True, exist_ok=True)
    if not _kept(out).is_file():
        return {}
    try:
        kept = json.loads(_kept(out).read_text("utf-8"))
        same, arms = kept["plan"] == json.loads(json.dumps(plan)), kept["arms"]
        done = {arm: ArmResult.from_dict(facts) for arm, facts in arms.items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadBenchFile(path=_kept(out), reason=f"it is not what this bench wrote ({error})") from None
    if not same:
        raise BadBenchFile(path=_kept(out), reason="it is of a run with other options; give another --out")
    return done
