"""Random small tokenizers of every family, random bytes as their tokens, and the plain way back to text."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from functools import cache
from itertools import groupby, takewhile

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from osd.engine.detokenizer import byte_letters

HALF = "\ufffd"
LETTER = {byte: letter for letter, byte in byte_letters().items()}
"""Names of bytes in byte-level BPE."""
LETTERS = [*"abcdeimnorstv.,!?'   \nåé日本語🎈🎉", " 've", " 're", " n't", " ' ", " ."]
UNKNOWN, BEGIN, END, OTHER = "<unk>", "<s>", "<end>", "<other>"
SPECIAL = [UNKNOWN, BEGIN, END, OTHER]
BYTE = re.compile("<0x[0-9A-F]{2}>")


def words(rng: random.Random) -> list[str]:
    """Random lines, in which words come again."""
    known = ["".join(rng.choices(LETTERS, k=rng.randrange(1, 7))) for _ in range(40)]
    return [rng.choice(["", " ", "  "]).join(rng.choices(known, k=rng.randrange(1, 12))) for _ in range(60)]


def byte_level(rng: random.Random) -> Tokenizer:
    """BPE over bytes, as GPT-2, Llama 3 and Qwen have it."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(words(rng), trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, **QUIET))
    return made


def byte_fallback(rng: random.Random) -> Tokenizer:
    """BPE over characters and, for unknown ones, bytes: as Llama 2 and Mistral have it, or as Gemma."""
    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.Replace(" ", "▁")
    made.train_from_iterator(words(rng), trainers.BpeTrainer(vocab_size=200, limit_alphabet=16, **QUIET))
    said = json.loads(made.to_str())
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    others = [token for token in said["model"]["vocab"] if token not in SPECIAL]
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *bytes_, *others])}
    said["model"] |= {"vocab": vocabulary, "byte_fallback": True, "unk_token": UNKNOWN, "fuse_unk": True}
    made = Tokenizer.from_str(json.dumps(said))
    strips = [decoders.Strip(" ", 1, 0)] if rng.random() < 0.5 else []
    if strips:
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strips])
    return made


def metaspace(rng: random.Random) -> Tokenizer:
    """BPE in which spaces are letters."""
    made, scheme = Tokenizer(models.BPE(unk_token=UNKNOWN)), rng.choice(["always", "first", "never"])
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    made.decoder = decoders.Metaspace(prepend_scheme=scheme)
    made.train_from_iterator(words(rng), trainers.BpeTrainer(vocab_size=200, **QUIET))
    return made


def unigram(rng: random.Random) -> Tokenizer:
    """Unigram, as T5 and XGLM have it."""
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    made.train_from_iterator(words(rng), trainers.UnigramTrainer(vocab_size=120, unk_token=UNKNOWN, **QUIET))
    return made


def word_piece(rng: random.Random) -> Tokenizer:
    """WordPiece, as BERT has it."""
    made = Tokenizer(models.WordPiece(unk_token=UNKNOWN))
    made.pre_tokenizer, made.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(cleanup=rng.random() < 0.5)
    made.train_from_iterator(words(rng), trainers.WordPieceTrainer(vocab_size=200, **QUIET))
    return made


def suffixes(rng: random.Random) -> Tokenizer:
    """BPE whose tokens say where a word ends, as CLIP and the first GPT have it: decoded in windows."""
    made = Tokenizer(models.BPE(unk_token=UNKNOWN, end_of_word_suffix="</w>"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Whitespace(), decoders.BPEDecoder("</w>")
    trainer = trainers.BpeTrainer(vocab_size=200, end_of_word_suffix="</w>", **QUIET)
    made.train_from_iterator(words(rng), trainer)
    return made


QUIET = {"special_tokens": SPECIAL, "show_progress": False}
FAMILIES: dict[str, Callable[[random.Random], Tokenizer]] = {
    made.__name__: made for made in (byte_level, byte_fallback, metaspace, unigram, word_piece, suffixes)
}


@cache
def random_tokenizer(family: str, seed: int) -> PreTrainedTokenizerFast:
    """A tokenizer of a family. Its end token is not marked special where the seed is odd; every third one that can has
    transformers tidy its spaces."""
    made = FAMILIES[family](random.Random(seed))
    if seed % 2:
        said = json.loads(made.to_str())
        said["added_tokens"] = [one | {"special": one["content"] != END} for one in said["added_tokens"]]
        made = Tokenizer.from_str(json.dumps(said))
    return PreTrainedTokenizerFast(tokenizer_object=made, clean_up_tokenization_spaces=not seed % 3)


def random_bytes(rng: random.Random) -> bytes:
    """Bytes of any kind, or a text of which some were exchanged."""
    if rng.random() < 0.2:
        return rng.randbytes(rng.randrange(12))
    data = bytearray("".join(rng.choices(LETTERS, k=rng.randrange(12))).encode())
    for place in range(len(data)):
        if rng.random() < 0.06:
            data[place] = rng.randrange(256)
    return bytes(data)


def tokens_of(tokenizer: PreTrainedTokenizerFast, data: bytes) -> list[int]:
    """Tokens that stand for these bytes, as far as the tokenizer has any for them."""
    tokens = []
    for broken, run in groupby(data.decode("utf-8", "surrogateescape"), lambda letter: "\ud800" <= letter <= "\udfff"):
        text = "".join(run)
        if not broken:
            tokens += tokenizer.encode(text, add_special_tokens=False)
        else:
            bytes_ = text.encode("utf-8", "surrogateescape")
            names = [name for byte in bytes_ for name in (f"<0x{byte:02X}>", LETTER[byte])]
            tokens += [tokenizer.get_vocab()[name] for name in names if name in tokenizer.get_vocab()]
    return tokens


def random_tokens(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> list[int]:
    """Tokens of random bytes, with others among them: any, special ones, and ids beyond the tokenizer's."""
    tokens = tokens_of(tokenizer, random_bytes(rng))
    for _ in range(rng.choice([0, 0, 1, 3])):
        tokens.insert(rng.randint(0, len(tokens)), rng.choice([rng.randrange(4), rng.randrange(len(tokenizer) + 4)]))
    return tokens


def plain_decode(tokenizer: PreTrainedTokenizerFast, tokens: Sequence[int]) -> str:
    """transformers' own text, but complete characters stay where a run of bytes is not whole."""
    text, place = str(tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)), 0
    if "ByteFallback" not in repr(tokenizer.backend_tokenizer.decoder):
        return text
    special = [i for i, token in tokenizer.added_tokens_decoder.items() if token.special]
    names = tokenizer.convert_ids_to_tokens([i for i in tokens if i < len(tokenizer) and i not in special])
    for is_byte, run in groupby(names, lambda name: bool(BYTE.fullmatch(name))):
        data = bytes(int(name[3:5], 16) for name in run) if is_byte else b""
        if HALF in (characters := plain_bytes(data)):
            place = text.index(HALF * len(data), place)
            text = text[:place] + characters + text[place + len(data) :]
            place += len(characters)
    return text


def common(one: str, other: str) -> str:
    """The beginning that two texts share."""
    return "".join(letter for letter, _ in takewhile(lambda both: both[0] == both[1], zip(one, other, strict=False)))


def plain_bytes(data: bytes) -> str:
    """SentencePiece's reading of bytes: characters, and for each byte of none U+FFFD."""
    text, place = "", 0
    while place < len(data):
        size = next((size for size in range(1, 5) if is_character(data[place : place + size])), 0)
        text += data[place : place + size].decode() if size else HALF
        place += size or 1
    return text


def is_character(data: bytes) -> bool:
    """Whether these bytes are one."""
    try:
        return len(data.decode()) == 1
    except UnicodeDecodeError:
        return False


def plain_text(tokenizer: PreTrainedTokenizerFast, prompt: Sequence[int], output: Sequence[int]) -> str:
    """decode(prompt + output) less decode(prompt). A character in whose midst the prompt ends belongs to the output."""
    before, whole = plain_decode(tokenizer, prompt), plain_decode(tokenizer, [*prompt, *output])
    same = before if whole.startswith(before) else common(before, whole)
    text = whole[len(same) :]
    return str(tokenizer.clean_up_tokenization(text)) if tidies(tokenizer) else text


def tidies(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Whether transformers tidies the spaces of its texts."""
    return bool(tokenizer.clean_up_tokenization_spaces) and "BPE" not in repr(tokenizer.backend_tokenizer.model)[:3]
