"""`osd generate`: completes prompts through the engine's usual loop, one that streams or a file of them in batches."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osd.cli.context import CommandContext
from osd.cli.options import DraftName, Name, PairOptions
from osd.cli.out import counted, note, print_json, say
from osd.kernels.host import without_collecting
from osd.prompts import Prompt, encode, read_prompts
from osd.server.start import PairNames, choose_pair, draft_in_store, tell_shipped, with_own_store
from storage.errors import BadPromptFile, BadRequest, OsdError, UnknownRoute
from storage.records import DEFAULT_TENANT, Request, ratio
from storage.sampling import Sampling

if TYPE_CHECKING:
    from osd.engine.engine import Engine
    from osd.sequence import Completion


@dataclass(frozen=True)
class PromptOptions:
    """What is completed, and how far."""

    prompt: Annotated[str, typer.Argument(metavar="PROMPT")] | None = None
    """The prompt; - reads it from stdin."""
    prompts: Annotated[Path, typer.Option(metavar="FILE")] | None = None
    """JSON lines, plain or .gz, each with a "prompt"."""
    max_tokens: Annotated[int, typer.Option(metavar="N")] = 128
    """Tokens that come back at most."""
    stop: Annotated[list[str], typer.Option(metavar="TEXT")] | None = None
    """End before this text; may be given again."""
    raw: bool = False
    """Do not put the prompt into the chat template."""
    as_json: Annotated[bool, typer.Option("--json")] = False
    """Print one line of JSON for each prompt."""

    def source(self) -> Path | Prompt:
        """Return the file of prompts, else the prompt of the command line or of stdin. Raises BadParameter."""
        if (self.prompt is None) == (self.prompts is None):
            raise typer.BadParameter("give either a prompt or --prompts FILE")
        return self.prompts or Prompt(sys.stdin.read() if self.prompt == "-" else self.prompt or "", line=1)


@dataclass(frozen=True)
class SamplingOptions:
    """How tokens are drawn."""

    PANEL = "Sampling"
    temperature: Annotated[float, typer.Option(metavar="T")] = 0.0
    """0 takes the likeliest token."""
    top_k: Annotated[int, typer.Option(metavar="K")] | None = None
    """Draw from the K likeliest tokens."""
    top_p: Annotated[float, typer.Option(metavar="P")] | None = None
    """Draw from the likeliest tokens of mass P."""
    seed: Annotated[int, typer.Option(metavar="N")] | None = None
    """Makes drawing repeatable with gamma.rule = fixed; goodput, the default, measures time."""


@dataclass(frozen=True)
class RouteOptions:
    """Which draft is asked for."""

    draft_name: DraftName | None = None
    route: Name | None = None
    """Ask for a route by name."""


@dataclass(frozen=True)
class KeepingOptions:
    """What is kept of the requests."""

    PANEL = "Keeping"
    tenant: Name = DEFAULT_TENANT
    """Whose request it is, in what is kept."""
    learn: Annotated[bool, typer.Option("--learn/--no-learn")] = True
    """Keep what drafts can learn from, and take newer versions of the draft. --no-learn opens no store."""


def generate(
    here: CommandContext,
    asked: PromptOptions,
    sampling: SamplingOptions,
    pair: PairOptions,
    route: RouteOptions,
    keeping: KeepingOptions,
) -> None:
    """Complete a prompt, or every prompt of a file.

    One prompt is streamed as it comes. A file is served in batches, and each text is printed when it is done. A line
    that cannot be served is reported by its number, the others go on, and the command ends with status 2.

    Examples: `osd generate "How many days has a leap year?"`,
    `osd generate --prompts questions.jsonl --json --temperature 0.7 --seed 1`
    """
    source = asked.source()
    settings = here.changed(drafters={"kind": pair.drafter}, serve={"draft_name": route.draft_name})
    names = choose_pair(settings.serve, pair.target, pair.draft, drafter=settings.drafters.kind)
    wanted = Sampling(sampling.temperature, sampling.top_k, sampling.top_p, seed=sampling.seed)
    requests = RequestMaker(asked, wanted, route.route, keeping)
    with ExitStack() as stack:
        with without_collecting():
            engine = start(stack, here, names, learn=keeping.learn)
        failed = serve(engine, requests, source)
    if failed:
        raise typer.Exit(BadPromptFile.exit_code)


def start(stack: ExitStack, here: CommandContext, names: PairNames, *, learn: bool) -> Engine:
    """Start the engine, with recorder and follower unless ``learn`` is False; it is closed with the stack."""
    here.settings = with_own_store(names, here.settings)
    if names.shipped:
        note(tell_shipped(here.settings) if learn else "No pair is named; the small one that ships with osd answers.")
    store = stack.enter_context(here.store()) if learn else None
    names = draft_in_store(names, store) if store else names
    pair = names.load(here.settings.serve, once=True)
    if store is None:
        from osd.engine.engine import Engine

        engine = Engine(pair, here.settings)
        engine.probe()
        return engine
    from osd.engine.session import serving

    return stack.enter_context(serving(pair, here.settings, store))


@dataclass(frozen=True, slots=True)
class RequestMaker:
    """Makes the requests of one command, by its options."""

    asked: PromptOptions
    sampling: Sampling
    route: str | None
    keeping: KeepingOptions

    def request(self, engine: Engine, prompt: Prompt) -> Request:
        """Make the request for a prompt; the line's own route, tenant and language override the options.

        Raises BadRequest.
        """
        language = prompt.fields.get("language")
        return Request(
            encode(engine.pair.tokenizer, prompt.text, raw=self.asked.raw),
            max_new_tokens=self.asked.max_tokens,
            sampling=self.sampling,
            stop=tuple(self.asked.stop or ()),
            route=_text(prompt, "route") or self.route,
            tenant=_text(prompt, "tenant") or self.keeping.tenant,
            learn=self.keeping.learn,
            text=prompt.text,
            language=language if isinstance(language, str) else None,
        )


def _text(prompt: Prompt, name: str) -> str | None:
    """Return a line's own field; None where it has none. Raises BadRequest where it is no text."""
    value = prompt.fields.get(name)
    if not isinstance(value, str | None):
        raise BadRequest(field=name, reason=f"{value!r} is no text")
    return value


def serve(engine: Engine, requests: RequestMaker, source: Path | Prompt) -> int:
    """Serve a prompt or a file of them; return how many could not be served."""
    as_json = requests.asked.as_json
    if isinstance(source, Prompt) and not as_json:
        stream_one(engine, requests.request(engine, source))
        return 0
    batch = PromptBatch(engine, requests, as_json=as_json)
    batch.serve([source] if isinstance(source, Prompt) else read_prompts(source))
    return batch.failed


def stream_one(engine: Engine, request: Request) -> None:
    """Serve one request and write its text as it comes."""
    from osd.engine.detokenizer import Detokenizer
    from osd.engine.text_stream import TextStream

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

    def __init__(self, engine: Engine, requests: RequestMaker, *, as_json: bool) -> None:
        self.engine, self.requests, self.as_json = engine, requests, as_json
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
            request = self.requests.request(self.engine, item)
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
    accepted = sum(one.judged_right for one in done.rounds)
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
