"""A draft with a vocabulary of its own: texts are the target's, and what agrees with it is accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from osd.drafters.factory import require_drafter
from osd.drafters.universal import WINDOW
from osd.engine.engine import Engine
from osd.models.model import TextDraft
from osd.models.needs_draft import NeedsDraft
from osd.models.pair import Pair, load_pair
from osd.models.target_only import NullModel, load_with_text_draft
from osd.server.start import choose_pair
from storage.errors import BadSetting, ModelNotLoaded, VocabularyMismatch
from storage.records import Request
from storage.sampling import Sampling
from storage.settings import ServeSettings
from tests.lossless.test_lossless import serve
from tests.support.models import alone, model_of, random_module
from tests.support.settings import settings_of
from trainer.__main__ import _require_learnable

pytestmark = pytest.mark.usefixtures("compiled")

POEM = "the sea is wide, the sea is grün, the wind comes over from the west; nobody knows what it has seen. "
OTHER = "she sells sea shells where western winds blow over wide green hills, and nobody has known what grün is. "


def byte_level(text: str, size: int) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator([text], trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def metaspace(text: str) -> PreTrainedTokenizerFast:
    """Words and letters; written down, for training one does not give the same pieces each time."""
    words, letters = {f"▁{word}" for word in text.split()}, {"▁", *text.replace(" ", "")}
    pieces = [
        ("<unk>", 0.0),
        *((word, -2.0) for word in sorted(words)),
        *((each, -5.0) for each in sorted(letters - words)),
    ]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()  # type: ignore[assignment]
    tokenizer.decoder = decoders.Metaspace()  # type: ignore[assignment]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def knows(tokenizer: Any, text: str, seed: int) -> Any:
    """A small model that has learned a text by heart."""
    module = random_module("llama", seed, len(tokenizer)).requires_grad_(True).train()
    for name, weight in module.named_parameters():
        if weight.dim() > 1 and "embed" not in name:
            weight.data.div_(4.0)
    ids = torch.tensor([tokenizer.encode(text * 3, add_special_tokens=False)])[:, :160]
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    for _ in range(120):
        optimizer.zero_grad()
        module(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    return module.requires_grad_(False).eval()


def pair_of(target: Any, ours: Any, draft: Any, theirs: Any) -> Pair:
    model = model_of(target, "target")
    return Pair(
        model, NullModel(model.device), ours, frozenset(), TextDraft(model_of(draft, "draft"), theirs, frozenset())
    )


def engine_of(pair: Pair, **chosen: object) -> Engine:
    base = {"serve__max_batch": 3, "serve__max_length": 240, "gamma__rule": "fixed", "gamma__initial": 4}
    return Engine(pair, settings_of(**{**base, "drafters__kind": "universal", **chosen}))


TOKENIZERS = {
    "bytes": byte_level(POEM, 300), "others": byte_level(OTHER, 330), "pieces": metaspace(POEM + OTHER),
}  # fmt: skip


@settings(max_examples=10)
@given(
    ours=st.sampled_from(sorted(TOKENIZERS)), theirs=st.sampled_from(sorted(TOKENIZERS)),
    prompts=st.lists(st.text(min_size=1, max_size=20), min_size=2, max_size=4), temperature=st.sampled_from([0.0, 0.9]),
)  # fmt: skip
def test_texts_are_the_targets_own(ours: str, theirs: str, prompts: list[str], temperature: float) -> None:
    mine, other = TOKENIZERS[ours], TOKENIZERS[theirs]
    target = random_module("llama", vocabulary=len(mine))
    pair = pair_of(target, mine, random_module("llama", 1, len(other)), other)
    texts = [tuple(mine.encode(prompt)) or (3,) for prompt in prompts]
    hot = [Sampling(temperature, seed=i) for i in range(len(texts))]
    asked = [Request(text, 8 + 8 * i, sampling=hot[i], ignore_eos=True) for i, text in enumerate(texts)]
    got = serve(engine_of(pair), asked)
    if not temperature:
        assert got == [alone(target, request.prompt_tokens, request.max_new_tokens) for request in asked]
    assert [len(text) for text in got] == [request.max_new_tokens for request in asked]


@pytest.mark.parametrize("theirs", ["others", "pieces"])
def test_a_draft_that_agrees_is_accepted(theirs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("osd.drafters.universal.WINDOW", WINDOW // 16)  # the draft begins anew within the text
    ours, other = TOKENIZERS["bytes"], TOKENIZERS[theirs]
    target = knows(ours, POEM, 0)
    pair = pair_of(target, ours, knows(other, POEM, 1), other)
    engine = engine_of(pair)
    asked = [Request(tuple(ours.encode(POEM[:n])), 40, ignore_eos=True) for n in (30, 45, 60, 75)]
    rounds = []
    for done in engine.run(asked):
        assert list(done.tokens) == alone(target, done.request.prompt_tokens, 40)
        rounds += done.rounds
    drafted, accepted = (sum(getattr(each, name) for each in rounds) for name in ("drafted", "accepted"))
    assert accepted > 0.5 * drafted > 20


def test_what_is_loaded_and_what_is_refused(tmp_path: Path) -> None:
    for name, vocabulary in (("target", "bytes"), ("draft", "pieces")):
        random_module("llama", vocabulary=len(TOKENIZERS[vocabulary])).save_pretrained(tmp_path / name)
        TOKENIZERS[vocabulary].save_pretrained(tmp_path / name)
    target, draft = str(tmp_path / "target"), str(tmp_path / "draft")
    with pytest.raises(VocabularyMismatch):
        load_pair(target, draft)
    names = choose_pair(ServeSettings(), target, draft, drafter="universal")
    pair = names.load(ServeSettings(device="cpu"))
    require_drafter(pair, settings_of(drafters__kind="universal"))
    assert pair.text_draft is not None and len(pair.text_draft.tokenizer) != pair.vocab_size
    with pytest.raises(NeedsDraft):
        require_drafter(pair, settings_of(drafters__kind="causal"))
    for file in (tmp_path / "draft").glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ModelNotLoaded, match="no tokenizer"):
        load_with_text_draft(target, draft)


def test_it_does_not_learn() -> None:
    with pytest.raises(BadSetting, match="samples are in the target's tokens"):
        _require_learnable(settings_of(drafters__kind="universal"))
    _require_learnable(settings_of())
