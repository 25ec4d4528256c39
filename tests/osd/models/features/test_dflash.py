"""DFlash against transformers' own generator and cache, whose module of such a draft is Muse Glimmer's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import GenerationConfig
from transformers.generation import DFlashTokenCandidateGenerator
from transformers.models.muse_glimmer_assistant import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel

from osd.models.features.decoder import feature_model, feature_target
from osd.models.features.target import read_features
from tests.support.features import random_at_once
from tests.support.models import model_of, random_module, some

SAME = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "rms_norm_eps", "rope_parameters", "max_position_embeddings", "layer_types", "block_size", "mask_token_id",
    "target_layer_ids",
)  # fmt: skip


def theirs_of(draft: Any, module: Any) -> DFlashTokenCandidateGenerator:
    """transformers' generator with a draft's weights."""
    facts = {name: getattr(draft.config, name) for name in SAME}
    if draft.config.sliding_window is not None:
        facts["sliding_window"] = draft.config.sliding_window - 1  # transformers sees both ends of it, vLLM one
    model = MuseGlimmerAssistantModel(MuseGlimmerAssistantConfig(**facts)).eval()
    renamed = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
    model.load_state_dict({renamed.get(name, name): value for name, value in draft.state_dict().items()})
    asked = GenerationConfig(max_length=64, do_sample=False)
    ends = module.get_input_embeddings(), module.get_output_embeddings()
    return DFlashTokenCandidateGenerator(model, *ends, asked)


@pytest.mark.parametrize("facts", [{}, {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8,
                                        "causal": False}])  # fmt: skip
@torch.no_grad()
def test_rounds_are_those_of_transformers(facts: dict[str, Any]) -> None:
    """Blocks of eight, in three rounds of which the first two accepted some of what they drafted."""
    module = random_module("llama")
    target = model_of(module)
    draft = random_at_once("dflash", feature_target(target), **facts)
    theirs, ours = theirs_of(draft, module), feature_model("draft", draft, target).decoder(1, 64)
    text = some(1, 24, 5)
    features, _ = read_features(module, text[:, :-1], draft.feature_layers(module))
    theirs.get_candidates(text[:, :8], {}, SimpleNamespace(), True, 0)
    for begin, end, kept in ((0, 7, 0), (7, 10, 2), (10, 16, 5)):
        known = text[:, : end + 1]
        places = {"position_ids": torch.arange(end + 1)[None], "attention_mask": torch.ones(1, end + 1).long()}
        told = SimpleNamespace(hidden_states={1: features[:, begin:end]})
        drafted, logits = theirs.get_candidates(known, places, told, False, kept)
        hidden = ours.read([begin], features[:, begin:end], text[:, begin + 1 : end + 1], [end - begin], ahead=7)
        said = torch.stack([ours.logits(hidden, step)[0] for step in range(7)])
        assert (said - logits[0]).abs().max() < 1e-4
        assert said.argmax(-1).tolist() == drafted[0, end + 1 :].tolist()
