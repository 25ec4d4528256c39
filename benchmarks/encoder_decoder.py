"""Online learning with an encoder-decoder pair that is made on the spot: a small T5 target is trained on questions with
their answers, a smaller T5 draft on fewer of them, and then `osd bench online` serves questions that neither has seen.

Both read the tokenizer of the shipped pair. The target keeps the form of the answers and not their truth, as the
shipped one does: that is enough to study acceptance.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import (
    AutoModelForSeq2SeqLM,
    DataCollatorForSeq2Seq,
    GenerationConfig,
    PreTrainedTokenizerBase,
    T5Config,
)

from osd.bench.harness.plan import Count
from osd.bench.harness.report import BenchResult
from osd.bench.harness.watch import Watch, note
from osd.bench.online import result_of, serve_segments
from osd.bench.plans import OnlinePlan
from osd.demo.runner.source import Segment
from osd.models.vocabulary import load_tokenizer
from osd.prompts import Prompt, read_prompts
from osd.server.start import SHIPPED
from storage.errors import BadPromptFile
from storage.settings import Settings

BATCH, RATE, WARM = 16, 3e-3, 20
"""Answers of a step, AdamW's learning rate, and steps until it is reached."""
TELL = 50
"""Steps after which the loss is told."""


class PairShape(NamedTuple):
    """The size of a model: layers of its encoder and as many of its decoder."""

    layers: int
    width: int
    heads: int


TARGET, DRAFT = PairShape(2, 96, 3), PairShape(1, 48, 2)
Example = dict[str, list[int]]
"""A question's tokens, and its answer's with the end token as labels."""


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderPlan:
    """Train a small T5 pair on questions and answers, and compare a draft that learns online with a frozen one.

    Example: `python -m benchmarks encoder-decoder --prompts wikisql.jsonl.gz --out out/t5`
    """

    prompts: Path
    """JSON lines, each with a "prompt" and its "response"."""
    out: Path
    """Folder for both models and what comes of them."""
    requests: Count = 200
    """Questions served; none was trained on."""
    steps: Count = 400
    """Steps of the target, 16 answers each."""
    draft_steps: Count = 40
    """Steps of the draft."""
    max_tokens: Count = 64
    """Tokens of an answer at most."""
    seed: int = 0
    """Seed of the weights, and of which questions are served."""


def bench_encoder_decoder(plan: EncoderDecoderPlan, settings: Settings, watch: Watch) -> BenchResult:
    """Make the pair, and serve with it. Raises BadPromptFile, TrainingFailed."""
    told = [each for each in read_prompts(plan.prompts) if isinstance(each, Prompt) and each.fields.get("response")]
    if len(told) <= plan.requests:
        reason = f"it has {len(told)} prompts with a response, no more than are served"
        raise BadPromptFile(path=plan.prompts, reason=reason)
    random.Random(plan.seed).shuffle(told)
    tokenizer = make_tokenizer()
    examples = [example(tokenizer, each) for each in told[plan.requests :]]
    for name, shape, count in (("target", TARGET, plan.steps), ("draft", DRAFT, plan.draft_steps)):
        if (plan.out / name).is_dir():
            continue  # a run that was stopped goes on
        note(f"training the {name}: {count} steps")
        model = make_model(shape, tokenizer, plan.seed)
        train(model, _batches(examples, tokenizer, plan.seed), count)
        model.save_pretrained(plan.out / name)
        tokenizer.save_pretrained(plan.out / name)
    segment = Segment(plan.prompts.name.split(".")[0], tuple(each.text for each in told[: plan.requests]))
    online = OnlinePlan(
        target=str(plan.out / "target"), draft=str(plan.out / "draft"), max_tokens=plan.max_tokens, offline=False,
        drafter="causal",
    )  # fmt: skip
    out = plan.out / "online"
    return result_of(serve_segments(online, settings, [segment], out), out)


def make_tokenizer() -> PreTrainedTokenizerBase:
    """Return the shipped pair's tokenizer without its chat template: an encoder reads the question as it is."""
    tokenizer = load_tokenizer(SHIPPED / "target")
    assert tokenizer is not None
    tokenizer.chat_template = None
    return tokenizer


def example(tokenizer: Any, prompt: Prompt) -> Example:
    """Return a question and its answer as tokens."""
    answer = [*tokenizer.encode(prompt.fields["response"]), tokenizer.eos_token_id]
    return {"input_ids": tokenizer.encode(prompt.text), "labels": answer}


def make_model(shape: PairShape, tokenizer: Any, seed: int) -> Any:
    """Return a random T5 1.1 of a shape, which begins its answers with the padding token."""
    pad = tokenizer.pad_token_id or 0
    shapes: Any = T5Config
    config = shapes(
        vocab_size=len(tokenizer), d_model=shape.width, d_kv=shape.width // shape.heads, d_ff=2 * shape.width,
        num_layers=shape.layers, num_heads=shape.heads, feed_forward_proj="gated-gelu", dropout_rate=0.0,
        tie_word_embeddings=False, pad_token_id=pad, eos_token_id=tokenizer.eos_token_id, decoder_start_token_id=pad,
    )  # fmt: skip
    torch.manual_seed(seed)
    made: Any = AutoModelForSeq2SeqLM
    model = made.from_config(config)
    model.generation_config = GenerationConfig.from_model_config(config)
    return model


def train(model: Any, batches: Iterator[dict[str, Tensor]], steps: int) -> None:
    """Train a model on answers, each token given the question and the tokens before it."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    pace = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / WARM) * max(0.05, 1 - step / steps)
    )
    model.train()
    for step, batch in zip(range(1, steps + 1), batches, strict=False):
        loss = model(**batch).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        pace.step()
        if step % TELL == 0 or step == steps:
            note(f"  step {step}: loss {loss.item():.3f}")
    model.eval()


def _batches(examples: Sequence[Example], tokenizer: Any, seed: int) -> Iterator[dict[str, Tensor]]:
    """Yield batches without end, questions padded, and answers with −100, which transformers passes over."""
    chance, collate = random.Random(seed), DataCollatorForSeq2Seq(tokenizer)
    while True:
        yield dict(collate(chance.sample(examples, min(BATCH, len(examples)))))
