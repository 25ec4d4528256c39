"""The API's application, and its routes beside completions and chats: OpenAI's, and vLLM's additional ones."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI, Request
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response

from osd.server.errors import ApiError
from osd.server.http.app import ERRORS, StatusReply, VersionReply, bare_app, let_pages_ask
from osd.server.http.chat import chat_routes, chat_text
from osd.server.http.chat_protocol import ChatFields, Message
from osd.server.http.completions import completion_routes
from osd.server.http.order import check_model, service_of
from osd.server.http.protocol import RequestBody, Tokens
from osd.server.http.service import Service
from storage.distribution import osd_version


class ModelCard(BaseModel):
    """A served model."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "osd"
    max_model_len: int
    """Maximum tokens of prompt and output together."""


class ModelsReply(BaseModel):
    """The answer of GET /v1/models."""

    object: str = "list"
    data: list[ModelCard]


class TokenizeReply(BaseModel):
    """The answer of POST /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]


class DetokenizeReply(BaseModel):
    """The answer of POST /detokenize."""

    prompt: str


api = APIRouter(responses=ERRORS)
SCOPES = {"/v1/": "infer", "/tokenize": "infer", "/detokenize": "infer", "/metrics": "metrics"}


class TokenizeBody(ChatFields):
    """The body of POST /tokenize: a text, or a chat as the model sees it."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = Field(default=None, min_length=1)


class DetokenizeBody(RequestBody):
    """The body of POST /detokenize."""

    model: str | None = None
    tokens: Tokens


def make_app(service: Service) -> FastAPI:
    """Create the application of the API's port."""
    app = bare_app("osd", service, SCOPES, completion_routes, chat_routes, api)
    return let_pages_ask(app, service.settings.server.cors_origins)


@api.get("/v1/models")
def models(http: Request) -> ModelsReply:
    """List the one model that is served."""
    return ModelsReply(data=[_card(service_of(http))])


@api.get("/v1/models/{model:path}")
def model(http: Request, model: str) -> ModelCard:
    """Return the model by its name."""
    check_model(service_of(http), model)
    return _card(service_of(http))


def _card(service: Service) -> ModelCard:
    return ModelCard(id=service.model, created=int(service.started), max_model_len=service.facts.limit)


@api.post("/tokenize")
def tokenize(http: Request, body: TokenizeBody) -> TokenizeReply:
    """Tokenize a text, or a chat as the model reads it."""
    service = service_of(http)
    check_model(service, body.model)
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(reason="give either prompt or messages", param="prompt")
    if body.messages is not None:
        text = chat_text(service.template, body, body.messages)
        tokens = service.tokenizer.encode(text, add_special_tokens=bool(body.add_special_tokens))
    else:
        tokens = service.tokenizer.encode(body.prompt, add_special_tokens=body.add_special_tokens is not False)
    return TokenizeReply(count=len(tokens), max_model_len=service.facts.limit, tokens=tokens)


@api.post("/detokenize")
def detokenize(http: Request, body: DetokenizeBody) -> DetokenizeReply:
    """Return the text of tokens."""
    service = service_of(http)
    check_model(service, body.model)
    if wrong := next((token for token in body.tokens if token >= service.facts.vocab_size), None):
        last = service.facts.vocab_size - 1
        raise ApiError(reason=f"tokens: {wrong} is no token; ids run from 0 to {last}", param="tokens")
    return DetokenizeReply(prompt=str(service.tokenizer.decode(body.tokens)))


@api.get("/health", response_model=StatusReply)
def health(http: Request) -> Response:
    """Return 200 as long as the server decodes."""
    alive = service_of(http).client.alive
    return JSONResponse({"status": "ok"}) if alive else JSONResponse({"status": "failed"}, 503)


@api.get("/ready", response_model=StatusReply)
def ready(http: Request) -> Response:
    """Return 200 as long as the server takes requests: not while it drains."""
    service = service_of(http)
    if service.ready and service.client.alive:
        return JSONResponse({"status": "ready"})
    return JSONResponse({"status": "draining"}, 503)


@api.get("/version")
def show_version() -> VersionReply:
    """osd's version."""
    return VersionReply(version=osd_version())
