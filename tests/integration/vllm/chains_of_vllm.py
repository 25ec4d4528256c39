"""Run by vLLM's own Python, in a process of its own: answers texts with a draft, and keeps the logits of each drafted
token. Arguments: the target's folder, a file of prompts (JSON), the file that is written (safetensors), and what
`--speculative-config` would say (JSON): null for a folder of the speculators library in place of the target's, which
says it itself."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

GAMMA, NEW = 4, 16


def main(target: str, prompts: str, written: str, speculation: str) -> None:
    """Answer the prompts one after the other; write the tokens of each, and the logits of its chains."""
    import torch
    from safetensors.torch import save_file
    from vllm import LLM, SamplingParams
    from vllm.model_executor.models.llama_eagle3 import Eagle3LlamaForCausalLM
    from vllm.model_executor.models.mimo_mtp import MiMoMTP
    from vllm.model_executor.models.qwen3_dflash import DFlashQwen3ForCausalLM
    from vllm.model_executor.models.qwen3_eagle3 import Eagle3Qwen3ForCausalLM

    engine = LLM(
        target, dtype="float32", enforce_eager=True, max_model_len=256, seed=0, enable_prefix_caching=False,
        gpu_memory_utilization=0.2, kv_cache_memory_bytes=1 << 28, speculative_config=json.loads(speculation),
    )  # fmt: skip
    kept: list[torch.Tensor] = []

    def note(module: Any) -> None:
        computed: Any = module.compute_logits

        def noted(self: Any, hidden: torch.Tensor, *more: Any, **named: Any) -> torch.Tensor:
            kept.append(computed(self, hidden, *more, **named))
            return kept[-1]

        module.compute_logits = noted

    for module in (Eagle3LlamaForCausalLM, Eagle3Qwen3ForCausalLM, DFlashQwen3ForCausalLM, MiMoMTP):
        note(module)
    found: dict[str, torch.Tensor] = {}
    for number, prompt in enumerate(json.loads(Path(prompts).read_text())):
        kept.clear()
        asked = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True)
        said = engine.generate([{"prompt_token_ids": prompt}], asked, use_tqdm=False)[0]
        found[f"tokens.{number}"] = torch.tensor(said.outputs[0].token_ids)
        found[f"logits.{number}"] = torch.cat(kept)
    save_file(found, written)


if __name__ == "__main__":
    main(*sys.argv[1:])
