"""Routes as a file: what `osd router export` writes and `osd router import` reads.

    {"version": 1,
     "routes": [{"name": "sql", "draft": "sql", "candidates": [], "matches": {"topic": ["sql"]}}],
     "pins": {"acme": "sql"},
     "examples": [{"topic": "sql", "text": "SELECT 1"}]}

Drafts are named, not contained. Examples are contained only when asked for, since they are texts that somebody wrote.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storage.errors import BadRouteFile
from storage.records import Route
from storage.routes.route_rows import as_facts

VERSION = 1
TOP = ("version", "routes", "pins", "examples")
ROUTE = ("name", "draft", "candidates", "matches")
EXAMPLE = ("topic", "text")


@dataclass(frozen=True, slots=True)
class RouteFile:
    """The contents of a routes file."""

    routes: tuple[Route, ...] = ()
    pins: Mapping[str, str] = field(default_factory=dict)
    examples: tuple[tuple[str, str], ...] = ()
    """(topic, text)"""

    def as_facts(self) -> dict[str, Any]:
        """Return the contents in JSON types."""
        facts: dict[str, Any] = {"version": VERSION, "routes": list(map(as_facts, self.routes))}
        facts["pins"] = dict(sorted(self.pins.items()))
        if self.examples:
            facts["examples"] = [{"topic": topic, "text": text} for topic, text in self.examples]
        return facts


def read(path: Path) -> RouteFile:
    """Read and validate a file. Raises BadRouteFile when it cannot be read or its contents are invalid."""
    try:
        return parse(json.loads(path.read_text(encoding="utf-8")), path)
    except OSError as error:
        raise BadRouteFile(path=path, reason=f"It cannot be read ({error.strerror}).") from None
    except ValueError as error:
        raise BadRouteFile(path=path, reason=f"It is not JSON ({error}).") from None


def parse(value: Any, path: Path) -> RouteFile:
    """Validate the parsed JSON. Raises BadRouteFile."""
    top = _object(value, TOP, "the file", path)
    if top.get("version") != VERSION:
        raise BadRouteFile(path=path, reason=f"Its version is {top.get('version')!r}, this osd reads {VERSION}.")
    routes = tuple(_route(each, number, path) for number, each in enumerate(_list(top, "routes", path), start=1))
    names = [route.name for route in routes]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise BadRouteFile(path=path, reason=f"It has two routes named {twice[0]!r}.")
    pins = _object(top.get("pins", {}), None, "pins", path)
    if strange := [tenant for tenant, route in pins.items() if not isinstance(route, str)]:
        raise BadRouteFile(path=path, reason=f"The pin of {strange[0]!r} is not the name of a route.")
    examples = tuple(_example(each, number, path) for number, each in enumerate(_list(top, "examples", path), start=1))
    return RouteFile(routes, pins, examples)


def _route(value: Any, number: int, path: Path) -> Route:
    facts = _object(value, ROUTE, f"route {number}", path)
    name, draft = facts.get("name"), facts.get("draft", "")
    candidates = facts.get("candidates", [])
    if not isinstance(name, str) or not name:
        raise BadRouteFile(path=path, reason=f"Route {number} has no name.")
    if not isinstance(draft, str) or not draft:
        raise BadRouteFile(path=path, reason=f"The route {name!r} has no draft.")
    if not isinstance(candidates, list) or not all(isinstance(each, str) for each in candidates):
        raise BadRouteFile(path=path, reason=f"The candidates of the route {name!r} are no list of drafts.")
    return Route(name, draft, _object(facts.get("matches", {}), None, f"matches of {name!r}", path), tuple(candidates))


def _example(value: Any, number: int, path: Path) -> tuple[str, str]:
    facts = _object(value, EXAMPLE, f"example {number}", path)
    topic, text = facts.get("topic"), facts.get("text")
    if not isinstance(topic, str) or not isinstance(text, str):
        raise BadRouteFile(path=path, reason=f"Example {number} needs a topic and a text.")
    return topic, text


def _object(value: Any, keys: Collection[str] | None, what: str, path: Path) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadRouteFile(path=path, reason=f"There should be a JSON object for {what}.")
    for key in value:
        if keys is not None and key not in keys:
            near = difflib.get_close_matches(key, keys, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"Known: {', '.join(keys)}."
            raise BadRouteFile(path=path, reason=f"Unknown key {key!r} in {what}; {hint}")
    return value


def _list(top: Mapping[str, Any], key: str, path: Path) -> list[Any]:
    value = top.get(key, [])
    if not isinstance(value, list):
        raise BadRouteFile(path=path, reason=f"{key!r} is no list.")
    return value
