"""Fields of OpenAI's and vLLM's requests that osd does not have, and the values of them that ask for nothing."""

from __future__ import annotations

from typing import Any

from pydantic_core import PydanticCustomError

NEUTRAL: dict[str, tuple[Any, ...]] = {
    # OpenAI's
    "audio": (), "best_of": (1,), "echo": (False,), "function_call": ("none", "auto"), "functions": ([],),
    "modalities": (["text"],), "moderation": (), "reasoning_effort": ("none",), "store": (False,), "suffix": ("",),
    "tool_choice": ("none", "auto"), "tools": ([],), "verbosity": ("medium",), "web_search_options": (),
    # vLLM's sampling
    "length_penalty": (1,), "logits_processors": ([],), "repetition_detection": (),
    "spaces_between_special_tokens": (True,), "thinking_token_budget": (-1,), "use_beam_search": (False,),
    "watermarking": (False,),
    # vLLM's others
    "add_generation_prompt": (True,), "add_special_tokens": (True,), "cache_salt": (), "chat_template": (),
    "chat_template_kwargs": ({},), "continue_final_message": (False,), "documents": ([],),
    "ec_transfer_params": ({},), "include_reasoning": (True,), "kv_transfer_params": ({},), "logprob_token_ids": (),
    "media_io_kwargs": ({},), "mm_processor_kwargs": ({},), "priority": (0,), "prompt_embeds": (),
    "return_mm_kwargs": (True,), "return_prompt_text": (False,), "return_token_ids": (False,),
    "return_token_offsets": (False,), "return_token_strs": (False,), "return_tokens_as_token_ids": (False,),
    "routed_experts_prompt_start": (0,), "stream_interval": (1,), "truncate_prompt_tokens": (), "truncation_side": (),
    "vllm_xargs": ({},),
}  # fmt: skip
"""Fields with the values that ask for nothing, as null always does."""
IGNORED = {
    "metadata", "prediction", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "request_id",
    "safety_identifier", "service_tier", "session_id", "user",
}  # fmt: skip
"""Fields that change no text."""
INSTEAD = {
    "chat_template": "templates come from the server's own server.chat_template, not from requests; leave it out",
    "function_call": "osd has no function_call; give tool_choice",
    "functions": "osd has no functions; give tools",
}
"""What to do in place of what is refused, where it is not to leave it out."""


def refused(code: str, name: str, reason: str) -> PydanticCustomError:
    """Return the error that names a field."""
    return PydanticCustomError(code, "{param}: {reason}", {"param": name, "reason": reason})


def check_extra(name: str, value: Any, hint: str) -> None:
    """Raise PydanticCustomError for a field that is not osd's, unless its value asks for nothing."""
    if name in IGNORED or (name in NEUTRAL and (value is None or value in NEUTRAL[name])):
        return
    if name in NEUTRAL:
        raise refused("unsupported_parameter", name, INSTEAD.get(name, f"osd has no {name}; leave it out"))
    raise refused("unknown_parameter", name, f"there is no such parameter{hint}")
