"""What the training process does beside its turns."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

SCENE = """
import psutil
from trainer.tasks import give_back

process = psutil.Process()
give_back()
before = process.memory_info().rss
parts = [bytearray(40_000) for _ in range(10_000)]
held, kept = process.memory_info().rss, parts[::1000]
del parts
left = process.memory_info().rss
give_back()
print(held - before, left - before, process.memory_info().rss - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is asked")
def test_what_was_freed_is_given_back() -> None:
    """Ten of ten thousand pieces are kept, all over the heap."""
    said = subprocess.run([sys.executable, "-c", SCENE], capture_output=True, text=True, check=True).stdout
    held, left, given = map(int, said.split())
    assert left > held / 2, "nothing was to be given back: the test shows nothing"
    assert given < held / 10
