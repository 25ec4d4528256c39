"""What drafting and verifying cost on some machine: from a JSON file, an engine, or a profile.

A file, by hand or written by :func:`save_costs`:

    {"osd_costs": 1, "name": "my-gpu", "source": "timed on ...",
     "draft":  {"cells": [[1, 1, 0.9], [8, 1, 1.1]]},
     "verify": {"pieces": [{"start_ms": 4.2, "row_ms": 0.03, "token_ms": 0}, {"start_ms": 0, "token_ms": 0.03}]},
     "catch_up_token_ms": 0.002}

``draft`` is milliseconds of one draft pass, over (rows, passes of the draft); ``verify`` milliseconds of one target
pass, over (rows, tokens in the pass, all rows together). Either is given in one of two ways. ``cells``: measured
[rows, tokens or passes, milliseconds], straight lines between them. ``pieces``: the largest of some sums start_ms +
row_ms · rows + token_ms · tokens; two of them are a roofline: reading the weights, or computing. ``catch_up_token_ms``
(may be left out: 0) is what a draft takes longer for each token that the drafter has to read first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from osd.gamma.base import CostModel
from storage.errors import BadBenchFile, BadInput
from storage.files.files import TemporaryPath

VERSION = 1
"""Version of the JSON file's layout."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One plane of a cost."""

    start_ms: float = 0.0
    row_ms: float = 0.0
    token_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Pieces:
    """The largest of several planes."""

    pieces: tuple[Piece, ...]

    def ms(self, batch: int, tokens: int) -> float:
        """Milliseconds at so many rows and tokens (or passes)."""
        return max(p.start_ms + p.row_ms * batch + p.token_ms * tokens for p in self.pieces)


class CostCells:
    """Measured points. Between two, and between two batch sizes, straight lines; before the first, its value; after
    the last, on as the last two rise."""

    def __init__(self, cells: Iterable[tuple[int, int, float]]) -> None:
        """(rows, tokens or passes, milliseconds), at least one."""
        self.cells = sorted(cells)
        rows: dict[int, list[tuple[int, float]]] = {}
        for batch, tokens, ms in self.cells:
            rows.setdefault(batch, []).append((tokens, ms))
        self._rows = rows
        self._known: dict[tuple[int, int], float] = {(batch, tokens): ms for batch, tokens, ms in self.cells}

    def ms(self, batch: int, tokens: int) -> float:
        """Milliseconds at so many rows and tokens (or passes)."""
        known = self._known.get((batch, tokens))
        if known is None:
            known = self._between(batch, tokens)
            self._known[batch, tokens] = known
        return known

    def _between(self, batch: int, tokens: int) -> float:
        if batch in self._rows:
            return _along(self._rows[batch], tokens)
        return _along([(other, _along(curve, tokens)) for other, curve in self._rows.items()], batch)


def _along(points: Sequence[tuple[int, float]], x: int) -> float:
    """y at x on the lines through the points, which are in order of x."""
    above = next((i for i, (known, _) in enumerate(points) if known >= x), len(points) - 1)
    if above == 0:
        return points[0][1]
    (x0, y0), (x1, y1) = points[above - 1], points[above]
    slope = (y1 - y0) / (x1 - x0)
    return y1 + max(slope, 0.0) * (x - x1) if x > x1 else y0 + slope * (x - x0)


Surface = Pieces | CostCells


@dataclass(frozen=True, slots=True)
class CostTable:
    """a(B) and b(B, N) of one machine and pair."""

    name: str
    source: str
    """Where the numbers are from."""
    draft: Surface
    """Milliseconds of one pass, at (rows, passes of the draft)."""
    verify: Surface
    """Milliseconds of one target pass, at (rows, tokens in the pass)."""
    catch_up_token_ms: float = 0.0
    """Milliseconds a token that a drafter has to read before it drafts (a new prompt, rounds without a draft)."""

    def draft_ms(self, batch: int, passes: int) -> float:
        """Milliseconds of ``passes`` draft passes over ``batch`` rows."""
        return self.draft.ms(batch, passes) * passes

    def verify_ms(self, batch: int, tokens: int) -> float:
        """b(B, N): milliseconds of one target pass over ``batch`` rows with ``tokens`` tokens in all."""
        return self.verify.ms(batch, tokens)


def load_costs(path: Path) -> CostTable:
    """Read a JSON file. Raises BadBenchFile, which names what is wrong and what would be right."""
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BadBenchFile(path=path, reason=f"is not a cost table that can be read ({error})") from None
    if not isinstance(values, dict) or values.get("osd_costs") != VERSION:
        raise BadBenchFile(path=path, reason=f'is not a cost table: it must be an object with "osd_costs": {VERSION}')
    unknown = values.keys() - {"osd_costs", "name", "source", "draft", "verify", "catch_up_token_ms"}
    if unknown:
        raise BadBenchFile(path=path, reason=f"unknown key {sorted(unknown)[0]!r}")
    draft, verify = (_surface(path, name, values.get(name)) for name in ("draft", "verify"))
    catch_up = _number(path, "catch_up_token_ms", values.get("catch_up_token_ms", 0.0))
    return CostTable(str(values.get("name", path.stem)), str(values.get("source", path)), draft, verify, catch_up)


def save_costs(path: Path, table: CostTable) -> None:
    """Write a table as such a file. Raises StoreWriteFailed."""
    values = {"osd_costs": VERSION, "name": table.name, "source": table.source}
    values |= {"draft": _plain(table.draft), "verify": _plain(table.verify)}
    text = json.dumps(values | {"catch_up_token_ms": table.catch_up_token_ms}, indent=1)
    with TemporaryPath(path.absolute().parent, path.name) as aside:
        aside.write(memoryview(text.encode() + b"\n"))
        aside.rename(path.absolute())


def costs_of_engine(costs: CostModel, name: str, source: str, *, batches: Sequence[int], depth: int) -> CostTable:
    """What an engine's cost model holds, as cells for these batch sizes and drafts of 0 to ``depth`` tokens.

    Raises BadInput while it has timed no draft or no target pass.
    """
    drafts = [(batch, passes, costs.draft_ms(batch, passes)) for batch in batches for passes in range(1, depth + 1)]
    verified = [
        (batch, batch * count, costs.verify_ms(batch, batch * count))
        for batch in batches
        for count in range(1, depth + 2)
    ]
    draft = CostCells((batch, passes, ms / passes) for batch, passes, ms in drafts if ms is not None)
    verify = CostCells((batch, tokens, ms) for batch, tokens, ms in verified if ms is not None)
    if not draft.cells or not verify.cells:
        raise BadInput(reason="The engine has timed no draft yet; decode something with gamma above 0 first.")
    return CostTable(name, source, draft, verify)


def _surface(path: Path, name: str, value: Any) -> Surface:
    if isinstance(value, dict) and value.keys() == {"cells"} and value["cells"]:
        return CostCells(_cell(path, name, cell) for cell in value["cells"])
    if isinstance(value, dict) and value.keys() == {"pieces"} and value["pieces"]:
        return Pieces(tuple(_piece(path, name, piece) for piece in value["pieces"]))
    raise BadBenchFile(
        path=path, reason=f'"{name}" must be {{"cells": [...]}} or {{"pieces": [...]}} with at least one'
    )


def _cell(path: Path, name: str, cell: Any) -> tuple[int, int, float]:
    match cell:
        case [int(batch), int(tokens), int() | float() as ms] if batch > 0 and tokens > 0 and 0 < ms < math.inf:
            return batch, tokens, float(ms)
    raise BadBenchFile(
        path=path, reason=f"a cell of {name!r} is {cell!r}; it must be [rows, tokens, milliseconds above 0]"
    )


def _piece(path: Path, name: str, piece: Any) -> Piece:
    known = set(Piece.__dataclass_fields__)
    if not isinstance(piece, Mapping) or not piece.keys() <= known:
        raise BadBenchFile(path=path, reason=f"a piece of {name!r} is {piece!r}; it has {', '.join(sorted(known))}")
    return Piece(**{key: _number(path, f"{name}.{key}", value) for key, value in piece.items()})


def _number(path: Path, key: str, value: Any) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf:
        return float(value)
    raise BadBenchFile(path=path, reason=f"{key} is {value!r}; it must be a number, 0 or more")


def _plain(surface: Surface) -> dict[str, Any]:
    if isinstance(surface, Pieces):
        return {"pieces": [asdict(piece) for piece in surface.pieces]}
    return {"cells": [list(cell) for cell in surface.cells]}
