"""Conversations that somebody has: JSON lines of prompts and responses, or of OpenAI's requests and answers.

    {"prompt": "…", "response": "…"}                                  or "completion", "answer", "output"
    {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}
    {"request": {"messages" or "prompt": …}, "response": {"choices": [{"message": {"content": "…"}}]}}

A request is read as the server reads it, by the same models and chat template, or refused for the same reason. A target
then reads each answer once, and what it would have said at every position is learned from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, StrictInt, ValidationError, model_validator

from osd.attached.passes import Scorer
from osd.chat_template import ChatTemplate
from osd.engine.validation import check_request
from osd.prompts import broken, join, read_lines
from osd.recording.topk import TopKLogprobs
from osd.server.errors import invalid_field
from osd.server.http.chat import chat_prompt
from osd.server.http.chat_protocol import ChatBody, Json, Message
from osd.server.http.completions import CompletionBody, completion_prompts
from osd.server.http.neutral import NEUTRAL
from osd.server.http.order import TokensPrompt
from osd.server.http.protocol import SamplingBody, require_whole_characters
from storage.errors import BadPromptFile, BadRequest, OsdError
from storage.records import DEFAULT_TENANT, EVERYBODY, Request, RequestSamples, TokenKind, now

ASKED = ChatBody.model_fields.keys() | CompletionBody.model_fields.keys() | NEUTRAL.keys()
"""Fields of a row without ``request`` that belong to the request; others are the row's own."""


class AnswerMessage(Message):
    """The message of an answer."""

    role: Literal["assistant"] = "assistant"


class LoggedChoice(BaseModel):
    """One answer, as OpenAI's API gives it."""

    index: int | None = Field(default=None, ge=0)
    text: str | None = None
    message: AnswerMessage | None = None
    finish_reason: str | None = None
    stop_reason: StrictInt | str | None = None
    """vLLM's: the string or token that ended it, null for an end token."""

    def whole_text(self) -> str:
        """Return its text. Raises BadRequest where that is not all that the model said."""
        if self.message is None:
            return self.text or ""
        for name in self.message.facts().keys() - {"role", "content", "name"}:
            raise BadRequest(field=f"message.{name}", reason="how the model wrote it is not known")
        return self.message.text


class ApiAnswer(BaseModel):
    """The answers to one request."""

    choices: list[LoggedChoice] = Field(min_length=1)


class Row(BaseModel):
    """One line of a file."""

    model_config = ConfigDict(extra="allow")

    request: Json | None = None
    prompt: Any = None
    context: str | None = None
    response: ApiAnswer | str | None = Field(
        default=None, validation_alias=AliasChoices("response", "completion", "answer", "output")
    )
    finish_reason: str | None = None
    tenant: str = Field(default=DEFAULT_TENANT, pattern=rf"^[^\x00]*[^\s\x00{EVERYBODY}][^\x00]*$")

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nulls(cls, given: Any) -> Any:
        require_whole_characters(given)
        return {k: v for k, v in given.items() if v is not None} if isinstance(given, dict) else given


@dataclass(frozen=True, slots=True)
class Conversation:
    """A prompt and what was answered, as the target reads them."""

    prompt: tuple[int, ...]
    response: tuple[int, ...]
    ends: tuple[int, ...]
    """The tokens of which one came last, and is not in the response; empty where none came, or nobody says so."""
    tenant: str


class RowReader:
    """Reads lines as the server reads requests."""

    def __init__(
        self, tokenizer: Any, eos_ids: Collection[int], vocab_size: int, limit: int, template: str | None = None,
        stops: Collection[str] = (),
    ) -> None:  # fmt: skip
        """``limit``: tokens of a conversation at most; ``template`` replaces the tokenizer's own; ``stops``: strings
        that end every text."""
        self.tokenizer, self.vocab_size, self.limit = tokenizer, vocab_size, limit
        self._template, self._eos, self._stops = ChatTemplate(tokenizer, template), eos_ids, stops

    def __call__(self, path: Path, number: int, line: bytes) -> list[Conversation | BadPromptFile]:
        """Return the conversations of a line, one for each answer, or what is wrong with it."""
        try:
            return list(self._conversations(Row.model_validate(json.loads(line))))
        except ValidationError as error:
            problem = error.errors()[0]
            reason = f"is refused: {invalid_field(problem, problem['loc'])}"
        except OsdError as error:
            reason = f"is refused: {error}"
        except Exception as error:  # whatever a line holds, it costs no other line
            reason = f"cannot be read: {error or type(error).__name__}"
        return [broken(path, number, reason)]

    def _conversations(self, row: Row) -> Iterator[Conversation]:
        asked, choices = self._asked(row)
        body, prompts = self._prompts(asked)
        if body.osd.learn is False:
            raise BadRequest(field="osd.learn", reason="it is false: nothing of this request is kept")
        for place, choice in enumerate(choices):
            index = place if choice.index is None else choice.index
            turn = 0 if len(prompts) == 1 else index // (body.n or 1)
            if turn >= len(prompts):
                raise BadRequest(field=f"response.choices.{place}.index", reason="there is no such prompt")
            stop, ends = self._end(body, choice)
            response = tuple(self.tokenizer.encode(choice.whole_text() + stop, add_special_tokens=False))
            if not (response or ends):
                raise BadRequest(field="response", reason="it has no text")
            ends, prompt = () if {*response[-1:]} & {*ends} else ends, prompts[turn].tokens
            for text in (prompt, (*prompt, *response, *ends[:1])):
                check_request(Request(text, max_new_tokens=0, prompt_logprobs=0), self, self.limit)
            yield Conversation(prompt, response, ends, row.tenant)

    def _prompts(self, asked: Json) -> tuple[SamplingBody, list[TokensPrompt]]:
        if "messages" in asked:
            chat = ChatBody.model_validate(asked)
            return chat, [chat_prompt(self._template, self.tokenizer, chat)]
        body = CompletionBody.model_validate(asked)
        if body.echo:
            raise BadRequest(field="echo", reason="it is true: where the answer begins is not known")
        return body, completion_prompts(self.tokenizer, body)

    def _asked(self, row: Row) -> tuple[Json, list[LoggedChoice]]:
        """Return the body of the request, and the answers to it."""
        asked, said = row.request, row.response
        if asked is None:
            asked = {name: value for name, value in (row.model_extra or {}).items() if name in ASKED}
            asked |= self._plain_prompt(row) if "messages" not in asked else {}
        if isinstance(said, ApiAnswer):
            return asked, said.choices
        if said is not None:
            return asked, [LoggedChoice(text=said, finish_reason=row.finish_reason)]
        if not isinstance(messages := asked.get("messages"), list) or len(messages) < 2:
            raise BadRequest(field="response", reason="there is none, and no last message that is the assistant's")
        last = AnswerMessage.model_validate(messages[-1])
        return {**asked, "messages": messages[:-1]}, [LoggedChoice(message=last, finish_reason=row.finish_reason)]

    def _plain_prompt(self, row: Row) -> Json:
        """Return the prompt of a row without ``request``: text is a chat where there is a template, unless what was
        answered is a completion."""
        completed = isinstance(row.response, ApiAnswer) and row.response.choices[0].text is not None
        if not isinstance(row.prompt, str) or completed:
            return {"prompt": row.prompt}
        if not row.prompt.strip():
            raise BadRequest(field="prompt", reason='there is neither "messages" nor a "prompt" with text in it')
        text = join(row.context, row.prompt)
        return {"messages": [{"role": "user", "content": text}]} if self._template.exists else {"prompt": text}

    def _end(self, body: SamplingBody, choice: LoggedChoice) -> tuple[str, tuple[int, ...]]:
        """Return the string that came behind an answer's text, and the tokens of which one did."""
        reason, said = choice.stop_reason, "stop_reason" in choice.model_fields_set
        if choice.finish_reason != "stop":
            return "", ()
        if isinstance(reason, str):
            return "" if body.include_stop_str_in_output else reason, ()
        if isinstance(reason, int):
            return "", (reason,)
        if not said and (body.stop or self._stops):  # one of them, or an end token: nobody says which
            return "", ()
        eos, others = () if body.ignore_eos else self._eos, () if said else body.stop_token_ids or ()
        return "", tuple(sorted({*eos, *others}))


def score_conversations(
    path: Path, read: RowReader, scorer: Scorer, *, route: str, version: str, hidden: bool = False
) -> Iterator[RequestSamples | BadPromptFile]:
    """Yield the samples of each conversation of a file, with ``hidden`` the target's hidden states too, or why a line
    gives none."""
    for one in chain.from_iterable(read_lines(path, read)):
        if isinstance(one, BadPromptFile):
            yield one
            continue
        text, begin = [*one.prompt, *one.response, *one.ends[:1]], len(one.prompt)
        scored, states = scorer.with_states(text, begin) if hidden else (scorer(text, begin), None)
        if one.ends:  # the one that the target says; what it says there does not depend on it
            text[-1] = next((int(token) for token in scored.ids[-1] if token in one.ends), one.ends[0])
        about = {"route": route, "draft_version": version, "target": scorer.target, "hidden_states": states}
        yield samples_of_conversation(one, np.array(text, np.int32), scored, about)


def samples_of_conversation(
    one: Conversation, tokens: npt.NDArray[np.int32], scored: TopKLogprobs, about: dict[str, Any]
) -> RequestSamples:
    """Make samples of a conversation: every position of the response, none of which anybody drafted.

    Its id follows from its tokens, so that a file that is taken in twice changes nothing.
    """
    begin, count = len(one.prompt), len(tokens) - len(one.prompt)
    return RequestSamples(
        request_id=hashlib.sha256(tokens.tobytes()).hexdigest()[:32], tenant=one.tenant, created_at=now(),
        prompt_len=begin, tokens=tokens, positions=np.arange(begin, len(tokens), dtype=np.int32),
        kinds=np.full(count, TokenKind.UNDRAFTED, np.uint8), drafted=tokens[begin:], topk_ids=scored.ids,
        topk_logprobs=scored.logprobs.astype(np.float16), outside=scored.outside,
        acceptance=np.full(count, np.nan, np.float16), **about,
    )  # fmt: skip
