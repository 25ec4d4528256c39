"""Conversations that somebody has, as the model reads them. See :mod:`osd.server.http.row_forms` for their forms.

A request is read as the server reads it, by the same models and chat template, or refused for the same reason. What is
kept of an answer is what a served one would have left: its text behind the prompt, as the template writes it where it
has reasoning or calls, and the token that ended it. A target then reads each answer once, and what it would have said
at every position is learned from.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from osd.attached.passes import Scorer
from osd.chat_template import REASONING, ChatTemplate
from osd.engine.validation import check_request
from osd.prompts import broken, join
from osd.recording.topk import TopKLogprobs
from osd.server.errors import invalid_field
from osd.server.http.chat import chat_prompt, chat_text
from osd.server.http.chat_protocol import ChatBody, Json
from osd.server.http.completions import CompletionBody, completion_prompts
from osd.server.http.order import TokensPrompt
from osd.server.http.protocol import SamplingBody
from osd.server.http.row_files import read_rows
from osd.server.http.row_forms import ASKED, AnswerMessage, ApiAnswer, LoggedChoice, Row, Turns, answered_turns
from storage.errors import BadPromptFile, BadRequest, OsdError
from storage.records import Request, RequestSamples, TokenKind, now

WHOLE = "whole"
"""Why a chat's answer ended of which nobody says why: people keep whole ones."""
ENDED = {"stop", "tool_calls", WHOLE}
"""Why an answer ended where the model ended it."""
THINK = "<think>"
OPENED = re.compile(rf"{THINK}\s*$")
"""A prompt in which the model's reasoning has begun."""


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
        stops: Collection[str] = (), turns: Turns = "last",
    ) -> None:  # fmt: skip
        """``limit``: tokens of a conversation at most; ``template`` replaces the tokenizer's own; ``stops``: strings
        that end every text; ``turns``: which of a chat's answers are learned."""
        self.tokenizer, self.vocab_size, self.limit, self._turns = tokenizer, vocab_size, limit, turns
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
        asked = list(self._asked(row))
        for body, choices in asked if self._turns == "all" else asked[-1:]:
            yield from self._answers(body, choices, row.tenant)

    def _answers(self, asked: Json, choices: list[LoggedChoice], tenant: str) -> Iterator[Conversation]:
        body, prompts = self._prompts(asked)
        if body.osd.learn is False:
            raise BadRequest(field="osd.learn", reason="it is false: nothing of this request is kept")
        for each in prompts:
            self._check(each.tokens)
        for place, choice in enumerate(choices):
            index = place if choice.index is None else choice.index
            turn = 0 if len(prompts) == 1 else index // (body.n or 1)
            if turn >= len(prompts):
                raise BadRequest(field=f"response.choices.{place}.index", reason="there is no such prompt")
            response, ends = self._response(body, choice)
            if not response and (not ends or choice.finish_reason == WHOLE):
                raise BadRequest(field="response", reason="it has no text")
            ends, prompt = () if {*response[-1:]} & {*ends} else ends, prompts[turn].tokens
            self._check((*prompt, *response, *ends[:1]))
            yield Conversation(prompt, response, ends, tenant)

    def _check(self, text: Sequence[int]) -> None:
        """Raise BadRequest where the server would refuse a text."""
        check_request(Request(tuple(text), max_new_tokens=0, prompt_logprobs=0), self, self.limit)

    def _response(self, body: SamplingBody, choice: LoggedChoice) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return an answer's tokens, and those of which one came behind them. Raises BadRequest."""
        stop, ends = self._end(body, choice)
        message = choice.message
        if choice.token_ids is not None:
            return tuple(choice.token_ids), ()
        if message is None or (message.is_plain and not message.text.lstrip().startswith(THINK)):
            text = message.text if message else choice.text or ""
            return tuple(self.tokenizer.encode(text + stop, add_special_tokens=False)), ends
        if not isinstance(body, ChatBody):
            raise BadRequest(field="message", reason="a completion has none")
        tokens = tuple(self.tokenizer.encode(self._written(body, message), add_special_tokens=False))
        end = next((place for place, token in enumerate(tokens) if token in self._eos), len(tokens))
        return tokens[:end], (tokens[end : end + 1] or ends) if ends else ()

    def _written(self, body: ChatBody, answer: AnswerMessage) -> str:
        """Return what a model that answered so had written behind the prompt: where there is more than text, as the
        template writes it, its end token too. Raises BadRequest."""
        before = chat_text(self._template, body, body.messages)
        facts, thinks = answer.facts(), OPENED.search(before)
        if answer.is_plain:
            return answer.text.lstrip().removeprefix(THINK).lstrip() if thinks else answer.text
        closed = body.model_copy(update={"add_generation_prompt": False})
        whole = chat_text(self._template, closed, [*body.messages, answer])
        if whole.startswith(before):
            return whole[len(before) :].rstrip()
        name = next(name for name in ("tool_calls", *REASONING, *facts) if name in facts)
        if not thinks or name not in REASONING:
            raise BadRequest(field=f"message.{name}", reason="how the model wrote it is not known")
        return f"{facts[name].strip()}\n</think>\n\n{answer.text.strip()}"  # of a template that drops what was thought

    def _prompts(self, asked: Json) -> tuple[SamplingBody, list[TokensPrompt]]:
        if "messages" in asked:
            chat = ChatBody.model_validate(asked)
            return chat, [chat_prompt(self._template, self.tokenizer, chat)]
        body = CompletionBody.model_validate(asked)
        if body.echo:
            raise BadRequest(field="echo", reason="it is true: where the answer begins is not known")
        return body, completion_prompts(self.tokenizer, body)

    def _asked(self, row: Row) -> Iterator[tuple[Json, list[LoggedChoice]]]:
        """Yield the body of each request, and the answers to it."""
        asked, said = row.request, row.response
        if row.input_ids is not None:
            yield from (({"prompt": p}, [LoggedChoice(token_ids=r)]) for p, r in row.runs(row.input_ids))
            return
        if asked is None:
            asked = {name: value for name, value in (row.model_extra or {}).items() if name in ASKED}
            asked |= self._plain_prompt(row) if "messages" not in asked else {}
        ended = row.finish_reason or (WHOLE if row.request is None and "messages" in asked else None)
        if isinstance(said, ApiAnswer):
            yield asked if said.prompt_token_ids is None else {"prompt": said.prompt_token_ids}, said.choices
        elif said is not None:
            told: Json = {"token_ids" if isinstance(said, list) else "text": said}
            yield asked, [LoggedChoice(finish_reason=ended, **told)]
        else:
            for messages, answer in answered_turns(asked.get("messages")):
                message = AnswerMessage.model_validate(answer)
                yield {**asked, "messages": messages}, [LoggedChoice(message=message, finish_reason=ended)]

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
        if choice.finish_reason not in ENDED:
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
    for one in read_rows(path, read):
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
