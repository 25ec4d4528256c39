"""Reading a finished text with a draft: at which positions would it have said what the target said?

One forward pass over prompt and output; see osd.demo.runner.measure for why this is α under greedy decoding. It happens
after a request has finished and is no part of its time.
"""

from __future__ import annotations

import torch

from osd.drafters.blended import TableGuesses
from osd.drafters.loaded_draft import LoadedDraft
from osd.drafters.ngram.guess import sureness_of, trust_in_model
from osd.drafters.scoring import logits_of, matches, reader_of
from osd.models.pair import Model
from osd.sequence import Completion


class DraftReader:
    """One draft, reading texts one at a time in a cache of its own."""

    def __init__(self, model: Model, length: int) -> None:
        """``length``: tokens of prompt and output at most."""
        self._decoder = model.decoder(1, length)

    @torch.inference_mode()
    def hits(self, completion: Completion) -> list[bool]:
        """For every token of the output, whether the draft's likeliest token there is that token."""
        output = completion.tokens
        return matches(self._decoder, [*completion.request.prompt_tokens, *output], len(output)) if output else []


def blended_hits(loaded: LoadedDraft, watched: TableGuesses, completion: Completion) -> list[bool]:
    """For every token of the output, whether draft and table together would have named it: the table what it guessed
    there before it was said, whichever of the two is trusted more by now."""
    output = list(completion.tokens)
    tokens = [*completion.request.prompt_tokens, *output]
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
