"""Loads a tokenizer, and tells one that cannot be read from a folder that has none."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from huggingface_hub import snapshot_download
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.integrations.gguf.reader import read_gguf_metadata

from osd.models.weights import first_line
from storage.errors import ModelNotLoaded

FILES = ("tokenizer*", "vocab*", "merges.txt", "*.model", "*.spm", "*.tiktoken", "tekken.json")
"""What tokenizers are saved as."""
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
            folder = Path(snapshot_download(str(name), allow_patterns=list(FILES)))
        if not any(any(folder.glob(pattern)) for pattern in FILES):
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
