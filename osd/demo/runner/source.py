"""Where the requests come from: the demo's domains or files of prompts, one segment after another."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from osd.demo.prompts import DOMAINS, prompts
from osd.prompts import Prompt, encode, read_prompts
from storage.errors import BadPromptFile, ModelNotLoaded
from storage.records import DEFAULT_ROUTE

Fits = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of the stream whose prompts are alike."""

    name: str
    prompts: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.prompts)


def segments_of(
    paths: Sequence[Path], requests: int, seed: int | None, *, target: str, max_length: int, max_new_tokens: int
) -> tuple[list[Segment], list[str]]:
    """Return a segment for each file, else the demo's domains, and what had to be left out of the files; see
    :func:`file_segments` and :func:`fitting`."""
    if not paths:
        return demo_segments(requests, seed or 0), []
    return file_segments(paths, requests, seed, fitting(target, max_length, max_new_tokens))


def demo_segments(requests: int, seed: int = 0, domains: Sequence[str] = tuple(DOMAINS)) -> list[Segment]:
    """The demo's domains, ``requests`` prompts each. Raises BadSetting for a domain that there is not."""
    return [Segment(domain, tuple(prompts(domain, requests, seed))) for domain in domains]


def file_segments(
    paths: Sequence[Path], requests: int, seed: int | None = 0, fits: Fits = lambda _: True
) -> tuple[list[Segment], list[str]]:
    """A segment a file, ``requests`` prompts each, and what had to be left out: broken lines, prompts that do not fit.

    They are drawn at random by ``seed``; None takes the first ones in the file's order. A prompt that does not fit is
    passed over and the next one taken. Raises BadPromptFile when a file cannot be read or has no prompt to serve.
    """
    segments: list[Segment] = []
    left_out: list[str] = []
    for path in paths:
        good, bad = _sort_out(read_prompts(path))
        chosen, passed_over = _draw(good, requests, seed, fits)
        if not chosen:
            raise BadPromptFile(path=path, reason="there is no prompt in it that can be served")
        left_out += [str(problem) for problem in bad]
        left_out += [f"{path}: {passed_over} prompts are too long and were passed over"] if passed_over else []
        segments.append(Segment(_free_name(path, segments), tuple(chosen)))
    return segments, left_out


def fitting(target: str, max_length: int, max_new_tokens: int) -> Fits:
    """Whether a prompt leaves room for a whole answer, in rows of ``max_length`` tokens and in the target's positions.

    Raises ModelNotLoaded.
    """
    from transformers import AutoConfig  # not needed by those who only read files

    from osd.models.limits import position_limit
    from osd.models.vocabulary import load_tokenizer

    try:
        limit = position_limit(AutoConfig.from_pretrained(target))
    except (OSError, ValueError, KeyError) as error:
        raise ModelNotLoaded(path=target, reason=str(error).strip().splitlines()[0]) from None
    tokenizer, room = load_tokenizer(target), min(max_length, limit) - max_new_tokens
    return lambda text: len(encode(tokenizer, text)) <= room


def _sort_out(lines: Iterable[Prompt | BadPromptFile]) -> tuple[list[str], list[BadPromptFile]]:
    good: list[str] = []
    bad: list[BadPromptFile] = []
    for line in lines:
        if isinstance(line, BadPromptFile):
            bad.append(line)
        else:
            good.append(line.text)
    return good, bad


def _draw(texts: list[str], requests: int, seed: int | None, fits: Fits) -> tuple[list[str], int]:
    """The first ones that fit, in the file's order or in the order that the seed gives; how many were passed over."""
    order = texts if seed is None else random.Random(seed).sample(texts, len(texts))
    chosen: list[str] = []
    for tried, text in enumerate(order):
        if len(chosen) == requests:
            return chosen, tried - requests
        if fits(text):
            chosen.append(text)
    return chosen, len(order) - len(chosen)


def _free_name(path: Path, taken: Sequence[Segment]) -> str:
    """The file's name without its endings, fit for a route's; numbered when another file has the same."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", path.name.removesuffix(".gz").removesuffix(".jsonl")).lstrip("._-")
    name, names = plain[:56] or "prompts", {DEFAULT_ROUTE, *(segment.name for segment in taken)}
    return next(n for n in (name, *(f"{name}-{i}" for i in range(2, 1 << 20))) if n not in names)
