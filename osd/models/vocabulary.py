"""Tokenizers and vocabularies: loads a tokenizer, and says which ids a target and a draft share where their
vocabularies are not quite the same."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import torch
from huggingface_hub import snapshot_download
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase
from transformers.integrations.gguf.reader import read_gguf_metadata

from osd.models.encoder_decoder import has_encoder
from osd.models.model_digest import TOKENIZER
from osd.models.weights import first_line
from storage.errors import KindMismatch, ModelNotLoaded, VocabularyMismatch

MOSTLY = 0.9
"""Least share of the target's tokens that a draft has to know."""


class HasVocabulary(Protocol):
    """A model, as far as its vocabulary is concerned: :class:`osd.models.pair.Model`."""

    @property
    def name(self) -> str:
        """Return the folder or hub name it came from."""

    @property
    def module(self) -> Any:
        """Return the module."""

    @property
    def vocab_size(self) -> int:
        """Return the width of its logits."""

    @property
    def device(self) -> torch.device:
        """Return the device its weights are on."""


def vocabulary_digest(vocabulary: Mapping[str, int]) -> str:
    """Return the SHA-256 over the tokens in the order of their ids: the same for every way of writing a tokenizer
    down."""
    whole = hashlib.sha256()
    for token, number in sorted(vocabulary.items(), key=lambda item: (item[1], item[0])):
        whole.update(f"{number}\0{token}\0".encode())
    return whole.hexdigest()


def digest_of_tokens(tokenizer: Any, vocabulary: int) -> str:
    """Return the digest of a tokenizer's tokens; without a tokenizer, of their number."""
    return vocabulary_digest(tokenizer.get_vocab() if tokenizer is not None else {"": vocabulary})


def target_facts(model: HasVocabulary, tokenizer: PreTrainedTokenizerBase | None) -> dict[str, str]:
    """Return what a target and its successor have in common (:data:`storage.versions.targets.ALIKE`)."""
    tokens = digest_of_tokens(tokenizer, model.vocab_size)
    return {"architecture": type(model.module).__name__, "vocabulary": tokens}


def folder_facts(name: str) -> dict[str, str]:
    """Return the same of a folder or hub name, read from its configuration and tokenizer; nothing where it is not on
    this machine, or has no tokenizer."""
    try:
        config, tokenizer = AutoConfig.from_pretrained(name, local_files_only=True), load_tokenizer(name)
    except (ModelNotLoaded, OSError, ValueError):
        return {}
    if tokenizer is None or not config.architectures:
        return {}
    return {"architecture": config.architectures[0], "vocabulary": vocabulary_digest(tokenizer.get_vocab())}


def check_vocabularies(
    target: HasVocabulary,
    draft: HasVocabulary,
    ours: PreTrainedTokenizerBase | None,
    theirs: PreTrainedTokenizerBase | None,
) -> SharedIds | None:
    """Check that what both models know has one id, by their tokenizers. Returns what only one knows; None where that is
    nothing, and the draft has a row for every id. Raises VocabularyMismatch, and KindMismatch where one has an encoder
    and the other has none."""
    if has_encoder(target.module) is not has_encoder(draft.module):
        raise KindMismatch(target=target.name, draft=draft.name)
    if ours is None or theirs is None:
        if target.vocab_size != draft.vocab_size:
            reason = f"{draft.vocab_size} tokens against {target.vocab_size}, and no tokenizer to compare"
            raise VocabularyMismatch(draft=draft.name, target=target.name, reason=reason)
        return None
    mine, other = ours.get_vocab(), theirs.get_vocab()
    if difference := _difference(mine, other):
        raise VocabularyMismatch(draft=draft.name, target=target.name, reason=difference)
    one_sided = {mine[token] for token in mine.keys() - other.keys()}
    one_sided |= {other[token] for token in other.keys() - mine.keys()}
    return _shared(one_sided, target, draft)


def _difference(mine: dict[str, int], other: dict[str, int]) -> str | None:
    """Say why two vocabularies cannot be used together; None if they can."""
    both = mine.keys() & other.keys()
    differing = sorted(token for token in both if mine[token] != other[token])
    if differing:
        first = differing[0]
        return f"{len(differing)} tokens have other ids, for example {first!r}: {other[first]} and {mine[first]}"
    if len(both) < MOSTLY * len(mine):
        return f"the draft knows {len(both)} of {len(mine)} tokens"
    return None


def _shared(one_sided: set[int], target: HasVocabulary, draft: HasVocabulary) -> SharedIds | None:
    width, rows = target.vocab_size, table_rows(draft.module)
    barred = sorted(each for each in one_sided if each < width)
    unread = [*barred, *range(rows, width)]
    if not unread:
        return None
    stand_ins = torch.arange(width)
    stand_ins[unread] = next(each for each in range(width) if each not in one_sided)
    return SharedIds(stand_ins.to(draft.device), torch.tensor(barred, dtype=torch.long, device=draft.device))


def table_rows(module: Any) -> int:
    """Return how many ids a model can be fed."""
    return int(module.get_input_embeddings().weight.shape[0])


NEVER = -1e30
"""Logit of what is not drafted. Finite, so that a row of which nothing else is allowed still has a distribution."""


@dataclass(frozen=True, slots=True, eq=False)
class SharedIds:
    """The ids of a target, V of them, as a draft takes them whose vocabulary is another in some places."""

    stand_ins: Tensor
    """(V,) int64: the id that the draft is fed for each; another where it does not know the token, or has no row."""
    barred: Tensor
    """(n,) int64: ids that only one of the two knows. They are never drafted."""

    def bar(self, logits: Tensor) -> Tensor:
        """Give the barred ids no probability, in logits (…, V) of the draft."""
        if not len(self.barred):
            return logits
        return logits.index_fill(-1, self.barred, max(NEVER, torch.finfo(logits.dtype).min))


PACKAGES = {
    "*.model": ("sentencepiece", "protobuf"),
    "*.spm": ("sentencepiece", "protobuf"),
    "*.tiktoken": ("tiktoken",),
    "tekken.json": ("mistral-common",),
}
"""Packages that read the kinds of files which the tokenizers library does not."""


def load_tokenizer(name: str | Path) -> PreTrainedTokenizerBase | None:
    """Load the tokenizer of a folder or hub name; None where it has no tokenizer files. Raises ModelNotLoaded."""
    folder = Path(name)
    if folder.is_file():
        return _packed_with(folder)
    try:
        if not folder.is_dir():
            folder = Path(snapshot_download(str(name), allow_patterns=list(TOKENIZER)))
        if not any(any(folder.glob(pattern)) for pattern in TOKENIZER):
            return None
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(str(name), trust_remote_code=False)
    except Exception as error:  # every kind of tokenizer reads its files in its own way, and fails in its own
        raise ModelNotLoaded(path=name, reason=_reason(folder, first_line(error))) from None
    if not tokenizer.get_vocab().keys() - tokenizer.get_added_vocab().keys():  # transformers makes some of nothing
        raise ModelNotLoaded(path=name, reason="Its tokenizer's files hold no vocabulary.")
    return tokenizer


def _packed_with(file: Path) -> PreTrainedTokenizerBase | None:
    """Load the tokenizer of a GGUF file; None where it holds none. Raises ModelNotLoaded."""
    try:
        if "tokenizer.ggml.model" not in read_gguf_metadata(str(file))[0]:
            return None
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
        return tokenizer
    except Exception as error:  # as above
        raise ModelNotLoaded(path=file, reason=f"Its tokenizer cannot be read: {first_line(error)}") from None


def _reason(folder: Path, cause: str) -> str:
    wanted = {package for kind, packages in PACKAGES.items() if any(folder.glob(kind)) for package in packages}
    missing = sorted(package for package in wanted if not _is_installed(package))
    if not missing or (folder / "tokenizer.json").is_file():
        return f"Its tokenizer cannot be read: {cause}"
    return f"Its tokenizer needs packages that are not installed (pip install {' '.join(missing)}): {cause}"


def _is_installed(package: str) -> bool:
    try:
        return bool(metadata.version(package))
    except metadata.PackageNotFoundError:
        return False
