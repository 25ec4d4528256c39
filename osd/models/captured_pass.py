"""Passes of fixed shapes, captured as CUDA graphs.

On a GPU a round of a small batch is bound by launches: a pass of an 8B model is 32 layers of a dozen kernels, and the
host takes four times as long to launch them as the GPU to run them. So passes are captured, over a few bucketed shapes
(rows, tokens of a row, positions that are read) and over the cache's own memory, one at a time between two steps; until
a shape is captured, and for all that has none, the eager pass goes on over the same cache. What pads a shape is
written to the cache's spare slot. A graph is trusted once its logits were those of the eager pass. A chain of drafted
tokens is one graph, sampling included: the uniforms that its rows draw by are an input.

Where there is no GPU a shape is run instead of captured, so that all but the capture can be tested.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from osd.logits import RaggedLogits
from osd.models.fixed_pass import Body, Chooser, FixedPass, PassInput, PassShape, likeliest, shape_of
from osd.models.kv_cache import RaggedCache

log = logging.getLogger(__name__)

CHAINS = (8, 4, 2)
"""Tokens that one graph drafts."""
WORTH_CAPTURING = 4
"""Passes of a shape after which it is captured."""
MOST_GRAPHS, MOST_BYTES = 64, 2 << 30
"""Graphs of one model, and the memory that they may take for themselves."""
TOLERANCE = 2e-3
"""Share of the largest logit by which a graph's may differ from the eager pass's in float32; 64-fold in half
precision."""


class CapturedDraft(NamedTuple):
    """Tokens that one graph drafted for B rows."""

    tokens: Tensor
    """(B, n) int64."""
    q: Tensor | None
    """(B, n, V) what they were drawn from; None where they are the likeliest."""
    logits: Tensor
    """(B, n, V) the draft's logits there."""


@dataclass(slots=True)
class Graph:
    """A captured shape: static inputs, and a call that computes the static outputs."""

    tokens: Tensor
    """(rows, width) int64."""
    places: Tensor
    """(2, rows) int64: the position of each row's first token, and how many of its tokens count."""
    numbers: list[Tensor]
    """What tokens are chosen by, (rows, …) each."""
    run: Callable[[], tuple[Tensor | None, ...]]
    trusted: bool | None = None

    def feed(self, tokens: Tensor, starts: Sequence[int], counts: Sequence[int], numbers: Sequence[Tensor]) -> None:
        """Set the inputs; rows beyond those that are given have no tokens."""
        rows, width = tokens.shape
        missing = [0] * (self.tokens.shape[0] - rows)
        self.places.copy_(torch.tensor([[*starts, *missing], [*counts, *missing]]), non_blocking=True)
        self.tokens[:rows, :width].copy_(tokens)
        for mine, theirs in zip(self.numbers, numbers, strict=True):
            mine[:rows].copy_(theirs)


Capture = Callable[[Callable[[], Any]], Callable[[], Any]]
"""Takes what is to be captured, which may be run, and returns what does the same again."""


class CudaCapture:
    """Captures CUDA graphs that share their memory: one runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """Run twice aside, so that libraries have chosen their kernels and allocated, then capture."""
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(2):
                run()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # other threads go on: one copies what is recorded, another loads a draft
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            out = run()

        def replay() -> Any:
            graph.replay()
            return out

        return replay


@dataclass(slots=True)
class Wanted:
    """A shape that was asked for, and how often."""

    cache: RaggedCache
    chooser: Chooser | None
    asked: int = 0


class CapturedPass:
    """The captured passes of one model over one cache; see :class:`osd.models.forward.CompiledForward`."""

    drafts = True

    def __init__(
        self, body: Body, weights: Sequence[Tensor], capture: Capture | None = None,
        ready: Callable[[int], bool] = lambda tokens: True,
    ) -> None:  # fmt: skip
        """``weights``: all that the body reads, on one device. ``capture``: how; None for CUDA graphs. ``ready``:
        whether the body is compiled for so many tokens, which it begins when it is asked."""
        self.body, self.weights, self._ready = body, weights, ready
        self._device = weights[0].device
        self._tolerance = TOLERANCE * (1 if weights[0].dtype == torch.float32 else 64)
        self._capture = capture or CudaCapture()
        self.graphs: dict[PassShape, Graph | None] = {}
        """Those that are captured, the least recently used first; None for what cannot be, or must not be used."""
        self._wanted: dict[PassShape, Wanted] = {}
        self._over: object = None
        """The layout of the cache that the graphs are over."""
        self._now: Graph | None = None
        self.bytes = 0
        """Memory that the graphs took."""
        self.waited = False
        """Whether passes that it would have taken went the other way, before their shape was captured."""

    @property
    def trusted(self) -> bool | None:
        """Whether the graph that :meth:`takes` found says what the eager pass says; None until it was tried."""
        return self._now.trusted if self._now else None

    @property
    def waits(self) -> bool:
        """Whether a shape is to be captured."""
        return any(wanted.asked >= WORTH_CAPTURING for wanted in self._wanted.values())

    # passes

    def takes(self, fed: PassInput, cache: RaggedCache) -> bool:
        """Return whether there is a graph for what is fed; after some calls it will be captured."""
        self._now = None
        if fed.layout is None and fed.first == 0:
            self._now = self._find(len(fed.counts), fed.starts, fed.counts, cache, 0, None)
        return self._now is not None

    def __call__(self, tokens: Tensor, cache: RaggedCache, fed: PassInput, last: Tensor | None) -> Tensor:
        """Feed tokens (B, T) and return logits (B, T, V), or (1, N, V) where not all of them are fed, or with ``last``
        (B,) those after one token of each row, (B, 1, V)."""
        logits, embedding = (None if each is None else each.clone() for each in self._run(tokens, fed))
        assert logits is not None
        rows, width = tokens.shape
        if last is not None:
            lines = torch.arange(rows, device=self._device)
            logits, embedding = (None if e is None else e[lines, last].unsqueeze(1) for e in (logits, embedding))
        elif sum(fed.counts) < rows * width:
            flat = [row * width + i for row, count in enumerate(fed.counts) for i in range(count)]
            chosen = torch.tensor(flat, device=self._device)
            logits, embedding = (None if e is None else e.flatten(0, 1)[chosen][None] for e in (logits, embedding))
        cache.embedding = embedding
        assert logits is not None
        return logits

    def fill(self, tokens: Tensor, cache: RaggedCache, fed: PassInput) -> None:
        """Fill the cache."""
        self._run(tokens, fed)

    def _run(self, tokens: Tensor, fed: PassInput) -> tuple[Tensor | None, ...]:
        graph, (rows, width) = self._now, tokens.shape
        assert graph is not None
        graph.feed(tokens, fed.starts, fed.counts, ())
        return tuple(None if each is None else each[:rows, :width] for each in graph.run())

    def compare(self, said: RaggedLogits, expected: RaggedLogits, counts: Sequence[int]) -> bool:
        """Trust the graph from now on, or never, by both logits of the same pass, of which the first ``counts[i]`` of a
        row mean anything. Returns which."""
        pairs = [(said.first(i, n).float(), expected.first(i, n).float()) for i, n in enumerate(counts)]
        off = max(float((ours - theirs).abs().max()) for ours, theirs in pairs)
        largest = max(1.0, max(float(theirs.abs().max()) for _, theirs in pairs))
        graph = self._now
        assert graph is not None
        graph.trusted = off <= self._tolerance * largest
        if not graph.trusted:
            shape = next(shape for shape, each in self.graphs.items() if each is graph)
            self.graphs[shape] = None
            log.warning(
                "a captured pass is not used: its logits are off by %.2g (%s)", off, shape, extra={"action": "graph"}
            )
        return graph.trusted

    def adopt(self, other: object) -> bool:
        """Copy another model's weights into this one's, over which the graphs are; return False where they are not
        alike. The weights must be nobody else's."""
        if not isinstance(other, CapturedPass) or _kinds(self.weights) != _kinds(other.weights):
            return False
        for mine, theirs in zip(self.weights, other.weights, strict=True):
            mine.copy_(theirs)
        return True

    # chains

    def draft(
        self, tokens: Tensor, starts: Sequence[int], counts: Sequence[int], cache: RaggedCache, most: int,
        chooser: Chooser | None,
    ) -> CapturedDraft | None:  # fmt: skip
        """Feed the first ``counts[i]`` of tokens (B, T) from ``starts[i]`` on, and draft as many tokens after them as
        one graph does, at most ``most``; None where there is no graph."""
        count = next((each for each in CHAINS if each <= most), 0)
        rows = len(starts)
        graph = self._find(rows, starts, counts, cache, count, chooser) if count else None
        if graph is None:
            return None
        graph.feed(tokens, starts, counts, chooser.inputs(count) if chooser else ())
        drafted, q, logits = graph.run()
        assert drafted is not None and logits is not None
        return CapturedDraft(drafted[:rows].clone(), None if q is None else q[:rows].clone(), logits[:rows].clone())

    # shapes

    def _find(
        self, rows: int, starts: Sequence[int], counts: Sequence[int], cache: RaggedCache, drafts: int,
        chooser: Chooser | None,
    ) -> Graph | None:  # fmt: skip
        """Return the graph for such a pass, asking for one where there is none."""
        end = max(start + count for start, count in zip(starts, counts, strict=True)) + max(0, drafts - 1)
        if not cache.ragged[0].kept or not cache.keeps_still or cache.mix is not None or end > cache.stride:
            return None
        if (shape := shape_of(rows, max(counts), end, cache, drafts, chooser)) is None:
            return None
        if shape in self.graphs and self._over is cache.layout:
            self.graphs[shape] = graph = self.graphs.pop(shape)  # the newest used stands last
            return graph
        self._want(shape, cache, chooser)
        return None

    def _want(self, shape: PassShape, cache: RaggedCache, chooser: Chooser | None) -> None:
        if self.bytes >= MOST_BYTES:
            return
        wanted = self._wanted.setdefault(shape, Wanted(cache, chooser))
        wanted.cache, wanted.chooser, wanted.asked = cache, chooser, wanted.asked + 1
        self.waited = True

    def prepare(self) -> bool:
        """Capture one shape that was asked for often enough; return whether it did. To be called between two steps."""
        for shape, wanted in self._wanted.items():
            if wanted.asked >= WORTH_CAPTURING and self._compiled(shape):
                del self._wanted[shape]
                self._make(shape, wanted.cache, wanted.chooser)
                return True
        return False

    def _compiled(self, shape: PassShape) -> bool:
        """Return whether the body is compiled for a shape's passes: the first, and those over one token of a row."""
        return self._ready(shape.rows * shape.width) and (not shape.drafts or self._ready(shape.rows))

    def _make(self, shape: PassShape, cache: RaggedCache, chooser: Chooser | None) -> None:
        """Capture a shape over a cache. A cache that lies elsewhere now: what was captured before is dropped."""
        if self._over is not cache.layout:
            self.graphs.clear()
            self._over = cache.layout
        there = [shape for shape, graph in self.graphs.items() if graph]
        if len(there) >= MOST_GRAPHS:
            del self.graphs[there[0]]
        before = self._memory()
        self.graphs[shape] = None
        try:
            self.graphs[shape] = self._captured(shape, cache, chooser)
        except Exception as error:  # whatever a module does that cannot be captured, its eager pass does it, too
            said = (str(error).strip() or type(error).__name__).splitlines()[0]
            log.warning("a pass cannot be captured: %s (%s)", said, shape, extra={"action": "graph"})
        self.bytes += max(0, self._memory() - before)

    def _captured(self, shape: PassShape, cache: RaggedCache, chooser: Chooser | None) -> Graph:
        def zeros(*size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.long, device=self._device)

        tokens, places = zeros(shape.rows, shape.width), zeros(2, shape.rows)
        given = chooser.inputs(shape.drafts) if chooser else ()
        numbers = [each[:1].repeat(shape.rows, 1) for each in given]
        fixed = FixedPass(self.body, cache, shape)
        if shape.drafts:
            choose = chooser.over(numbers) if chooser else likeliest
            run = self._capture(lambda: fixed.chain(tokens, places, choose))
        else:
            run = self._capture(lambda: fixed.whole(tokens, places))
        return Graph(tokens, places, numbers, run)

    def _memory(self) -> int:
        return torch.cuda.memory_reserved(self._device) if self._device.type == "cuda" else 0


def _kinds(weights: Sequence[Tensor]) -> list[object]:
    return [(each.shape, each.dtype, each.device) for each in weights]
