"""What vLLM is told to draft with each kind."""

from __future__ import annotations

from typing import Any

import pytest

from storage.versions.feature_kinds import FEATURE_KINDS, speculative_config

OTHERWISE: dict[str, dict[str, Any]] = {
    "peagle": {"method": "eagle3", "parallel_drafting": True}, "full": {"method": "draft_model"},
    "lora": {"method": "draft_model"},
}  # fmt: skip


@pytest.mark.parametrize("kind", [*FEATURE_KINDS, "full", "lora"])
def test_vllm_is_told_a_method_that_it_has(kind: str) -> None:
    method = OTHERWISE.get(kind, {"method": kind})
    assert speculative_config(kind, "./draft", 4) == {**method, "model": "./draft", "num_speculative_tokens": 4}
    assert speculative_config(kind, None, 2) == {**method, "num_speculative_tokens": 2}
