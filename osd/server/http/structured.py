"""Structured output: what a body asks the answer to match, in OpenAI's words (`response_format`) or vLLM's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from osd.server.errors import ApiError
from storage.sampling import Grammar

Schema = dict[str, Any]
ANY_OBJECT: Schema = {"type": "object"}


class JsonSchema(BaseModel):
    """A schema with its name."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    name: str | None = None
    description: str | None = None
    json_schema: Schema = Field(alias="schema")
    strict: bool | None = None
    """The answer matches the schema whatever this says."""


class TextFormat(BaseModel):
    """Any text."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["text"]


class JsonObjectFormat(BaseModel):
    """Any JSON object."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["json_object"]


class JsonSchemaFormat(BaseModel):
    """JSON that a schema describes."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]
Choices = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]


class StructuredOutputs(BaseModel):
    """vLLM's way to say it: exactly one of these."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    json_: Schema | str | None = Field(default=None, alias="json")
    """A JSON schema, as JSON or as text."""
    regex: str | None = None
    choice: Choices | None = None
    """One of these texts."""
    grammar: str | None = None
    """A grammar in Lark's or in GBNF's notation."""
    json_object: bool | None = None
    """Any JSON object."""
    disable_fallback: bool | None = None
    """There is no other library to fall back to."""
    disable_any_whitespace: Literal[False] | None = None
    disable_additional_properties: Literal[False] | None = None
    whitespace_pattern: None = None
    structural_tag: None = None


class StructuredFields(BaseModel):
    """The fields of a body that ask for structure."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | str | None = None
    """vLLM's older name for structured_outputs.json."""
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None


def grammar_of(body: StructuredFields, calls: Grammar | None = None) -> Grammar | None:
    """Return what the answer must match; None where it may be any text. ``calls``: tool calls that are forced. Raises
    ApiError where several are asked for."""
    found = [calls] if calls else []
    found += [*_of_format(body.response_format), *_of_outputs(body.structured_outputs), *_guided(body)]
    if len(found) > 1:
        names = " and ".join(one.field for one in found)
        raise ApiError(
            reason=f"{found[1].field}: an answer matches one grammar; give one of {names}", param=found[1].field
        )
    return found[0] if found else None


def json_grammar(schema: Schema | str, field: str) -> Grammar:
    """Return the grammar of JSON that a schema describes. Raises ApiError for text that is no schema."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError):
            schema = []  # type: ignore[assignment]
        if not isinstance(schema, dict):
            raise ApiError(reason=f"{field}: it is no JSON schema; give a JSON object", param=field)
    return Grammar("json_schema", json.dumps(schema, ensure_ascii=False), field)


def _of_format(given: TextFormat | JsonObjectFormat | JsonSchemaFormat | None) -> Iterator[Grammar]:
    if isinstance(given, JsonObjectFormat):
        yield json_grammar(ANY_OBJECT, "response_format")
    if isinstance(given, JsonSchemaFormat):
        yield json_grammar(given.json_schema.json_schema, "response_format.json_schema.schema")


def _of_outputs(given: StructuredOutputs | None) -> Iterator[Grammar]:
    if given:
        yield from _named("structured_outputs.", given.json_, given.regex, given.choice, given.grammar)
        if given.json_object:
            yield json_grammar(ANY_OBJECT, "structured_outputs.json_object")


def _guided(body: StructuredFields) -> Iterator[Grammar]:
    return _named("guided_", body.guided_json, body.guided_regex, body.guided_choice, body.guided_grammar)


def _named(
    prefix: str, schema: Schema | str | None, regex: str | None, choice: list[str] | None, grammar: str | None
) -> Iterator[Grammar]:
    if schema is not None:
        yield json_grammar(schema, prefix + "json")
    if regex is not None:
        yield Grammar("regex", regex, prefix + "regex")
    if choice is not None:
        yield Grammar("choice", json.dumps(choice), prefix + "choice")
    if grammar is not None:
        yield Grammar("grammar", grammar, prefix + "grammar")
