"""``python -m osd.demo.real.unpack FILE FOLDER``: a GGUF file into a Hugging Face folder, in bfloat16."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def unpack(file: Path, folder: Path) -> None:
    """Write the file's weights, unpacked, with its tokenizer and chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    from osd.models.weights import LOAD_LOCK

    asked: Any = {"gguf_file": file.name, "dtype": torch.float32, "quantization_config": GgufConfig(dequantize=True)}
    with LOAD_LOCK:
        model: Any = AutoModelForCausalLM.from_pretrained(file.parent, **asked)
    model.config.update({"quantization_config": None})
    model.to(torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)


if __name__ == "__main__":
    unpack(Path(sys.argv[1]), Path(sys.argv[2]))
