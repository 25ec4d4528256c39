"""Speculation statistics of a call in vLLM's terms: `metrics.speculative_decoding`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from osd.server.http.wire import Detail
from storage.records import ratio


def speculative_decoding(steps: Sequence[tuple[int, int]], gamma_max: int, detail: Detail) -> dict[str, Any] | None:
    """Summarise a call's rounds that drafted, (drafted, accepted) each; None where it was not asked for.

    ``mean_acceptance_length`` counts the target's own token: 1 + accepted ÷ steps. ``acceptance_histogram[j]`` is the
    number of steps that accepted j tokens.
    """
    if detail == "off":
        return None
    steps = [(drafted, accepted) for drafted, accepted in steps if drafted]
    drafted, accepted = sum(d for d, _ in steps), sum(a for _, a in steps)
    histogram = [0] * (gamma_max + 1)
    for _, kept in steps:
        histogram[min(kept, gamma_max)] += 1
    facts: dict[str, Any] = {
        "mean_acceptance_length": 1 + accepted / len(steps) if steps else None,
        "draft_acceptance_rate": ratio(accepted, drafted),
        "acceptance_histogram": histogram,
        "num_spec_steps": len(steps),
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": drafted,
        "num_spec_tokens": gamma_max,
    }
    return facts | ({"per_step_accepted": [a for _, a in steps]} if detail == "detailed" else {})
