"""What topics are told from: prompts of the traffic as hashed features, which end with their requests."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from router.classifier_models import ClassifierModels, model_folder
from router.topic import features_of
from storage.settings import RouterSettings
from storage.store import Store
from tests.trainer.routes.conftest import Domains, keep
from trainer.routes.topics import LEAST, PromptReader, TopicBackground

CHATML = (
    "{% for m in messages %}{{ '[' + m.role + '] ' + m.content + ' [end] ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant] ' }}{% endif %}"
)


def words(template: str | None = None) -> Any:
    vocabulary = ["?", "[user]", "[assistant]", "[system]", "[end]", "select", "names", "Hello", "there", "be", "brief"]
    model = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="?"))
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model)  # type: ignore[no-untyped-call]
    tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize(
    ("template", "text", "seen"),
    [
        (None, "[user] select names", "[user] select names"),
        (CHATML, "[system] be brief [end] [user] Hello there [end] [assistant]", "Hello there"),
        (CHATML, "[user] Hello [end] [assistant] there [end] [user] select names [end] [assistant]", "select names"),
        (CHATML, "select names", "select names"),  # a completion, without a chat
        ("{{ raise_exception('no') }}", "[user] select names", "[user] select names"),
    ],
)
def test_a_prompt_is_read_as_it_was_routed(template: str | None, text: str, seen: str) -> None:
    tokenizer = words(template)
    assert PromptReader(tokenizer).text(tokenizer(text)["input_ids"]) == seen


def test_nothing_is_taken_before_a_topic_is_taught_or_from_too_little(drafted: Store, domains: Domains) -> None:
    keep(drafted, domains["low"][: LEAST - 1])
    background = TopicBackground(drafted)
    drafted.examples.teach([("sql", "select names")])
    assert background.take_if_due() == 0
    keep(drafted, domains["low"][LEAST - 1 :])
    drafted.examples.forget("sql")
    assert background.take_if_due() == 0


def test_it_is_taken_again_when_topics_or_traffic_have_changed(drafted: Store, domains: Domains) -> None:
    drafted.examples.teach([("sql", "select names")])
    background = TopicBackground(drafted)
    keep(drafted, domains["low"][:20])
    assert [background.take_if_due(), background.take_if_due()] == [20, 0]
    keep(drafted, domains["low"][20:30])
    assert background.take_if_due() == 0
    drafted.examples.teach([("soup", "boil leeks")])
    assert [background.take_if_due(), background.take_if_due()] == [30, 0]
    keep(drafted, [*domains["low"][30:], *domains["high"]])
    assert [background.take_if_due(), background.take_if_due()] == [96, 0]
    assert [change.action for change in drafted.routes.history()] == [
        "router background", "router background", "router teach", "router background", "router teach",
    ]  # fmt: skip


def test_what_is_kept_is_no_text_and_ends_with_its_request(drafted: Store, domains: Domains) -> None:
    drafted.examples.teach([("sql", "select names")])
    kept = keep(drafted, domains["low"][:20])
    TopicBackground(drafted).take_if_due()
    first = " ".join(f"w{token}" for token in kept[0].tokens[: kept[0].prompt_len])
    assert any(
        (features_of(first) == row).all() for row in drafted.background.list() if row.size == features_of(first).size
    )
    drafted.forgetter.forget([kept[0].request_id])
    drafted.samples.purge(before=kept[10].created_at)
    assert len(drafted.background.list()) == 10


def test_servers_learn_topics_anew_from_it(drafted: Store, domains: Domains) -> None:
    classifiers = ClassifierModels(drafted, RouterSettings())
    drafted.examples.teach([("sql", f"select the names of table {i}") for i in range(12)])
    drafted.examples.teach([("soup", f"boil {i} leeks gently") for i in range(12)])
    before = classifiers.topics()
    keep(drafted, domains["low"])
    TopicBackground(drafted).take_if_due()
    after = classifiers.topics()
    assert before is not None and after is not None and after is not before
    stranger = "w3 w7 w11 w2 w19"
    assert after.predict(stranger).confidence < before.predict(stranger).confidence
    assert after.predict("select the names of table 40").label == "sql"
    files = sorted(model_folder(drafted).iterdir())
    drafted.forgetter.forget([next(iter(drafted.samples.recent(limit=1)))])
    assert classifiers.topics() is not after, "what it learned from a forgotten prompt goes, on the disk too"
    assert not set(files) & set(model_folder(drafted).iterdir())
