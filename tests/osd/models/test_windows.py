"""What a pass sees through windows is what the module sees, of rows of any length beside one another, chains and trees;
and what changes with length is found, whatever its name."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import transformers as tf
from hypothesis import given
from hypothesis import strategies as st

from osd.models import products, proof, twin
from osd.models.attention_metadata import AttentionMetadata, AttentionMetadataBuilder
from osd.models.fixed_pass import PassInput
from osd.models.hf_forward import HuggingFaceForward, RowForward
from osd.models.kv_blocks import DenseRows
from osd.models.llama_forward import llama_forward
from osd.models.model import Model
from osd.models.products import PlainLinear
from osd.models.proof import choose_forward, reason_against
from osd.models.tree_check import check_model
from storage.errors import CannotServeRagged, CannotServeTrees
from tests.support.models import LLAMA, model_of, prepared

WINDOWED: dict[str, Any] = {
    "mistral": tf.MistralConfig(**LLAMA, sliding_window=8),
    "qwen2": tf.Qwen2Config(**LLAMA, use_sliding_window=True, sliding_window=8, max_window_layers=1),
    "gemma3": tf.Gemma3TextConfig(
        **LLAMA, head_dim=8, sliding_window=8, layer_types=["sliding_attention", "full_attention"]
    ),
    "gpt_neo": tf.GPTNeoConfig(
        vocab_size=97, hidden_size=32, num_layers=2, num_heads=4, window_size=8, max_position_embeddings=256,
        attention_types=[[["global", "local"], 1]],
    ),
    "phi3": tf.Phi3Config(**LLAMA, sliding_window=8, pad_token_id=0),
}  # fmt: skip
MIXED = (60, 9, 40), (30, 0, 3), 96

CPU = torch.device("cpu")


@given(st.lists(st.integers(0, 20), min_size=1, max_size=3), st.integers(1, 6), st.integers(1, 12))
def test_a_narrow_mask_is_the_window_around_each_position(starts: list[int], width: int, window: int) -> None:
    aim = AttentionMetadataBuilder(40, 40, 1, lambda: 0, CPU, torch.float32, DenseRows(8, 40, CPU).find)
    feed = aim.rows(0, starts, width, [width] * len(starts))
    expected = [[[p - window < key <= p for key in range(feed.span)] for p in range(b, b + width)] for b in starts]
    assert _seen(feed, window) == expected
    for group in feed.within(window):
        assert torch.equal(group.mask, feed.narrow(lambda q, k: k > q - window)[group.rows, :, :, : group.span])


@given(st.data(), st.integers(1, 12))
def test_in_a_tree_depths_count(data: st.DataObject, window: int) -> None:
    """Against a walk from each node to the root, and on into the text."""
    starts = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=3))
    parents = [[data.draw(st.integers(0, n)) for n in range(5)] for _ in starts]
    ways = [[[0]] for _ in starts]
    for row, above in zip(ways, parents, strict=True):
        for node, parent in enumerate(above, 1):
            row.append([*row[parent], node])
    depths = torch.tensor([[len(way) - 1 for way in row] for row in ways])
    seen = torch.tensor([[[node in way for node in range(6)] for way in row] for row in ways])
    aim = AttentionMetadataBuilder(40, 40, 1, lambda: 0, CPU, torch.float32, DenseRows(8, 40, CPU).find)
    feed = aim.trees(starts, depths, seen, [6] * len(starts), None)
    expected = [
        [[key in [*range(b), *(b + n for n in way)][-window:] for key in range(feed.span)] for way in row]
        for b, row in zip(starts, ways, strict=True)
    ]
    assert _seen(feed, window) == expected


def _seen(feed: AttentionMetadata, window: int) -> list[list[list[bool]]]:
    seen: list[list[list[bool]]] = (feed.narrow(lambda q, k: k > q - window)[:, 0] == 0).tolist()
    return seen


@pytest.mark.parametrize("kind", WINDOWED)
@torch.inference_mode()
def test_beyond_a_window_and_beside_any_row_logits_are_the_modules(kind: str) -> None:
    module = prepared(WINDOWED[kind])
    build = choose_forward(module, kind)
    fused, alone = kind in ("mistral", "qwen2"), kind == "gpt_neo"
    assert build is (llama_forward if fused else RowForward if alone else HuggingFaceForward)
    forward = build(module)
    assert forward is not None and reason_against(module, forward, *MIXED) is None
    model = Model(kind, module, 256, build)
    if not alone:
        check_model(model)
        return
    with pytest.raises(CannotServeTrees, match="row by row"):
        check_model(model)
    assert "differ" in str(reason_against(module, HuggingFaceForward(module), *MIXED))


def test_a_fused_pass_that_sees_beyond_its_windows_is_not_used(
    monkeypatch: pytest.MonkeyPatch, own_cache: None
) -> None:
    monkeypatch.setattr(AttentionMetadata, "within", lambda self, window: self.groups)
    assert choose_forward(prepared(WINDOWED["mistral"]), "mistral") is HuggingFaceForward


@pytest.mark.usefixtures("own_cache")
def test_a_window_that_no_name_tells_of_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twin, "SWITCHES", re.compile("no name"))
    config = tf.Gemma2Config(**LLAMA, head_dim=8, sliding_window=128)
    with pytest.raises(CannotServeRagged, match="window of 128 tokens"):
        choose_forward(prepared(config), "some/model")


@pytest.mark.usefixtures("own_cache")
def test_what_was_proven_once_is_not_proven_again(monkeypatch: pytest.MonkeyPatch) -> None:
    module, made = prepared(tf.LlamaConfig(**LLAMA)), list[int]()

    def make(module: tf.PreTrainedModel) -> tf.PreTrainedModel:
        made.append(1)
        return twin.twin_of(module)

    monkeypatch.setattr(proof, "twin_of", make)
    for _ in range(3):
        assert choose_forward(module, "llama") is llama_forward
    assert made == [1]
    choose_forward(prepared(tf.LlamaConfig(**{**LLAMA, "max_position_embeddings": 512})), "llama")
    assert made == [1, 1]


def test_a_twin_keeps_the_order_of_the_switches_and_every_kind_of_layer() -> None:
    small = twin.shrunken(
        tf.Gemma3Config(text_config={"sliding_window": 1024, "num_hidden_layers": 34})
    ).get_text_config()
    assert small.sliding_window == twin.FIRST < small.max_position_embeddings < 100
    assert small.layer_types == ["sliding_attention", "full_attention"]
    many: Any = twin.shrunken(tf.Llama4TextConfig(attention_chunk_size=8192, floor_scale=4096))
    assert (many.floor_scale, many.attention_chunk_size) == (twin.FIRST, twin.FIRST + twin.STEP)
    assert {"chunked_attention", "full_attention"} == set(many.layer_types)
    whole: Any = twin.shrunken(tf.MistralConfig(sliding_window=1 << 30))
    assert whole.sliding_window == 1 << 30, "beyond all positions, it is never reached"


@pytest.fixture
def own_cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.usefixtures("compiled")
@torch.inference_mode()
def test_the_compiled_pass_is_taken_up_to_the_smallest_window_and_not_beyond() -> None:
    decoder = model_of(prepared(WINDOWED["qwen2"])).decoder(2, 96)
    decoder.prefill(0, [1] * 20)
    compiled = decoder.forward.compiled
    assert compiled is not None
    assert compiled.takes(PassInput(0, [3, 5], [5, 3]), decoder.cache)
    assert not compiled.takes(PassInput(0, [3, 6], [5, 3]), decoder.cache)


@pytest.mark.usefixtures("own_cache")
def test_a_twins_weights_can_be_fused_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where projections that read the same input become one, the module's weights become views of the whole; in
    inference mode, in which models are checked before they serve, a twin must allow that too."""
    monkeypatch.setattr(products, "product_of", lambda weight, bias: PlainLinear(weight.detach(), bias))
    module = prepared(tf.LlamaConfig(**LLAMA))
    with torch.inference_mode():
        check_model(model_of(module))
