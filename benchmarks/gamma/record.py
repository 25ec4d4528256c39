"""Recording with a real pair: the target alone decodes the texts, then the draft's chains are drawn on them.

A chain begins at every position of a text: rows of one batch, which draft together. For some positions at a time the
draft's cache is filled with the text once and copied to a row each. Greedy chains are held against the text itself.
Sampled ones are read by the target, in the same way, for only it can say what it thinks of a token that its text does
not have.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor, nn

from benchmarks.gamma.chains import fork, passes_of, read_by
from benchmarks.gamma.contest import with_random_draft
from benchmarks.gamma.heads import HALVES, estimated, heads_of_halves, read_head
from benchmarks.gamma.rounds import Floats, Ints, RecordedText, Recording, read_recording, write_recording
from osd.bench.contenders import Tokens, run_in_order
from osd.bench.harness.plan import Count, PairPlan, data_sets, facts_of
from osd.bench.harness.report import BenchResult
from osd.bench.harness.watch import Watch
from osd.engine.engine import Engine
from osd.models.acceptance_head import HeadPass
from osd.models.encoder_decoder import require_decoder_only
from osd.models.pair import Pair, row_limit
from osd.server.start import choose_pair
from osd.verification.warping import Warp, draw
from storage.errors import BadBenchFile
from storage.records import Request
from storage.sampling import Sampling
from storage.settings import Settings


@dataclass(frozen=True, kw_only=True)
class RoundsPlan(PairPlan):
    """Record what a draft would guess at every position of the target's own texts, at temperatures 0 and 1.

    Example: `python -m benchmarks rounds --prompts gsm8k.jsonl,wikisql.jsonl --out pair.parquet`
    """

    out: Path
    """The recording; one that is there goes on."""
    temperatures: tuple[Annotated[float, Ge(0)], ...] = (0.0, 1.0)
    """Temperatures of the texts and chains."""
    top_k: Annotated[int, Ge(0)] = 0
    """Sampled texts and chains are drawn from so many of the likeliest tokens; 0 keeps all."""
    head: Path | None = None
    """Folder of the draft's acceptance head: what it says is added, to texts that were recorded before, too. With
    `halves` there are two heads for each of the temperatures, and each says of every second text what it learned from
    the others."""
    count: Count = 8
    """Prompts of each data set."""
    max_tokens: Count = 64
    """Tokens of a text at most."""
    depth: Count = 12
    """Tokens of a chain."""
    random_draft: bool = False
    """The draft, with random weights."""


def bench_rounds(plan: RoundsPlan, settings: Settings, watch: Watch) -> BenchResult:
    """Record a pair's rounds for the simulator, and measure nothing."""
    pair = choose_pair(settings.serve, plan.target, plan.draft).load(settings.serve)
    longest = row_limit(pair, settings.serve) - plan.max_tokens - plan.depth
    sets = data_sets(plan, pair.tokenizer, plan.count, longest, seed=0)
    pair = with_random_draft(pair) if plan.random_draft else pair
    halves = plan.head == HALVES
    asked = RecordPlan(
        temperatures=plan.temperatures, new_tokens=plan.max_tokens, depth=plan.depth, top_k=plan.top_k,
        head=read_head(plan.head, pair) if plan.head and not halves else None,
    )  # fmt: skip
    figures: dict[str, float] = {}
    with watch.until_ctrl_c():
        recording = record_file(plan.out, pair, sets, asked, watch)
        traces = recording.traces
        if halves:
            own = [trace for trace in traces if trace.temperature in plan.temperatures]
            told, figures = heads_of_halves(pair, own, settings.learn, watch)
            traces = (*(trace for trace in traces if trace.temperature not in plan.temperatures), *told)
        target, draft = ("/".join(Path(name).parts[-2:]) for name in (recording.target, recording.draft))  # no path
        write_recording(plan.out, replace(recording, traces=traces, target=target, draft=draft))
    facts, files = facts_of(plan, target=pair.target.name, draft=pair.draft.name), {"rounds": plan.out}
    return BenchResult("rounds", facts, figures, files={} if watch.stopped else files, interrupted=watch.stopped)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPlan:
    """What is recorded."""

    temperatures: Sequence[float] = (0.0,)
    new_tokens: int = 128
    """Tokens of a text at most."""
    depth: int = 20
    """Tokens of a chain."""
    seed: int = 0
    """Seed of sampled texts and chains."""
    top_k: int = 0
    """Tokens that sampled texts and chains are drawn from, the likeliest; 0 keeps all."""
    head: HeadPass | None = None
    """The draft's acceptance head."""
    batch: int = 8
    """Texts that are decoded together."""
    rows: int = 32
    """Chains that are drafted together."""

    def sampling(self, temperature: float, seed: int | None = None) -> Sampling:
        """Return how texts and chains are sampled, whatever the model's generation_config.json says."""
        return Sampling(temperature, self.top_k, 1.0, seed, min_p=0.0, repetition_penalty=1.0)


def record_file(
    path: Path, pair: Pair, data_sets: Mapping[str, Sequence[Tokens]], asked: RecordPlan, watch: Watch
) -> Recording:
    """Record into a file, which grows by one text at a time; what it holds already is kept.

    Raises BadBenchFile when the file was recorded with another pair or other settings. That the prompts are the same
    is seen to by who asks.
    """
    digests = fingerprint(pair.target.module), fingerprint(pair.draft.module)
    depth, tokens = asked.depth, asked.new_tokens
    wanted = Recording(
        pair.target.name, digests[0], pair.draft.name, digests[1], depth, tokens, asked.seed, top_k=asked.top_k
    )
    recording = _kept(path, wanted) if path.exists() else wanted
    for name, temperature in product(data_sets, asked.temperatures):
        held = {tuple(trace.prompt.tolist()) for trace in recording.of(name, temperature)}
        missing = [prompt for prompt in data_sets[name] if tuple(prompt) not in held]
        for trace in drawn_texts(pair, name, missing, temperature, asked, watch):
            recording = replace(recording, traces=(*recording.traces, trace))
            write_recording(path, recording)
    if asked.head and any(trace.head is None for trace in recording.traces):
        recording = replace(recording, traces=estimated(pair, recording.traces, asked.head, watch))
        write_recording(path, recording)
    return recording


def drawn_texts(
    pair: Pair, data_set: str, prompts: Sequence[Tokens], temperature: float, asked: RecordPlan, watch: Watch
) -> Iterator[RecordedText]:
    """Decode the prompts with the target alone, and draft a chain at every position; yield each text as soon as it is
    drawn. Raises BadRequest for a prompt that cannot be served, and DecoderOnly."""
    require_decoder_only(pair.target.module, "python -m benchmarks gamma", pair.target.name)
    if not prompts:
        return
    longest = min(max(map(len, prompts)) + asked.new_tokens, pair.limit)
    texts = _texts(pair, prompts, temperature, asked, longest)
    drawer = ChainDrawer(pair, temperature, asked, longest + asked.depth + 1)
    for number, (prompt, (text, beyond)) in enumerate(zip(prompts, texts, strict=True), 1):
        chains = drawer.chains(prompt, text, beyond)._asdict()
        end = min(pair.limit, len(prompt) + asked.new_tokens) - len(prompt)
        read, said = np.array(prompt, np.int32), np.array(text, np.int32)
        watch.at(f"recording {data_set}, T={temperature:g}: {number} of {len(prompts)}")
        yield RecordedText(data_set, temperature, end, read, said, **chains)


def fingerprint(module: nn.Module) -> str:
    """A digest of weights in memory, from up to 4,096 numbers of each, evenly spread."""
    digest = hashlib.sha256()
    for name, weight in module.named_parameters():
        flat = weight.detach().flatten()
        some = flat[:: -(-len(flat) // 4096)].float().cpu().numpy()
        digest.update(f"{name} {tuple(weight.shape)}".encode() + some.tobytes())
    return digest.hexdigest()


def _kept(path: Path, wanted: Recording) -> Recording:
    found = read_recording(path)
    for name in ("target_digest", "draft_digest", "depth", "new_tokens", "seed", "top_k"):
        if getattr(found, name) != getattr(wanted, name):
            differs = f"{name} is {getattr(found, name)}, not {getattr(wanted, name)}"
            raise BadBenchFile(path=path, reason=f"was recorded otherwise ({differs}); remove it or give another path")
    return found


def _texts(
    pair: Pair, prompts: Sequence[Tokens], temperature: float, asked: RecordPlan, longest: int
) -> list[tuple[list[int], list[int]]]:
    """The target's texts; and, of a greedy one that ended early, how it would go on for a chain's length."""
    serve = {"max_batch": asked.batch, "max_length": max(8, longest)}
    settings = Settings().changed(gamma={"rule": "fixed", "initial": 0}, serve=serve)

    def decode(requests: list[Request]) -> list[list[int]]:
        return [list(done.tokens) for done in run_in_order(Engine(pair, settings), requests)]

    samplings = [asked.sampling(temperature, asked.seed + k) for k in range(len(prompts))]
    texts = decode([Request(p, asked.new_tokens, own) for p, own in zip(prompts, samplings, strict=True)])
    beyond: list[list[int]] = [[] for _ in texts]
    ends = [min(asked.new_tokens, longest - len(prompt)) for prompt in prompts]
    rooms = [end - len(text) for end, text in zip(ends, texts, strict=True)]
    early = [k for k, room in enumerate(rooms) if room > 0 and not temperature]
    on = decode(
        [Request((*prompts[k], *texts[k]), min(asked.depth, rooms[k]), samplings[k], ignore_eos=True) for k in early]
    )
    for k, tokens in zip(early, on, strict=True):
        beyond[k] = tokens
    return list(zip(texts, beyond, strict=True))


class Chains(NamedTuple):
    """(n, G) each; see :class:`RecordedText`."""

    drafted: Ints
    likeliest: Ints
    confidence: Floats
    peak: Floats
    margin: Floats
    entropy: Floats
    acceptance: Floats
    overlap: Floats


class _Step(NamedTuple):
    """One draft pass over B rows, (B,) each but the distribution."""

    token: Tensor
    likeliest: Tensor
    confidence: Tensor
    peak: Tensor
    margin: Tensor
    entropy: Tensor
    warped: Tensor
    """(B, V) the distribution that a token was drawn from; where the likeliest is taken, that at temperature 1."""


class ChainDrawer:
    """Draws chains over one text after another."""

    def __init__(self, pair: Pair, temperature: float, asked: RecordPlan, length: int) -> None:
        """``length``: of the longest text, its prompt and a chain included."""
        self._pair, self._depth, self._rows, self._greedy = pair, asked.depth, asked.rows, not temperature
        self._passes = passes_of(pair, asked.rows, length)
        self._target = pair.target.decoder(asked.rows if temperature else 1, length)
        self._start, self._of_text = 0, torch.empty(0)
        """Where a greedy text begins, and (n, V) the target's distributions of its tokens."""
        self._sampling = asked.sampling(temperature) if temperature else Sampling(1.0)
        self._chance = np.random.default_rng(asked.seed)

    @torch.inference_mode()
    def chains(self, prompt: Tokens, text: Sequence[int], beyond: Sequence[int]) -> Chains:
        """Return the chains of a text of n tokens. ``beyond``: how a greedy one would go on after its end token."""
        if self._greedy:
            self._start, self._of_text = len(prompt), self._along([*prompt, *text, *beyond], len(prompt))
        parts = [
            self._some([*prompt, *text], len(prompt) + first, len(prompt) + min(first + self._rows, len(text)))
            for first in range(0, len(text), self._rows)
        ]
        found = Chains(*(np.concatenate(column) for column in zip(*parts, strict=True)))
        if not self._greedy:
            return found
        agreed = _agreement(found.drafted, np.array([*text, *beyond], np.int32))
        judged = np.concatenate([np.ones_like(agreed[:, :1]), agreed[:, :-1]], axis=1)
        return found._replace(acceptance=agreed, overlap=found.overlap * judged)

    def _some(self, tokens: list[int], first: int, end: int) -> Chains:
        """Return what rows that have read ``first`` to ``end − 1`` tokens drafted."""
        lengths = range(first, end)
        warp = Warp.of([self._sampling] * len(lengths), self._pair.vocab_size, self._pair.device)
        assert warp is not None
        steps = list(self._drafted(tokens, lengths, warp))
        drafted, likeliest, *signals, q = (torch.stack(column, dim=1) for column in zip(*steps, strict=True))
        p = self._agreed(lengths) if self._greedy else self._judged(tokens, lengths, drafted, warp)
        at = drafted.unsqueeze(2)
        judged = (p.gather(2, at) / q.gather(2, at)).squeeze(2).clamp(max=1), torch.minimum(p, q).sum(-1).clamp(max=1)
        ids, names = (each.cpu().numpy().astype(np.int32) for each in (drafted, likeliest))
        return Chains(ids, names, *(each.float().cpu().numpy() for each in (*signals, *judged)))

    def _drafted(self, tokens: list[int], lengths: Sequence[int], warp: Warp) -> Iterator[_Step]:
        self._passes.begin(tokens, lengths)
        fed = torch.tensor([tokens[length - 1] for length in lengths], device=self._pair.device)
        for _ in range(self._depth):
            logits = self._passes.logits(fed)
            logits = F.pad(logits, (0, self._pair.vocab_size - logits.shape[-1]), value=float("-inf"))
            plain, warped = logits[:, 0].softmax(-1, dtype=torch.float32), warp(logits)[:, 0]
            (first, second), likeliest = (each.T for each in plain.topk(2))
            fed = likeliest[0] if self._greedy else self._drawn(warped)
            own = plain.gather(1, fed.unsqueeze(1)).squeeze(1)
            yield _Step(fed, likeliest[0], own, first, first - second, torch.special.entr(plain).sum(-1), warped)

    def _drawn(self, q: Tensor) -> Tensor:
        return draw(q, torch.tensor(self._chance.random(len(q)), device=q.device))

    def _along(self, tokens: list[int], start: int) -> Tensor:
        self._target.prefill(0, tokens[: start - 1])
        logits = self._target.logits(torch.tensor([tokens[start - 1 :]], device=self._pair.device), [start - 1])
        return logits[0].softmax(-1, dtype=torch.float32)

    def _agreed(self, lengths: Sequence[int]) -> Tensor:
        """Return the target's distributions where chains are as the text is, (B, G, V)."""
        places = torch.arange(self._depth) + torch.tensor(lengths).unsqueeze(1) - self._start
        return self._of_text[places.clamp(max=len(self._of_text) - 1)]

    def _judged(self, tokens: list[int], lengths: Sequence[int], drafted: Tensor, warp: Warp) -> Tensor:
        """Return the target's distributions of every drafted token: (B, G, V)."""
        fork(self._target, tokens, lengths)
        return warp(self._target.logits(read_by(tokens, lengths, drafted), [length - 1 for length in lengths]))


def _agreement(drafted: Ints, text: Ints) -> Floats:
    """1 where a chain (n, G) still is the text, which may reach beyond its end; else 0."""
    n, depth = drafted.shape
    padded = np.concatenate([text, np.full(max(0, n + depth - len(text)), -1, np.int32)])
    said = np.lib.stride_tricks.sliding_window_view(padded, depth)[:n]
    return np.asarray((drafted == said).cumprod(axis=1), np.float32)
