"""What is asked of vLLM beyond what its client asked, and how the answer becomes what the client would have had.

Pure functions over the JSON of /v1/completions and /v1/chat/completions.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
PATHS = {"/v1/completions": False, "/v1/chat/completions": True}
"""The routes that are harvested; True where the body is a chat."""
SALTED, MOST_SALT = 16, 128
"""Letters of a version's digest that go into a cache salt, and letters that vLLM takes in all."""
MARK = "token_id:"
"""What vLLM puts before an id where it names tokens by their ids."""


@dataclass
class HarvestedChoice:
    """One answer as it grows."""

    tokens: list[int] = field(default_factory=list)
    top_ids: list[list[int]] = field(default_factory=list)
    """(n, k) the likeliest tokens at each position, as vLLM lists them."""
    top_logprobs: list[list[float]] = field(default_factory=list)
    """(n, k) their log-probabilities, before any warping."""
    finish_reason: str | None = None


@dataclass(slots=True)
class Exchange:
    """One request: what the client asked, and what is kept of the answer."""

    asked: Json
    chat: bool
    scored: bool
    """Whether log-probabilities are ours: the client asked for none."""
    usage: bool
    """Whether the usage chunk of a stream is ours."""
    shows_metrics: bool
    """Whether clients see the acceptance that vLLM adds."""
    prompt: list[int] = field(default_factory=list)
    choices: dict[int, HarvestedChoice] = field(default_factory=dict)
    speculation: Json | None = None
    """vLLM's ``metrics.speculative_decoding``."""
    output: int | None = None
    """Output tokens by vLLM's own count; None where it did not say."""
    _held: Json | None = None
    """The chunk that ends a stream, until the usage chunk has told the fingerprint that belongs to it."""

    @classmethod
    def of_request(cls, path: str, body: bytes, k: int, *, shows_metrics: bool) -> Exchange | None:
        """Read a request; return None for one that is not harvested and passes untouched: of another route, that is no
        JSON (vLLM says so better), of several prompts, with beam search, or that echoes its prompt."""
        if path not in PATHS:
            return None
        try:
            asked = json.loads(body)
        except ValueError:
            return None
        if not isinstance(asked, dict) or asked.get("use_beam_search") or asked.get("echo") or not _one(asked):
            return None
        chat = PATHS[path]
        wants = bool(asked.get("logprobs")) if chat else asked.get("logprobs") is not None
        scored = k > 0 and not wants and not asked.get("logprob_token_ids")
        alone = asked.get("n") in (None, 1)
        options = asked.get("stream_options") or {}
        usage = bool(asked.get("stream")) and alone and isinstance(options, dict) and not options.get("include_usage")
        return cls(asked, chat, scored, usage, shows_metrics)

    def body_for_vllm(self, k: int, version: str | None) -> bytes:
        """Return the body that vLLM is sent: with token ids, the ``k`` likeliest tokens, and a stream's usage chunk.

        ``version``: digest of the draft that serves, and of a target that was replaced (:class:`.sender.Sender`). It
        becomes part of the prefix cache's salt: cached blocks hold the draft's keys and values too, and those of
        another version would draft worse, and not what that version drafts.
        """
        body = {**self.asked, "return_token_ids": True}
        salt = self.asked.get("cache_salt")
        if version and (salt is None or (isinstance(salt, str) and 0 < len(salt) <= MOST_SALT - SALTED)):
            body["cache_salt"] = version[:SALTED] + (salt or "")
        if self.scored:
            body |= {"logprobs": True, "top_logprobs": k} if self.chat else {"logprobs": k}
            body["return_tokens_as_token_ids"] = True
        if self.usage:
            body["stream_options"] = {**(self.asked.get("stream_options") or {}), "include_usage": True}
        return json.dumps(body).encode()

    def client_answer(self, answer: Json) -> Json:
        """Take what is ours out of a whole answer, and keep it."""
        self._keep(answer)
        return self._trim(answer)

    def client_chunks(self, chunk: Json) -> list[Json]:
        """Take what is ours out of a chunk of a stream, and keep it; return the chunks that the client gets now."""
        self._keep(chunk)
        if self.usage and not chunk.get("choices") and chunk.get("usage"):
            return self._release(chunk.get("system_fingerprint"))
        chunk = self._trim(chunk)
        if chunk.get("metrics", chunk) is None:  # a chunk lacks the field where a whole answer has null
            del chunk["metrics"]
        if _empty(chunk) and not (self.asked.get("return_token_ids") or self.asked.get("logprobs")):
            return []
        if self.usage and any(choice.get("finish_reason") for choice in chunk.get("choices") or ()):
            self._held = chunk
            return []
        return [*self._release(None), chunk]

    def held(self) -> list[Json]:
        """Return what is still held once the stream has ended."""
        return self._release(None)

    def _release(self, fingerprint: str | None) -> list[Json]:
        held, self._held = self._held, None
        if held is None:
            return []
        return [held if fingerprint is None else {**held, "system_fingerprint": fingerprint}]

    def _keep(self, answer: Json) -> None:
        self.prompt = answer.get("prompt_token_ids") or self.prompt
        self.speculation = (answer.get("metrics") or {}).get("speculative_decoding") or self.speculation
        self.output = (answer.get("usage") or {}).get("completion_tokens", self.output)
        for part in answer.get("choices") or ():
            self.prompt = part.get("prompt_token_ids") or self.prompt
            choice = self.choices.setdefault(part["index"], HarvestedChoice())
            choice.tokens += part.get("token_ids") or []
            choice.finish_reason = part.get("finish_reason") or choice.finish_reason
            if self.scored and (logprobs := part.get("logprobs")):
                for ids, values in _chat_tops(logprobs) if self.chat else _completion_tops(logprobs):
                    choice.top_ids.append(ids)
                    choice.top_logprobs.append(values)

    def _trim(self, answer: Json) -> Json:
        """Return the answer without what the client did not ask for; a field that vLLM names in any case is null."""
        hidden = [] if self.asked.get("return_token_ids") else ["prompt_token_ids", "token_ids"]
        answer = _without(answer, hidden)
        choices = hidden + (["logprobs"] if self.scored else [])
        if answer.get("choices"):
            answer["choices"] = [_without(part, choices) for part in answer["choices"]]
        if not self.shows_metrics and answer.get("metrics"):
            others = {k: v for k, v in answer["metrics"].items() if k != "speculative_decoding" and v is not None}
            answer["metrics"] = {**answer["metrics"], "speculative_decoding": None} if others else None
        return answer

    def record(self) -> Json:
        """Return what the collector is sent of it."""
        speculation = self.speculation or {}
        return {
            "temperature": self.asked.get("temperature"), "prompt": self.prompt,
            "choices": [vars(self.choices[index]) for index in sorted(self.choices)],
            "accepted": speculation.get("per_step_accepted"), "drafted": speculation.get("per_step_drafted"),
        }  # fmt: skip

    @property
    def complete(self) -> bool:
        """Whether all was seen: a prompt, and for each answer that ended as many positions as tokens."""
        known = all(
            choice.tokens and choice.finish_reason and (not self.scored or len(choice.top_ids) == len(choice.tokens))
            for choice in self.choices.values()
        )
        counted = sum(len(choice.tokens) for choice in self.choices.values())
        return bool(self.prompt and self.choices) and known and self.output in (None, counted)


def _one(asked: Json) -> bool:
    """Return whether there is one prompt, in words or ids."""
    prompt = asked.get("prompt")
    if asked.get("prompt_embeds"):
        return False
    return not isinstance(prompt, list) or bool(prompt and all(isinstance(token, int) for token in prompt))


def _without(part: Json, names: list[str]) -> Json:
    return {name: None if name in names else value for name, value in part.items()}


def _empty(chunk: Json) -> bool:
    """Return whether a chunk of a chat is there for our fields alone: vLLM sends it for them without any delta."""
    choices: list[Json] = chunk.get("choices") or []
    return bool(choices) and all(part.get("delta") == {} and not part.get("finish_reason") for part in choices)


def _chat_tops(logprobs: Json) -> list[tuple[list[int], list[float]]]:
    content: list[Json] = logprobs.get("content") or []
    tops = [each["top_logprobs"] for each in content]
    return [([_id(one["token"]) for one in top], [one["logprob"] for one in top]) for top in tops]


def _completion_tops(logprobs: Json) -> list[tuple[list[int], list[float]]]:
    tops: list[Json | None] = logprobs.get("top_logprobs") or []
    return [([_id(name) for name in top or {}], list((top or {}).values())) for top in tops]


def _id(name: str) -> int:
    return int(name.removeprefix(MARK))
