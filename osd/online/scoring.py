"""Reading a finished text with a draft: at which positions would it have said what the target said?

One forward pass over prompt and output; see osd.online.measure for why this is α under greedy decoding. It happens
after a request has finished and is no part of its time.
"""

from __future__ import annotations

import torch

from osd.decoder import Forward
from osd.models import Model
from osd.row import Completion


class Reader:
    """One draft, reading texts one at a time in a cache of its own."""

    def __init__(self, model: Model, length: int) -> None:
        """``length``: tokens of prompt and output at most."""
        self._decoder = model.decoder(1, length)

    @torch.inference_mode()
    def hits(self, completion: Completion, forward: Forward | None = None) -> list[bool]:
        """For every token of the output, whether the draft's likeliest token there is that token.

        ``forward`` reads with other weights of the same architecture, as those that serve now.
        """
        if forward is not None:
            self._decoder.forward = forward
        prompt, output = completion.request.prompt_tokens, completion.tokens
        if not output:
            return []
        self._decoder.prefill(0, prompt[:-1])
        device = self._decoder.device
        read = torch.tensor([[prompt[-1], *output[:-1]]], device=device)
        said = self._decoder.logits(read, [len(prompt) - 1])[0].argmax(-1)
        return (said == torch.tensor(output, device=device)).tolist()
