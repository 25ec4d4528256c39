"""The upper bound of the OSD paper: the frozen draft distilled offline on a segment's own prompts, all of them at hand.

It learns from what was recorded while the segment was served, held-out requests included, for two epochs and with
the same settings as online; then it reads the same texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from osd.demo.runner.circle import Circle
from osd.demo.runner.measure import FinishedRequest
from osd.demo.runner.process import distil_offline
from osd.demo.runner.scoring import DraftReader
from osd.demo.runner.stream import StreamTrace
from osd.engine.session import in_folder
from osd.models.pair import load_model
from osd.sequence import Completion

EPOCHS = 2


def read_offline(circle: Circle, trace: StreamTrace, tell: Callable[[str], None]) -> None:
    """Distil a draft for each segment and let it read the segment's texts; ``trace.served`` then has offline_hits.

    Raises TrainingFailed.
    """
    plan, start = circle.plan, Path(in_folder(circle.pair.draft).name)
    for segment in plan.segments:
        served = trace.of(segment.name)
        if not served:
            continue
        tell(f"distilling offline on {segment.name}, {EPOCHS} epochs over {len(served)} requests")
        folder = distil_offline(
            plan.data / "osd.toml", plan.log, draft=start, route=segment.name,
            out=plan.out / "offline" / segment.name, epochs=EPOCHS,
        )  # fmt: skip
        reader = DraftReader(load_model(folder, circle.pair.device, plan.settings.serve.dtype), circle.engine.limit)
        for one in served:
            trace.served[one.index] = _with_offline(one, reader, trace.completions)


def _with_offline(
    served: FinishedRequest, reader: DraftReader, completions: Mapping[str, Completion]
) -> FinishedRequest:
    return replace(served, offline_hits=sum(reader.hits(completions[served.request_id])))
