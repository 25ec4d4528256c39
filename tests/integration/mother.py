"""Loads torch once and forks a trainer for each line of its input, which kills itself at a step of a training run.

python -m tests.integration.mother < "CONFIG<tab>STEP" lines; answers each with the exit status of that trainer.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import trainer.distil.distil
import trainer.distil.draft_learner
import trainer.distil.loop
from storage.runs import RunLedger
from storage.settings import load_settings
from storage.store import open_store
from storage.versions.versions import VersionLedger
from tests.storage.child import after, before

STEPS = {
    "claimed": lambda: after(RunLedger, "claim"),
    "collated": lambda: after(trainer.distil.draft_learner, "gather"),
    "half distilled": lambda: after(trainer.distil.distil, "take_step"),
    "distilled": lambda: after(trainer.distil.draft_learner, "distil_on_devices"),
    "staged": lambda: after(trainer.distil.draft_learner, "stage"),
    "judging": lambda: before(trainer.distil.draft_learner, "judge"),
    "judged": lambda: after(trainer.distil.draft_learner, "judge"),
    "published": lambda: after(VersionLedger, "publish"),
}


def train(config: str, step: str) -> None:
    STEPS[step]()
    settings = load_settings(Path(config))
    with open_store(settings) as store:
        trainer.distil.loop.run_once(store, settings, "default", "killed")


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if not child:
            train(*line.rstrip("\n").split("\t"))
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
