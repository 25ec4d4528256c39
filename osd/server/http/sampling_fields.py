"""The fields of a body that say how tokens are chosen and where the answer ends, with vLLM's names and ranges."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from storage.sampling import Sampling

SEEDS = 1 << 64
Tokens = list[Annotated[int, Field(ge=0, le=1 << 31)]]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Penalty = Annotated[Finite, Field(ge=-2, le=2)]


class SamplingFields(BaseModel):
    """What is left out, or null, is the model's own: see `serve.generation_config`."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    temperature: Finite | None = Field(default=None, ge=0, le=2)
    """Default: the model's own, or 1."""
    top_p: Finite | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    """Keep the k likeliest tokens; 0 and -1 keep all."""
    min_p: Finite | None = Field(default=None, ge=0, le=1)
    """Keep tokens at least so likely as this part of the likeliest one."""
    seed: int | None = Field(default=None, ge=-(1 << 63), lt=1 << 63)
    repetition_penalty: Finite | None = Field(default=None, gt=0)
    """Above 1, tokens that the prompt or the answer has become less likely."""
    presence_penalty: Penalty | None = 0.0
    """Subtracted from the logits of tokens that the answer has."""
    frequency_penalty: Penalty | None = 0.0
    """Subtracted from a token's logit for each time that the answer has it."""
    logit_bias: dict[int, Annotated[Finite, Field(ge=-100, le=100)]] | None = None
    """Added to the logits of these token ids."""
    bad_words: list[str] | None = None
    """Words that do not come."""
    allowed_token_ids: Tokens | None = None
    """The only tokens that come."""
    stop: str | list[str] | None = None
    include_stop_str_in_output: bool | None = False
    """Whether the answer ends with the stop string."""
    skip_special_tokens: bool | None = True
    """Whether special tokens are left out of the text."""
    stop_token_ids: Tokens | None = None
    """End with one of these tokens too."""
    min_tokens: int | None = Field(default=0, ge=0)
    """Tokens before which the answer does not end."""
    ignore_eos: bool | None = False
    """Continue past the end token."""

    def sampling(self, number: int, temperature: float) -> Sampling:
        """Return the sampling of choice ``number``; each choice of a seeded call has a seed of its own.
        ``temperature``: the default one."""
        return Sampling(
            temperature=temperature if self.temperature is None else self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            seed=None if self.seed is None else (self.seed + number) % SEEDS,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            logit_bias=self.logit_bias or {},
            bad_words=tuple(self.bad_words or ()),
            allowed_token_ids=None if self.allowed_token_ids is None else tuple(self.allowed_token_ids),
        )
