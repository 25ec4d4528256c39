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
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.gamma.contest import with_random_draft
from benchmarks.gamma.rounds import Floats, Ints, RecordedText, Recording, read_recording, write_recording
from osd.bench.contenders import Tokens, run_in_order
from osd.bench.harness.plan import Count, PairPlan, data_sets, facts_of
from osd.bench.harness.report import BenchResult
from osd.bench.harness.watch import Watch
from osd.drafters.chain import PassInfo, Signals
from osd.engine.engine import Engine
from osd.models.acceptance_head import HeadPass
from osd.models.decoder import Decoder
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
    asked = RecordPlan(temperatures=(0.0, 1.0), new_tokens=plan.max_tokens, depth=plan.depth)
    with watch.until_ctrl_c():
        record_file(plan.out, pair, sets, asked, watch)
    facts, files = facts_of(plan, target=pair.target.name, draft=pair.draft.name), {"rounds": plan.out}
    return BenchResult("rounds", facts, {}, files={} if watch.stopped else files, interrupted=watch.stopped)


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
    head: HeadPass | None = None
    """The draft's acceptance head."""
    batch: int = 8
    """Texts that are decoded together."""
    rows: int = 32
    """Chains that are drafted together."""


def record_file(
    path: Path, pair: Pair, data_sets: Mapping[str, Sequence[Tokens]], asked: RecordPlan, watch: Watch
) -> Recording:
    """Record into a file, which grows by one data set at one temperature at a time; what it holds already is kept.

    Raises BadBenchFile when the file was recorded with another pair or other settings. That the prompts are the same
    is seen to by who asks.
    """
    digests = fingerprint(pair.target.module), fingerprint(pair.draft.module)
    depth, tokens = asked.depth, asked.new_tokens
    wanted = Recording(pair.target.name, digests[0], pair.draft.name, digests[1], depth, tokens, asked.seed)
    recording = _kept(path, wanted) if path.exists() else wanted
    for name, temperature in product(data_sets, asked.temperatures):
        if not recording.of(name, temperature):
            traces = record_traces(pair, name, data_sets[name], temperature, asked, watch)
            recording = replace(recording, traces=(*recording.traces, *traces))
            write_recording(path, recording)
    return recording


def record_traces(
    pair: Pair, data_set: str, prompts: Sequence[Tokens], temperature: float, asked: RecordPlan, watch: Watch
) -> list[RecordedText]:
    """Decode the prompts with the target alone, and draft a chain at every position. Raises BadRequest for a prompt
    that cannot be served, and DecoderOnly."""
    require_decoder_only(pair.target.module, "python -m benchmarks gamma", pair.target.name)
    if not prompts:
        return []
    longest = min(max(map(len, prompts)) + asked.new_tokens, pair.limit)
    texts, traces = _texts(pair, prompts, temperature, asked, longest), []
    drawer = ChainDrawer(pair, temperature, asked, longest + asked.depth + 1)
    for prompt, (text, beyond) in zip(prompts, texts, strict=True):
        chains = drawer.chains(prompt, text, beyond)._asdict()
        end = min(pair.limit, len(prompt) + asked.new_tokens) - len(prompt)
        read, said = np.array(prompt, np.int32), np.array(text, np.int32)
        traces.append(RecordedText(data_set, temperature, end, read, said, **chains))
        watch.at(f"recording {data_set}, T={temperature:g}: {len(traces)} of {len(prompts)}")
    return traces


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
    for name in ("target_digest", "draft_digest", "depth", "new_tokens", "seed"):
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

    samplings = [Sampling(temperature, seed=asked.seed + k) for k in range(len(prompts))]
    texts = decode([Request(p, asked.new_tokens, own) for p, own in zip(prompts, samplings, strict=True)])
    beyond: list[list[int]] = [[] for _ in texts]
    ends = [min(asked.new_tokens, longest - len(prompt)) for prompt in prompts]
    rooms = [end - len(text) for end, text in zip(ends, texts, strict=True)]
    early = [k for k, room in enumerate(rooms) if room > 0 and not temperature]
    on = decode([Request((*prompts[k], *texts[k]), min(asked.depth, rooms[k]), ignore_eos=True) for k in early])
    for k, tokens in zip(early, on, strict=True):
        beyond[k] = tokens
    return list(zip(texts, beyond, strict=True))


class Chains(NamedTuple):
    """(n, G) each; see :class:`RecordedText`."""

    drafted: Ints
    confidence: Floats
    peak: Floats
    acceptance: Floats
    head: Floats | None


class _Step(NamedTuple):
    """One draft pass over B rows, (B,) each."""

    token: Tensor
    q: Tensor
    """Probability with which the token was drawn."""
    confidence: Tensor
    peak: Tensor
    head: Tensor


class ChainDrawer:
    """Draws chains over one text after another."""

    def __init__(self, pair: Pair, temperature: float, asked: RecordPlan, length: int) -> None:
        """``length``: of the longest text, its prompt and a chain included."""
        self._pair, self._depth, self._rows, self._head = pair, asked.depth, asked.rows, asked.head
        self._draft = pair.draft.decoder(asked.rows, length)
        cache = self._draft.cache
        cache.wants_embedding = asked.head is not None
        self._target = pair.target.decoder(asked.rows, length) if temperature else None
        self._sampling = Sampling(temperature)
        self._chance = np.random.default_rng(asked.seed)

    @torch.inference_mode()
    def chains(self, prompt: Tokens, text: Sequence[int], beyond: Sequence[int]) -> Chains:
        """The chains of a text of n tokens. ``beyond``: how a greedy one would go on after its end token."""
        parts = [
            self._some([*prompt, *text], len(prompt) + first, len(prompt) + min(first + self._rows, len(text)))
            for first in range(0, len(text), self._rows)
        ]
        tokens, confidence, peak, head, acceptance = (np.concatenate(column) for column in zip(*parts, strict=True))
        drafted = tokens.astype(np.int32)
        if self._target is None:
            acceptance = _agreement(drafted, np.array([*text, *beyond], np.int32))
        return Chains(drafted, confidence, peak, acceptance, head if self._head else None)

    def _some(self, tokens: list[int], first: int, end: int) -> list[Floats]:
        """What rows that have read ``first`` to ``end − 1`` tokens drafted; confidence, peak, head, acceptance."""
        lengths = range(first, end)
        warp = Warp.of([self._sampling] * len(lengths), self._pair.vocab_size, self._pair.device)
        steps = list(self._drafted(tokens, lengths, warp))
        drafted, q, *signals = (torch.stack(column, dim=1) for column in zip(*steps, strict=True))
        accepted = self._accepted(tokens, lengths, drafted, q, warp) if warp else q
        return [drafted.cpu().numpy(), *(column.float().cpu().numpy() for column in (*signals, accepted))]

    def _drafted(self, tokens: list[int], lengths: Sequence[int], warp: Warp | None) -> Iterator[_Step]:
        _fork(self._draft, tokens, lengths)
        fed = torch.tensor([tokens[length - 1] for length in lengths], device=self._pair.device)
        for step in range(self._depth):
            logits = self._draft.logits(fed.unsqueeze(1), [length - 1 + step for length in lengths])
            logits = F.pad(logits, (0, self._pair.vocab_size - logits.shape[-1]), value=float("-inf"))
            fed, q = self._choose(logits, warp)
            signals = Signals(logits[:, 0], fed, PassInfo(head=self._head, embedding=self._draft.cache.embedding))
            estimate = signals.read("acceptance") if self._head else [0.0] * len(lengths)
            yield _Step(fed, q, *torch.tensor([signals.read("confidence"), signals.read("peak"), estimate]))

    def _choose(self, logits: Tensor, warp: Warp | None) -> tuple[Tensor, Tensor]:
        if warp is None:
            chosen = logits[:, 0].argmax(-1)
            return chosen, torch.ones(len(chosen))
        q = warp(logits)[:, 0]
        chosen = draw(q, torch.tensor(self._chance.random(len(q)), device=q.device))
        return chosen, q.gather(1, chosen.unsqueeze(1)).squeeze(1)

    def _accepted(self, tokens: list[int], lengths: Sequence[int], drafted: Tensor, q: Tensor, warp: Warp) -> Tensor:
        """min(1, p ÷ q) of every drafted token: (B, G)."""
        assert self._target is not None
        _fork(self._target, tokens, lengths)
        last = torch.tensor([[tokens[length - 1]] for length in lengths], device=self._pair.device)
        logits = self._target.logits(torch.cat([last, drafted[:, :-1]], dim=1), [length - 1 for length in lengths])
        p = warp(logits).gather(2, drafted.unsqueeze(2)).squeeze(2)
        return (p / q).clamp(max=1.0)


def _fork(decoder: Decoder, tokens: Sequence[int], lengths: Sequence[int]) -> None:
    """Let row i's cache hold all but the last of the first ``lengths[i]`` tokens; the last row is the longest."""
    decoder.prefill(0, tokens[: lengths[-1] - 1])
    for row, length in enumerate(lengths[1:], start=1):
        decoder.copy_row(0, row, length - 1)


def _agreement(drafted: Ints, text: Ints) -> Floats:
    """1 where a chain (n, G) still is the text, which may reach beyond its end; else 0."""
    n, depth = drafted.shape
    padded = np.concatenate([text, np.full(max(0, n + depth - len(text)), -1, np.int32)])
    said = np.lib.stride_tricks.sliding_window_view(padded, depth)[:n]
    return np.asarray((drafted == said).cumprod(axis=1), np.float32)
