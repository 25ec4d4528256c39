"""One measurement, and the folder's list of them: a line of JSON each, so that a run can go on where it stopped."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from osd.bench.gamma.plan import Entrant, GammaJob, GammaPlan, GammaSetting
from osd.bench.harness.folder import RunFolder

LOG = "measured.jsonl"


@dataclass(frozen=True, slots=True)
class GammaMeasured:
    """What a job came to. The counts of transformers' modes are 0: they do not tell."""

    job: GammaJob
    tokens: int
    """Tokens that came out."""
    seconds: float
    """From the first prompt's submission to the last token."""
    rounds: int = 0
    """Rounds of single requests (N_target, a request at a time)."""
    drafted: int = 0
    accepted: int = 0
    draft_passes: int = 0
    target_passes: int = 0
    """Passes over the batch, shared by its rows."""
    clock_ms: float = 0.0
    """Milliseconds inside drafting and verifying, prompts' prefill left out."""
    decisions: int = 0
    decision_ns: int = 0
    digest: str = ""
    """Digest of all texts; empty where they are sampled or not osd's."""
    took_ms: dict[str, list[float]] = field(default_factory=dict)
    """Milliseconds of single rounds, by their kind (:mod:`osd.bench.gamma.told`)."""
    first: dict[str, int] = field(default_factory=dict)
    """Rounds in which a request came in, by kind."""
    texts: list[dict[str, int]] = field(default_factory=list)
    """Rounds by kind, of one text after another."""
    texts_ms: list[float] = field(default_factory=list)
    """Milliseconds that those rounds usually take."""

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


def as_line(measured: GammaMeasured) -> str:
    """Return a line of the log."""
    return json.dumps(asdict(measured), separators=(",", ":"))


def from_line(line: str) -> GammaMeasured:
    """Read a line of the log. Raises ValueError, KeyError, TypeError or AttributeError for something else."""
    values: dict[str, Any] = json.loads(line)
    job = values.pop("job")
    setting, entrant = GammaSetting(**job.pop("setting")), Entrant(**job.pop("entrant"))
    return GammaMeasured(GammaJob(setting, entrant, **job), **values)


def run_folder(path: Path, plan: GammaPlan) -> RunFolder[GammaMeasured]:
    """Open a run's folder. Raises BadSetting when it holds a run with another plan; StoreWriteFailed."""
    return RunFolder(path, plan.facts(), LOG, from_line, as_line)
