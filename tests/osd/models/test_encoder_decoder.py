"""Encoder-decoder models: which load, and what is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf

from osd.attached.passes import Scorer
from osd.engine.engine import Engine
from osd.models.encoder_decoder import EncoderDecoderForward, layers_of
from osd.models.features.new import new_feature_draft
from osd.models.features.target import FeatureTarget
from osd.models.pair import load_model, load_pair
from osd.models.target_only import load_with_text_draft
from osd.server.start import SHIPPED
from storage.errors import BadRequest, CannotServeTrees, DecoderOnly, KindMismatch, ModelNotLoaded
from storage.records import Request
from tests.support.encoder_decoders import KINDS, encoder_decoder_pair, random_encoder_decoder
from tests.support.models import random_module
from tests.support.settings import settings_of

CPU = torch.device("cpu")
FLAN_T5_SMALL: dict[str, Any] = {
    "d_ff": 1024, "d_kv": 64, "d_model": 512, "decoder_start_token_id": 0, "dropout_rate": 0.1, "eos_token_id": 1,
    "feed_forward_proj": "gated-gelu", "initializer_factor": 1.0, "is_encoder_decoder": True,
    "layer_norm_epsilon": 1e-06, "num_decoder_layers": 8, "num_heads": 6, "num_layers": 8, "pad_token_id": 0,
    "relative_attention_max_distance": 128, "relative_attention_num_buckets": 32, "tie_word_embeddings": False,
    "use_cache": True, "vocab_size": 32128,
}  # fmt: skip
"""google/flan-t5-small's config.json."""


def saved(kind: str, folder: Path) -> Path:
    module = random_encoder_decoder(kind) if kind in KINDS else random_module(kind)
    module.save_pretrained(folder / kind)
    return folder / kind


def test_flan_t5s_published_configuration_loads_with_random_weights(tmp_path: Path) -> None:
    with torch.device("cpu"):
        module: Any = tf.T5ForConditionalGeneration(tf.T5Config(**FLAN_T5_SMALL))
    module.to(torch.bfloat16).save_pretrained(tmp_path)
    del module
    model = load_model(tmp_path, CPU)
    assert model.build is EncoderDecoderForward and model.start == (0,) and model.vocab_size == 32128
    assert layers_of(model.module.config) == 8 and model.limit > 1 << 20


def test_the_layers_that_keep_keys_are_the_decoders() -> None:
    for kind in KINDS:
        config = random_encoder_decoder(kind).config
        assert layers_of(config) == 3 and config.num_hidden_layers == 2


@pytest.mark.parametrize("drafter", ["trigram", "lookup"])
def test_trees_are_refused_by_name(drafter: str) -> None:
    pair = encoder_decoder_pair("t5")
    with pytest.raises(CannotServeTrees, match="Encoder-decoder targets draft chains"):
        Engine(pair, settings_of(drafters__kind=drafter))


@pytest.mark.parametrize(("target", "draft"), [("t5", "llama"), ("llama", "t5"), ("bart", "gpt2")])
def test_one_kind_does_not_draft_for_the_other(target: str, draft: str, tmp_path: Path) -> None:
    with pytest.raises(KindMismatch, match="one is an encoder-decoder model, the other is not"):
        load_pair(saved(target, tmp_path), saved(draft, tmp_path), device="cpu")


def test_a_universal_draft_is_refused_both_ways(tmp_path: Path) -> None:
    with pytest.raises(DecoderOnly, match="universal"):
        load_with_text_draft(saved("t5", tmp_path), SHIPPED / "draft", device="cpu")
    tf.AutoTokenizer.from_pretrained(str(SHIPPED / "draft")).save_pretrained(saved("bart", tmp_path))
    with pytest.raises(DecoderOnly, match="universal"):
        load_with_text_draft(SHIPPED / "target", tmp_path / "bart", device="cpu")


def test_what_reads_a_decoders_own_text_is_refused() -> None:
    pair = encoder_decoder_pair("t5")
    with pytest.raises(DecoderOnly, match="specdecpp"):
        Engine(pair, settings_of(gamma__rule="specdecpp"))
    with pytest.raises(DecoderOnly, match="record_branches"):
        Engine(pair, settings_of(serve__record_branches=True))
    with pytest.raises(DecoderOnly, match="served elsewhere"):
        Scorer(pair.target, 8, 64)
    with pytest.raises(DecoderOnly, match="Medusa"):
        new_feature_draft("eagle", FeatureTarget(pair.target.module))


def test_a_pass_is_timed_before_any_encoder_has_read() -> None:
    """As a server does when it starts; what a row says afterwards is its own."""
    with torch.inference_mode():
        decoder, tokens = encoder_decoder_pair("bart").target.decoder(2, 32), torch.tensor([[3, 4], [5, 6]])
        assert decoder.scored(tokens, [4, 4], [2, 2]).lines.isfinite().all()
        fresh = encoder_decoder_pair("bart").target.decoder(1, 32)
        torch.testing.assert_close(decoder.read_whole(tokens[:1]), fresh.read_whole(tokens[:1]), rtol=1e-4, atol=1e-4)


def test_log_probabilities_of_what_an_encoder_reads_are_refused() -> None:
    engine = Engine(encoder_decoder_pair("t5"), settings_of(serve__max_length=64))
    with pytest.raises(BadRequest, match="an encoder reads the prompt"):
        engine.submit(Request((3, 4), max_new_tokens=2, prompt_logprobs=1))
    assert not engine.busy


def test_a_configuration_without_a_start_token_is_refused(tmp_path: Path) -> None:
    module = random_encoder_decoder("t5")
    module.config.decoder_start_token_id = None
    module.generation_config = tf.GenerationConfig(pad_token_id=0)
    module.save_pretrained(tmp_path)
    with pytest.raises(ModelNotLoaded, match="decoder_start_token_id"):
        load_model(tmp_path, CPU)
