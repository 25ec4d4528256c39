"""Cost tables for hardware that one does not have. Each number is a paper's, a data sheet's, or an assumption, named.

A pass costs the larger of reading (weights, and every row's keys and values) and computing (2 operations a weight and
token). Where a paper timed the pass at batch size 1, that timing stands for reading. Assumed throughout:
512 tokens of context a row, in 16 bits; computing reaches half of the data sheet's peak; nothing overlaps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from osd.bench.gamma.costs import CostTable, Piece, Pieces, load_costs
from storage.errors import BadBenchFile

CONTEXT = 512
"""Tokens of a row whose keys and values are read: an assumption."""
COMPUTE = 0.5
"""Share of the peak that is reached: an assumption."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A GPU, by its data sheet."""

    bandwidth: float
    """Bytes a second."""
    peak: float
    """16-bit operations a second, without sparsity."""


@dataclass(frozen=True, slots=True)
class Size:
    """A model, by its configuration."""

    parameters: float
    layers: int
    key_width: int
    """Numbers in a layer's key of one token: key heads × head width."""

    @property
    def context_bytes(self) -> float:
        """Keys and values of one row."""
        return 2 * 2 * self.layers * self.key_width * CONTEXT


A100 = Machine(bandwidth=1.555e12, peak=312e12)
"""80 GB; Table 4 of on-the-fly adaptation, and NVIDIA's data sheet."""
H200 = Machine(bandwidth=4.8e12, peak=989e12)
"""NVIDIA's data sheet."""

VICUNA_33B, TINYLLAMA = Size(32.5e9, 60, 6656), Size(1.1e9, 22, 256)
VICUNA_7B, LLAMA_160M = Size(6.74e9, 32, 4096), Size(0.162e9, 12, 768)
LLAMA2_70B, LLAMA2_7B = Size(69e9, 80, 1024), Size(6.74e9, 32, 4096)
LLAMA3_8B, LLAMA3_1B = Size(8.03e9, 32, 1024), Size(1.24e9, 16, 512)


def compute_ms(size: Size, machine: Machine) -> float:
    """Milliseconds that a token costs once computing is what takes time."""
    return 2e3 * size.parameters / (COMPUTE * machine.peak)


def target_pass(alone_ms: float, size: Size, machine: Machine) -> Pieces:
    """Over (rows, tokens in the pass); ``alone_ms``: with one row and one token."""
    return Pieces((_reading(alone_ms, size, machine), Piece(token_ms=compute_ms(size, machine))))


def draft_pass(alone_ms: float, size: Size, machine: Machine) -> Pieces:
    """Over (rows, passes): a pass has one token a row, however many passes there are."""
    return Pieces((_reading(alone_ms, size, machine), Piece(row_ms=compute_ms(size, machine))))


def _reading(alone_ms: float, size: Size, machine: Machine) -> Piece:
    row_ms = 1e3 * size.context_bytes / machine.bandwidth
    return Piece(start_ms=alone_ms - row_ms, row_ms=row_ms)


def _profile(
    name: str, source: str, machine: Machine, target: Size, target_ms: float, draft: Size, draft_ms: float
) -> CostTable:
    drafting, verifying = draft_pass(draft_ms, draft, machine), target_pass(target_ms, target, machine)
    return CostTable(name, source, drafting, verifying, compute_ms(draft, machine))


def _alone_ms(size: Size, machine: Machine) -> float:
    """Reading 16-bit weights and one row's context at 0.8 of the bandwidth, and 0.2 ms around a pass: assumptions."""
    return 0.2 + 1e3 * (2 * size.parameters + size.context_bytes) / (0.8 * machine.bandwidth)


_OSD = "Online Speculative Decoding, Table 7 (one A100-80G, batch size 1): target {} ms, c = {}"

PROFILES: Mapping[str, CostTable] = {
    table.name: table
    for table in (
        _profile(
            "a100-c008", _OSD.format(51.09, 0.08) + ", Vicuna-33B and TinyLLaMA-1.1B",
            A100, VICUNA_33B, 51.09, TINYLLAMA, 0.08 * 51.09,
        ),
        _profile(
            "a100-c013", _OSD.format(13.21, 0.13) + ", Vicuna-7B and LLaMA-160M",
            A100, VICUNA_7B, 13.21, LLAMA_160M, 0.13 * 13.21,
        ),
        _profile(
            "2xa100-specdecpp", "SpecDec++, section 5.2 (two A100-80G, one at work at a time): t_draft 23.4 ms, "
            "t_target 112 ms, LLaMA-2-chat 7B and 70B",
            A100, LLAMA2_70B, 112.0, LLAMA2_7B, 23.4,
        ),
        _profile(
            "h200-llama3", "roofline of the data sheet, nothing timed: LLaMA-3.1-8B and LLaMA-3.2-1B",
            H200, LLAMA3_8B, _alone_ms(LLAMA3_8B, H200), LLAMA3_1B, _alone_ms(LLAMA3_1B, H200),
        ),
    )
}  # fmt: skip
"""By name."""


def find_costs(name: str) -> CostTable:
    """A profile by its name, or a JSON file by its path. Raises BadBenchFile."""
    if name not in PROFILES and not Path(name).exists():
        known = ", ".join(PROFILES)
        raise BadBenchFile(path=name, reason=f"there is no such file, nor such a profile of costs (known: {known})")
    return PROFILES.get(name) or load_costs(Path(name))
