"""How fast a draft of some shape learns on a device: training on made-up samples, to be ended by a signal.

python -m benchmarks.gpu.pace CONFIG DEVICE
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from transformers import AutoConfig

from osd.models.weights import auto_class
from storage.records import RequestSamples, TokenKind
from storage.settings import LearnSettings
from trainer.distil.distil import DistilProgress, distil
from trainer.distil.optimizer import adamw

REQUESTS, PROMPT, OUTPUT, TOP_K = 64, 64, 64, 64


def train(config: Path, device: torch.device) -> None:
    """Train a model of this configuration for ever, and print the positions so far after every step."""
    shape = AutoConfig.from_pretrained(str(config))
    made = auto_class(shape)
    with device:
        model = made.from_config(shape, dtype=torch.float32)
    samples = [_sample(seed, shape.vocab_size) for seed in range(REQUESTS)]
    learn, done = LearnSettings(), 0
    optimizer = adamw(model, learn)

    def tell(progress: DistilProgress) -> None:
        sys.stdout.write(json.dumps({"positions": done + progress.step * learn.batch_positions}) + "\n")
        sys.stdout.flush()

    while True:
        done += distil(model, samples, learn, tell, schedule="constant", optimizer=optimizer).positions


def _sample(seed: int, vocabulary: int) -> RequestSamples:
    draws = np.random.default_rng(seed)
    count = min(TOP_K, vocabulary)
    ids = np.stack([draws.choice(vocabulary, count, replace=False) for _ in range(OUTPUT)]).astype(np.int32)
    logprobs = np.sort(-draws.exponential(4.0, (OUTPUT, count)) - np.log(2 * count))[:, ::-1]
    return RequestSamples(
        str(seed), "default", "default", "none", time.time(), PROMPT,
        draws.integers(2, vocabulary, PROMPT + OUTPUT).astype(np.int32),
        np.arange(PROMPT, PROMPT + OUTPUT, dtype=np.int32), np.full(OUTPUT, TokenKind.ACCEPTED, np.uint8),
        ids[:, 0].copy(), ids, logprobs.astype(np.float16), (1 - np.exp(logprobs).sum(1)).clip(0).astype(np.float32),
    )  # fmt: skip


if __name__ == "__main__":
    train(Path(sys.argv[1]), torch.device(sys.argv[2]))
