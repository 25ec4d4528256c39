"""Texts, whole and streamed, with tokenizers of every family: decode(prompt + output) less decode(prompt)."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from osd.engine.detokenizer import HALF, Detokenizer
from osd.engine.engine import Engine
from osd.engine.text_stream import StopChecker, TextStream
from osd.logits import Scores
from osd.sequence import SequenceState
from osd.server.core.messages import JobOutput
from osd.server.http.answer import Choice
from osd.server.http.answer_parts import Delta, HeldScores, TokenText
from router.base import Decision
from storage.records import Request
from tests.support.models import alone, random_pair
from tests.support.random_tokenizers import (
    FAMILIES,
    OTHER,
    common,
    plain_text,
    random_bytes,
    random_tokenizer,
    random_tokens,
    tidies,
    tokens_of,
)
from tests.support.settings import settings_of

TOKENIZERS = 6
"""Random tokenizers of each family."""
END_ID, OTHER_ID = 2, 3


@dataclass
class Case:
    """An answer as it came: what was said of it, in pieces, and its text in the end."""

    request: Request
    output: list[int]
    reason: str
    deltas: list[Delta]
    text: str

    @property
    def ended(self) -> bool:
        """Whether a token ended it that is not in its text."""
        return len(self.output) > self.request.min_tokens and self.output[-1] in ends_of(self.request)


def ends_of(request: Request) -> set[int]:
    """The tokens that end a text."""
    own = set() if request.ignore_eos else {END_ID}
    return own | set(request.stop_token_ids) | ({OTHER_ID} if OTHER in request.stop else set())


def play(family: str, seed: int) -> Case:
    """Random tokens as answer to a random prompt, by way of the engine's and the server's own classes."""
    rng = random.Random(f"{family} {seed}")
    tokenizer = random_tokenizer(family, seed % TOKENIZERS)
    prompt = [1] if rng.random() < 0.2 else random_tokens(tokenizer, rng)[: rng.randrange(1, 20)] or [1]
    tokens = [token for _ in range(rng.randrange(1, 4)) for token in random_tokens(tokenizer, rng)] or [3]
    if rng.random() < 0.3 and len(tokens) > 1:  # the prompt may end within a character that the output completes
        end = rng.randrange(1, len(tokens))
        prompt, tokens = [*prompt, *tokens[:end]], tokens[end:]
    whole = plain_text(tokenizer, prompt, tokens)
    request = Request(
        tuple(prompt), max_new_tokens=rng.randrange(1, len(tokens) + 1), stop=stops(rng, whole),
        ignore_eos=rng.random() < 0.3, stop_token_ids=tuple(rng.sample(tokens, rng.choice([0, 0, 0, 1]))),
    )  # fmt: skip
    first = next((i for i, token in enumerate(tokens) if token in {END_ID, *request.stop_token_ids}), len(tokens))
    if rng.random() < 0.3 and not tidies(tokenizer):
        request = replace(request, min_tokens=min(first, rng.randrange(8)))
    return answered(tokenizer, request, tokens, rng)


def stops(rng: random.Random, whole: str) -> tuple[str, ...]:
    """None, or some of which the text has one now and then."""
    if rng.random() < 0.5:
        return ()
    begin = rng.randrange(len(whole) + 1)
    some = [whole[begin : begin + rng.randrange(1, 6)], "abc", rng.choice("ab .é日"), OTHER]
    return tuple(stop for stop in rng.sample(some, rng.randrange(1, 4)) if stop and HALF not in stop)


def answered(tokenizer, request: Request, tokens: list[int], rng: random.Random) -> Case:
    """What comes of tokens in rounds of one to five, told in portions of rounds."""
    eos, checker = frozenset([END_ID]), StopChecker(tokenizer, frozenset([END_ID]))
    row = SequenceState(request, request, Decision("default", "default"), 1 << 20)
    choice = Choice(TextStream(Detokenizer(tokenizer), request, eos), HeldScores())
    deltas, told, reason = [], 0, None
    while reason is None:
        size = rng.randrange(1, 6)
        kept, reason = checker.cut(row, [*tokens, END_ID][len(row.output) : len(row.output) + size])
        row.tokens += kept
        if reason or rng.random() < 0.7:
            new = row.output[told:]
            told += len(new)
            scores = Scores([-1.0] * len(new), [[7]] * len(new), [[-2.0]] * len(new), [2] * len(new))
            deltas.append(choice.take(JobOutput(tuple(new), scores, "v", "default", reason)))
    text = checker.text(row)
    assert text is not None
    return Case(request, row.output, reason, deltas, text)


def check(family: str, seed: int) -> None:
    """Hold what came against the plain reference."""
    case, tokenizer = play(family, seed), random_tokenizer(family, seed % TOKENIZERS)
    said = case.output[:-1] if case.ended else case.output
    whole = plain_text(tokenizer, case.request.prompt_tokens, said)
    found = places(case.request, tokenizer, case.output, whole)
    assert case.text == whole[: min(found, default=None)]
    assert case.reason == ("stop" if case.ended or found else "length")
    assert "".join(delta.text for delta in case.deltas) == case.text, "what was shown stays, and is all"
    assert len(case.output) <= case.request.max_new_tokens
    earlier = "" if tidies(tokenizer) else plain_text(tokenizer, case.request.prompt_tokens, case.output[:-1])
    assert not places(case.request, tokenizer, case.output, earlier), "it ended as soon as it could"
    assert ends_of(case.request).isdisjoint(case.output[case.request.min_tokens : -1])
    check_scores(case, tokenizer)


def places(request: Request, tokenizer, output: list[int], text: str) -> list[int]:
    """Where stop strings begin that end behind the first ``min_tokens`` tokens."""
    before = len(common(text, plain_text(tokenizer, request.prompt_tokens, output[: request.min_tokens])))
    return [place for stop in request.stop if (place := text.find(stop, max(0, before - len(stop) + 1))) >= 0]


def check_scores(case: Case, tokenizer) -> None:
    """As many log-probabilities as tokens; none before its text is shown; each where its text is."""
    scored = [one for delta in case.deltas for one in delta.scored]
    assert [one.token for one in scored] == case.output
    assert all(before.offset <= after.offset for before, after in pairwise(scored))
    shown = 0
    for delta in case.deltas:
        shown += len(delta.text)
        assert all(one.offset < shown or delta.finish_reason for one in delta.scored)
    for count, one in enumerate(scored):
        now = plain_text(tokenizer, case.request.prompt_tokens, case.output[:count])
        certain = len(common(now, case.text))
        assert one.offset <= certain and not case.text[one.offset : certain].strip(UNCERTAIN)


UNCERTAIN = HALF + " .?!,'ntmsver"
"""What may be part of a character, or of spaces that are tidied."""


@pytest.mark.parametrize("family", FAMILIES)
def test_streamed_and_whole_texts_are_the_reference(family: str) -> None:
    for seed in range(60):
        check(family, seed)


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_streamed_and_whole_texts_are_the_reference_at_length(family: str) -> None:
    for seed in range(60, 1560):
        check(family, seed)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_engines_texts_are_the_reference(family: str) -> None:
    tokenizer = random_tokenizer(family, 1)
    pair = replace(random_pair(vocabulary=len(tokenizer) + 3), tokenizer=tokenizer, eos_ids=frozenset([END_ID]))
    rng = random.Random(family)
    prompts = [tuple(random_tokens(tokenizer, rng)[:12]) or (1,) for _ in range(4)]
    asked = [Request(prompt, max_new_tokens=24, ignore_eos=i % 2 == 0) for i, prompt in enumerate(prompts)]
    for done in Engine(pair, settings_of(serve__max_batch=4, serve__max_length=64)).run(asked):
        ended = done.finish_reason == "stop"
        end = None if done.request.ignore_eos else END_ID
        assert list(done.tokens) == alone(pair.target.module, done.request.prompt_tokens, 24, end)
        assert done.text == plain_text(tokenizer, done.request.prompt_tokens, done.tokens[: -1 if ended else None])


@pytest.mark.parametrize("family", ["byte_level", "byte_fallback", "metaspace", "unigram", "word_piece"])
def test_bytes_of_tokens_put_together_are_the_text(family: str) -> None:
    for seed in range(40):
        rng, tokenizer = random.Random(seed), random_tokenizer(family, 1 + 4 * (seed % 2))
        output, token_text = tokens_of(tokenizer, random_bytes(rng)), TokenText(Detokenizer(tokenizer))
        before = [*tokens_of(tokenizer, b"a"), 1]
        said = bytes(byte for token in output for byte in token_text(token)[1] or () if token != 0)
        errors = "osd.each_byte" if family == "byte_fallback" else "replace"
        assert said.decode(errors=errors) == plain_text(tokenizer, before, output)


def test_python_tokenizers_stream_what_they_decode() -> None:
    tokenizer, rng = ByT5Tokenizer(), random.Random(0)
    detokenizer = Detokenizer(tokenizer)
    for _ in range(60):
        prompt, output = ([byte + 3 for byte in random_bytes(rng)] for _ in range(2))
        decoder, text, place = detokenizer.decoder([*prompt, 100]), "", 0
        while place < len(output):
            size = rng.randrange(1, 6)
            text += decoder.push(output[place : place + size])
            place += size
        assert text + decoder.flush() == tokenizer.decode(output, skip_special_tokens=True)


def test_one_kind_of_text_by_hand() -> None:
    """What was seen: the first space lost, finished characters replaced, an end token shown."""
    vocabulary = {"<unk>": 0, "<s>": 1, "<end>": 2, "▁is": 3, "▁five": 4} | {
        f"<0x{byte:02X}>": 5 + byte for byte in range(256)
    }
    made = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    half = [5 + byte for byte in "日本".encode()[:5]]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", bos_token="<s>")
    stream = TextStream(Detokenizer(tokenizer), Request((1, 4)), frozenset([2]))
    pieces = [stream.push([token]) for token in (3, 4, *half, 2)]
    assert pieces == [" is", " five", "", "", "日", "", "", HALF * 2] and stream.text == f" is five日{HALF * 2}"
