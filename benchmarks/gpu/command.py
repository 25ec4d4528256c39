"""``python -m benchmarks gpu``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from osd.bench.harness.options import JsonOption
from osd.bench.harness.prompts import listed
from osd.bench.harness.watch import watching
from storage.errors import BadSetting
from storage.settings import load_settings


def gpu(
    shapes: Annotated[
        list[str] | None,
        typer.Option(help="Shapes: 8b, 8b-128k, 1b, tiny. Default: the first three.", metavar="NAME,…"),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(help="What is not begun by then is left out. Default: 330, with --small 120.", min=1),
    ] = None,
    small: Annotated[bool, typer.Option("--small", help="The tiny shape and little of all; for a CPU.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for the cost tables.")] = Path("bench-gpu"),
    json: JsonOption = False,
) -> None:
    """Passes, gamma rules, learning and swaps of models of real shapes with random weights, on the GPU that is there.

    It needs no download and at most six minutes. The cost tables are for `benchmarks gamma --simulate --costs`.

    Example: `python -m benchmarks gpu --json`
    """
    from benchmarks.gpu.bench import bench_gpu
    from benchmarks.gpu.findings import SMALL, GpuPlan
    from benchmarks.gpu.shapes import SHAPES
    from osd.models.pair import choose_device

    settings = load_settings()
    plan, asked = SMALL if small else GpuPlan(), listed(shapes)
    if wrong := [name for name in asked if name not in SHAPES]:
        raise BadSetting(source="options", key="--shapes", reason=f"{wrong[0]} is none of {', '.join(SHAPES)}")
    plan = replace(plan, shapes=tuple(asked) or plan.shapes, seconds=seconds or plan.seconds)
    with watching() as watch:
        result = bench_gpu(plan, choose_device(settings.serve.device), settings, out, watch)
    raise typer.Exit(result.show(as_json=json))
