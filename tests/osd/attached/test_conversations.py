"""What people have of prompts and responses, scored by a target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from osd.attached import passes
from osd.attached.conversations import Conversation, read_conversations
from osd.attached.passes import CHUNK, Scorer
from storage.errors import BadPromptFile
from tests.support.models import model_of, random_module


def written(path: Path, lines: list[Any]) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_every_form_gives_prompt_and_response(tmp_path: Path) -> None:
    user, assistant = {"role": "user", "content": "why?"}, {"role": "assistant", "content": "so."}
    answer = {"choices": [{"message": assistant}]}
    lines = [
        {"prompt": "why?", "response": "so."}, {"prompt": "why?", "completion": "so."}, {"messages": [user, assistant]},
        {"messages": [user], "response": answer}, {"request": {"messages": [user]}, "response": answer},
        {"request": {"prompt": "why?"}, "response": {"choices": [{"text": "so."}]}},
    ]  # fmt: skip
    found = list(read_conversations(written(tmp_path / "a.jsonl", lines)))
    assert all(isinstance(one, Conversation) and one.response == "so." for one in found)
    chats = [bool(one.messages) for one in found if isinstance(one, Conversation)]
    assert chats == [False, False, True, True, True, False]


@pytest.mark.parametrize(
    "line",
    ["no json", "[]", {"prompt": "why?"}, {"response": "so."}, {"prompt": " ", "response": "so."},
     {"messages": [{"role": "user", "content": "why?"}]}, {"prompt": "why?", "response": {"choices": []}},
     {"messages": ["why?"], "response": "so."}],
)  # fmt: skip
def test_a_line_that_is_none_is_named_and_the_next_goes_on(tmp_path: Path, line: Any) -> None:
    found = list(read_conversations(written(tmp_path / "a.jsonl", [line, {"prompt": "why?", "response": "so."}])))
    assert isinstance(found[0], BadPromptFile) and "line 1" in str(found[0]) and isinstance(found[1], Conversation)


LINES = st.lists(st.recursive(st.none() | st.booleans() | st.text(max_size=5), lambda x: st.lists(x) | st.dictionaries(
    st.sampled_from(["prompt", "messages", "response", "request", "role", "content", "choices", "message", "text"]), x
)), min_size=1, max_size=12)  # fmt: skip


@given(LINES)
def test_no_line_raises(tmp_path_factory: pytest.TempPathFactory, lines: list[Any]) -> None:
    path = written(tmp_path_factory.mktemp("lines") / "a.jsonl", lines)
    assert all(isinstance(one, Conversation | BadPromptFile) for one in read_conversations(path))


@pytest.mark.parametrize(("count", "begin"), [(9, 1), (40, 7), (200, 3)])
def test_scores_are_the_targets_own(count: int, begin: int) -> None:
    module = random_module("llama")
    tokens = torch.randint(2, 90, (count,), generator=torch.Generator().manual_seed(count)).tolist()
    found = Scorer(model_of(module), 5, 256)(tokens, begin)
    plain = module(torch.tensor([tokens])).logits[0].log_softmax(-1)[begin - 1 : -1]
    values, ids = plain.topk(5)
    assert (found.ids == ids.numpy()).all() and np.allclose(found.logprobs, values.numpy(), atol=1e-4)
    assert np.allclose(found.outside, 1 - values.exp().sum(-1).numpy(), atol=1e-4) and CHUNK > 1


@pytest.mark.parametrize(("kind", "count", "begin"), [("llama", 200, 3), ("llama", 9, 1), ("gpt2", 40, 7)])
def test_states_are_those_that_the_output_layer_reads(
    kind: str, count: int, begin: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "CHUNK", 64)
    module = random_module(kind)
    tokens = torch.randint(2, 90, (count,), generator=torch.Generator().manual_seed(count)).tolist()
    scorer = Scorer(model_of(module), 5, 256)
    tops, states = scorer.with_states(tokens, begin)
    plain = module(torch.tensor([tokens]), output_hidden_states=True).hidden_states[-1][0, begin - 1 : -1]
    assert states.dtype == np.float16 and states.shape == plain.shape
    assert np.allclose(states, plain.numpy(), atol=2e-2)
    for one, other in zip(tops, scorer(tokens, begin), strict=True):
        assert np.allclose(one, other, atol=1e-5)
