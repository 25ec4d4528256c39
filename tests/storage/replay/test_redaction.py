"""What a redaction hook answers is what is written; where it fails, nothing is."""

from __future__ import annotations

import logging
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from osd.recording.recorder import Recorder
from storage.errors import BadSetting
from storage.redaction import Passage, Redactor, load_hook, redacted
from storage.settings import load_settings
from storage.store import open_store
from tests.storage.make import assert_same, samples, with_hidden


class Letters:
    """A tokenizer of one letter a token."""

    def batch_decode(self, ids):
        return [chr(97 + token % 26) for (token,) in ids]


def ids_alone() -> None:
    """A target without a tokenizer."""


def test_without_a_hook_everything_is_as_it_was():
    batch = [samples(0), samples(1)]
    assert Redactor(None)(batch) == batch


def test_changed_tokens_take_their_positions_along():
    one = samples(0)
    tokens = one.tokens.copy()
    tokens[[0, 6]] = 7
    (kept,) = Redactor(lambda passage: tokens.tolist(), ids_alone)([one])
    assert kept.tokens.tolist() == tokens.tolist()
    assert kept.positions.tolist() == [5, 7], "position 6 named the token that was taken out"
    assert kept.topk_ids.tolist() == one.topk_ids[[0, 2]].tolist()
    assert len(kept.acceptance) == len(kept.outside) == len(kept.kinds) == len(kept.drafted) == 2
    assert_same(redacted(one, one.tokens.tolist()), one)


def test_hidden_states_of_a_text_that_was_changed_are_not_kept():
    one = with_hidden(0)
    assert_same(redacted(one, one.tokens.tolist()), one)
    tokens = one.tokens.copy()
    tokens[0] = 7  # a token of the prompt: every state behind it knows of it
    assert redacted(one, tokens.tolist()).hidden_states is None


def test_a_pattern_over_the_text_blanks_every_token_that_it_touches():
    passage = Passage((1, 2, 3, 4), ("call ", "555-", "01", "99 now"), 2, "t", "default")
    assert passage.without(r"\d+-\d+", 0) == (1, 0, 0, 0)
    assert passage.without(r"l", 0) == (0, 2, 3, 4)
    assert passage.without(r"absent", 0) == (1, 2, 3, 4)


def test_the_hook_sees_the_text_and_may_refuse():
    seen = []
    redactor = Redactor(lambda passage: seen.append(passage), Letters)
    assert redactor([samples(0, tenant="acme")]) == []
    assert (redactor.refused, redactor.failed) == (1, 0)
    assert (seen[0].tenant, seen[0].prompt_len, len(seen[0].pieces)) == ("acme", 5, 9)


@pytest.mark.parametrize("answer", [[1, 2], "words", 5, [[1] * 9]])
def test_a_hook_that_answers_something_else_writes_nothing(answer):
    redactor = Redactor(lambda passage: answer, ids_alone)
    assert redactor([samples(0)]) == []
    assert redactor.failed == 1


def test_a_hook_that_raises_writes_nothing_and_its_words_are_not_logged(tmp_path: Path, monkeypatch, caplog):
    hooks = types.ModuleType("hooks_of_this_test")
    hooks.broken = lambda passage: (_ for _ in ()).throw(ValueError(f"secret {passage.tokens}"))
    hooks.masked = lambda passage: [0] * passage.prompt_len + list(passage.tokens[passage.prompt_len :])
    monkeypatch.setitem(sys.modules, "hooks_of_this_test", hooks)
    for name, expected in (("broken", []), ("masked", ["r1"])):
        redact = {"redact": f"hooks_of_this_test:{name}"}
        settings = load_settings(storage={"directory": tmp_path / name}, privacy=redact, serve={"record": "off"})
        with open_store(settings) as store, caplog.at_level(logging.ERROR):
            recorder = Recorder(store, settings, "test")
            ready = [[samples(1)]]
            recorder._assembler.samples_of = lambda ended, ready=ready: ready.pop() if ready else []
            recorder._flush()
            recorder.close()
            assert store.samples.recent(limit=9) == expected
            assert recorder.redactor.failed == (name == "broken")
            for one in store.samples.read(expected):
                assert not np.any(one.tokens[:5])
    assert "secret" not in caplog.text and "ValueError" in caplog.text


@pytest.mark.parametrize("name", ["nowhere.at.all:hook", "math:absent", "math:pi", "math"])
def test_a_hook_that_is_none_is_named(name):
    with pytest.raises(BadSetting, match=r"privacy\.redact"):
        load_hook(name)
