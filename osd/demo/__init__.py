"""The demo's assets: a pair of small models and prompts of four domains."""

from __future__ import annotations

from pathlib import Path

TARGET = Path(__file__).parent / "pair" / "target"
DRAFT = Path(__file__).parent / "pair" / "draft"
