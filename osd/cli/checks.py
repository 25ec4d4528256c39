"""The checks of `osd doctor`: the machine and the store. Each yields findings and never raises."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from osd.cli.context import CommandContext
from osd.cli.out import counted
from osd.cli.trainer import trainer_command
from osd.kernels.host import usable_cores
from storage.distribution import DISTRIBUTION, install_extra
from storage.errors import BadSetting, OsdError, SchemaTooNew, SchemaTooOld, WeightsDamaged
from storage.files.bucket import ObjectStore
from storage.files.places import LocalFolder

if TYPE_CHECKING:
    from storage.settings import StorageSettings
    from storage.store import Store

OK, WARNING, BROKEN = "ok", "warning", "broken"
LOW_BYTES, TOO_FEW_BYTES = 2e9, 2e8
PING_SECONDS = 30
READABLE_BY_OTHERS = 0o077
EXTRAS = ("postgres", "redis", "s3")
SERVE = "serve"
"""The extra without which `osd serve` does not start."""
PLACES = "docs/several-machines.md says what each store needs"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of checking one thing."""

    part: str
    state: str
    """``ok``, ``warning`` or ``broken``."""
    found: str
    mend: str = ""
    """The remedy; empty where none is needed."""


def ok(part: str, found: str) -> CheckResult:
    """Return that a thing is as it should be."""
    return CheckResult(part, OK, found)


def warning(part: str, found: str, mend: str) -> CheckResult:
    """Return that osd works, though not as well as it could."""
    return CheckResult(part, WARNING, found, mend)


def broken(part: str, found: object, mend: str = "") -> CheckResult:
    """Return that something does not work."""
    return CheckResult(part, BROKEN, str(found), mend)


# ------------------------------------------------------------------------------------- the machine


def python(here: CommandContext) -> Iterator[CheckResult]:
    """Check the interpreter and the machine."""
    yield ok(
        "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}, {usable_cores()} cores"
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
            yield broken(requirement.name, needed, f"pip install '{plain(requirement)}'")
    yield ok("packages", ", ".join(fitting))
    if missing := [one.name for one in requirements if is_of(SERVE, one) and installed(one.name) is None]:
        yield warning("serving", f"osd serve does not start without {', '.join(missing)}", install_extra(SERVE))


def installed(name: str) -> str | None:
    """Return the installed version of a library; None if it is missing."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def serves(requirement: Requirement) -> bool:
    """Return whether osd needs or may use it at run time, unlike those for tests and lint."""
    return any(is_of(extra, requirement) for extra in EXTRAS) or is_needed(requirement)


def is_needed(requirement: Requirement) -> bool:
    """Return whether osd is not installed without it."""
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})


def is_of(extra: str, requirement: Requirement) -> bool:
    """Return whether the library is one of an extra's."""
    marker = requirement.marker
    return marker is not None and marker.evaluate({"extra": extra}) and not is_needed(requirement)


def plain(requirement: Requirement) -> str:
    """Return the requirement without its marker, as pip takes it on the command line."""
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}{requirement.specifier}"


def settings(here: CommandContext) -> Iterator[CheckResult]:
    """Check osd.toml and the OSD_… variables."""
    try:
        here.settings  # noqa: B018
    except OsdError as error:
        yield broken("settings", error, "correct it; docs/operating.md lists every setting")
        return
    variables = sum(name.startswith("OSD_") and name != "OSD_CONFIG" for name in os.environ)
    file = here.config or os.environ.get("OSD_CONFIG") or ("osd.toml" if Path("osd.toml").exists() else "no file")
    yield ok("settings", f"{file}, {variables} from the environment")


def device(here: CommandContext) -> Iterator[CheckResult]:
    """Check the device that decodes: the processor or a GPU."""
    import torch

    asked = here.settings.serve.device
    if torch.cuda.is_available():
        name, memory = torch.cuda.get_device_name(), torch.cuda.get_device_properties(0).total_memory
        yield ok("device", f"{asked}: {name}, {memory / 2**30:.0f} GiB")
    elif asked.startswith("cuda"):
        mend = "install a CUDA build of torch, or set serve.device to auto"
        yield broken("device", f"serve.device is {asked}, torch sees no GPU", mend)
    else:
        threads = counted(here.settings.serve.threads or torch.get_num_threads(), "thread")
        yield ok("device", f"{asked}: CPU, {threads}")


def disk(here: CommandContext) -> Iterator[CheckResult]:
    """Check whether the data directory can be written and has room."""
    directory = here.settings.storage.data_directory()
    there = nearest(directory.absolute())
    if not os.access(there, os.W_OK):
        yield broken("data directory", f"{there} cannot be written", "set storage.directory to a folder of yours")
        return
    free = shutil.disk_usage(there).free
    state = BROKEN if free < TOO_FEW_BYTES else WARNING if free < LOW_BYTES else OK
    mend = "" if state == OK else "free space, or osd replay purge --before 7d"
    yield CheckResult("data directory", state, f"{directory}, {free / 1e9:.1f} GB free", mend)


def nearest(folder: Path) -> Path:
    """Return the folder, or what is there of the way to it."""
    return next(path for path in (folder, *folder.parents) if path.exists())


# --------------------------------------------------------------------------------------- the store


def database(here: CommandContext) -> Iterator[CheckResult]:
    """Check whether the database answers with the schema that this osd needs."""
    from storage.sql.database import check
    from storage.sql.schema import mismatch

    try:
        facts = check(here.settings.storage.database_url())
    except OsdError as error:
        yield broken("database", error, "start it, or correct storage.url")
        return
    if facts["current"]:
        yield ok("database", f"{facts['url']}, schema {facts['found']}")
    elif facts["dialect"] == "sqlite" and facts["found"] is None:
        yield ok("database", f"{facts['url']}, made when first used")
    else:
        problem = mismatch(facts["url"], facts["found"])
        advice = "update osd" if isinstance(problem, SchemaTooNew) else "osd db upgrade"
        if isinstance(problem, SchemaTooOld):
            advice = "`osd db upgrade` of commit 002f94b5"
        yield broken("database", f"{facts['url']}, schema {facts['found']}, needed {facts['needed']}", advice)


def places(here: CommandContext) -> Iterator[CheckResult]:
    """Check that samples, weights and the key ring exist and can be written, leaving nothing behind."""
    from storage.files.bucket import open_place

    kept = here.settings.storage
    directory, cache = kept.data_directory().absolute(), kept.cache_directory().absolute()
    try:
        segments = open_place(kept.samples, directory / "segments", "storage.samples")
        weights = open_place(kept.weights, directory / "weights", "storage.weights")
    except BadSetting as error:
        yield broken("places", error, "docs/several-machines.md says what a place may be")
        return
    yield place("samples", segments)
    yield place("weights", weights)
    if isinstance(weights, ObjectStore):
        yield place("weights cache", LocalFolder(cache / "weights"), "storage.cache")
    yield from encryption(kept)


def place(part: str, where: ObjectStore | LocalFolder, key: str = "") -> CheckResult:
    """Return the finding for a folder or a bucket."""
    if isinstance(where, LocalFolder):
        folder = where.folder
        there = nearest(folder)
        if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
            return ok(part, f"{folder}{'' if there == folder else ', made when first used'}")
        return broken(part, f"{there} cannot be written", f"set {key or f'storage.{part}'} to one of yours")
    if where.url.startswith("memory:"):
        return warning(part, f"{where.url} ends with its process", f"set storage.{part} to a folder or s3://…")
    try:
        where.probe()
    except OsdError as error:
        return broken(part, error, PLACES)
    return ok(part, f"{where.url}, written, read and deleted")


def encryption(kept: StorageSettings) -> Iterator[CheckResult]:
    """Check the key ring, if one is configured."""
    from storage.files.cipher import open_cipher

    if kept.encryption is None:
        return
    try:
        cipher = open_cipher(kept.encryption)
    except OsdError as error:
        yield broken("encryption", error, "docs/several-machines.md says how to make a key ring")
        return
    kind, _, path = kept.encryption.partition(":")
    if kind == "file" and Path(path).expanduser().stat().st_mode & READABLE_BY_OTHERS:
        yield warning("encryption", f"others may read the key ring {path}", f"chmod 600 {path}")
    elif cipher is not None:
        yield ok("encryption", f"writes with the key {cipher.writes_with!r} of {kept.encryption}")


def weights(here: CommandContext) -> Iterator[CheckResult]:
    """Check whether the files of every draft's current version are what was published."""
    try:
        with here.store_as_it_is() as store:
            for draft in sorted({version.draft for version in store.versions.list()}) if store else ():
                yield sound(store, draft)  # type: ignore[arg-type]
    except OsdError as error:
        yield broken("weights", error)


def sound(store: Store, draft: str) -> CheckResult:
    """Return the finding for one draft."""
    current = store.versions.current(draft)
    try:
        store.versions.verify(current)
    except WeightsDamaged as error:
        return broken(f"draft {draft}", error, f"osd drafts rollback {draft}")
    return ok(f"draft {draft}", f"{current.id}, files sound")


def trainers(here: CommandContext) -> Iterator[CheckResult]:
    """Look for a live trainer: without one nothing is learned."""
    from storage.access.processes import TrainerState

    with suppress(OsdError), here.store_as_it_is() as store:  # the database has a finding of its own
        known = store.trainers.list() if store else []
        states = Counter(one.state.value for one in known if one.state is not TrainerState.GONE)
        if said := ", ".join(f"{count} {state}" for state, count in sorted(states.items())):
            yield ok("trainers", said)
        else:
            yield warning("trainers", "none lives: what is served is kept, and not learned from", "osd trainer")


def drafting(here: CommandContext) -> Iterator[CheckResult]:
    """Look for drafts that draft nothing any more."""
    from storage.insights.recent import undrafted

    mend = "`osd stats acceptance --by version,hour` shows since when; train it, or serve another draft"
    with suppress(OsdError), here.store_as_it_is() as store:
        yield from (warning("drafting", said, mend) for said in (undrafted(store.db) if store else ()))


# -------------------------------------------------------------------------------------- the broker


def ping(here: CommandContext) -> subprocess.Popen[str] | None:
    """Start a process of the trainer, which alone connects to the task queue's broker; None where the broker is files
    in the data directory."""
    if here.settings.trainer.broker is None:
        return None
    pipe = subprocess.PIPE
    return subprocess.Popen(trainer_command("ping", config=here.config), stdout=pipe, stderr=pipe, text=True)


def broker(here: CommandContext, asked: subprocess.Popen[str] | None) -> CheckResult:
    """Return what the process found of the broker, or whether its files can be written."""
    if asked is None:
        files = place("broker", LocalFolder(here.settings.storage.data_directory() / "broker"), "storage.directory")
        return ok("broker", "files in the data directory (no server needed)") if files.state == OK else files
    mend = "check trainer.broker and that the broker runs"
    try:
        answer, errors = asked.communicate(timeout=PING_SECONDS)
    except subprocess.TimeoutExpired:
        return broken("broker", f"no answer in {PING_SECONDS} s", mend)
    try:
        said = json.loads(answer.splitlines()[-1])
    except (IndexError, ValueError):
        said = {"ok": False, "found": (errors.strip().splitlines() or ["no answer"])[-1]}
    return ok("broker", said["found"]) if said["ok"] else broken("broker", said["found"], said.get("mend") or mend)
