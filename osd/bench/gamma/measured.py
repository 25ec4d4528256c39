"""One measurement, and the folder's list of them: a line of JSON each, so that a run can go on where it stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from osd.bench.gamma.plan import Entrant, Job, Plan, Setting
from storage.errors import BadSetting, StoreWriteFailed

PLAN, LOG = "plan.json", "measured.jsonl"


@dataclass(frozen=True, slots=True)
class Measured:
    """What a job came to. The counts of transformers' modes are 0: they do not tell."""

    job: Job
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
    """Of all texts; empty where they are sampled or not osd's."""
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


def as_line(measured: Measured) -> str:
    """A line of the log."""
    return json.dumps(asdict(measured), separators=(",", ":")) + "\n"


def from_line(line: str) -> Measured:
    """The other way. Raises ValueError, KeyError, TypeError or AttributeError for something else."""
    values: dict[str, Any] = json.loads(line)
    job = values.pop("job")
    setting, entrant = Setting(**job.pop("setting")), Entrant(**job.pop("entrant"))
    return Measured(Job(setting, entrant, **job), **values)


class Folder:
    """A run's folder: the plan, and the measurements that are finished."""

    def __init__(self, path: Path, plan: Plan) -> None:
        """Opens the folder, or makes it. Raises BadSetting when it holds a run with another plan; StoreWriteFailed."""
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            if (path / PLAN).exists():
                _compare(path / PLAN, plan)
            else:
                (path / PLAN).write_text(json.dumps(plan.facts(), indent=1), encoding="utf-8")
        except OSError as error:
            raise StoreWriteFailed(path=path, reason=error.strerror or str(error)) from None
        self.finished = list(self._read())

    def add(self, measured: Measured) -> None:
        """Keep a measurement. Raises StoreWriteFailed."""
        try:
            with (self.path / LOG).open("a", encoding="utf-8") as log:
                log.write(as_line(measured))
        except OSError as error:
            raise StoreWriteFailed(path=self.path / LOG, reason=error.strerror or str(error)) from None
        self.finished.append(measured)

    def _read(self) -> Iterator[Measured]:
        log = self.path / LOG
        if not log.exists():
            return
        text = log.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:  # a killed run's last line: cut it off, or the next would be written behind it
            log.write_text(whole, encoding="utf-8")
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                yield from_line(line)
            except (ValueError, KeyError, TypeError, AttributeError):
                reason = f"line {number} of {log} is not a measurement; remove that line, or give another folder"
                raise BadSetting(source="option", key="--out", reason=reason) from None


def _compare(path: Path, plan: Plan) -> None:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        difference = plan.differs(kept)
    except (ValueError, AttributeError):
        difference = f"{path.name} there cannot be read"
    if difference:
        reason = f"{path.parent} holds another run: {difference}; give the same options to go on, or another folder"
        raise BadSetting(source="option", key="--out", reason=reason)
