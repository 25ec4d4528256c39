"""Texts of single tokens, remembered: vLLM decodes every token of every log-probability that it is asked for."""

from __future__ import annotations

from typing import Any


def remember_tokens(tokenizer: Any) -> None:
    """Let a tokenizer decode a single token once and remember its text; everything else it does as before.

    vLLM turns the likeliest tokens of each position into text one by one, in the process that answers clients, also
    where it is then asked to name them by their ids: an eighth of a millisecond for each token of an answer. The text
    of a single token depends on nothing but its id.
    """
    decode, known = tokenizer.decode, {}

    def remembered(*args: Any, **kwargs: Any) -> Any:
        ids = args[0] if len(args) == 1 and not kwargs else None
        if not (isinstance(ids, list) and len(ids) == 1 and isinstance(ids[0], int)):
            return decode(*args, **kwargs)
        if (text := known.get(ids[0])) is None:
            text = known[ids[0]] = decode(ids)
        return text

    tokenizer.decode = remembered
