"""Reading a finished text with a draft: at which positions would the target have accepted what it says?

One forward pass over prompt and output, and of sampled texts one of the target; see osd.demo.runner.measure for why
this is α. It happens after a request has finished and is no part of its time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from osd.drafters.blended import TableGuesses
from osd.drafters.loaded_draft import LoadedDraft
from osd.drafters.ngram.guess import sureness_of, trust_in_model
from osd.drafters.scoring import drawn_from, expected_hits, logits_of, reader_of
from osd.models.decoder import Decoder
from osd.models.model import Model
from osd.sequence import Completion


class DraftReader:
    """One draft, reading texts one at a time in a cache of its own."""

    def __init__(self, model: Model, length: int) -> None:
        """``length``: tokens of prompt and output at most."""
        self._decoder = model.decoder(1, length)

    def hits(self, completion: Completion, p: Tensor | None = None) -> Sequence[float]:
        """See :func:`osd.drafters.scoring.expected_hits`."""
        return _hits(self._decoder, completion, p)


class TargetReader:
    """The target, reading texts one at a time in a cache of its own: what their tokens were drawn from."""

    def __init__(self, model: Model, length: int) -> None:
        """``length``: tokens of prompt and output at most."""
        self._decoder = model.decoder(1, length)

    def distributions(self, completion: Completion) -> Tensor | None:
        """See :func:`osd.drafters.scoring.drawn_from`."""
        return drawn_from(self._decoder, completion)


def _hits(decoder: Decoder, completion: Completion, p: Tensor | None) -> Sequence[float]:
    text, count = _text(completion), len(completion.tokens)
    return expected_hits(decoder, text, count, completion.request.sampling, p) if count else []


def loaded_hits(loaded: LoadedDraft, completion: Completion, p: Tensor | None) -> Sequence[float]:
    """Return :func:`osd.drafters.scoring.expected_hits` of a draft that an engine has loaded."""
    reader = reader_of(loaded, len(_text(completion)))
    found = _hits(reader, completion, p)
    reader.cache.drop()
    return found


def _text(completion: Completion) -> list[int]:
    return [*completion.prompt, *completion.tokens]


def blended_hits(loaded: LoadedDraft, watched: TableGuesses, completion: Completion) -> list[bool]:
    """For every token of the output, whether draft and table together would have named it: the table what it guessed
    there before it was said, whichever of the two is trusted more by now."""
    output = list(completion.tokens)
    tokens = [*completion.prompt, *output]
    reader = reader_of(loaded, len(tokens))
    peaks, said = logits_of(reader, tokens, len(output)).softmax(-1, dtype=torch.float32).max(-1)
    reader.cache.drop()
    models = watched.trust.models[int(not completion.request.sampling.greedy)]
    found = zip(output, said.tolist(), peaks.tolist(), watched.guesses, strict=True)
    hits = []
    for token, own, peak, (guess, believed) in found:
        kind = sureness_of(peak)
        hits.append(token == (guess if believed > trust_in_model(models[kind], kind) else own))
    return hits
