"""One arm of the bench: the whole circle over mixed traffic, and what came of every request."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from benchmarks.routes.result import LAST, ArmResult, RoutedRequest, alpha
from benchmarks.routes.traffic import TrafficItem, set_up
from osd.bench.harness.watch import Watch
from osd.demo.runner.alone import TargetAlone
from osd.demo.runner.circle import make_new_folder
from osd.demo.runner.feed import RequestFeed, RequestGate, Spent, make_arrival
from osd.demo.runner.process import WorkerProcess, save_settings, worker_beside
from osd.demo.runner.stream import draft_hits, loaded_hits
from osd.drafters.loaded_draft import LoadedDraft
from osd.drafters.scoring import drawn_from
from osd.engine.engine import Engine
from osd.engine.session import in_folder, serving
from osd.models.pair import Pair
from osd.prompts import encode
from osd.sequence import Completion
from storage.errors import BadRequest
from storage.records import DEFAULT_DRAFT, Request, RunState
from storage.sampling import GREEDY, Sampling
from storage.settings import Settings
from storage.store import Store, open_store

MANY = 1 << 20


@dataclass(frozen=True, slots=True)
class RoutesSetting:
    """What all arms have in common."""

    pair: Pair
    items: Sequence[TrafficItem]
    teaching: dict[str, list[str]]
    max_new_tokens: int
    arrival: str
    check_every: int
    sampling: Sampling = GREEDY


class ArmStream:
    """Serves the items with one arm's engine."""

    def __init__(
        self, setting: RoutesSetting, arm: str, engine: Engine, arrival: RequestGate, worker: WorkerProcess,
        watch: Watch,
    ) -> None:  # fmt: skip
        self._setting, self._engine, self._worker = setting, engine, worker
        self._feed = RequestFeed(engine, arrival, "(any)")
        self._frozen = setting.pair.draft.decoder(1, engine.limit)
        self._target = setting.pair.target.decoder(1, engine.limit)
        self._alone = TargetAlone(setting.pair, engine.settings)
        self._watch = watch
        self._items: dict[str, tuple[int, TrafficItem]] = {}
        self._texts: list[tuple[str, Completion]] = []
        """Domain and text of each finished request."""
        self.arm, self.result = arm, ArmResult()

    def run(self) -> ArmResult:
        """Serve everything. Raises TrainingFailed when training is gone or stuck."""
        for finished in self._feed.serve(self._requests(), self._refused):
            self._worker.require_alive()
            for completion, spent in finished:
                self._finish(completion, spent)
        self._alone.finish()
        return self.result.ended(len(self._alone.checks), self._alone.failed, self._forgotten())

    def _requests(self) -> Iterator[Request]:
        """Yield requests in which nothing says what domain they are of."""
        for number, item in enumerate(self._setting.items):
            try:
                tokens = encode(self._setting.pair.tokenizer, item.prompt)
            except BadRequest as error:
                self._refused(error)
                continue
            request = Request(
                tokens, self._setting.max_new_tokens, self._setting.sampling, text=item.prompt, learn=item.learn
            )  # fmt: skip
            self._items[request.id] = number, item
            yield request

    def _refused(self, error: BadRequest) -> None:
        self.result.refuse()

    def _finish(self, completion: Completion, spent: Spent) -> None:
        number, item = self._items.pop(completion.request.id)
        version = completion.outcomes[-1].draft_version
        loaded_drafts = self._engine.pool.loaded_drafts
        serving = next((s for s in loaded_drafts.values() if s.version == version), self._engine.pool.default)
        judged, p = len(completion.tokens), drawn_from(self._target, completion)
        self._texts.append((item.domain, completion))
        frozen, mine = self._hits(serving, completion, p)
        self.result.seen.append(
            RoutedRequest(
                item.domain, completion.route, serving.draft, version, judged, mine, frozen, spent.seconds, number
            )
        )
        if p is None and self._setting.check_every and len(self.result.seen) % self._setting.check_every == 0:
            self._alone.hold(completion, spent)
        late = alpha(self.result.seen[-LAST:]) or 0.0
        self._watch.at(f"{self.arm}: {len(self.result.seen)} of {len(self._setting.items)}, α {late:.2f}")

    def _hits(self, serving: LoadedDraft, completion: Completion, p: Tensor | None) -> tuple[float, float]:
        """Return hits of the frozen draft and of the one that serves."""
        return sum(draft_hits(self._frozen, completion, p)), sum(loaded_hits(serving, completion, p))

    def _forgotten(self) -> float | None:
        """Return acceptance on the first domain's last texts when they were served, less what the draft that served
        most of them would reach now."""
        first = self._setting.items[0].domain
        served = Counter(one.draft for one in self.result.of(first)[-LAST:])
        texts = [text for domain, text in self._texts if domain == first][-LAST:]
        then = alpha(self.result.of(first)[-LAST:])
        loaded = self._engine.pool.loaded_drafts.get(served.most_common(1)[0][0]) if texts else None
        if loaded is None or then is None:
            return None
        now = sum(self._hits(loaded, text, drawn_from(self._target, text))[1] for text in texts)
        return round(then - now / sum(len(text.tokens) for text in texts), 4)


def run_arm(setting: RoutesSetting, arm: str, settings: Settings, folder: Path, watch: Watch) -> ArmResult:
    """Run one arm in a new folder. Raises StoreWriteFailed, StoreError, TrainingFailed."""
    begun = time.perf_counter()
    with _circle(setting, arm, settings, folder) as (store, engine, worker, drafts):
        arrival = make_arrival(setting.arrival, store, drafts, engine, settings.learn.most_waiting)
        result = ArmStream(setting, arm, engine, arrival, worker, watch).run()
        runs = [run for draft in drafts for run in store.runs.list(draft, limit=MANY)]
        result.published = sum(run.state is RunState.PUBLISHED for run in runs)
        result.memory = _memory(engine)
        result.seconds = round(time.perf_counter() - begun, 1)
        return result


@contextmanager
def _circle(
    setting: RoutesSetting, arm: str, settings: Settings, folder: Path
) -> Iterator[tuple[Store, Engine, WorkerProcess, list[str]]]:
    make_new_folder(settings.storage.data_directory())
    config = save_settings(settings, settings.storage.data_directory() / "osd.toml")
    with open_store(settings) as store:
        drafts = set_up(store, arm, Path(in_folder(setting.pair.draft).name), setting.teaching)
        with (
            serving(setting.pair, settings, store) as engine,
            worker_beside(config, folder / f"{arm}.log") as worker,
        ):
            yield store, engine, worker, drafts


def _memory(engine: Engine) -> list[dict[str, Any]]:
    memory = engine.draft_manager.memory()
    return [
        {"draft": draft, "bytes": one.weight_bytes, **{k: v for k, v in asdict(one).items() if k != "weight_bytes"}}
        for draft, one in memory.items()
        if draft != DEFAULT_DRAFT or len(memory) == 1
    ]
