"""When and where training runs: ``[trainer]``."""

from __future__ import annotations

from pydantic import Field

from storage.settings.section import Section

SPARE = "spare"
"""The value of ``trainer.device`` that lets the trainer choose."""


class TrainerSettings(Section):
    broker: str | None = None
    """Celery broker URL; None is kombu's filesystem transport in the data directory."""
    poll_seconds: float = Field(default=1.0, gt=0)
    """How often the worker looks in the database for work that is due."""
    lease_seconds: float = Field(default=60.0, gt=0)
    """A worker that has not been heard of for so long has lost its claim."""
    nice: int = Field(default=10, ge=0, le=19)
    """Priority of training on a shared machine: 0 as serving, 19 last."""
    idle: bool = False
    """Train only while nothing else wants the core (Linux's idle class); on a busy machine that may be never."""
    threads: int = Field(default=1, ge=1)
    """Torch threads for training on the CPU."""
    spare: bool = False
    """Train only while there is capacity to spare on this machine, and pause as soon as there is none. Always so with
    learn.interval_requests = "auto"."""
    spare_busy: float = Field(default=0.5, ge=0, le=1)
    """Share of the time for which an engine on this machine may have work while there is capacity to spare."""
    spare_queue: int = Field(default=0, ge=0)
    """Requests that may wait for a row meanwhile."""
    spare_cpu: float = Field(default=0.8, gt=0, le=1)
    """Share of all cores that others than the trainer may take."""
    spare_gpu_mb: int | None = Field(default=None, ge=0)
    """Megabytes of the GPU that must be free before a run begins (NVML); None asks for none."""
    spare_gpu_busy: float = Field(default=0.5, ge=0, le=1)
    """Utilisation of the GPU up to which a run may begin (NVML)."""
    slice_ms: float = Field(default=50.0, gt=0)
    """With spare, a step of training is cut into slices of so long, and others are looked for after each."""
    turn_seconds: float | None = Field(default=None, gt=0)
    """A turn over the drafts that takes longer is stopped between two batches, and its run's requests go back; one that
    does not end in another 30 s is killed. None: no limit."""
    seconds_per_hour: float | None = Field(default=None, ge=0)
    """Seconds of training in any hour, of all workers of the store; None: no limit."""
    never_more_than_saved: bool = False
    """Whether no run begins while training has cost a draft more seconds than its speculation saved."""
    resident_mb: int = Field(default=4096, ge=0)
    """Megabytes of models that stay in memory between runs, on the device that trains; 0 reads them anew each run."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N, or spare: before each run the GPU with most to spare."""

    processes: int = Field(default=1, ge=1)
    """Processes that distil a draft together, each on a GPU of its own or all on the CPU. Acceptance heads and
    the gate take one."""
    shard: bool = False
    """Whether each of several processes holds a part of the weights, gradients and moments (FSDP), for drafts whose
    training does not fit on one device; not for adapters."""

    @property
    def gives_way(self) -> bool:
        """Whether training waits for capacity to spare."""
        return self.spare or self.device == SPARE
