"""What an update of the draft takes, beside the target's decoding: OSD, A.9.2."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from benchmarks.papers.claims import mean_of
from benchmarks.papers.entry import PaperExperiment, PaperFindings, PapersBench, PaperSizes
from benchmarks.papers.experiments.given_acceptance import pair_and_prompts, target_alone
from osd.models.pair import Pair

PROMPT, INTERVAL = 64, 8
"""Tokens of a prompt, and requests between two updates, as in the paper."""


def update_times(bench: PapersBench, sizes: PaperSizes) -> PaperFindings:
    """Time INTERVAL answers of the target alone, and a forward, backward and AdamW step of the draft over them."""
    pair, prompts = pair_and_prompts(bench, sizes)
    fitting = [prompt[:PROMPT] for prompt in prompts if len(prompt) >= 2]
    update, ratios, rows = draft_update(pair, PROMPT + sizes.tokens), [], []
    alone = target_alone(pair, bench, sizes.tokens)
    update()
    alone.decode(fitting[:1])  # warm
    for number in range(sizes.seeds):
        bench.watch.at(f"updates beside decoding: {number + 1} of {sizes.seeds}")
        some = [fitting[(number * INTERVAL + i) % len(fitting)] for i in range(INTERVAL)]
        target, draft = _seconds(lambda: alone.decode(some)), _seconds(update)  # noqa: B023
        ratios.append(target / draft)
        rows.append({"eight answers, s": target, "an update, s": draft, "÷": target / draft})
    return PaperFindings({"answers_vs_update": mean_of(ratios)}, {"Seconds": rows})


def draft_update(pair: Pair, length: int) -> Callable[[], None]:
    """Return a step of forward KL over INTERVAL texts of ``length`` tokens, on a copy of the draft."""
    module = copy.deepcopy(pair.draft.module).requires_grad_(True).train()
    optimizer = torch.optim.AdamW(module.parameters(), 1e-5)
    generator = torch.Generator().manual_seed(0)
    vocabulary, device = int(module.config.vocab_size), next(module.parameters()).device
    tokens = torch.randint(2, vocabulary, (INTERVAL, length), generator=generator).to(device)
    said = torch.randn(INTERVAL, length, vocabulary, generator=generator).to(device).softmax(-1)

    def step() -> None:
        logits = module(input_ids=tokens, use_cache=False).logits.float()
        loss = F.kl_div(logits.log_softmax(-1).flatten(0, 1), said.flatten(0, 1), reduction="batchmean")
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return step


def _seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


UPDATE_TIMES = PaperExperiment(update_times, PaperSizes(2, 32, 2, minutes=0.5), PaperSizes(8, 128, 5, minutes=3))
