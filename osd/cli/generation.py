"""Serving of one command's prompts: one that streams, or a file of them in batches."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from osd.cli.out import counted, note, print_json, say
from osd.engine.detokenizer import Detokenizer
from osd.engine.text_stream import TextStream
from osd.prompts import Prompt, encode
from storage.errors import BadPromptFile, BadRequest, OsdError, UnknownRoute
from storage.records import Request, ratio
from storage.sampling import Sampling

if TYPE_CHECKING:
    from osd.engine.engine import Engine
    from osd.sequence import Completion


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """The options that all requests of one command share."""

    sampling: Sampling
    max_tokens: int
    stop: tuple[str, ...]
    raw: bool
    route: str | None
    tenant: str
    learn: bool

    def request(self, engine: Engine, prompt: Prompt) -> Request:
        """Make the request for a prompt; the line's own route, tenant and language override the options.

        Raises BadRequest.
        """
        language = prompt.fields.get("language")
        return Request(
            encode(engine.pair.tokenizer, prompt.text, raw=self.raw),
            max_new_tokens=self.max_tokens,
            sampling=self.sampling,
            stop=self.stop,
            route=prompt.fields.get("route", self.route),
            tenant=prompt.fields.get("tenant", self.tenant),
            learn=self.learn,
            text=prompt.text,
            language=language if isinstance(language, str) else None,
        )


def stream_one(engine: Engine, request: Request) -> None:
    """Serve one request and write its text as it comes."""
    pair = engine.pair
    stream = TextStream(Detokenizer(pair.tokenizer, apart=bool(pair.target.start)), request, pair.eos_ids)
    engine.submit(request)
    while engine.busy:
        for progress in engine.step():
            done = progress.completion
            sys.stdout.write(stream.push(progress.tokens) + (stream.finish() if done else ""))
            sys.stdout.flush()
            if done:
                say("")
                note(summary(done))


class PromptBatch:
    """Serves many prompts and reports each as it finishes; one that cannot be served does not end the others."""

    def __init__(self, engine: Engine, wish: RequestOptions, *, as_json: bool) -> None:
        self.engine, self.wish, self.as_json = engine, wish, as_json
        self.failed = 0
        self._prompts: dict[str, Prompt] = {}

    def serve(self, source: Iterable[Prompt | BadPromptFile]) -> None:
        """Serve all prompts; afterwards ``failed`` counts those that could not be served."""
        items = iter(source)
        while True:
            while len(self._prompts) < self.engine.settings.serve.max_batch and (item := next(items, None)) is not None:
                self._submit(item)
            if not self.engine.busy:
                return
            for progress in self.engine.step():
                if progress.completion:
                    self._report(progress.completion)

    def _submit(self, item: Prompt | BadPromptFile) -> None:
        if isinstance(item, BadPromptFile):
            self._refuse(item.facts.get("line"), item)
            return
        try:
            request = self.wish.request(self.engine, item)
            self.engine.submit(request)
        except (BadRequest, UnknownRoute) as error:
            self._refuse(item.line, error)
        else:
            self._prompts[request.id] = item

    def _refuse(self, line: int | None, error: OsdError) -> None:
        self.failed += 1
        if self.as_json:
            print_json({"line": line, "error": str(error)})
        note(f"line {line}: {error}")

    def _report(self, done: Completion) -> None:
        prompt = self._prompts.pop(done.request.id)
        if self.as_json:
            told = {"line": prompt.line, "id": prompt.fields.get("id"), "prompt": prompt.text, **facts(done)}
            print_json(told | ({"lossy": self.engine.lossy.mode} if self.engine.lossy else {}))
        else:
            say(f"── line {prompt.line}\n{done.text}\n")


def facts(done: Completion) -> dict[str, Any]:
    """Return a finished request's statistics for JSON."""
    accepted = sum(one.accepted for one in done.rounds)
    rejections = sum(one.rejected for one in done.rounds)
    return {
        "text": done.text,
        "finish_reason": done.finish_reason,
        "prompt_tokens": len(done.request.prompt_tokens),
        "tokens": len(done.tokens),
        "rounds": len(done.rounds),
        "alpha": ratio(accepted, accepted + rejections),
        "seconds": round(done.seconds, 4),
        "route": done.route,
        "draft_version": done.rounds[-1].draft_version if done.rounds else None,
        "request_id": done.request.id,
    }


def summary(done: Completion) -> str:
    """Summarise a finished request in one line for the person at the terminal."""
    found = facts(done)
    speed = found["tokens"] / max(done.seconds, 1e-9)
    alpha = "" if found["alpha"] is None else f", α {found['alpha']:.2f}"
    return (
        f"{counted(found['tokens'], 'token')} in {counted(found['rounds'], 'round')}, "
        f"{speed:.0f} tokens/s{alpha} ({found['finish_reason']})"
    )
