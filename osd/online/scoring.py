"""Reading a finished text with a draft: at which positions would it have said what the target said?

One forward pass over prompt and output; see osd.online.measure for why this is α under greedy decoding. It happens
after a request has finished and is no part of its time.
"""

from __future__ import annotations

import torch

from osd.models import Model
from osd.row import Completion
from osd.shadow import matches


class Reader:
    """One draft, reading texts one at a time in a cache of its own."""

    def __init__(self, model: Model, length: int) -> None:
        """``length``: tokens of prompt and output at most."""
        self._decoder = model.decoder(1, length)

    @torch.inference_mode()
    def hits(self, completion: Completion) -> list[bool]:
        """For every token of the output, whether the draft's likeliest token there is that token."""
        output = completion.tokens
        return matches(self._decoder, [*completion.request.prompt_tokens, *output], len(output)) if output else []
