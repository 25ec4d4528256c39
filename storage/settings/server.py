"""How `osd serve` listens and what it lets in: ``[server]``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from storage.settings.section import Section


class ServerSettings(Section):
    host: str = "127.0.0.1"
    """Address of the API. Other than this machine's own needs keys (`osd keys create`), or --no-keys."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port of the API; 0 takes a free one."""
    admin_host: str = "127.0.0.1"
    """Address of the admin routes."""
    admin_port: int = Field(default=8001, ge=0, le=65535)
    """Port of the admin routes; 0 takes a free one."""
    model: str | None = None
    """The name that clients ask for; None is the name of the target's folder."""
    learn: bool = True
    """Whether requests that do not say may be kept. False keeps none, whatever they say."""
    stream_ms: float = Field(default=20.0, ge=0, le=1000)
    """Chunks of streams leave at ticks so many milliseconds apart, or 2.5 for each request that runs (100 at most), if
    that is more; the first and the last are never held back. 0 sends one for every round, which takes cores from
    decoding."""
    queue: int = Field(default=256, ge=1)
    """Requests that may wait for a row, of all tenants; beyond it they are refused with 429."""
    max_choices: int = Field(default=16, ge=1, le=128)
    """The largest `n`."""
    max_stop: int = Field(default=4, ge=1)
    """Stop strings of a request at most."""
    max_logprobs: int = Field(default=20, ge=0)
    """The largest `top_logprobs`."""
    max_body_bytes: int = Field(default=1 << 20, ge=1024)
    """A larger body is refused with 413."""
    deadline_ms: int | None = Field(default=None, ge=1)
    """Milliseconds after which a request that is not finished ends with an error; a request may ask for fewer. None: no
    limit."""
    drain_seconds: float = Field(default=30.0, ge=0)
    """How long what runs may go on after SIGTERM or Ctrl-C."""
    keys_poll_seconds: float = Field(default=1.0, gt=0)
    """How often API keys are read anew: a revoked key works so long at most."""
    metrics: Literal["off", "summary", "detailed"] = "off"
    """What answers say of their own speculation (`metrics.speculative_decoding`); a request may ask for another."""
    inspect: bool | None = None
    """Whether the dashboard may show the newest requests' texts, held in memory: of requests that may be learned from
    only. None: while there are no API keys, the server is reached from this machine only, and nothing is redacted."""
    chat_template: Path | None = None
    """A Jinja file to use in place of the tokenizer's chat template."""
    tool_call_parser: Literal["hermes", "llama3_json", "mistral"] | None = None
    """The form in which the model writes calls of tools. None: the one in which its chat template writes them."""
    enable_auto_tool_choice: bool = True
    """Whether calls are read out of the answers to chats with tools (`tool_choice` auto)."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose pages may call the API from a browser; none by default."""
