"""How the next token of a request is chosen: sampling parameters, and a grammar that the output must match."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

LEAST_TEMPERATURE = 2.0**-126
"""The least normal float32. Below it float32 has 0 or few digits, and its reciprocal may overflow."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling parameters of a request: how the next token is chosen from the target's distribution."""

    temperature: float = 0.0
    """Divides the logits; 0 means greedy, and so does what is below ``LEAST_TEMPERATURE``."""
    top_k: int | None = None
    """Keep the k likeliest tokens; 0 and −1 keep all. None: the model's own, see ``repetition_penalty``."""
    top_p: float | None = None
    """Keep the smallest set of likeliest tokens whose mass reaches p, in (0, 1]; 1 keeps all. None: the model's own."""
    seed: int | None = None
    """Makes this request's text repeatable, whatever shares its batch, as long as the drafts have the same lengths.

    That holds under ``fixed`` gamma, not under controllers that look at the clock. None draws a fresh seed.
    """
    min_p: float | None = None
    """Keep tokens at least so likely as this part of the likeliest one, in [0, 1]; 0 keeps all. None: the model's
    own."""
    repetition_penalty: float | None = None
    """Divides positive logits of tokens that prompt or output have, multiplies negative ones; 1 changes nothing. None:
    the model's own, from its generation_config.json, or nothing where that says nothing or is not read."""
    presence_penalty: float = 0.0
    """Subtracted from logits of tokens that the output has, in [−2, 2]."""
    frequency_penalty: float = 0.0
    """Subtracted from logits for each time that the output has the token, in [−2, 2]."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these tokens."""
    bad_words: tuple[str, ...] = ()
    """Words that must not come: the last token of each is forbidden where the text has those before it."""
    allowed_token_ids: tuple[int, ...] | None = None
    """The only tokens that may come; None allows all."""

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken, and nothing is drawn."""
        return self.temperature < LEAST_TEMPERATURE


GREEDY = Sampling()
"""The likeliest token each time."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an output must match."""

    kind: str
    """``json_schema``, ``regex``, ``choice`` (a JSON list of strings), ``lark`` or ``grammar`` (Lark or GBNF)."""
    text: str
    field: str = "grammar"
    """The field of the request's body that asks for it, for errors."""
