"""Every question of ``osd stats``, as it is asked of a store that served for a year."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.stats.year import StatsPlan
from osd.server.metrics.store import StoreCollector
from storage.insights.service import Answers
from storage.insights.sizes import ModelSize
from storage.outcomes.outcome_window import EVERYTHING, Window
from storage.sql.spans import DAY, HOUR
from storage.store import Store

Question = Callable[[], Any]
TARGET = ModelSize(7_000_000_000, 14_000_000_000)
KEYS = ("route", "version", "controller", "tenant", "worker")


def questions(store: Store, plan: StatsPlan, days: int) -> dict[str, Question]:
    """By name, as they are asked when so many days are there."""
    answers, now = Answers(store), plan.begin + days * DAY
    newest = plan.version(min(plan.versions - 1, (days * DAY - 1) // plan.turn))
    kept = [Window(version=plan.version(plan.versions - back)) for back in (2, 1)]
    uneven = Window(now - days * DAY // 2 + 3333, now - 77_777)

    def last(seconds: float) -> Window:
        return Window(since=now - seconds + 17)  # from the middle of a minute on

    asked: dict[str, Question] = {f"acceptance {key}": _acceptance(answers, EVERYTHING, key) for key in KEYS}
    asked |= {
        "acceptance": _acceptance(answers, EVERYTHING),
        "acceptance route,version": _acceptance(answers, EVERYTHING, "route", "version"),
        "acceptance day": _acceptance(answers, EVERYTHING, "day"),
        "acceptance route,day": _acceptance(answers, EVERYTHING, "route", "day"),
        "acceptance one route,day": _acceptance(answers, Window(route="route-1"), "day"),
        "acceptance route, uneven stretch": _acceptance(answers, uneven, "route"),
        "acceptance hour, 14 days": _acceptance(answers, last(14 * DAY), "hour"),
        "acceptance route,hour, 2 days": _acceptance(answers, last(2 * DAY), "route", "hour"),
        "acceptance minute, 6 hours": _acceptance(answers, last(6 * HOUR), "minute"),
        "positions": answers.positions,
        "positions version": lambda: answers.positions(by=["version"]),
        "positions route": lambda: answers.positions(by=["route"]),
        "positions day": lambda: answers.positions(by=["day"]),
        "change, 1 day": lambda: answers.change(newest),
        "change, 14 days": lambda: answers.change(newest, window=14 * DAY),
        "tokens": lambda: answers.tokens(*kept),
        "rejections": answers.rejections,
        "cost": lambda: answers.cost(target=TARGET).rows,
        "runs": answers.runs,
        "metrics": lambda: list(StoreCollector(store).collect()),
    }
    return asked


def _acceptance(answers: Answers, window: Window, *by: str) -> Question:
    return lambda: answers.acceptance(window, by)


def ask(asked: Mapping[str, Question], repeats: int) -> tuple[dict[str, float], dict[str, float]]:
    """Milliseconds of each by the clock, and of this process's CPU: the least of ``repeats`` after one that warms up,
    which is what a question takes where nothing else wants the machine. Raises ValueError for no answer."""
    clock, cpu = {}, {}
    for name, question in asked.items():
        if not question():
            raise ValueError(f"{name} has no answer")
        taken = [_taken(question) for _ in range(repeats)]
        clock[name], cpu[name] = (round(1000 * min(one[which] for one in taken), 2) for which in (0, 1))
    return clock, cpu


def _taken(question: Question) -> tuple[float, float]:
    """Seconds by the clock, and of CPU."""
    began, spent = time.perf_counter(), time.process_time()
    question()
    return time.perf_counter() - began, time.process_time() - spent
