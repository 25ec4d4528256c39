"""Passes of fixed shapes compute what the eager pass computes, over the same cache, and nothing else in it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from osd.drafters.chain import SampledChoice
from osd.models import captured_pass, fixed_pass, products
from osd.models.captured_pass import WORTH_CAPTURING, CapturedPass
from osd.models.decoder import Decoder
from osd.models.fixed_pass import PassInput, PassShape
from osd.models.hf_forward import HuggingFaceForward
from osd.models.llama_forward import LlamaForward
from osd.models.llama_forward_captured import captured_llama, compiler
from osd.models.lora.bank import AdapterBatch
from osd.models.products import PlainLinear
from osd.models.ragged_attention import sdpa_folded
from osd.verification.warping import Warp, draw
from storage.sampling import Sampling
from tests.support.caches import laid_out
from tests.support.captured import run_again
from tests.support.models import VOCABULARY, random_module, some

KINDS = ("llama", "mistral", "qwen2", "qwen3")
ROWS = (9, 5, 12)
"""Tokens of the rows that the caches hold; the cache has one row more."""


@pytest.fixture(autouse=True)
def unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights as they are on a GPU."""
    monkeypatch.setattr(products, "product_of", lambda weight, bias: PlainLinear(weight.detach(), bias))


def decoders(kind: str, compile_with: Any = None, module: Any = None) -> tuple[Decoder, Decoder, CapturedPass]:
    """The same rows in two caches: one for captured passes, one for eager ones."""
    module = random_module(kind) if module is None else module
    found = []
    for _ in range(2):
        forward: Any = LlamaForward(module) if kind in KINDS else HuggingFaceForward(module)
        forward.compiled = None
        found.append(Decoder(module, forward, 4, 300, 256))
        for row, count in enumerate(ROWS):
            found[-1].prefill(row, some(count, row).tolist())
    captured, eager = found
    forward = captured.forward
    if kind in KINDS:
        forward.compiled = captured_llama(
            forward, forward.extend_rotary, list(module.parameters()), run_again, compile_with
        )
    else:
        forward.compiled = CapturedPass(forward, list(module.parameters()), run_again)
    return captured, eager, forward.compiled


def ready(decoder: Decoder, *shapes: tuple[Sequence[int], Sequence[int]]) -> None:
    """Ask for passes (starts, counts) until they are captured and trusted."""
    for starts, counts in shapes:
        for _ in range(WORTH_CAPTURING + 1):
            decoder.scored(some(len(starts), max(counts), 1), starts, counts)
            while decoder.prepare():
                pass
        decoder.scored(some(len(starts), max(counts), 1), starts, counts)


def same(ours: Decoder, theirs: Decoder, ends: Sequence[int]) -> None:
    """Both caches hold the same below these ends."""
    for one, other in zip(ours.cache.kept, theirs.cache.kept, strict=True):
        for row, end in enumerate(ends):
            here = slice(row * 300, row * 300 + end)
            torch.testing.assert_close(one[:, here], other[:, here], rtol=1e-4, atol=1e-4)


@torch.inference_mode()
@pytest.mark.parametrize("kind", [*KINDS, "gpt_neox", "gemma2"])
@pytest.mark.parametrize("counts", [[1], [3], [1, 1], [4, 1, 2], [5, 5, 5], [1, 2, 1]])
def test_they_compute_what_the_eager_pass_computes(kind: str, counts: list[int]) -> None:
    captured, eager, passes = decoders(kind)
    starts, ends = ROWS[: len(counts)], [*ROWS[: len(counts)], *ROWS[len(counts) :]]
    ready(captured, (starts, counts))
    assert [graph.trusted for graph in passes.graphs.values() if graph] == [True]
    for seed in range(2):  # garbage is written, rolled back and overwritten; then the rows go on
        tokens = some(len(counts), max(counts), seed)
        ours, theirs = (decoder.scored(tokens, starts, counts) for decoder in (captured, eager))
        for row, n in enumerate(counts):
            torch.testing.assert_close(ours.first(row, n), theirs.first(row, n), rtol=1e-4, atol=1e-4)
    same(captured, eager, [end + (counts[row] if row < len(counts) else 0) for row, end in enumerate(ends)])


@pytest.mark.parametrize("layout", ["lazy", "paged"])
@torch.inference_mode()
def test_rows_come_and_go_and_texts_grow_from_bucket_to_bucket(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    laid_out(monkeypatch, layout)
    captured, eager, passes = decoders("llama")
    generator = torch.Generator().manual_seed(7)
    lengths, used = list(ROWS), 0
    for step in range(160):
        rows = 1 + step // 9 % len(lengths)
        counts = torch.randint(1, 5, (rows,), generator=generator).tolist()
        tokens = some(rows, max(counts), step)
        ours, theirs = (decoder.scored(tokens, lengths[:rows], counts) for decoder in (captured, eager))
        used += bool(passes._now and passes._now.trusted)
        for row, n in enumerate(counts):
            torch.testing.assert_close(ours.first(row, n), theirs.first(row, n), rtol=1e-4, atol=1e-4)
            lengths[row] += min(n, 1 + step % 3) if lengths[row] < 250 else 0
        if step % 20 == 19 and len(lengths) > 2:  # the last row takes the place of the first, and a new one comes
            for decoder in (captured, eager):
                decoder.move_row(2, 0, lengths[2])
                decoder.prefill(2, some(30, step).tolist())
            lengths[0], lengths[2] = lengths[2], 30
        captured.prepare()
    assert used > 60
    assert len({shape.span for shape in passes.graphs}) >= 1 and len({shape.rows for shape in passes.graphs}) > 1


@torch.inference_mode()
def test_beyond_the_first_bucket_of_positions() -> None:
    captured, eager, passes = decoders("llama")
    for decoder in (captured, eager):
        decoder.prefill(0, some(254, 3).tolist())
    for start in (254, 255, 256):
        ready(captured, ([start], [2]))
        ours, theirs = (decoder.scored(some(1, 2, 5), [start], [2]).lines for decoder in (captured, eager))
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert {shape.span for shape in passes.graphs} == {256, 300}


@torch.inference_mode()
def test_a_pass_of_a_draft_gives_the_logits_that_are_asked_for() -> None:
    captured, eager, _ = decoders("llama")
    ready(captured, (ROWS, [3, 3, 3]))
    tokens, last = some(3, 3, 2), torch.tensor([2, 0, 1])
    captured.cache.wants_embedding = eager.cache.wants_embedding = True  # so that it is captured once more
    ready(captured, (ROWS, [3, 3, 3]))
    ours, theirs = (decoder.logits(tokens, ROWS, last=last) for decoder in (captured, eager))
    assert ours.shape == (3, 1, VOCABULARY)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(captured.cache.embedding, eager.cache.embedding, rtol=1e-4, atol=1e-4)


SETTINGS = {
    "greedy": None,
    "sampled": [Sampling(temperature=1.0), Sampling(temperature=0.6), Sampling(temperature=0.0)],
    "cut": [Sampling(temperature=1.0, top_k=9), Sampling(temperature=0.8, top_p=0.7), Sampling(1.2, min_p=0.05)],
}


@torch.inference_mode()
@pytest.mark.parametrize("how", SETTINGS)
@pytest.mark.parametrize("kind", ["llama", "gpt_neox"])
def test_a_chain_is_that_of_single_passes_with_the_same_uniforms(kind: str, how: str) -> None:
    captured, eager, passes = decoders(kind)
    settings = SETTINGS[how]
    warp = None if settings is None else Warp.of(settings, VOCABULARY, captured.device)
    fed, counts = some(3, 2, 4), [2, 1, 2]
    for seed in range(WORTH_CAPTURING + 3):
        chance = torch.rand(3, 13, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        chooser = None if warp is None else SampledChoice(warp, chance, 1)
        drafted = captured.draft(fed, ROWS, counts, 5, chooser)
        captured.prepare()
    assert drafted is not None and drafted.tokens.shape == (3, 4)
    last = torch.tensor([1, 0, 1])
    logits, ends = eager.logits(fed, ROWS, last=last), [n + c for n, c in zip(ROWS, counts, strict=True)]
    for step in range(4):
        torch.testing.assert_close(drafted.logits[:, step], logits[:, 0], rtol=1e-4, atol=1e-4)
        if warp is None:
            chosen = logits[:, 0].argmax(-1)
        else:
            assert drafted.q is not None
            q = warp(logits)[:, 0]
            torch.testing.assert_close(drafted.q[:, step], q, rtol=1e-4, atol=1e-4)
            chosen = draw(q, chance[:, 1 + step])
        assert torch.equal(drafted.tokens[:, step], chosen)
        logits = eager.logits(chosen.unsqueeze(1), [end + step for end in ends])
    same(captured, eager, [end + 3 for end in ends])
    assert all(shape.drafts == 4 for shape in passes.graphs)


@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.long)])
@torch.inference_mode()
def test_what_is_compiled_is_whole_and_once_for_all_layers_and_buckets_of_as_many_tokens(backend: str) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    captured, eager, passes = decoders("qwen3", compiler(backend))
    body: Any = passes.body
    for tokens in (4, 8):
        while not body.ready(tokens):
            pass
    assert body._compiler is not None, "it was compiled"
    counters = torch._dynamo.utils.counters
    assert counters["stats"]["unique_graphs"] == 4 and not counters["graph_break"]
    with torch.compiler.set_stance("fail_on_recompile"):
        for starts, counts in ((ROWS[:2], [2, 2]), (ROWS, [2, 1, 2]), ((9,), [5])):
            if len(counts) * max(counts) in (4, 6):
                ready(captured, (starts, counts))
                tokens = some(len(counts), max(counts), 9)
                ours, theirs = (each.scored(tokens, starts, counts) for each in (captured, eager))
                torch.testing.assert_close(ours.lines, theirs.lines, rtol=1e-4, atol=1e-4)
    assert {(shape.rows, shape.width) for shape in passes.graphs} == {(2, 2), (4, 2)}
    assert counters["stats"]["unique_graphs"] == 4


def test_what_the_compiler_cannot_do_is_captured_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    def broken(function: Any) -> Any:
        def fail(*_: object) -> None:
            raise RuntimeError("no compiler here")

        return fail

    with torch.inference_mode():
        captured, eager, passes = decoders("llama", broken)
        while not passes.body.ready(2):  # type: ignore[attr-defined]
            pass
        ready(captured, ([9], [2]))
        ours, theirs = (decoder.scored(some(1, 2, 5), [9], [2]).lines for decoder in (captured, eager))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert "no compiler here" in caplog.text


@torch.inference_mode()
def test_a_graph_that_says_something_else_is_never_used(caplog: pytest.LogCaptureFixture) -> None:
    captured, eager, passes = decoders("llama")
    right = passes.body
    passes.body = lambda *fed: right(*fed) * 1.5
    with caplog.at_level(logging.WARNING):
        ready(captured, ([9], [1]))
    assert torch.equal(captured.logits(some(1, 1, 0), [9]), eager.logits(some(1, 1, 0), [9]))
    assert list(passes.graphs.values()) == [None] and len(caplog.records) == 1


@torch.inference_mode()
def test_what_cannot_be_captured_stays_eager(caplog: pytest.LogCaptureFixture) -> None:
    captured, eager, passes = decoders("llama")

    def refuse(run: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    passes._capture = refuse
    ready(captured, ([9], [1]))
    assert torch.equal(captured.logits(some(1, 1, 0), [9]), eager.logits(some(1, 1, 0), [9]))
    assert caplog.text.count("not permitted") == 1


@torch.inference_mode()
def test_who_has_no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    captured, _, passes = decoders("llama")
    ready(captured, ([9], [1]))
    cache = captured.cache
    assert passes.takes(PassInput(0, [9], [1]), cache)
    assert not passes.takes(PassInput(1, [9], [1]), cache), "other rows"
    assert not passes.takes(PassInput(0, [9], [40]), cache), "too many tokens"
    assert not passes.takes(PassInput(0, [300], [1]), cache), "beyond the row"
    assert not passes.takes(PassInput(0, [9], [1]), cache.like(4, 300)), "nothing is cached yet"
    cache.mix = AdapterBatch({})
    assert not passes.takes(PassInput(0, [9], [1]), cache), "adapters"
    cache.mix = None
    cache.grow(5)
    assert not passes.takes(PassInput(0, [9], [1]), cache), "it lies elsewhere now"
    ready(captured, ([9], [1]))
    assert passes.takes(PassInput(0, [9], [1]), cache)
    monkeypatch.setattr(captured_pass, "MOST_GRAPHS", 2)
    ready(captured, ([9], [2]), ([9], [3]))
    assert [shape.width for shape in passes.graphs] == [2, 3], "the least recently used one made room"


@torch.inference_mode()
def test_padding_touches_the_spare_slot_alone() -> None:
    captured, _, _ = decoders("llama")
    ready(captured, (ROWS, [2, 1, 1]))
    before = [kept.clone() for kept in captured.cache.kept]
    captured.scored(some(3, 2, 5), ROWS, [2, 1, 1])
    written = {9, 10, 300 + 5, 600 + 12, captured.cache.spare}
    for old, new in zip(before, captured.cache.kept, strict=True):
        changed = (old != new).any(dim=2).any(dim=0).nonzero().flatten().tolist()
        assert set(changed) <= written


def test_heads_that_share_keys_may_be_further_queries() -> None:
    query, (keys, values) = torch.randn(2, 6, 3, 8), torch.randn(2, 2, 2, 21, 8)
    mask = torch.randn(2, 1, 3, 21)
    plain = torch.nn.functional.scaled_dot_product_attention(query, keys, values, mask, enable_gqa=True, scale=0.3)
    torch.testing.assert_close(sdpa_folded(query, keys, values, mask, 0.3), plain)


def test_shapes_are_few() -> None:
    captured, _, _ = decoders("llama")
    found: set[PassShape] = set()
    for rows in range(1, 5):
        for width in range(1, 18):
            for end in range(20, 301, 20):
                shape = fixed_pass.shape_of(rows, width, end, captured.cache, 0, None)
                assert shape and shape.rows >= rows and shape.width >= width and shape.span >= min(end, 300)
                found.add(shape)
    assert len(found) <= 3 * len(fixed_pass.WIDTHS) * 2
