"""Where the requests come from: the demo's domains or files of prompts, one segment after another."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from osd.demo.prompts import DOMAINS, prompts
from osd.prompts import Prompt, read_prompts
from storage.errors import BadPromptFile


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of the stream whose prompts are alike."""

    name: str
    prompts: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.prompts)


def demo_segments(requests: int, seed: int = 0, domains: Sequence[str] = tuple(DOMAINS)) -> list[Segment]:
    """The demo's domains, ``requests`` prompts each. Raises BadSetting for a domain that there is not."""
    return [Segment(domain, tuple(prompts(domain, requests, seed))) for domain in domains]


def file_segments(
    paths: Sequence[Path], requests: int, seed: int | None = 0
) -> tuple[list[Segment], list[BadPromptFile]]:
    """A segment a file, ``requests`` prompts each, and the lines that could not be used.

    They are drawn at random by ``seed``; None takes the first ones in the file's order. Raises BadPromptFile when a
    file cannot be read or has no prompt at all.
    """
    segments: list[Segment] = []
    problems: list[BadPromptFile] = []
    for path in paths:
        good, bad = _sort_out(read_prompts(path))
        problems += bad
        if not good:
            raise BadPromptFile(path=path, reason="there is no prompt in it")
        segments.append(Segment(_free_name(path, segments), tuple(_draw(good, requests, seed))))
    return segments, problems


def _sort_out(lines: Iterable[Prompt | BadPromptFile]) -> tuple[list[str], list[BadPromptFile]]:
    good: list[str] = []
    bad: list[BadPromptFile] = []
    for line in lines:
        if isinstance(line, BadPromptFile):
            bad.append(line)
        else:
            good.append(line.text)
    return good, bad


def _draw(texts: list[str], requests: int, seed: int | None) -> list[str]:
    count = min(requests, len(texts))
    return texts[:count] if seed is None else random.Random(seed).sample(texts, count)


def _free_name(path: Path, taken: Sequence[Segment]) -> str:
    """The file's name without its endings; numbered when another file has the same."""
    name = path.name.removesuffix(".gz").removesuffix(".jsonl")
    names = {segment.name for segment in taken}
    return next(n for n in (name, *(f"{name}-{i}" for i in range(2, 1 << 20))) if n not in names)
