"""Proof, when a model is loaded, that a pass over a ragged batch computes what the module computes over each row alone.

Shown on the model itself with two short rows, and on its twin (:mod:`osd.models.twin`) with rows of mixed lengths up to
past every length at which a pass changes, a short one beside a long one, and wrong tokens fed and rolled back before
all of them.

What was proven about models of one configuration is kept on disk (:class:`ProofRecord`), so that it is proven once a
machine."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from textwrap import shorten
from typing import NamedTuple

import platformdirs
import torch
from torch import Tensor
from transformers import PreTrainedModel

from osd.kernels.code_cache import digest_of
from osd.models.decoder import Decoder, vocabulary_size
from osd.models.encoder_decoder import EncoderDecoderForward, decoder_inputs, has_encoder
from osd.models.forward import Builder, ForwardPass
from osd.models.hf_forward import WINDOWS, HuggingFaceForward, RowForward
from osd.models.limits import position_limit
from osd.models.llama_forward import llama_forward
from osd.models.twin import LENGTH, switches, twin_of
from storage.errors import CannotServeRagged

TOLERANCE = 2e-3
"""Share of the largest logit by which logits may differ, in float32."""
WIDTH = 5
"""Tokens that a pass of the proof feeds to each row."""
SHORT = (11, 7), (8, 4)
"""Lengths of the rows that the model itself is tried with, and how much of each is prefilled."""


RECURRENT = re.compile("linear|mamba|conv|recurrent|delta|lightning")
"""Names of layers that keep a state instead of keys and values."""


class Way(NamedTuple):
    """A way to compute a model over a ragged cache."""

    name: str
    build: Builder
    attention: str | None = None
    """The attention that the module is switched to; None for its own."""


WAYS = (
    Way("fused", llama_forward),
    Way("own", HuggingFaceForward),
    Way("eager", HuggingFaceForward, "eager"),
    Way("row by row", RowForward, "eager"),
)
"""Tried in turn, the fastest first."""
WITH_ENCODER = Way("own", EncoderDecoderForward), Way("eager", EncoderDecoderForward, "eager")
"""The same for encoder-decoder models."""
READ = 6
"""Tokens that an encoder reads of a row in a proof, and one more for each row after the first."""


@torch.inference_mode()
def choose_forward(module: PreTrainedModel, name: str) -> Builder:
    """Return the fastest forward pass that computes, in a ragged batch with rolled-back garbage, what the plain one
    does, at every length up to the model's limit.

    Raises CannotServeRagged when none will do.
    """
    if reason := _never(module):
        raise CannotServeRagged(model=name, reason=reason)
    reasons, proven = [], ProofRecord(module)
    for way in WITH_ENCODER if has_encoder(module) else WAYS:
        if way.attention:
            module.set_attn_implementation(way.attention)
        if (forward := way.build(module)) is None:
            continue
        reason = reason_against(module, forward, *SHORT, SHORT[0][0] + 13)
        reason = reason or proven.recall(way.name, partial(_beyond, module, way.build))
        if reason is None:
            return way.build
        reasons.append(reason)
    raise CannotServeRagged(model=name, reason=_changes(module, SHORT[0][0], 0) or reasons[-1])


def _never(module: PreTrainedModel) -> str | None:
    """Return why no pass over this kind of model will do, where that is known without trying."""
    kinds = getattr(module.config.get_text_config(), "layer_types", None) or ()
    if getattr(module, "_is_stateful", False) or any(RECURRENT.search(kind) for kind in kinds):
        return "It keeps a recurrent state, which cannot be taken back when drafted tokens are refused."
    return None


def _beyond(module: PreTrainedModel, build: Builder) -> str | None:
    """Return what speaks against a pass at lengths beyond those that the model itself is tried with."""
    try:
        twin = twin_of(module)
    except Exception as error:  # whatever a configuration holds that cannot be small
        return f"What it computes for long texts cannot be proven on a small model of its kind ({told(error)})."
    limit = proven_length(twin)
    if reason := _changes(twin, limit, position_limit(module.config)):
        return reason
    forward = build(twin)
    assert forward is not None
    reason = reason_against(twin, forward, (limit, limit // 4 + 1, 2 * limit // 3), (limit // 2, 0, 3), limit)
    return reason and f"In texts that are longer than a window or the like: {reason[0].lower()}{reason[1:]}"


def proven_length(twin: PreTrainedModel) -> int:
    """Return the length up to which a twin is tried: past all its switches, where it may be."""
    return min(position_limit(twin.config), LENGTH + max(switches(twin.config).values(), default=0))


def _changes(twin: PreTrainedModel, length: int, limit: int) -> str | None:
    """Return why a text's logits depend on more than what stands before them, or why that is not known up to a limit;
    None where they do not."""
    encoded = READ * has_encoder(twin)
    row = some_tokens(twin, encoded + length, torch.Generator().manual_seed(1))[None]
    asked = WINDOWS.set(set())
    whole = plain_logits(twin, row, encoded)
    unknown = [window for window in WINDOWS.get() if window and length <= window < limit]
    WINDOWS.reset(asked)
    if unknown:
        return f"It has a window of {unknown[0]} tokens that its configuration does not name."
    for n in {1, 2, length // 8, length // 4, length // 2, length - 1} - {0}:
        if off(plain_logits(twin, row[:, : encoded + n], encoded)[-1], whole[n - 1]) > TOLERANCE:
            return "Its logits at a token change with the tokens after it."
    return None


def plain_logits(module: PreTrainedModel, tokens: Tensor, encoded: int = 0) -> Tensor:
    """Return the module's own logits after each of the tokens (1, T) but the ``encoded`` first, which an encoder reads:
    (T − ``encoded``, V)."""
    logits: Tensor = module(**decoder_inputs(module, tokens, encoded), use_cache=False).logits[0]
    return logits


def told(error: Exception) -> str:
    """Return an error in a line."""
    return f"{type(error).__name__}: {shorten(str(error), 120, placeholder=' …')}"


def reason_against(
    module: PreTrainedModel, forward: ForwardPass, lengths: tuple[int, ...], begins: tuple[int, ...], limit: int
) -> str | None:
    """Return what is wrong with a pass, in a sentence; None where its logits are those of the module."""
    try:
        most = (READ + len(lengths)) * has_encoder(module)
        decoder = Decoder(module, forward, len(lengths), limit + WIDTH + most, limit)
        difference = max(_differences(module, decoder, lengths, begins))
    except Exception as error:  # whatever fails inside a model that is not ours means the same here
        return f"Its forward pass fails with a ragged cache ({told(error)})."
    if difference <= TOLERANCE * unit(module):
        return None
    if not decoder.cache.kept:
        return "It keeps no keys and values in transformers' cache."
    return f"Its logits differ by {difference:.2g} from a plain forward pass."


def unit(module: PreTrainedModel) -> float:
    """Return the rounding of the model's dtype relative to float32's, at most 64-fold."""
    return 1.0 if next(module.parameters()).dtype == torch.float32 else 64.0


def _differences(
    module: PreTrainedModel, decoder: Decoder, lengths: tuple[int, ...], begins: tuple[int, ...]
) -> Iterator[float]:
    """Yield by how much each pass over ragged rows is off, relative to the largest logit. Rows are prefilled up to
    ``begins`` and fed WIDTH tokens a pass from there on, after as many wrong ones. An encoder reads tokens before
    these."""
    generator = torch.Generator().manual_seed(0)
    encoded = [READ + i if decoder.encodes else 0 for i in range(len(lengths))]
    rows = [some_tokens(module, n + length, generator) for n, length in zip(encoded, lengths, strict=True)]
    plain = [plain_logits(module, row[None], n) for n, row in zip(encoded, rows, strict=True)]
    begins = tuple(n + begin for n, begin in zip(encoded, begins, strict=True))
    for i, (row, n, begin) in enumerate(zip(rows, encoded, begins, strict=True)):
        decoder.prefill(i, row[:n].tolist())
        decoder.prefill(i, row[n:begin].tolist(), n)
    while any(begin < len(row) for begin, row in zip(begins, rows, strict=True)):
        counts = [min(WIDTH, len(row) - begin) for begin, row in zip(begins, rows, strict=True)]
        wrong = torch.stack([some_tokens(module, WIDTH, generator) for _ in rows])
        starts = [min(begin, len(row) - 1) for begin, row in zip(begins, rows, strict=True)]
        decoder.logits(wrong, starts)
        right = wrong.clone()
        for line, row, begin, count in zip(right, rows, begins, counts, strict=True):
            line[:count] = row[begin : begin + count]
        said = decoder.scored(right, starts, [max(1, count) for count in counts])
        for i, (begin, count) in enumerate(zip(begins, counts, strict=True)):
            if count:
                yield off(said.first(i, count), plain[i][begin - encoded[i] :][:count])
        begins = tuple(begin + count for begin, count in zip(begins, counts, strict=True))


def some_tokens(module: PreTrainedModel, count: int, generator: torch.Generator) -> Tensor:
    """Return random tokens (count,) on the module's device."""
    return torch.randint(0, vocabulary_size(module), (count,), generator=generator).to(module.device)


def off(ours: Tensor, plain: Tensor) -> float:
    """Return the largest difference of logits, relative to the largest of them."""
    scale = plain.float().abs().max().clamp(min=1.0)
    return float(((ours - plain).float().abs().max() / scale).item())


@cache
def _makers() -> str:
    """Return what proofs depend on beside the model: our passes, and the libraries."""
    return " ".join((digest_of(Path(__file__).parent), version("torch"), version("transformers")))


class ProofRecord:
    """Proofs about the models of a class and a configuration: a JSON file, by name what was found wrong, or null."""

    def __init__(self, module: PreTrainedModel) -> None:
        """Name the file by the digest of all that the proofs depend on."""
        told = json.dumps(module.config.to_dict(), sort_keys=True, default=str)
        digest = hashlib.sha256(f"{type(module).__qualname__} {told} {_makers()}".encode()).hexdigest()
        self._path = platformdirs.user_cache_path("osd") / "proofs" / f"{digest[:32]}.json"

    def recall(self, name: str, prove: Callable[[], str | None]) -> str | None:
        """Return what a proof found wrong, None for nothing; it runs where it is not known yet."""
        known: dict[str, str | None] = {}
        with suppress(OSError, ValueError):
            known = json.loads(self._path.read_text(encoding="utf-8"))
        if name not in known:
            known[name] = prove()
            self._keep(known)
        return known[name]

    def _keep(self, known: dict[str, str | None]) -> None:
        aside = self._path.with_suffix(f".{os.getpid()}")
        with suppress(OSError):  # nowhere to write: it is proven again next time
            self._path.parent.mkdir(parents=True, exist_ok=True)
            aside.write_text(json.dumps(known), encoding="utf-8")
            aside.replace(self._path)
