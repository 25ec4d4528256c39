"""Gamma along a generated text, as on-the-fly adaptation's Figure 1 has it: one HTML file with everything in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from jinja2 import Environment, PackageLoader, StrictUndefined

from osd.bench.gamma.rounds import Trace
from storage.errors import StoreWriteFailed

Show = Callable[[int], str]
"""A token as text."""


class Counted(Protocol):
    """A round, as far as the page tells of it: a Round, or an Observation."""

    @property
    def gamma(self) -> int:
        """Tokens asked for."""
        ...

    @property
    def drafted(self) -> int:
        """Tokens drafted."""
        ...

    @property
    def accepted(self) -> int:
        """Of them, those accepted."""
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """A round as it is shown."""

    gamma: int
    accepted: list[str]
    rejected: list[str]
    """Drafted in vain: the token that the target refused, and those behind it."""
    own: str
    """The target's token."""


@dataclass(frozen=True, slots=True)
class Told:
    """One text as a controller decoded it."""

    controller: str
    steps: list[Step]

    @property
    def tokens(self) -> int:
        """Tokens of the text."""
        return sum(len(step.accepted) + bool(step.own) for step in self.steps)

    @property
    def rejected(self) -> int:
        """Tokens drafted in vain."""
        return sum(len(step.rejected) for step in self.steps)

    @property
    def largest(self) -> int:
        """The largest gamma, at least 1."""
        return max([1, *(step.gamma for step in self.steps)])


def tell(controller: str, trace: Trace, rounds: Sequence[Counted], show: Show) -> Told:
    """A controller's rounds over a greedy trace, from the first on: what it drafted stands in the trace."""
    steps, position = [], 0
    text = trace.text.tolist()
    for each in rounds:
        chain = [show(token) for token in trace.drafted[position, : each.drafted].tolist()] if each.drafted else []
        after = position + each.accepted
        own = show(text[after]) if after < len(text) else ""
        steps.append(Step(each.gamma, chain[: each.accepted], chain[each.accepted :], own))
        position = after + 1
    return Told(controller, steps)


def render(pages: Mapping[str, Sequence[Told]], title: str) -> str:
    """The page. ``pages``: for each data set the same text as several controllers decoded it."""
    environment = Environment(
        loader=PackageLoader("osd.bench.gamma", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["visible"] = visible
    return environment.get_template("page.html.jinja").render(pages=pages, title=title)


def save_page(pages: Mapping[str, Sequence[Told]], title: str, path: Path) -> Path:
    """Raises StoreWriteFailed."""
    try:
        path.write_text(render(pages, title), encoding="utf-8")
    except OSError as error:
        raise StoreWriteFailed(path=path, reason=error.strerror or str(error)) from None
    return path


def visible(token: str) -> str:
    """A token as it can be seen: line ends as a sign before the break."""
    return token.replace("\n", "↵\n").replace("\t", "⇥\t") or "∅"
