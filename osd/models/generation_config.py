"""What a model's folder says of its texts: generation_config.json, or a config.json that has the same keys.

vLLM takes its sampling defaults from there (``--generation-config auto``) and ignores the rest. Here the rest is
applied too, as transformers does, or the model is refused; ``serve.generation_config = "vllm"`` reads none of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from osd.models.model import Model
from storage.errors import GenerationConfigRefused
from storage.records import Request

Use = Literal["auto", "vllm"]


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """A model's own ways. What is None, or empty, is as if it were not there."""

    temperature: float = 1.0
    """The default of requests over HTTP that do not say."""
    max_new_tokens: int | None = None
    """New tokens of a request over HTTP at most."""
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    sequence_bias: Mapping[Sequence[int], float] | None = None
    no_repeat_ngram_size: int | None = None
    bad_words_ids: Sequence[Sequence[int]] | None = None
    min_length: int | None = None
    """Tokens, the prompt's included, before which no end token comes."""
    min_new_tokens: int | None = None
    forced_bos_token_id: int | None = None
    """The second token of every text whose prompt is one token."""
    forced_eos_token_id: int | Sequence[int] | None = None
    """The last token where the most that were asked for come."""
    exponential_decay_length_penalty: tuple[int, float] | None = None
    """New tokens beyond which end tokens become likelier, and by which factor."""
    suppress_tokens: Sequence[int] | None = None
    begin_suppress_tokens: Sequence[int] | None = None
    """Tokens that do not begin an answer."""
    stop_strings: str | Sequence[str] | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The strings that end every text."""
        return (self.stop_strings,) if isinstance(self.stop_strings, str) else tuple(self.stop_strings or ())

    def complete(self, request: Request) -> Request:
        """Return the request with the model's own ways where it leaves them open."""
        own = {name: getattr(self, name) for name in ("top_k", "top_p", "min_p", "repetition_penalty")}
        open_ = {
            name: value for name, value in own.items() if value is not None and getattr(request.sampling, name) is None
        }
        if not open_ and not self.stops:
            return request
        stop = tuple(dict.fromkeys((*request.stop, *self.stops)))
        return replace(request, sampling=replace(request.sampling, **open_), stop=stop)


PLAIN = GenerationConfig()
"""What a model has that has no ways of its own."""
NOTHING = (
    "penalty_alpha", "encoder_no_repeat_ngram_size", "top_h", "dola_layers", "constraints", "force_words_ids",
    "token_healing", "watermarking_config", "max_time",
)  # fmt: skip
NEUTRAL: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(NOTHING, lambda value: not value),
    **dict.fromkeys(("num_beams", "num_beam_groups", "guidance_scale"), lambda value: value == 1),
    **dict.fromkeys(("encoder_repetition_penalty", "typical_p"), lambda value: value == 1),
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff"), lambda value: not 0 < value < 1),
}
"""Keys that change texts and that osd lacks, and which of their values, None aside, ask for nothing."""


def generation_config(target: Model, tokenizer: Any, use: Use) -> GenerationConfig:
    """Return what the target's folder says, or with ``vllm`` nothing. Raises GenerationConfigRefused where
    that asks for what osd lacks."""
    own = getattr(target.module, "generation_config", None)
    if own is None or use == "vllm":
        return PLAIN
    for name, neutral in NEUTRAL.items():
        value = getattr(own, name, None)
        if value is not None and not neutral(value):
            raise GenerationConfigRefused(path=target.name, name=name, value=value)
    given = {
        each.name: value for each in fields(GenerationConfig) if (value := getattr(own, each.name, None)) is not None
    }
    if isinstance(bias := given.get("sequence_bias"), list):
        given["sequence_bias"] = {tuple(tokens): value for tokens, value in bias}
    found = GenerationConfig(**given)
    if found.stops and tokenizer is None:
        raise GenerationConfigRefused(path=target.name, name="stop_strings", value=found.stop_strings)
    return found
