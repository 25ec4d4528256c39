"""Offline distillation of a draft on all stored samples: the upper bound for online learning."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from osd.models.features.base import FeatureDraft
from osd.models.features.files import load_feature_draft, save_feature_draft
from osd.models.pair import load_pair
from osd.models.weights import read_weights, write_full
from storage.errors import BadInput, ModelNotLoaded, SegmentDamaged, TrainingFailed
from storage.records import RequestSamples
from storage.replay.segments import decode
from storage.sampling import Sampling
from storage.settings import LearnSettings, Settings
from storage.store import open_store
from storage.versions.feature_kinds import feature_kind
from trainer.devices import training_device
from trainer.distil.branching import count
from trainer.distil.checkpoints import new_folder
from trainer.distil.collate import select
from trainer.distil.data import read_since
from trainer.distil.distil import DistilProgress, distil
from trainer.distil.on_policy import TextMixer
from trainer.distil.step import NotFinite
from trainer.distil.teacher import RecomputeTeacher
from trainer.distil.teachers import load_target
from trainer.lease import RunStopped, Stop, Watcher, ignore, until_stopped


@dataclass(frozen=True, slots=True)
class SampleSelection:
    """The samples to train on: of a file or of the store, held-out ones included, as there is no gate here."""

    samples: Path | None = None
    """A file that `osd replay export` wrote; None means the store that the settings name."""
    routes: Sequence[str] | None = None
    since: float | None = None
    """Unix seconds of the earliest request."""
    until: float | None = None
    """Unix seconds before which requests must lie."""
    requests: int | None = None
    """Maximum number, the newest ones being taken."""

    def read(self, settings: Settings) -> list[RequestSamples]:
        """Return the selected requests, oldest first. Raises SegmentDamaged, BadInput, StoreError."""
        if self.samples is not None:
            return self._of_file(self.samples)
        with open_store(settings) as store:
            limit = self.requests or 1 << 31
            target = store.targets.newest()
            newest = store.samples.recent(limit=limit, routes=self.routes, before=self.until, target=target)
            return read_since(store, newest, self.since or 0.0)[::-1]

    def _of_file(self, path: Path) -> list[RequestSamples]:
        if not path.is_file():
            raise BadInput(reason=f"There is no file {path}.")
        try:
            rows = decode(path)
        except Exception as error:  # Arrow's own classes and KeyError: whatever it is, the file is not a segment
            raise SegmentDamaged(path=path, reason=str(error).splitlines()[0], segment=path.stem) from error
        since, until = self.since or 0.0, self.until or float("inf")
        kept = [s for s in rows if since <= s.created_at < until and (not self.routes or s.route in self.routes)]
        return sorted(kept, key=lambda s: s.created_at)[-(self.requests or len(kept)) :]


@dataclass(frozen=True, slots=True)
class DrawnWith:
    """The target with which texts are drawn anew in each epoch (:mod:`trainer.distil.on_policy`)."""

    target: str
    """Folder or hub name."""
    sampling: Sampling

    def mixer(self, settings: Settings, draft: str | Path) -> TextMixer:
        """Load the target. Raises BadInput where the texts are the target's own, PairError."""
        learn = settings.learn
        if learn.sampling == "teacher":
            raise BadInput(
                reason="Teacher sampling learns the recorded texts and draws none: leave the target out, or set "
                "learn.sampling to student or mixed."
            )
        pair = load_pair(self.target, str(draft), device=str(training_device(settings.trainer)), dtype="float32")
        share = learn.mix if learn.sampling == "mixed" else 0.0
        return TextMixer(pair.target, pair.eos_ids, share, self.sampling, pair.draft, settings.storage.top_k)


def distil_offline(
    settings: Settings,
    draft: str | Path,
    out: Path,
    chosen: SampleSelection,
    stop: Stop | None = None,
    watcher: Watcher = ignore,
    drawn: DrawnWith | None = None,
) -> dict[str, Any]:
    """Train all weights of the draft for ``settings.learn.epochs``, write ``out`` (a new folder), and return a summary.

    Student and mixed sampling learn what was recorded behind refused tokens; or, ``drawn`` with the target, texts that
    are drawn anew from the recorded prompts in each epoch. A draft that reads hidden states learns texts alone, too:
    the target, ``serve.target``, reads them again.

    The summary is ready for JSON. Raises BadInput when there is nothing to learn or ``out`` exists, BadSetting where
    that target is not named, ModelNotLoaded, StoreWriteFailed, and TrainingFailed when it was stopped or the loss was
    not finite; nothing is written then.
    """
    if out.exists():
        raise BadInput(reason=f"{out} exists; give the name of a new folder.")
    samples, learn = chosen.read(settings), settings.learn
    model, teacher = _load(draft, settings)
    if teacher and drawn:
        raise BadInput(reason=f"{draft} reads hidden states and learns recorded texts: leave the target out.")
    mixer = drawn.mixer(settings, draft) if drawn else None
    if mixer:
        learn = learn.model_copy(update={"sampling": "teacher"})  # of texts that are drawn already
        samples = [s for s in samples if 0 < s.prompt_len < len(s.tokens)]
    elif teacher is None:
        samples = [s for s in samples if s.k]  # no target reads texts alone here
    if not (samples if mixer else any(count(select(s, learn.positions, learn.sampling)) for s in samples)):
        raise BadInput(reason=_nothing(learn))
    go_on = until_stopped(stop)
    drawing: list[float] = []

    def renew(epoch: int) -> list[RequestSamples]:
        assert mixer
        begun = time.perf_counter()
        texts = mixer(model, samples, learn.seed + epoch, go_on)
        drawing.append(time.perf_counter() - begun)
        return texts

    def between(progress: DistilProgress) -> None:
        go_on()
        watcher(progress)

    try:
        first = renew(0) if mixer else samples
        done = distil(model, first, learn, between, schedule="cosine", teacher=teacher, renew=renew if mixer else None)
    except (NotFinite, RunStopped) as error:
        raise TrainingFailed(run="offline", draft=draft, reason=str(error)) from error
    with new_folder(out) as aside:
        if isinstance(model, FeatureDraft) and teacher:
            save_feature_draft(model, aside, teacher.shared)
        else:
            write_full(model, aside, Path(draft))
    drawn_first = sum(drawing[:1])  # later draws fall into the time of training
    return {"out": str(out), "epochs": settings.learn.epochs, "drawn_seconds": drawn_first, **asdict(done)}


def _nothing(learn: LearnSettings) -> str:
    if learn.sampling == "student":
        return (
            "There are no samples with tokens behind refused ones, which serve.record_branches keeps; give --target to "
            "draw texts instead."
        )
    return f"There are no samples with {learn.positions} positions to distil on."


def _load(draft: str | Path, settings: Settings) -> tuple[nn.Module, RecomputeTeacher | None]:
    """Load a draft, and where it reads hidden states the target that it learns from."""
    folder, device = Path(draft), training_device(settings.trainer)
    if not (folder / "config.json").is_file():
        raise ModelNotLoaded(path=draft, reason="There is no config.json.")
    if feature_kind(folder) is None:
        model: nn.Module = read_weights(draft, torch.float32)
        return model.to(device), None
    shared = load_target(settings.changed(learn={"teacher": "recompute"}), device)
    features = load_feature_draft(folder, shared).float().requires_grad_(True)
    layers = features.feature_layers(shared.module)
    return features, RecomputeTeacher(shared, layers, settings.learn.teacher_cache_mb)
