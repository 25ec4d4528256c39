"""Grammars: the mask is what trying each token says, along any path of drafted tokens; what cannot be is refused."""

from __future__ import annotations

import gc
import json
import random
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import jsonschema
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from osd.verification import grammar as grammar_module
from osd.verification.grammar import GrammarCompiler, GrammarProcessor
from storage.errors import BadRequest
from storage.sampling import Grammar
from tests.support.grammars import FAMILIES, TRAINING, compiler_of, followers, grammar_pair, schema, tokenizer_of

PERSON = {
    "type": "object", "additionalProperties": False, "required": ["né", "b"],
    "properties": {"né": {"enum": ["x y", "日"]}, "b": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}},
}  # fmt: skip
GRAMMARS = [
    schema(PERSON), schema({"type": ["integer", "null"], "minimum": 7, "maximum": 120}),
    Grammar("regex", "(ab|a)*c?"), Grammar("choice", json.dumps(["yes", "yesterday", "näin", '"'])),
    Grammar("grammar", 'start: "a" inner "z"\ninner: "(" inner ")" | "日"'),
    Grammar("grammar", 'root ::= "a" inner "z"\ninner ::= "(" inner ")" | "b"'),
]  # fmt: skip


def allowed(processor: GrammarProcessor, text: Sequence[int], drafted: Sequence[int], width: int) -> list[int]:
    logits = torch.zeros(width)
    processor.apply(logits, text, drafted)
    return [token for token, value in enumerate(logits.tolist()) if value == 0]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("wanted", GRAMMARS, ids=lambda one: one.kind)
def test_a_mask_is_what_trying_every_token_says(family: str, wanted: Grammar) -> None:
    """Along drafts and paths of trees, of which some tokens cannot be, and along the text that comes of them."""
    pair = grammar_pair(family)
    width, compiled = pair.vocab_size, compiler_of(pair).compile(wanted)
    for seed in range(2):
        rng, processor, text = random.Random(seed), GrammarProcessor(compiled, 2), list[int]()
        while len(text) < 24 and not compiled.eos_ids & {*text[-1:]}:
            for _ in range(3):
                drafted: list[int] = []
                while len(drafted) < 3 and not compiled.eos_ids & {*drafted[-1:]}:
                    good = followers(compiled, [*text, *drafted], width)
                    assert allowed(processor, [3, 4, *text], drafted, width) == good, (text, drafted)
                    drafted.append(rng.choice(good))
                    if rng.random() < 0.2:
                        wrong = rng.choice([token for token in range(width) if token not in good])
                        assert len(allowed(processor, [3, 4, *text], [*drafted[:-1], wrong], width)) == width
            text.append(rng.choice(followers(compiled, text, width)))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_end_comes_exactly_where_the_text_matches(family: str) -> None:
    pair, tokenizer = grammar_pair(family), tokenizer_of(family)
    compiled = compiler_of(pair).compile(schema(PERSON))
    for seed in range(8):
        processor, rng, text = GrammarProcessor(compiled, 0), random.Random(seed), list[int]()
        while tokenizer.eos_token_id not in text:
            found = allowed(processor, text, [], pair.vocab_size)
            assert (tokenizer.eos_token_id in found) == matches(tokenizer.decode(text), PERSON), tokenizer.decode(text)
            text.append(rng.choice(found))


def matches(text: str, wanted: Any) -> bool:
    try:
        jsonschema.validate(json.loads(text), wanted)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def test_a_narrower_draft_and_the_padding_of_a_wider_one() -> None:
    pair = grammar_pair()
    compiled = compiler_of(pair).compile(Grammar("regex", "a+"))
    whole = allowed(GrammarProcessor(compiled, 0), [], [], pair.vocab_size)
    for width in (pair.vocab_size - 40, pair.vocab_size + 40):
        assert allowed(GrammarProcessor(compiled, 0), [], [], width) == [t for t in whole if t < width]


@pytest.mark.parametrize(("wanted", "reason"), [
    (schema({"type": "frog"}, "response_format"), "frog"), (schema({"not": {"type": "string"}}), "not"),
    (schema({"type": "array", "uniqueItems": True}), "uniqueItems"), (schema({"$ref": "#/nowhere"}), "nowhere"),
    (schema({"oneOf": [{"type": "string"}, {"type": "null"}, {}]}), "oneOf"),
    (schema({"type": "string", "format": "frog"}), "format"), (Grammar("regex", "(?=a)b", "guided_regex"), "look-a"),
    (Grammar("grammar", "start: nothing"), "nothing"), (Grammar("grammar", "root ::= ("), "GBNF"),
    (Grammar("frog", "a"), "frog"),
])  # fmt: skip
def test_what_cannot_be_compiled_is_refused_by_its_field(wanted: Grammar, reason: str) -> None:
    compiler = compiler_of(grammar_pair())
    for ask in (compiler.compile, lambda grammar: compiler.prepare(grammar).result()):
        with pytest.raises(BadRequest, match=reason) as error:
            ask(wanted)
        assert error.value.facts["field"] == wanted.field


DEEP = [
    Grammar("grammar", "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(5000)) + '\nr5000: "a"'),
    Grammar("grammar", "start: T0\n" + "\n".join(f'T{i}: T{i + 1} "x"' for i in range(3000)) + '\nT3000: "a"'),
    schema({"$ref": "#/$defs/0", "$defs": {"4000": {"type": "null"}} | {
        str(i): {"allOf": [{"$ref": f"#/$defs/{i + 1}"}]} for i in range(4000)}}),
    schema({"$ref": "#/$defs/0", "$defs": {"3000": {"type": "null"}} | {
        str(i): {"properties": {"a": {"$ref": f"#/$defs/{i + 1}"}}} for i in range(3000)}}),
    Grammar("grammar", "start: " + "(" * 9000 + '"a"' + ")" * 9000), Grammar("regex", "(" * 9000 + "a" + ")" * 9000),
    Grammar("json_schema", '{"items":' * 9000 + "{}" + "}" * 9000), Grammar("grammar", "root ::= " + "(" * 9000),
    Grammar("regex", "a" * 70_000), Grammar("json_schema", json.dumps({"const": "a" * 300_000})),
]  # fmt: skip


@pytest.mark.parametrize("wanted", DEEP, ids=lambda one: f"{one.kind}: {one.text[:16]}")
def test_no_grammar_ends_the_process(wanted: Grammar) -> None:
    """Rules that need one another by the thousand, which a thread's usual stack does not hold."""
    with suppress(BadRequest):
        compiled = compiler_of(grammar_pair()).compile(wanted)
        assert allowed(GrammarProcessor(compiled, 0), [], [], grammar_pair().vocab_size)


def keys(count: int) -> Grammar:
    return schema({"type": "object", "properties": {f"k{i}": {"type": "null"} for i in range(count)}}, "guided_json")


def test_a_grammar_that_is_too_large_is_refused_and_one_that_grows_too_large_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pair = grammar_pair()
    compiler_of(pair).compile(keys(1000))
    with pytest.raises(BadRequest, match="items"):
        compiler_of(pair).compile(keys(5000))
    monkeypatch.setattr(grammar_module, "MOST_ITEMS", 40)
    monkeypatch.setattr(grammar_module, "TRIED", 0)
    compiled = compiler_of(pair).compile(keys(30))
    [brace], [quote] = (pair.tokenizer.encode(letter, add_special_tokens=False) for letter in '{"')
    eos = list(compiled.eos_ids)
    processor, width = GrammarProcessor(compiled, 0), pair.vocab_size
    before = allowed(processor, [], [], width)
    for _ in range(2):  # along a draft that is taken back, and again
        assert allowed(processor, [], [brace, quote], width) == eos
        assert allowed(processor, [], [brace, quote, 5], width) == eos
        assert allowed(processor, [], [], width) == before
    assert allowed(processor, [brace, quote], [], width) == eos and "too complex" in caplog.text


def test_a_grammar_is_compiled_once_and_as_many_are_kept_as_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = compiler_of(grammar_pair())
    threads: list[str] = []
    plain = compiler._compile

    def compiling(kind: str, text: str) -> Any:
        threads.append(threading.current_thread().name)
        return plain(kind, text)

    monkeypatch.setattr(compiler, "_compile", compiling)
    monkeypatch.setattr(grammar_module, "KEPT", 2)
    used = compiler.prepare(Grammar("regex", "a")).result()
    assert compiler.compile(Grammar("regex", "a", "other")) is used and compiler.prepare(Grammar("regex", "a")).done()
    assert len(threads) == 1 and threads[0].startswith("osd-grammar")
    for letter in "bcde":
        compiler.compile(Grammar("regex", letter))
    gc.collect()
    assert compiler.compile(Grammar("regex", "a")) is used, "what somebody uses stays"
    compiler.compile(Grammar("regex", "b"))
    assert len(threads) == 6 and {*threads} == {"osd-grammar_0"}, "b was forgotten"


def metaspace(**_: Any) -> Tokenizer:
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    made.train_from_iterator(["some words"] * 9, trainers.UnigramTrainer(vocab_size=30, unk_token="<unk>", **TRAINING))
    return made


def half_the_bytes() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.train_from_iterator(["some words"] * 9, trainers.BpeTrainer(vocab_size=60, **TRAINING))
    return made


def test_a_target_that_cannot_write_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = Grammar("regex", "a", "guided_regex")
    for make, reason in ((metaspace, "byte fallback"), (half_the_bytes, "0x09")):
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=make())
        with pytest.raises(BadRequest, match=reason):
            GrammarCompiler(tokenizer, len(tokenizer), [2]).compile(wanted)
    with pytest.raises(BadRequest, match="no end token"):
        GrammarCompiler(tokenizer_of("byte_level"), 300, []).compile(wanted)
    with pytest.raises(BadRequest, match="no tokenizer"):
        GrammarCompiler(None, 300, [2]).compile(wanted)
    monkeypatch.setitem(sys.modules, "llguidance.hf", None)
    with pytest.raises(BadRequest, match="pip install"):
        compiler_of(grammar_pair()).compile(wanted)
