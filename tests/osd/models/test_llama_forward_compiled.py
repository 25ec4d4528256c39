"""The pass over few tokens computes what the fused pass computes, over the same cache, and is believed only then."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
import transformers as tf
from torch import Tensor
from transformers import PreTrainedModel

from osd.draft_tree import Tree, moves
from osd.engine.engine import Engine
from osd.kernels.code_cache import BackgroundCompile
from osd.models.attention_metadata import lay_out
from osd.models.decoder import Decoder
from osd.models.fixed_pass import PassInput
from osd.models.forward import ForwardPass
from osd.models.kv_cache import RaggedCache
from osd.models.llama_forward import LlamaForward, llama_forward
from osd.models.llama_forward_compiled import MOST_ALONE, MOST_TOKENS, CompiledPass
from osd.models.lora.bank import AdapterBatch
from osd.models.tree_check import check_model
from storage.records import Request
from tests.support.models import CONFIGS, VOCABULARY, model_of, random_module, random_pair, seated, some
from tests.support.settings import settings_of

pytestmark = pytest.mark.usefixtures("compiled")

KINDS = ("llama", "mistral", "qwen2", "qwen3")


def decoder_of(kind: str, *, trusted: bool | None) -> Decoder:
    """Three rows of 9, 5 and 12 tokens in four."""
    decoder = seated(kind)
    compiled_of(decoder).trusted = trusted
    return decoder


def compiled_of(decoder: Decoder) -> CompiledPass:
    compiled = decoder.forward.compiled
    assert isinstance(compiled, CompiledPass)
    return compiled


@torch.inference_mode()
@pytest.mark.parametrize("most", [0, MOST_ALONE])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("width", "counts"),
    [(1, None), (5, None), (1, [1]), (4, [4]), (2, [2, 1]), (3, [1, 3, 2]), (5, [5, 4, 5]), (3, [3, 3, 3])],
)
def test_it_computes_what_the_lean_pass_computes(
    kind: str, width: int, counts: Sequence[int] | None, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With layers' products by PyTorch, and compiled with the rest of a layer."""
    monkeypatch.setattr("osd.models.llama_forward_compiled.MOST_ALONE", most)
    quick, plain = decoder_of(kind, trusted=True), decoder_of(kind, trusted=False)
    fed = counts or [width] * 3
    starts = [9, 5, 12][: len(fed)]
    for seed in range(3):  # garbage is written, rolled back and overwritten; then the rows go on
        tokens = some(len(fed), width, seed)
        ours, theirs = (decoder.scored(tokens, starts, fed) for decoder in (quick, plain))
        for row, n in enumerate(fed):
            torch.testing.assert_close(ours.first(row, n), theirs.first(row, n), rtol=1e-4, atol=1e-4)
        if counts is None:
            torch.testing.assert_close(quick.cache.embedding, plain.cache.embedding, rtol=1e-4, atol=1e-4)
        starts = [start + min(seed, n) for start, n in zip(starts, fed, strict=True)]
    for ours, theirs in zip(quick.cache.kept, plain.cache.kept, strict=True):
        for row, end in enumerate(starts):
            here = slice(row * 64, row * 64 + end)
            torch.testing.assert_close(ours[:, here], theirs[:, here], rtol=1e-4, atol=1e-4)


def tree_of(parents: Sequence[int]) -> Tree:
    tree = Tree()
    for node, parent in enumerate(parents, 1):
        tree.add(parent, node)
    return tree


@torch.inference_mode()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parents", [[(0,)], [(0, 0, 1, 1, 2, 3, 6)], [(0, 0, 2, 3), (), (0, 1, 0, 3, 3)]])
def test_it_computes_trees(kind: str, parents: Sequence[Sequence[int]]) -> None:
    quick, plain = decoder_of(kind, trusted=True), decoder_of(kind, trusted=False)
    trees, starts = [tree_of(own) for own in parents], [9, 5, 12][: len(parents)]
    counts = [len(tree) + 1 for tree in trees]
    layout = lay_out(trees, max(counts), quick.device)
    for seed in range(2):  # garbage, then the trees
        tokens = some(len(trees), max(counts), seed)
        ours, theirs = (decoder.scored(tokens, starts, counts, layout) for decoder in (quick, plain))
        for row, n in enumerate(counts):
            torch.testing.assert_close(ours.first(row, n), theirs.first(row, n), rtol=1e-4, atol=1e-4)
    path = [0, *([2] if len(parents[0]) > 1 else [1])]
    for decoder in (quick, plain):  # a path is kept, and the rows go on behind it
        decoder.cache.close_up(starts, [(0, *move) for move in moves(path)])
    tokens, on = some(len(trees), 2, 5), [starts[0] + 2, *(start + 1 for start in starts[1:])]
    torch.testing.assert_close(quick.logits(tokens, on), plain.logits(tokens, on), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_its_trees_are_texts_to_the_module_itself(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(module: PreTrainedModel) -> ForwardPass | None:
        forward = llama_forward(module)
        assert isinstance(forward, LlamaForward) and forward.compiled
        forward.compiled.trusted = True
        return forward

    model = replace(model_of(random_module(kind)), build=build)
    monkeypatch.delattr(LlamaForward, "__call__")  # so that it only fills the cache
    check_model(model)


@torch.inference_mode()
def test_the_logits_that_are_asked_for_of_rows_further_down() -> None:
    quick, plain = decoder_of("llama", trusted=True), decoder_of("llama", trusted=False)
    tokens, last = some(2, 3, 1), torch.tensor([2, 0])
    ours, theirs = (decoder.logits(tokens, [5, 12], first=1, last=last) for decoder in (quick, plain))
    assert ours.shape == theirs.shape == (2, 1, VOCABULARY)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(quick.cache.embedding, plain.cache.embedding, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
@pytest.mark.parametrize("kind", KINDS)
def test_it_reads_what_a_draft_has_missed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few tokens of several rows, from their beginnings, too; of more the fused pass does."""
    quick, plain, read, pass_ = decoder_of(kind, trusted=True), decoder_of(kind, trusted=False), [], CompiledPass.fill

    def counting(self: CompiledPass, tokens: Tensor, cache: RaggedCache, fed: PassInput) -> None:
        read.append(sum(fed.counts))
        pass_(self, tokens, cache, fed)

    monkeypatch.setattr(CompiledPass, "fill", counting)
    pieces = [some(1, count, count)[0].tolist() for count in (6, 2, 9)]
    for decoder in (quick, plain):
        decoder.read(0, pieces, [9, 5, 12])
        decoder.read(1, [some(1, MOST_TOKENS + 1, 3)[0].tolist()], [7])
        decoder.read(2, [some(1, 4, 4)[0].tolist()], [0])
    assert read == [17, 4]
    ends = [15, 7 + MOST_TOKENS + 1, 21]
    ours, theirs = (decoder.logits(some(3, 1, 5), ends) for decoder in (quick, plain))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_small_layers_are_one_call_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """For as few tokens as it takes; and none whose sizes it does not take."""
    decoder = decoder_of("llama", trusted=True)
    layers = compiled_of(decoder)._layers
    monkeypatch.setattr("osd.models.llama_forward_compiled.MOST_ALONE", 3 * layers[0].work)
    for layer in layers:
        layer.qkv = None  # only the one call could do without
    decoder.logits(some(3, 1, 0), [9, 5, 12])
    with pytest.raises(TypeError):
        decoder.logits(some(1, 4, 0), [9])
    config = CONFIGS["llama"]()
    config.intermediate_size = 44
    odd = model_of(tf.AutoModelForCausalLM.from_config(config).eval()).decoder(1, 8)
    assert [layer.weights for layer in compiled_of(odd)._layers] == [None] * config.num_hidden_layers


@torch.inference_mode()
def test_it_is_believed_once_it_said_what_the_lean_pass_said(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = decoder_of("llama", trusted=None)
    with monkeypatch.context() as patch:
        patch.setattr(
            "osd.models.llama_forward_compiled.PARTS", BackgroundCompile(lambda: None, "test", "not compiled")
        )
        decoder.logits(some(1, 1, 0), [9])
    decoder.scored(some(3, 2, 0), [9, 5, 12], [2, 1, 1])
    assert compiled_of(decoder).trusted and decoder.became_quicker()
    decoder.scored(some(3, 2, 0), [9, 5, 12], [2, 1, 1])
    assert not decoder.quicker, "only once"


@torch.inference_mode()
@pytest.mark.parametrize("wrong", [1.5, float("nan")])
def test_it_is_never_used_where_it_says_something_else(wrong: float, caplog: pytest.LogCaptureFixture) -> None:
    decoder, plain = decoder_of("llama", trusted=None), decoder_of("llama", trusted=False)
    compiled_of(decoder)._final = compiled_of(decoder)._final * wrong
    for _ in range(2):
        with caplog.at_level(logging.WARNING):
            said = decoder.logits(some(1, 1, 0), [9])
        assert torch.equal(said, plain.logits(some(1, 1, 0), [9]))
    assert compiled_of(decoder).trusted is False and not decoder.quicker
    assert len(caplog.records) == 1


@torch.inference_mode()
def test_a_pass_that_is_refused_leaves_nothing_in_the_cache() -> None:
    """Its keys and values would be wrong for all that follows."""
    decoder, plain = decoder_of("llama", trusted=None), decoder_of("llama", trusted=False)
    compiled = compiled_of(decoder)
    climb = compiled._climb
    compiled._climb = lambda tokens, *rest: climb(tokens ^ 1, *rest)  # type: ignore[method-assign]
    for place in (9, 10, 11):
        assert torch.equal(decoder.logits(some(1, 1, place), [place]), plain.logits(some(1, 1, place), [place]))
    assert compiled.trusted is False


@torch.inference_mode()
def test_hidden_states_are_of_the_pass_whose_logits_count() -> None:
    """A compiled pass packs rows of different counts, the other pass of these does not."""
    counts, starts = [2, 3], [9, 5]
    found = []
    for trusted in (None, False):
        decoder = decoder_of("llama", trusted=trusted)
        decoder.cache.wants_embedding = True
        found.append(decoder.scored(some(2, 3, 0), starts, counts))
    assert found[0].hidden is not None and torch.equal(found[0].hidden, found[1].hidden)
    assert torch.equal(found[0].first(1, 3), found[1].first(1, 3))


@torch.inference_mode()
def test_weights_are_freed_with_the_last_reference() -> None:
    """A swap must not wait for the collector of cycles to free what it replaced: that may take many swaps."""
    gc.disable()
    try:
        decoder = decoder_of("llama", trusted=True)
        decoder.logits(some(1, 1, 0), [9])
        passes = weakref.ref(decoder.forward), weakref.ref(compiled_of(decoder))
        del decoder
        assert [each() for each in passes] == [None, None]
    finally:
        gc.enable()


@torch.inference_mode()
def test_who_takes_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = decoder_of("llama", trusted=True)
    compiled, cache = compiled_of(decoder), decoder.cache
    assert compiled.takes(PassInput(0, [9, 5], [2, 1]), cache)
    assert not compiled.takes(PassInput(0, [9], [MOST_TOKENS + 1]), cache)
    with monkeypatch.context() as patch:
        patch.setattr(
            "osd.models.llama_forward_compiled.MOST_READ", 11 * compiled._layers[0].seen * torch.get_num_threads()
        )
        assert compiled.takes(PassInput(0, [9], [1]), cache) and compiled.takes(PassInput(0, [3, 4], [1, 1]), cache)
        assert not compiled.takes(PassInput(0, [9], [2]), cache) and not compiled.takes(
            PassInput(0, [9, 5], [1, 1]), cache
        )
    cache.mix = AdapterBatch({})  # what adapters add, the fused pass adds
    assert not compiled.takes(PassInput(0, [9], [1]), cache)
    cache.mix = None
    fresh = model_of(random_module("llama")).decoder(1, 64)
    assert not compiled_of(fresh).takes(PassInput(0, [0], [1]), fresh.cache), "nothing is cached yet"
    monkeypatch.setattr(
        "osd.models.llama_forward_compiled.PARTS", BackgroundCompile(lambda: None, "test", "not compiled")
    )
    assert not compiled.takes(PassInput(0, [9], [1]), cache)


def test_half_precision_has_none() -> None:
    assert model_of(random_module("llama").bfloat16()).decoder(1, 8).forward.compiled is None


def served(rounds: int, gamma: int = 1) -> Engine:
    """An engine after so many rounds of one request."""
    pair = random_pair("llama", noise=0.1)
    engine = Engine(pair, settings_of(serve__max_batch=1, serve__max_length=200, gamma__rule="fixed", gamma__initial=1))
    engine.submit(Request((3, 4, 5), max_new_tokens=190, ignore_eos=True))
    for _ in range(rounds):
        engine.step()
    return engine


def test_the_compiler_is_asked_for_once_decoding_has_gone_on(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    later = BackgroundCompile(lambda: None, "test", "not compiled")
    monkeypatch.setattr(later, "start", lambda: started.append(1))
    monkeypatch.setattr("osd.models.llama_forward_compiled.PARTS", later)
    monkeypatch.setattr("osd.models.llama_forward_compiled.WORTH_COMPILING", 12)
    served(11)
    assert not started
    served(30)
    assert started


def test_what_verifying_cost_before_is_forgotten_when_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(
            "osd.models.llama_forward_compiled.PARTS", BackgroundCompile(lambda: None, "test", "not compiled")
        )
        engine = served(12)
        assert engine.costs.verify_ms(1, 2) is not None
    engine.step()
    assert engine.costs.verify_ms(1, 2) is None
    engine.step()
    assert engine.costs.verify_ms(1, 2) is not None


def test_what_drafts_cost_before_is_forgotten_when_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(
            "osd.models.llama_forward_compiled.PARTS", BackgroundCompile(lambda: None, "test", "not compiled")
        )
        engine = served(12, gamma=2)
        engine.costs.observe_draft(1, 2, 1e6)
        assert engine.costs.draft_ms(1, 2) is not None
    times = engine.costs._draft_times
    engine.step()
    assert engine.costs._draft_times is not times
    times = engine.costs._draft_times
    engine.step()
    assert engine.costs._draft_times is times  # once


def test_what_a_draft_cost_is_kept_when_its_weights_are_loaded_anew() -> None:
    engine = served(12, gamma=2)
    decoder, times = engine.pool.decoder, engine.costs._draft_times
    decoder.forward = random_pair("llama", noise=0.1).draft.decoder(1, 8).forward
    engine.step()
    assert compiled_of(decoder).trusted
    assert engine.costs._draft_times is times
