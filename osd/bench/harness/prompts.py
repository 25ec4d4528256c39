"""Data sets of a bench: files of prompts, or the prompts that ship with osd; and lists on the command line.

A list is an option that may be repeated, and whose value may hold several, separated by commas.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, TypeVar

from osd.bench.harness.watch import note
from osd.prompts import Prompt, encode, read_prompts
from storage.errors import BadInput, BadPromptFile, BadSetting

MOST_LINES = 20_000
"""Lines of a file that are looked at."""
Tokens = tuple[int, ...]
N = TypeVar("N", int, float)


def listed(values: Sequence[str] | None) -> list[str]:
    """Return what an option that may be repeated holds, each once, in order: ``["a,b", "c"]`` is a, b, c."""
    parts = (part.strip() for value in values or () for part in value.split(","))
    return list(dict.fromkeys(part for part in parts if part))


def numbers(values: Sequence[str], option: str, kind: Callable[[str], N], least: N) -> tuple[N, ...]:
    """Return the numbers of an option, each once, in order. Raises BadSetting, which names the option."""
    try:
        found = tuple(dict.fromkeys(kind(part) for part in listed(values)))
    except ValueError:
        found = ()
    if not found or not all(least <= number < float("inf") for number in found):
        reason = f"{','.join(values)!r} is not a list of numbers from {least} on, such as {least},8"
        raise BadSetting(source="option", key=option, reason=reason)
    return found


def choose(asked: Sequence[str], known: Collection[str], option: str) -> tuple[str, ...]:
    """Return the names that are asked for, each once, in order. Raises BadSetting for none, and for one that is not
    known."""
    names = listed(asked)
    for name in names or [",".join(asked)]:
        if name not in known:
            raise BadSetting(source="option", key=option, reason=f"{name!r} is none of {', '.join(known)}")
    return tuple(names)


def name_of(path: Path) -> str:
    """Return a data set's name: the file's, without endings."""
    return path.name.removesuffix(".gz").removesuffix(".jsonl")


def texts_by_set(files: Sequence[str] | None, count: int, *, seed: int | None = None) -> dict[str, list[str]]:
    """Return up to ``count`` prompts of each data set: the files', else those that ship with osd.

    The first ones of a file, or with a ``seed`` some drawn from it. Broken lines are named on stderr and passed over.
    Raises BadPromptFile for a file that cannot be read, BadInput for one without a prompt.
    """
    from osd.demo.prompts import DOMAINS
    from osd.demo.prompts import prompts as shipped

    paths = [Path(name) for name in listed(files)]
    if not paths:
        return {domain: shipped(domain, count, seed or 0) for domain in DOMAINS}
    return {name_of(path): _texts(path, count, seed) for path in paths}


def _texts(path: Path, count: int, seed: int | None) -> list[str]:
    found: list[str] = []
    for number, line in enumerate(read_prompts(path)):
        if isinstance(line, BadPromptFile):
            note(f"osd: {line}")
        elif isinstance(line, Prompt):
            found.append(line.text)
        if number >= MOST_LINES or (seed is None and len(found) >= count):
            break
    if not found:
        raise BadInput(reason=f"{path} has no prompt; give another --prompts.")
    return found[:count] if seed is None else random.Random(seed).sample(found, min(count, len(found)))


def tokens_by_set(
    tokenizer: Any, files: Sequence[str] | None, count: int, longest: int, *, seed: int | None = None
) -> dict[str, list[Tokens]]:
    """Return up to ``count`` prompts of each data set as tokens, none longer than ``longest``; longer ones are
    counted on stderr. Raises BadInput for a data set of which none fits, and what :func:`texts_by_set` raises."""
    found: dict[str, list[Tokens]] = {}
    for name, texts in texts_by_set(files, 2 * count, seed=seed).items():
        encoded = [encode(tokenizer, text) for text in texts]
        fitting = list(dict.fromkeys(tokens for tokens in encoded if len(tokens) <= longest))
        if not fitting:
            raise BadInput(reason=f"{name} has no prompt of {longest} tokens or fewer; give another --prompts.")
        if left := sum(len(tokens) > longest for tokens in encoded):
            note(f"{left} of {len(encoded)} prompts of {name} are left out: they are longer than {longest} tokens.")
        found[name] = fitting[:count]
    return found
