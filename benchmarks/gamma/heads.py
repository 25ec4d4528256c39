"""What acceptance heads say of recorded chains: the draft reads them again, each in one pass.

A head is given, or two are trained for each temperature on the recording itself: one on every second text of each data
set, the other on the rest; each says of the texts that it has not seen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.gamma.chains import passes_of, read_by
from benchmarks.gamma.rounds import RecordedText
from osd.bench.harness.watch import Watch
from osd.models.acceptance_head import HeadPass, digest_of_model, load_head, require_fit
from osd.models.pair import Pair
from storage.settings import LearnSettings
from trainer.heads.examples import HeadExamples
from trainer.heads.fit import binary_kl, fit
from trainer.heads.learner import new_head

HALVES = Path("halves")
ROWS = 16
"""Chains that are read together."""


def read_head(folder: Path, pair: Pair) -> HeadPass:
    """Load the acceptance head of a pair's draft. Raises HeadNotLoaded and HeadMismatch."""
    head = load_head(folder)
    require_fit(head, folder, pair.draft, digest_of_model(Path(pair.draft.name)))
    return HeadPass(head, pair.draft.device)


@torch.inference_mode()
def estimated(pair: Pair, traces: Sequence[RecordedText], head: HeadPass, watch: Watch) -> tuple[RecordedText, ...]:
    """Add what a head says of the tokens that the draft reads, to texts that have no such column yet."""
    missing = [trace for trace in traces if trace.head is None]
    said = {id(t): head(e).cpu().numpy() for t, e in zip(missing, embeddings(pair, missing, watch), strict=True)}
    return tuple(replace(trace, head=said.get(id(trace), trace.head)) for trace in traces)


def heads_of_halves(
    pair: Pair, traces: Sequence[RecordedText], learn: LearnSettings, watch: Watch
) -> tuple[tuple[RecordedText, ...], dict[str, float]]:
    """Train heads on halves of the texts, and add what each says of the other half; return the texts, and by
    temperature the mean binary KL of what was said, ``learned``, and of a constant, ``constant``. Raises NotFinite."""
    read = [each.cpu() for each in embeddings(pair, traces, watch)]
    halves, turns = defaultdict[tuple[float, int], list[int]](list), defaultdict[tuple[str, float], int](int)
    for place, trace in enumerate(traces):
        key = trace.data_set, trace.temperature
        halves[trace.temperature, turns[key] % 2].append(place)
        turns[key] += 1
    found, figures = list(traces), dict[str, float]()
    for warm in sorted({warm for warm, _ in halves}):
        told = []
        for half in (0, 1):
            mine, others = (_examples(traces, read, halves[warm, each]) for each in (half, 1 - half))
            digest = digest_of_model(Path(pair.draft.name)) or ""
            head = new_head(pair.draft.module, learn, digest, digest, mean := float(others.chances.mean()))
            fit(head, others, learn, schedule="cosine")
            with torch.inference_mode():
                learned = binary_kl(mine.chances, head.estimate(mine.embeddings))
                constant = binary_kl(mine.chances, torch.full_like(mine.chances, mean).logit())
                told.append((float(learned.mean()), float(constant.mean())))
                for place in halves[warm, half]:
                    found[place] = replace(traces[place], head=HeadPass(head, torch.device("cpu"))(read[place]).numpy())
        for name, value in zip(("learned", "constant"), np.mean(told, axis=0), strict=True):
            figures[f"binary_kl_{name}_t{warm:g}"] = float(value)
    return tuple(found), figures


def _examples(traces: Sequence[RecordedText], read: Sequence[Tensor], places: Sequence[int]) -> HeadExamples:
    """Return the drafted tokens of some texts; of greedy ones those whose chain was right before."""
    parts = []
    for place in places:
        judged, known = traces[place].acceptance[:, :-1], np.ones_like(traces[place].acceptance[:, 1:], bool)
        if traces[place].greedy:
            known[:, 1:] = judged[:, :-1] > 0
        parts.append((read[place][:, 1:][torch.from_numpy(known)], torch.from_numpy(judged[known])))
    kept, chances = (torch.cat(column) for column in zip(*parts, strict=True))
    return HeadExamples(kept, chances, torch.zeros(len(chances), dtype=torch.long))


@torch.no_grad()  # not inference mode: heads are trained on the result
def embeddings(pair: Pair, traces: Sequence[RecordedText], watch: Watch) -> Iterator[Tensor]:
    """Yield of each text the draft's final hidden states as it reads the chains, (n, G, D): of the text's last token,
    then of all tokens of the chain but the last."""
    length = max((len(each.prompt) + each.length + each.depth for each in traces), default=0) + 1
    passes = passes_of(pair, ROWS, length)
    for number, trace in enumerate(traces, 1):
        watch.at(f"what the draft reads of {trace.data_set}: {number} of {len(traces)}")
        tokens, start, parts = [*trace.prompt.tolist(), *trace.text.tolist()], len(trace.prompt), []
        for first in range(0, trace.length, ROWS):
            lengths = range(start + first, start + min(first + ROWS, trace.length))
            drafted = torch.from_numpy(trace.drafted[first : first + len(lengths)].astype(np.int64)).to(pair.device)
            passes.begin(tokens, lengths)
            parts.append(passes.embeddings(read_by(tokens, lengths, drafted)))
        yield torch.cat(parts)
