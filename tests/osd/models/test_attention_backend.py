"""Back-ends of attention agree with plain softmax, and say what is missing."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from osd.engine.engine import Engine
from osd.models import attention_backend as backends
from osd.models import llama_forward, products
from osd.models.attention_backend import attention_backend, flex_attention, require_same, sdpa, sdpa_folded
from osd.models.products import PlainLinear
from storage.errors import BadSetting
from storage.records import Request
from tests.support.models import alone, prompts, random_pair
from tests.support.settings import settings_of

CPU = torch.device("cpu")
SHAPES = [(2, 3, 21, 4, 2), (3, 1, 40, 4, 4), (1, 5, 70, 6, 2)]
"""Rows, queries of each, positions, heads of queries and of keys."""


def inputs(rows: int, width: int, span: int, heads: int, kept: int) -> tuple[Tensor, Tensor, Tensor, Tensor, float]:
    """Keys and values are views of a cache, and each query sees some keys, itself among them."""
    torch.manual_seed(span)
    query, mask = torch.randn(rows, heads, width, 16), torch.rand(rows, 1, width, span) < 0.4
    keys, values = (part[:, :, :span].transpose(0, 1) for part in torch.randn(2, kept, rows, span + 9, 16))
    mask[..., span - width :] |= torch.eye(width, dtype=torch.bool)
    return query, keys, values, torch.where(mask, 0.0, torch.finfo(torch.float32).min), 0.3


def plain(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
    """The plain reference: softmax over the scores, heads of keys repeated."""
    share = query.shape[1] // keys.shape[1]
    keys, values = (part.repeat_interleave(share, 1) for part in (keys, values))
    return ((query @ keys.transpose(2, 3)) * scale + mask).softmax(-1) @ values


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("backend", [sdpa, sdpa_folded, flex_attention])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_every_backend_computes_attention(backend: Any, shape: tuple[int, ...]) -> None:
    given = inputs(*shape)
    torch.testing.assert_close(backend(*given), plain(*given), rtol=1e-4, atol=1e-5)


@pytest.mark.long  # the compiler takes a minute
def test_flex_attention_is_the_same_compiled() -> None:
    """Of several queries: of one query of each row torch 2.13's kernel for CPUs computes something else."""
    given = inputs(*SHAPES[0])
    compiled = torch.compile(flex_attention, fullgraph=True)
    with torch.inference_mode():
        torch.testing.assert_close(compiled(*given), plain(*given), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("kind", ["causal", "trigram"])
def test_texts_are_the_same_by_flex_attention(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights as on a GPU: there no compiled pass of the CPU's takes attention over."""
    monkeypatch.setattr(products, "product_of", lambda weight, bias: PlainLinear(weight.detach(), bias))
    monkeypatch.setattr(llama_forward, "_compiled", lambda fused, module: None)
    asked: list[int] = []
    whole = backends.flex_attention
    monkeypatch.setattr(backends, "flex_attention", lambda *given: (asked.append(len(given[0])), whole(*given))[1])
    attention_backend.cache_clear()
    pair = random_pair("llama")
    serve = {"serve__attention_backend": "flex_attention", "serve__max_length": 64, "drafters__kind": kind}
    engine = Engine(pair, settings_of(gamma__rule="fixed", gamma__initial=3, **serve))
    for done in engine.run([Request(p, max_new_tokens=8, ignore_eos=True) for p in prompts(3)]):
        assert list(done.tokens) == alone(pair.target.module, done.request.prompt_tokens, 8)
    attention_backend.cache_clear()
    assert max(asked) > 1


def test_what_is_not_here_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    with pytest.raises(BadSetting, match=r"serve\.attention_backend.*not installed \(pip install flashinfer-python\)"):
        attention_backend("flashinfer", CPU)
    monkeypatch.setitem(sys.modules, "flashinfer", ModuleType("flashinfer"))
    with pytest.raises(BadSetting, match="this model is on cpu"):
        attention_backend("flashinfer", CPU)
    with pytest.raises(BadSetting, match="transformers' own pass"):
        Engine(random_pair("gpt_neox"), settings_of(serve__attention_backend="flex_attention"))
    assert attention_backend("auto", CPU) is attention_backend("sdpa", CPU) is sdpa


@pytest.mark.parametrize("wrong", [1, 5])
def test_one_that_computes_something_else_is_refused(wrong: int) -> None:
    def off(query: Tensor, *rest: Any) -> Tensor:
        seen = sdpa(query, *rest)
        return seen + 0.1 * (query.shape[2] == wrong)

    require_same("flex_attention", sdpa, CPU, torch.float32)
    for dtype in (torch.float32, torch.bfloat16):
        with pytest.raises(
            BadSetting, match=rf"off from sdpa by 0\.1\d? on cpu for {wrong} queries of a row; set auto"
        ):
            require_same("flex_attention", off, CPU, dtype)


def test_flashinfer_is_asked_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs on GPUs alone: what it is given is computed plainly here, by its documented shapes."""
    library: Any = ModuleType("flashinfer")

    def prefill(q: Tensor, k: Tensor, v: Tensor, *, custom_mask: Tensor, kv_layout: str, sm_scale: float) -> Tensor:
        assert kv_layout == "HND" and custom_mask.dtype == torch.bool and q.is_contiguous()
        assert custom_mask.shape == (len(q), k.shape[1])
        mask = torch.where(custom_mask, 0.0, -torch.inf)[None, None]
        return plain(q.transpose(0, 1)[None], k[None], v[None], mask, sm_scale)[0].transpose(0, 1)

    library.single_prefill_with_kv_cache = prefill
    monkeypatch.setitem(sys.modules, "flashinfer", library)
    attend = attention_backend("flashinfer", torch.device("cuda", 7))
    for shape in SHAPES:
        given = inputs(*shape)
        torch.testing.assert_close(attend(*given), plain(*given), rtol=1e-4, atol=1e-5)
