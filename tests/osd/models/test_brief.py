"""The brief pass computes what the lean pass computes, over the same cache, and is taken only where it may be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from osd.models.brief import MOST_LINES, MOST_READ, BriefPass
from torch import Tensor

from osd.engine.engine import Engine
from osd.kernels.compile_background import InBackground
from osd.models.acceptance_head import HeadPass
from osd.models.decoder import Decoder
from osd.models.lora.bank import Mix
from storage.records import Request
from storage.settings import ServeSettings
from tests.osd.models.test_acceptance_head import random_head
from tests.support.models import VOCABULARY, model_of, random_module, random_pair, rounded, seated, some

pytestmark = pytest.mark.usefixtures("compiled")

KINDS = ("llama", "mistral", "qwen2", "qwen3")


def decoder_of(kind: str) -> Decoder:
    """Three rows of 9, 5 and 12 tokens in four."""
    decoder = seated(kind)
    decoder.cache.wants_embedding = True
    return decoder


def alike(ours: Tensor, theirs: Tensor) -> None:
    """But for what rounding inputs to 16 bits takes from them."""
    torch.testing.assert_close(ours, theirs, rtol=5e-4, atol=3e-4)


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Tokens of the passes that went the brief way."""
    passes, plain = [], BriefPass.__call__

    def call(self: BriefPass, tokens: Tensor, *args: object) -> object:
        passes.append(tokens.numel())
        return plain(self, tokens, *args)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(BriefPass, "__call__", call)
        yield passes


@torch.inference_mode()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (2, 1), (3, 1), (1, 5), (3, 2), (1, MOST_LINES)])
def test_it_computes_what_the_lean_pass_computes(
    kind: str, rows: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    short, plain = decoder_of(kind), decoder_of(kind)
    short.brief = True
    starts = [9, 5, 12][:rows]
    with counted(monkeypatch) as passes:
        for seed in range(3):  # garbage is written, rolled back and overwritten; then the rows go on
            tokens = some(rows, width, seed)
            ours, theirs = short.logits(tokens, starts), plain.logits(tokens, starts)
            alike(ours, theirs)
            alike(short.cache.embedding, plain.cache.embedding)
            starts = [start + seed for start in starts]
            short.prefill(rows - 1, some(20, seed).tolist(), starts[-1] - 3)
            plain.prefill(rows - 1, some(20, seed).tolist(), starts[-1] - 3)
    assert passes == [rows * width] * 3
    for ours, theirs in zip(short.cache.kept, plain.cache.kept, strict=True):
        alike(ours, theirs)


@torch.inference_mode()
def test_the_logits_that_are_asked_for_of_rows_further_down() -> None:
    short, plain = decoder_of("llama"), decoder_of("llama")
    short.brief = True
    tokens, last = some(2, 3, 1), torch.tensor([2, 0])
    ours = short.logits(tokens, [5, 12], first=1, last=last)
    theirs = plain.logits(tokens, [5, 12], first=1, last=last)
    assert ours.shape == theirs.shape == (2, 1, VOCABULARY)
    alike(ours, theirs)
    alike(short.cache.embedding, plain.cache.embedding)


@torch.inference_mode()
@pytest.mark.parametrize("kind", KINDS)
def test_it_reads_what_a_draft_has_missed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few tokens of several rows, with what stands behind the shorter ones left to be overwritten."""
    short, plain, read, brief = decoder_of(kind), decoder_of(kind), [], BriefPass.read

    def counting(self: BriefPass, tokens: Tensor, *args: object) -> object:
        read.append(tokens.numel())
        return brief(self, tokens, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(BriefPass, "read", counting)
    short.brief = True
    pieces = [some(1, count, count)[0].tolist() for count in (6, 2, 9)]
    for decoder in (short, plain):
        decoder.read(0, pieces, [9, 5, 12])
        decoder.read(1, [some(1, MOST_READ + 1, 3)[0].tolist()], [7])  # too many
        decoder.read(2, [some(1, 4, 4)[0].tolist()], [0])  # a beginning
    assert read == [27]
    ends = [15, 7 + MOST_READ + 1, 21]
    ours, theirs = (decoder.logits(some(3, 1, 5), ends) for decoder in (short, plain))
    alike(ours, theirs)


@torch.inference_mode()
def test_who_takes_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = decoder_of("llama")
    decoder.brief = True
    with counted(monkeypatch) as passes:
        decoder.logits(some(1, MOST_LINES + 1, 0), [9])
        decoder.scored(some(2, 2, 0), [9, 5], (2, 1))  # a target's pass, which may be packed
        decoder.adapters = lambda first, count: Mix({})  # what adapters add, the lean pass adds
        decoder.logits(some(1, 1, 0), [9])
        decoder.adapters = None
        monkeypatch.setattr("osd.models.brief.PASSES", InBackground(lambda: None, "test", "not compiled"))
        decoder.logits(some(1, 1, 0), [9])
        assert not passes
    fresh = model_of(random_module("llama")).decoder(1, 64)
    fresh.brief = True
    with counted(monkeypatch) as passes:  # nothing is cached yet: the lean pass finds out the shapes
        fresh.logits(some(1, 1, 0), [0])
    assert not passes


def test_larger_models_and_other_numbers_have_no_brief_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    module = random_module("llama")
    rotary = lambda length: (torch.empty(0), torch.empty(0))  # noqa: E731
    assert BriefPass.over(module, rotary) is not None
    assert BriefPass.over(module.bfloat16(), rotary) is None
    for threads, bound in ((2, "MOST_WEIGHTS"), (3, "MOST_SHARED")):
        with monkeypatch.context() as patch:
            patch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
            assert BriefPass.over(module.float(), rotary) is not None
            patch.setattr(f"osd.models.brief.{bound}", 1000)
            assert BriefPass.over(module, rotary) is None


def served(gamma: int, rounds: int) -> Engine:
    """An engine after so many rounds of one request."""
    pair = random_pair("llama", noise=0.1)
    engine = Engine(pair, ServeSettings(max_batch=1, max_length=200, gamma="fixed", gamma_initial=gamma))
    engine.submit(Request((3, 4, 5), max_new_tokens=190, ignore_eos=True))
    for _ in range(rounds):
        engine.step()
    return engine


@pytest.mark.parametrize(("gamma", "asked"), [(0, 0), (1, 1)])
def test_the_compiler_is_asked_for_once_drafting_has_gone_on(
    gamma: int, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    later = InBackground(lambda: None, "test", "not compiled")
    monkeypatch.setattr(later, "start", lambda: started.append(1))
    monkeypatch.setattr("osd.drafters.causal.PASSES", later)
    monkeypatch.setattr("osd.drafters.causal.WORTH_COMPILING", 12)
    served(gamma, 11)
    assert not started
    served(gamma, 30)
    assert len(started) == asked


def test_what_drafts_cost_before_is_forgotten_when_the_brief_pass_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("osd.models.brief.PASSES", InBackground(lambda: None, "test", "not compiled"))
        engine = served(2, 12)
        engine.costs.observe_draft(1, 2, 1e6)
        assert engine.costs.draft_ms(1, 2) is not None
        assert not engine.drafter.decoder.went_brief
    surface = engine.costs._draft
    engine.step()
    assert engine.drafter.decoder.went_brief
    assert engine.costs._draft is not surface
    surface = engine.costs._draft
    engine.step()
    assert engine.costs._draft is surface  # once


def test_what_a_draft_that_comes_back_cost_is_kept() -> None:
    engine = served(2, 12)
    assert engine.drafter.decoder.went_brief
    surface, engine.drafter.decoder.went_brief = engine.costs._draft, None  # as that of weights loaded anew
    engine.step()
    assert engine.drafter.decoder.went_brief
    assert engine.costs._draft is surface


@torch.inference_mode()
@pytest.mark.parametrize("rows", [1, 3])
def test_what_is_read_off_logits(rows: int) -> None:
    decoder, tokens, starts = decoder_of("llama"), some(rows, 2, 4), [9, 5, 12][:rows]
    decoder.brief, decoder.acceptance = True, None
    last = torch.ones(rows, dtype=torch.long)
    logits = decoder.logits(tokens, starts, last=last)[:, 0]
    assert decoder.read_off is not None
    choices, peaks, chances = decoder.read_off
    assert choices.tolist() == logits.argmax(-1).tolist()
    assert peaks == pytest.approx(logits.softmax(-1).amax(-1).tolist(), rel=1e-5)
    assert chances is None
    decoder.prefill(0, [1, 2, 3])
    decoder.logits(some(1, MOST_LINES + 1, 0), [9])
    assert decoder.read_off is None  # of a pass that went another way


@torch.inference_mode()
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_the_acceptance_head_runs_along(depth: int) -> None:
    """As PyTorch runs it over the same embeddings."""
    decoder, tokens, starts = decoder_of("llama"), some(3, 1, 4), [9, 5, 12]
    decoder.brief = True
    head = HeadPass(rounded(random_head(depth, width=32)), decoder.device)
    decoder.acceptance = head.arrays
    decoder.logits(tokens, starts)
    assert decoder.read_off is not None
    assert decoder.cache.embedding is not None
    assert decoder.read_off.chances == pytest.approx(head(decoder.cache.embedding[:, 0]).tolist(), rel=1e-4)
    decoder.acceptance = None
    decoder.logits(tokens, starts)
    assert decoder.read_off.chances is None


@torch.inference_mode()
def test_of_equal_logits_the_first_and_a_broken_draft_brings_no_peak() -> None:
    module = rounded(random_module("llama"))
    module.lm_head.weight[50] = module.lm_head.weight[7] = 100 * module.model.norm.weight
    decoder = model_of(module).decoder(1, 64)
    decoder.prefill(0, [3, 4, 5])
    decoder.brief = True
    logits = decoder.logits(some(1, 1, 1), [3])[0, 0]
    assert decoder.read_off is not None
    assert logits[7] == logits[50]
    assert int(decoder.read_off.choices) == int(logits.argmax())
    build = model_of(module).build
    module.lm_head.weight[9] = float("nan")
    forward = build(module)
    assert forward is not None
    decoder.forward = forward
    assert torch.isnan(decoder.logits(some(1, 1, 1), [3])[0, 0, 9])
    assert 0 <= int(decoder.read_off.choices) < VOCABULARY


def test_where_pytorch_has_threads_larger_drafts_take_fewer_tokens_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass is as much work as its tokens times the numbers in the products, which threads share."""
    module = random_module("llama")
    numbers = sum(p.numel() for p in module.model.layers.parameters()) + module.lm_head.weight.numel()
    for threads, work, most in ((3, 3, 3), (3, 2.99, 2), (3, 1000, MOST_LINES), (2, 2, MOST_LINES)):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        monkeypatch.setattr("osd.models.brief.MOST_WORK", int(work * numbers))
        decoder = model_of(module).decoder(1, 64)
        decoder.prefill(0, list(range(9)))
        brief = decoder.forward.brief  # type: ignore[attr-defined]
        assert brief.takes(most, decoder.cache) and not brief.takes(most + 1, decoder.cache)


def test_no_target_holds_its_weights_in_eight_bits_and_a_draft_does_before_it_drafts() -> None:
    pair = random_pair("llama")
    engine = Engine(pair, ServeSettings(max_batch=1, max_length=200, gamma="fixed", gamma_initial=2))
    assert "brief" in vars(engine.drafter.decoder.forward)
    assert vars(engine.drafter.decoder.forward)["_module"] is None  # packed weights are all that it needs
    engine.submit(Request((3, 4, 5), max_new_tokens=9, ignore_eos=True))
    for _ in range(3):
        engine.step()
    assert "brief" not in vars(engine.target.forward)
