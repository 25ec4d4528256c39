"""The checks of `osd doctor`. Each returns findings and never raises."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from osd.cli.context import CommandContext
from osd.cli.finding import BROKEN, OK, WARNING, CheckResult
from osd.cli.out import counted
from osd.cli.place_checks import notify, places
from osd.cli.serving_checks import choices, pair, ports
from osd.cli.trainer import trainer_command
from osd.kernels.host import usable_cores
from storage.distribution import DISTRIBUTION, install_extra
from storage.errors import OsdError, SchemaTooNew, WeightsDamaged

if TYPE_CHECKING:
    from storage.store import Store

LOW_BYTES, TOO_FEW_BYTES = 2e9, 2e8
PING_SECONDS = 30
EXTRAS = ("postgres", "redis", "s3")
SERVE = "serve"
"""The extra without which `osd serve` does not start."""


def python(here: CommandContext) -> Iterator[CheckResult]:
    """Check the interpreter and the machine."""
    yield CheckResult(
        "python", OK, f"{platform.python_version()} on {platform.system()} {platform.machine()}, {usable_cores()} cores"
    )


def packages(here: CommandContext) -> Iterator[CheckResult]:
    """Check osd's libraries, and the installed ones of its extras, against the required versions."""
    fitting: list[str] = []
    requirements = [Requirement(line) for line in metadata.requires(DISTRIBUTION) or ()]
    for requirement in filter(serves, requirements):
        found = installed(requirement.name)
        if found is None and requirement.marker:
            continue
        if found and requirement.specifier.contains(found, prereleases=True):
            fitting.append(f"{requirement.name} {found}")
        else:
            needed = f"{found or 'not installed'}, osd needs {requirement.specifier}"
            yield CheckResult(requirement.name, BROKEN, needed, f"pip install '{plain(requirement)}'")
    yield CheckResult("packages", OK, ", ".join(fitting))
    if missing := [one.name for one in requirements if is_of(SERVE, one) and installed(one.name) is None]:
        said = f"osd serve does not start without {', '.join(missing)}"
        yield CheckResult("serving", WARNING, said, install_extra(SERVE))


def installed(name: str) -> str | None:
    """Return the installed version of a library; None if it is missing."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def serves(requirement: Requirement) -> bool:
    """Return whether osd needs or may use it at run time, unlike those for tests and lint."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *EXTRAS))


def is_of(extra: str, requirement: Requirement) -> bool:
    """Return whether the library is one of an extra's, and not of those without which osd is not installed."""
    marker = requirement.marker
    return marker is not None and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""})


def plain(requirement: Requirement) -> str:
    """Return the requirement without its marker, as pip takes it on the command line."""
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}{requirement.specifier}"


def settings(here: CommandContext) -> Iterator[CheckResult]:
    """Check osd.toml and the OSD_… variables."""
    try:
        here.settings  # noqa: B018
    except OsdError as error:
        yield CheckResult("settings", BROKEN, str(error), "correct it; docs/operating.md lists every setting")
        return
    variables = sum(name.startswith("OSD_") and name != "OSD_CONFIG" for name in os.environ)
    file = here.config or os.environ.get("OSD_CONFIG") or ("osd.toml" if Path("osd.toml").exists() else "no file")
    yield CheckResult("settings", OK, f"{file}, {variables} from the environment")


def device(here: CommandContext) -> Iterator[CheckResult]:
    """Check the device that decodes: the processor or a GPU."""
    import torch

    asked = here.settings.serve.device
    if torch.cuda.is_available():
        name, memory = torch.cuda.get_device_name(), torch.cuda.get_device_properties(0).total_memory
        yield CheckResult("device", OK, f"{asked}: {name}, {memory / 2**30:.0f} GiB")
    elif asked.startswith("cuda"):
        yield CheckResult(
            "device",
            BROKEN,
            f"serve.device is {asked}, torch sees no GPU",
            "install a CUDA build of torch, or set serve.device to auto",
        )
    else:
        threads = counted(here.settings.serve.threads or torch.get_num_threads(), "thread")
        yield CheckResult("device", OK, f"{asked}: CPU, {threads}")


def disk(here: CommandContext) -> Iterator[CheckResult]:
    """Check whether the data directory can be written and has room."""
    directory = here.settings.storage.data_directory()
    there = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not os.access(there, os.W_OK):
        yield CheckResult(
            "data directory", BROKEN, f"{there} cannot be written", "set storage.directory to a folder of yours"
        )
        return
    free = shutil.disk_usage(there).free
    state = BROKEN if free < TOO_FEW_BYTES else WARNING if free < LOW_BYTES else OK
    yield CheckResult(
        "data directory",
        state,
        f"{directory}, {free / 1e9:.1f} GB free",
        "" if state == OK else "free space, or osd replay purge --before 7d",
    )


def database(here: CommandContext) -> Iterator[CheckResult]:
    """Check whether the database answers with the schema that this osd needs."""
    from storage.sql.database import check
    from storage.sql.schema import mismatch

    try:
        facts = check(here.settings.storage.database_url())
    except OsdError as error:
        yield CheckResult("database", BROKEN, str(error), "start it, or correct storage.url")
        return
    if facts["current"]:
        yield CheckResult("database", OK, f"{facts['url']}, schema {facts['found']}")
    elif facts["dialect"] == "sqlite" and facts["found"] is None:
        yield CheckResult("database", OK, f"{facts['url']}, made when first used")
    else:
        problem = mismatch(facts["url"], facts["found"])
        advice = "update osd" if isinstance(problem, SchemaTooNew) else "osd db upgrade"
        yield CheckResult(
            "database", BROKEN, f"{facts['url']}, schema {facts['found']}, needed {facts['needed']}", advice
        )


def weights(here: CommandContext) -> Iterator[CheckResult]:
    """Check whether the files of every draft's current version are what was published."""
    try:
        with here.store_as_it_is() as store:
            if store is None:
                return
            for draft in sorted({version.draft for version in store.versions.list()}):
                yield sound(store, draft)
    except OsdError as error:
        yield CheckResult("weights", BROKEN, str(error))


def sound(store: Store, draft: str) -> CheckResult:
    """Return the finding for one draft."""
    current = store.versions.current(draft)
    try:
        store.versions.verify(current)
    except WeightsDamaged as error:
        return CheckResult(f"draft {draft}", BROKEN, str(error), f"osd drafts rollback {draft}")
    return CheckResult(f"draft {draft}", OK, f"{current.id}, files sound")


def trainers(here: CommandContext) -> Iterator[CheckResult]:
    """Look for a live trainer: without one nothing is learned."""
    from storage.access.trainers import TrainerState

    with suppress(OsdError), here.store_as_it_is() as store:  # the database has a finding of its own
        known = store.trainers.list() if store else []
        states = Counter(one.state.value for one in known if one.state is not TrainerState.GONE)
        said = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        if said:
            yield CheckResult("trainers", OK, said)
        else:
            said = "none lives: what is served is kept, and not learned from"
            yield CheckResult("trainers", WARNING, said, "osd trainer")


def broker(here: CommandContext) -> Iterator[CheckResult]:
    """Check whether the task queue's broker answers, in a process of the trainer, which alone connects to it."""
    command = trainer_command("ping", config=here.config)
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=PING_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        yield CheckResult(
            "broker", BROKEN, f"no answer in {PING_SECONDS} s", "check trainer.broker and that the broker runs"
        )
        return
    try:
        said = json.loads(answer.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        said = {"ok": False, "found": (answer.stderr.strip().splitlines() or ["no answer"])[-1]}
    if said["ok"]:
        yield CheckResult("broker", OK, said["found"])
    else:
        yield CheckResult(
            "broker", BROKEN, said["found"], said.get("mend") or "check trainer.broker and that the broker runs"
        )


CHECKS = (
    python, packages, settings, device, disk, database, places, notify, weights, broker, trainers, choices, ports, pair
)  # fmt: skip
NEED_NO_SETTINGS = (python, packages, settings)


def examine(here: CommandContext) -> Iterator[CheckResult]:
    """Run every check; those that need the settings are left out when they cannot be read."""
    readable = True
    for check in CHECKS:
        if readable or check in NEED_NO_SETTINGS:
            for finding in check(here):
                readable = readable and not (finding.part == "settings" and finding.state == BROKEN)
                yield finding
