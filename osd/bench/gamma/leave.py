"""What a run leaves in its folder.

plan.json, measured.jsonl   what to do and what was done: the same command with this folder goes on from there
rounds.parquet, costs.json  what ``--simulate`` and ``--costs`` take
bench.json                  every figure, with definitions
throughput, rates           pictures, .png and .svg
gamma.html                  gamma along a text of each data set
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from osd.bench.gamma.page import Counted, Show, Told, save_page, tell
from osd.bench.gamma.plan import Entrant, Plan, Setting
from osd.bench.gamma.result import Results
from osd.bench.gamma.rounds import Trace
from storage.errors import StoreWriteFailed

BENCH, PAGE = "bench.json", "gamma.html"
TITLE = "Gamma along a text"


def leave(results: Results, out: Path) -> dict[str, Path]:
    """Write figures and pictures; the files by what they are. Raises StoreWriteFailed."""
    from osd.bench.gamma.picture import draw_rates, draw_throughput  # matplotlib takes a second to load
    from osd.bench.harness.picture import save

    try:
        out.mkdir(parents=True, exist_ok=True)
        text = json.dumps(results.summary(), ensure_ascii=False, indent=1)
        (out / BENCH).write_text(text + "\n", encoding="utf-8")
        throughput = save(draw_throughput(results.main, results.plan), out, "throughput")
        rates = save(draw_rates(results.main, results.plan), out, "rates")
    except OSError as error:
        raise StoreWriteFailed(path=out, reason=error.strerror or str(error)) from None
    return {"all figures": out / BENCH, "throughput": throughput, "verified and discarded": rates}


def leave_page(
    plan: Plan, traces: Callable[[str], Sequence[Trace]], rounds: Callable[[Setting, Entrant], Iterable[Counted]],
    show: Show, first: str, out: Path,
) -> Path | None:  # fmt: skip
    """Write gamma along each data set's first text, for every controller, ``first`` foremost.

    None when the main setting samples.
    """
    pages: dict[str, list[Told]] = {}
    for name in plan.data_sets if plan.temperatures[0] == 0 else ():
        trace, setting = traces(name)[0], plan.main(name)
        for rule in sorted(plan.controllers, key=lambda rule: rule != first):
            entrant = Entrant("rule", rule, plan.initial)
            pages.setdefault(name, []).append(tell(rule, trace, list(rounds(setting, entrant)), show))
    return save_page(pages, TITLE, out / PAGE) if pages else None
