"""Models as on a GPU, on the CPU: weights are not packed, and passes of fixed shapes are run instead of captured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from osd.models import llama_forward, products
from osd.models.captured_pass import CapturedPass
from osd.models.hf_forward import HuggingFaceForward
from osd.models.llama_forward_captured import captured_llama
from osd.models.products import PlainLinear


def run_again(run: Callable[[], Any]) -> Callable[[], Any]:
    """Capture nothing: what is to be captured is run each time."""
    return run


def as_on_a_gpu(patch: pytest.MonkeyPatch) -> None:
    """Build passes so from here on."""
    whole = HuggingFaceForward.__init__

    def build(self: HuggingFaceForward, module: object) -> None:
        whole(self, module)
        self.compiled = None if self.alone else CapturedPass(self, list(module.parameters()), run_again)

    patch.setattr(HuggingFaceForward, "__init__", build)
    patch.setattr(products, "product_of", lambda weight, bias: PlainLinear(weight.detach(), bias))
    patch.setattr(
        llama_forward, "_compiled",
        lambda fused, module: captured_llama(fused, fused.extend_rotary, list(module.parameters()), run_again),
    )  # fmt: skip
