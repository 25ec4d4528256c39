"""What the fused pass makes oneDNN keep."""

from __future__ import annotations

import subprocess
import sys

SHAPES = """
import psutil, torch
from osd.models.products import product_of
from osd.kernels.host import give_back

torch.set_num_threads(1)
product, process = product_of(torch.randn(96, 64), None), psutil.Process()
for least, most in ((1, 2), (2, 300), (300, 900)):
    for tokens in range(least, most):
        product(torch.zeros(tokens, 64))
    give_back()
    print(process.memory_info().rss)
"""


def test_memory_does_not_grow_with_every_number_of_tokens_that_is_met() -> None:
    """A server meets hundreds; without bounds the second part would grow by more than the first."""
    run = subprocess.run([sys.executable, "-c", SHAPES], capture_output=True, text=True, check=True)
    start, few, many = map(int, run.stdout.split())
    assert many - few < max(16 << 20, (few - start) / 4)
