"""Compiled draws and verdicts are those of the plain way, but for rounding."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from osd.engine.engine import Engine
from osd.kernels.code_cache import BackgroundCompile
from osd.logits import RaggedLogits
from osd.models.acceptance_head import HeadPass
from osd.verification import compiled_sampling
from osd.verification.rejection_sampling import accept_sampled, acceptance_chance, expected_acceptance
from osd.verification.warping import Warp, draw
from storage.records import Request
from storage.sampling import Sampling
from tests.osd.models.test_acceptance_head import WIDTH, random_head
from tests.support.models import random_pair
from tests.support.settings import settings_of

pytestmark = pytest.mark.usefixtures("compiled")

CPU = torch.device("cpu")
ROUNDING = 1e-5
"""A chance so near to where a draw or a verdict changes may come out either way."""
WAYS = st.builds(
    Sampling, st.sampled_from([0.0, 1e-300, 2e-38, 1e-30, 0.01, 0.7, 1.0, 3.0]),
    st.sampled_from([None, 1, 3, 20, 5000]), st.sampled_from([None, 0.01, 0.5, 0.9, 0.999, 1.0]),
)  # fmt: skip


def warp_of(rows: list[Sampling], vocabulary: int) -> Warp:
    warp = Warp.of([*rows, Sampling(1.0)], vocabulary, CPU)
    assert warp is not None
    return warp.take(range(len(rows)))


def logits_of(seed: int, *shape: int) -> Tensor:
    """Some in steps, so that many are equal; some of them cut off."""
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(*shape, generator=g) * 3
    if seed % 3 == 0:
        logits = logits.round()
    if seed % 5 == 0:
        logits[..., max(1, shape[-1] // 2) :] = -torch.inf
    return logits


def ragged(logits: Tensor, lengths: list[int]) -> RaggedLogits:
    """Of (B, G + 1, V) what each row has of them: after its last token, and after each of its draft."""
    counts = [length + 1 for length in lengths]
    return RaggedLogits.packed(torch.cat([own[:count] for own, count in zip(logits, counts, strict=True)]), counts)


def clear(p: Tensor, chance: Tensor) -> Tensor:
    """Whether a draw from p (B, V) is not a matter of rounding."""
    mass = p.double().cumsum(-1)
    edges = torch.cat([mass, torch.zeros(len(p), 1, dtype=torch.float64)], -1) / mass[:, -1:]
    return (edges - chance.unsqueeze(-1)).abs().amin(-1) > ROUNDING


@settings(max_examples=150)
@given(st.integers(0, 10_000), st.lists(WAYS, min_size=1, max_size=4), st.sampled_from([1, 2, 40, 127, 128, 129, 700]))
def test_it_draws_what_the_plain_way_draws(seed: int, rows: list[Sampling], vocabulary: int) -> None:
    logits, warp = logits_of(seed, len(rows), vocabulary), warp_of(rows, vocabulary)
    chance = torch.rand(len(rows), 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    chosen, q = compiled_sampling.draw(logits, warp, chance, 1)
    p = warp(logits.unsqueeze(1))[:, 0]
    torch.testing.assert_close(q, p, rtol=1e-4, atol=1e-6)
    assert bool((q.gather(1, chosen.unsqueeze(1)) > 0).all())
    sure = clear(p, chance[:, 1])
    assert chosen[sure].tolist() == draw(p, chance[:, 1])[sure].tolist()


@settings(max_examples=150)
@given(st.integers(0, 10_000), st.lists(WAYS, min_size=1, max_size=4), st.integers(0, 4), st.sampled_from([2, 9, 300]))
def test_it_judges_as_the_plain_way_does(seed: int, rows: list[Sampling], size: int, vocabulary: int) -> None:
    g = torch.Generator().manual_seed(seed)
    warp, logits = warp_of(rows, vocabulary), logits_of(seed, len(rows), size + 1, vocabulary)
    near = logits[:, :size] + torch.randn(len(rows), size, vocabulary, generator=g)
    chance = torch.rand(len(rows), 2 * (size + 1) + 1, dtype=torch.float64, generator=g)
    p, q = warp(logits), warp(near) if size else logits[:, :0]
    drafted = draw(q, chance[:, :size])
    lengths = torch.randint(0, size + 1, (len(rows),), generator=g)
    tests, last = chance[:, size + 1 : 2 * size + 1], chance[:, -1]
    accepted, follows = accept_sampled(p, q, drafted, lengths, tests, last)
    chances, shared = acceptance_chance(p, q, drafted), expected_acceptance(p[:, :-1], q)
    scored = ragged(logits, lengths.tolist())
    for keep in (True, False):
        judged = compiled_sampling.judge(
            scored, q if size else None, drafted, lengths.tolist(), warp, chance, keep=keep
        )
        for i, length in enumerate(lengths.tolist()):
            if bool(((tests[i, :length] - chances[i, :length]).abs() < ROUNDING).any()):
                continue
            kept = judged.accepted[i]
            assert kept == accepted[i]
            seen = min(kept + 1, length)
            torch.testing.assert_close(torch.tensor(judged.shared[i][:seen]), shared[i, :seen], rtol=1e-3, atol=1e-5)
            after = p[i, kept] if kept == length else (p[i, kept] - q[i, kept]).clamp(min=0)
            if after.sum() > ROUNDING and bool(clear(after.unsqueeze(0), last[i : i + 1])):
                assert judged.follows[i] == follows[i]
    assert judged.chances is None
    judged = compiled_sampling.judge(scored, q if size else None, drafted, lengths.tolist(), warp, chance, keep=True)
    assert judged.chances is not None
    for i, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(judged.chances[i, :length], chances[i, :length], rtol=1e-3, atol=1e-5)
        assert bool(judged.chances[i, length:].isnan().all())


def test_it_draws_the_last_token_that_can_be_and_none_that_cannot() -> None:
    """Where a chance is so near 1 that rounding puts it at the end of everything."""
    logits = torch.full((1, 256), -torch.inf)
    logits[0, [3, 130]] = torch.tensor([0.3, 0.7]).log()
    for chance, token in ((0.0, 3), (0.2999, 3), (0.3001, 130), (1 - 2**-53, 130)):
        chances = torch.full((1, 1), chance, dtype=torch.float64)
        assert compiled_sampling.draw(logits, warp_of([Sampling(1.0)], 256), chances, 0)[0].item() == token


def test_equal_distributions_accept_everything_and_disjoint_ones_nothing() -> None:
    left, right = torch.tensor([0.5, 0.5, 0, 0]).log(), torch.tensor([0, 0, 0.5, 0.5]).log()
    warp, chance = warp_of([Sampling(1.0)], 4), torch.tensor([[0.0, 0.999999, 0.1]], dtype=torch.float64)
    one = torch.tensor([[1]])
    for q, taken in ((left, 1), (right, 0)):
        said = RaggedLogits.of(torch.stack([left, right]).unsqueeze(0))
        found = compiled_sampling.judge(
            said, q.exp()[None, None], one if taken else one + 1, [1], warp, chance, keep=False
        )
        assert found.accepted == [taken]
        assert found.follows[0] in ((2, 3) if taken else (0, 1))


@pytest.mark.parametrize("nothing", [-torch.inf, torch.inf, torch.nan])
@pytest.mark.parametrize("way", [Sampling(1.0), Sampling(1.0, top_k=2), Sampling(1.0, top_p=0.5)])
def test_what_is_no_distribution_still_brings_a_token(nothing: float, way: Sampling) -> None:
    """As by the plain way; a draft whose numbers are broken is refused, and the target's own tokens come."""
    logits, warp = torch.full((1, 2, 5), nothing), warp_of([way], 5)
    chance = torch.full((1, 3), 0.5, dtype=torch.float64)
    chosen, q = compiled_sampling.draw(logits[:, 0], warp, chance, 0)
    assert 0 <= int(chosen[0]) < 5
    right = torch.tensor([0.0, 9.0, 0.0, 0.0, 0.0]).expand(1, 2, 5)
    for said, drawn_from in ((logits, q), (right, torch.zeros(1, 5)), (right, q)):
        scored = RaggedLogits.of(said)
        found = compiled_sampling.judge(
            scored, drawn_from.unsqueeze(1), chosen.unsqueeze(1), [1], warp, chance, keep=True
        )
        assert 0 <= found.follows[0] < 5
    assert found.follows == [1]


def test_what_it_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.zeros(1, 1, 8)
    assert compiled_sampling.takes(logits)
    assert not compiled_sampling.takes(logits.bfloat16())
    assert not compiled_sampling.takes(logits.to("meta"))
    monkeypatch.setattr(compiled_sampling, "MOST_NUMBERS", 7)
    assert not compiled_sampling.takes(logits)


def texts(rounds: int, heard: list[float] | None = None) -> list[tuple[int, ...]]:
    """Of requests that are cut off in three ways, with drafts of two tokens; ``heard``: of each that was judged, how
    often one drawn there is accepted."""
    pair = random_pair("llama", noise=0.3)
    engine = Engine(pair, settings_of(serve__max_batch=2, serve__max_length=64, gamma__rule="fixed", gamma__initial=2))
    told = [] if heard is None else heard
    engine.listeners.append(
        lambda rows, _, verdict, __: told.extend(chance for i in range(len(rows)) for chance in verdict.acceptance(i))
    )
    ways = [Sampling(0.8, seed=1), Sampling(1.0, top_k=5, seed=2), Sampling(1.0, top_p=0.7, seed=3), Sampling()]
    asked = [Request((3, 4, 5), max_new_tokens=rounds, ignore_eos=True, sampling=way) for way in ways]
    done = {completion.request.id: completion.tokens for completion in engine.run(asked)}
    return [done[request.id] for request in asked]


def test_nothing_is_compiled_while_it_decodes() -> None:
    """The calls that compile it are of the kinds that an engine makes."""
    texts(8)
    compiled = compiled_sampling.CHOOSING.ready
    assert [len(getattr(compiled, name).signatures) for name in ("likeliest", "draw", "judge", "read_off")] == [1] * 4


@given(st.integers(0, 10_000), st.integers(1, 600))
def test_the_likeliest_is_the_first_of_the_largest(seed: int, vocabulary: int) -> None:
    logits = logits_of(3 * seed, 6, vocabulary)  # in steps, so that some are as large
    assert compiled_sampling.likeliest(logits) == logits.argmax(-1).tolist()


@torch.inference_mode()
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_what_is_read_off_logits(rows: int, depth: int) -> None:
    """The head as PyTorch runs it over the same embeddings."""
    logits, embedding = logits_of(4, rows, 1, 700), logits_of(7, rows, 1, WIDTH)
    head = HeadPass(random_head(depth), CPU)
    read_off = compiled_sampling.read_off(logits, embedding, head.arrays)
    assert read_off is not None
    assert read_off.choices.tolist() == logits[:, 0].argmax(-1).tolist()
    assert read_off.peaks == pytest.approx(logits[:, 0].softmax(-1).amax(-1).tolist(), rel=1e-5)
    assert read_off.chances == pytest.approx(head(embedding[:, 0]).tolist(), rel=1e-4)
    half = compiled_sampling.read_off(logits, embedding.bfloat16(), head.arrays)
    assert half is not None and half.chances == pytest.approx(read_off.chances, rel=0.1)
    for nobody in (
        compiled_sampling.read_off(logits, embedding, None),
        compiled_sampling.read_off(logits, None, head.arrays),
    ):
        assert nobody is not None and nobody.chances is None


def test_of_equal_logits_the_first_is_read_off_and_of_broken_ones_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.zeros(2, 1, 60)
    logits[0, 0, 7] = logits[0, 0, 50] = 3.0
    logits[1, 0, 9] = torch.nan
    read_off = compiled_sampling.read_off(logits, None, None)
    assert read_off is not None
    assert int(read_off.choices[0]) == 7
    assert 0 <= int(read_off.choices[1]) < 60
    monkeypatch.setattr(compiled_sampling, "CHOOSING", BackgroundCompile(lambda: None, "test", "not compiled"))
    assert compiled_sampling.read_off(logits, None, None) is None


def test_a_seed_has_the_same_text_before_and_after_it_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[float] = []
    quick, before = texts(40, heard), list(heard)
    with monkeypatch.context() as patch:
        patch.setattr(compiled_sampling, "CHOOSING", BackgroundCompile(lambda: None, "test", "not compiled"))
        heard.clear()
        assert texts(40, heard) == quick
    assert len(before) > 40 and before == pytest.approx(heard, rel=1e-3, abs=1e-5)


def test_the_compiler_is_asked_for_once_rows_have_sampled_for_some_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    later = BackgroundCompile(lambda: None, "test", "not compiled")
    monkeypatch.setattr(later, "start", lambda: started.append(1))
    monkeypatch.setattr(compiled_sampling, "CHOOSING", later)
    monkeypatch.setattr(compiled_sampling, "WORTH_COMPILING", 12)
    monkeypatch.setattr(compiled_sampling, "_ASKED", iter(range(1, 1000)))
    for _ in range(11):
        assert not compiled_sampling.takes(torch.zeros(1, 1, 8))
    assert not started
    compiled_sampling.takes(torch.zeros(1, 1, 8))
    assert started == [1]
