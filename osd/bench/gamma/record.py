"""Recording traces with a real pair: the target alone decodes the texts, then the draft's chains are drawn on them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from torch import nn

from osd.bench.contenders import Tokens
from osd.bench.gamma.chains import ChainDrawer
from osd.bench.gamma.rounds import RecordedText, Recording
from osd.bench.gamma.rounds_file import read_recording, write_recording
from osd.engine.engine import Engine
from osd.models.acceptance_head import HeadPass
from osd.models.pair import Pair
from storage.errors import BadBenchFile
from storage.records import Request, Sampling
from storage.settings import Settings

Report = Callable[[int, int, str], None]
"""Texts done, texts in all, and the data set."""


def record_file(
    path: Path,
    pair: Pair,
    data_sets: Mapping[str, Sequence[Tokens]],
    *,
    temperatures: Sequence[float] = (0.0,),
    new_tokens: int = 128,
    depth: int = 20,
    seed: int = 0,
    head: HeadPass | None = None,
    report: Report = lambda done, total, name: None,
) -> Recording:
    """Record into a file, which grows by one data set at one temperature at a time; what it holds already is kept.

    Raises BadBenchFile when the file was recorded with another pair, other settings or other prompts.
    """
    digests = fingerprint(pair.target.module), fingerprint(pair.draft.module)
    wanted = Recording(pair.target.name, digests[0], pair.draft.name, digests[1], depth, new_tokens, seed)
    recording = _kept(path, wanted) if path.exists() else wanted
    total, done = len(temperatures) * sum(map(len, data_sets.values())), 0

    def told(count: int, _: int, name: str) -> None:
        report(done + count, total, name)

    for name, temperature in product(data_sets, temperatures):
        prompts = data_sets[name]
        if not _holds(path, recording.of(name, temperature), prompts):
            traces = record_traces(
                pair, name, prompts, temperature=temperature, new_tokens=new_tokens, depth=depth, seed=seed, head=head,
                report=told,
            )  # fmt: skip
            recording = replace(recording, traces=(*recording.traces, *traces))
            write_recording(path, recording)
        done += len(prompts)
    return recording


def record_traces(
    pair: Pair,
    data_set: str,
    prompts: Sequence[Tokens],
    *,
    temperature: float = 0.0,
    new_tokens: int = 128,
    depth: int = 20,
    seed: int = 0,
    head: HeadPass | None = None,
    batch: int = 8,
    rows: int = 32,
    report: Report = lambda done, total, name: None,
) -> list[RecordedText]:
    """Decode the prompts with the target alone, ``batch`` together, and draft a chain of ``depth`` tokens at every
    position, ``rows`` chains together. ``seed``: of sampled texts and chains. Raises BadRequest for a prompt that
    cannot be served."""
    if not prompts:
        return []
    longest = min(max(map(len, prompts)) + new_tokens, pair.limit)
    texts = _texts(pair, prompts, temperature, new_tokens, longest, depth, seed, batch)
    drawer = ChainDrawer(pair, temperature, rows, longest + depth + 1, depth, seed, head)
    traces = []
    for prompt, (text, beyond) in zip(prompts, texts, strict=True):
        chains = drawer.chains(prompt, text, beyond)._asdict()
        end = min(pair.limit, len(prompt) + new_tokens) - len(prompt)
        read, said = np.array(prompt, np.int32), np.array(text, np.int32)
        traces.append(RecordedText(data_set, temperature, end, read, said, **chains))
        report(len(traces), len(prompts), data_set)
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


def _holds(path: Path, traces: tuple[RecordedText, ...], prompts: Sequence[Tokens]) -> bool:
    if traces and [tuple(trace.prompt.tolist()) for trace in traces] != [tuple(prompt) for prompt in prompts]:
        reason = f"holds {traces[0].data_set} with other prompts; remove it or give another path"
        raise BadBenchFile(path=path, reason=reason)
    return bool(traces)


def _texts(
    pair: Pair, prompts: Sequence[Tokens], temperature: float, new_tokens: int, longest: int, depth: int, seed: int,
    batch: int,
) -> list[tuple[list[int], list[int]]]:  # fmt: skip
    """The target's texts; and, of a greedy one that ended early, how it would go on for a chain's length."""
    settings = Settings().changed(
        gamma={"rule": "fixed", "initial": 0}, serve={"max_batch": batch, "max_length": max(8, longest)}
    )

    def decode(asked: list[Request]) -> list[list[int]]:
        done = {each.request.id: list(each.tokens) for each in Engine(pair, settings).run(asked)}
        return [done[request.id] for request in asked]

    texts = decode([
        Request(tuple(prompt), new_tokens, Sampling(temperature, seed=seed + k)) for k, prompt in enumerate(prompts)
    ])  # fmt: skip
    beyond: list[list[int]] = [[] for _ in texts]
    rooms = [min(new_tokens, longest - len(prompt)) - len(text) for prompt, text in zip(prompts, texts, strict=True)]
    early = [k for k, room in enumerate(rooms) if room > 0 and not temperature]
    on = decode([Request((*prompts[k], *texts[k]), min(depth, rooms[k]), ignore_eos=True) for k in early])
    for k, tokens in zip(early, on, strict=True):
        beyond[k] = tokens
    return list(zip(texts, beyond, strict=True))
