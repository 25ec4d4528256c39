"""GGUF files stay packed, say what transformers says of them unpacked, and decode to the module's own texts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from osd.engine.engine import Engine
from osd.models.gguf import PIECE, PackedEmbedding, PackedLinear, unpack
from osd.models.pair import Pair, files_bytes, load_model, load_pair, weights_in_memory
from storage.errors import ModelNotLoaded
from storage.records import Request
from tests.support.gguf_files import VOCABULARY, write_gguf
from tests.support.models import model_of, noisy
from tests.support.settings import settings_of

CPU = torch.device("cpu")
FILES = [
    ("llama", "Q8_0", False), ("llama", "Q4_0", True), ("llama", "Q5_0", False), ("qwen2", "Q8_0", True),
    ("qwen3", "Q4_1", False), ("llama", "F16", False), ("llama", "BF16", True),
]  # fmt: skip
files = pytest.mark.parametrize(("kind", "quantisation", "tied"), FILES)


def unpacked(path: Path) -> Any:
    """The plain reference: transformers' own module of the file, in floats."""
    module = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    return module.eval().requires_grad_(False)


@files
@torch.inference_mode()
def test_a_packed_model_says_what_an_unpacked_one_says(
    kind: str, quantisation: str, tied: bool, tmp_path: Path
) -> None:
    path = write_gguf(tmp_path / "small.gguf", kind, quantisation, tied=tied)
    ours, plain = load_model(path, CPU), unpacked(path)
    tokens = torch.arange(40).view(2, 20)
    torch.testing.assert_close(ours.module(tokens).logits, plain(tokens).logits, rtol=1e-4, atol=1e-4)
    kinds = {type(part) for name, part in ours.module.named_modules() if name.endswith(("_proj", "lm_head"))}
    assert kinds == {PackedLinear} and type(ours.module.get_input_embeddings()) is PackedEmbedding
    assert ours.module.config.eos_token_id == [7]


@pytest.mark.parametrize(("kind", "quantisation", "tied"), [FILES[0], FILES[3], FILES[5]])
def test_it_decodes_to_the_modules_own_text(kind: str, quantisation: str, tied: bool, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "small.gguf", kind, quantisation, tied=tied)
    target = load_model(path, CPU)
    draft = model_of(noisy(unpacked(path), 0.1), "draft")
    settings = settings_of(gamma__rule="fixed", gamma__initial=3, serve__max_length=100)
    engine = Engine(Pair(target, draft, None, frozenset()), settings)
    asked = [Request((3 + i, 8, 5 + 2 * i), max_new_tokens=12 + i, ignore_eos=True) for i in range(4)]
    done = {c.request.id: c for c in engine.run(asked)}
    for request in asked:
        prompt = torch.tensor([request.prompt_tokens])
        whole = target.module.generate(  # type: ignore[operator]
            prompt, do_sample=False, min_new_tokens=request.max_new_tokens, max_new_tokens=request.max_new_tokens,
            eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        assert list(done[request.id].tokens) == whole[0, len(request.prompt_tokens) :].tolist()
    assert sum(r.accepted for c in done.values() for r in c.rounds) > 0


@pytest.mark.parametrize(("quantisation", "tied"), [("Q8_0", False), ("Q4_0", True), ("F16", False)])
def test_weights_take_what_the_file_takes(quantisation: str, tied: bool, tmp_path: Path) -> None:
    model = load_model(write_gguf(tmp_path / "small.gguf", "llama", quantisation, tied=tied, hidden_size=128), CPU)
    size = files_bytes(model)
    assert size and 0.5 * size < weights_in_memory(model) <= 1.05 * size


PACKED = [kind for kind in gguf.GGML_QUANT_SIZES if kind in gguf.quants._type_traits and kind.name != "BF16"]


@pytest.mark.parametrize("kind", PACKED)
def test_rows_are_unpacked_as_ggufs_own_package_does(kind: gguf.GGMLQuantizationType) -> None:
    numbers, size = gguf.GGML_QUANT_SIZES[kind]
    generator = np.random.default_rng(int(kind))
    floats = generator.standard_normal((6, 4 * numbers), np.float32)
    try:
        packed = gguf.quantize(floats, kind)
    except NotImplementedError:  # the package unpacks more types than it packs: any bytes will do
        packed = generator.integers(0, 256, (6, 4 * size), np.uint8)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = gguf.dequantize(packed, kind)
    ours = unpack(torch.from_numpy(packed), int(kind), torch.float32)
    sound = np.isfinite(expected)
    assert ours.shape == expected.shape and sound.any()
    np.testing.assert_allclose(ours.numpy()[sound], expected[sound], rtol=1e-3, atol=1e-6)


@torch.inference_mode()
def test_a_large_layer_is_unpacked_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = np.random.default_rng(0).standard_normal((50, 64), np.float32)
    weight = gguf.quantize(numbers, gguf.GGMLQuantizationType.Q8_0)
    layer = PackedLinear(torch.nn.Parameter(torch.from_numpy(weight), requires_grad=False), 8, None)
    x = torch.randn(3, 2, 64)
    whole = layer(x)
    monkeypatch.setattr("osd.models.gguf.PIECE", 64 * 7)
    torch.testing.assert_close(layer(x), whole)
    assert PIECE >= 1 << 20


def test_what_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelNotLoaded, match="no such file"):
        load_model(tmp_path / "none.gguf", CPU)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"nothing of that kind, but long enough to hold what a header holds")
    with pytest.raises(ModelNotLoaded, match=r"broken\.gguf"):
        load_model(broken, CPU)
    whole = write_gguf(tmp_path / "whole.gguf", "llama", "Q8_0")
    with pytest.raises(ModelNotLoaded, match="draft learns"):
        load_pair(whole, whole)
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole.read_bytes()[:-4000])
    with pytest.raises(ModelNotLoaded, match=r"cut\.gguf"):
        load_model(cut, CPU)
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ModelNotLoaded, match="pip install gguf"):
        load_model(whole, CPU)


def test_a_pair_is_checked_as_any(tmp_path: Path) -> None:
    """The file has no tokenizer, and a digest by which what was learned for it is known again."""
    path = write_gguf(tmp_path / "small.gguf", "llama", "Q8_0")
    draft = tmp_path / "draft"
    AutoModelForCausalLM.from_config(unpacked(path).config).save_pretrained(draft)
    pair = load_pair(path, draft, device="cpu")
    assert pair.tokenizer is None and pair.vocab_size == VOCABULARY and pair.eos_ids == {7}
    digest = pair.target.digest
    renamed = path.rename(tmp_path / "other.gguf")
    assert load_model(renamed, CPU).digest == digest is not None
