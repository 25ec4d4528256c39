"""What serves: the pair and its batch (``[serve]``), how it listens (``[server]``), several processes (``[fleet]``),
which draft a request is sent to (``[router]``), and engines that are not ours (``[upstream]``, ``[attach]``)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field, field_validator

from storage.settings.section import Section


class ServeSettings(Section):
    target: str | None = None
    """Hugging Face folder or hub name of the target."""
    draft: str | None = None
    """The draft that learning starts from: a Hugging Face folder or hub name, or the name of one that `osd drafts new`
    made."""
    draft_name: str = "default"
    """What the draft is called in the store, where the default route leads to it. One with other weights than a store's
    draft of that name needs a name of its own."""
    successors: bool = False
    """Whether a target that never served here, of the architecture and vocabulary of the one that served last, is its
    successor: drafts go on with what they have learned, once that is judged on it (`osd targets`)."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    device_map: Literal["auto", "balanced", "balanced_low_0", "sequential"] | None = None
    """How the target's layers are spread over several GPUs, by accelerate; it then decodes by transformers' own pass.
    None: all on `device`."""
    draft_device: str | None = None
    """The draft's device, as `device`; None: the target's."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """auto is float32 on the CPU and the checkpoint's own on a GPU."""
    generation_config: Literal["auto", "vllm"] = "auto"
    """What is read of the target's generation_config.json. auto: what requests that do not say get (temperature, top-k,
    top-p, min-p, repetition penalty), and what changes every text. vllm: its end tokens alone."""
    max_batch: int = Field(default=8, ge=1)
    """Rows that decode together."""
    max_length: int = Field(default=2048, ge=8)
    """Prompt and output tokens of a row at most (the models' own limit, if that is less)."""
    prefill_tokens: int = Field(default=512, ge=64)
    """Prompt tokens that a step reads at most, of all rows together, before it decodes."""
    cache_mb: int | None = Field(default=None, ge=1)
    """Most memory for the target's keys and values. A request holds blocks of 32 tokens as its text grows; one that
    gets none waits, before it begins or in its text, until others have ended. None: no bound but `max_batch` requests
    of `max_length`."""
    prefix_cache_mb: int = Field(default=64, ge=0)
    """Memory for beginnings of prompts that were read before, a quarter of it the default draft's; 0: none."""
    prefix_shared: bool = False
    """Whether tenants share them. How soon an answer begins then tells a tenant what others have asked."""
    threads: int | None = Field(default=None, ge=1)
    """Torch threads for decoding on the CPU; None leaves torch's own choice, and `osd serve` one core less."""
    record: Literal["off", "rejected", "verified"] = "verified"
    """What is kept for learning: nothing, the positions that the draft got wrong (as the OSD paper), or every
    verified position."""
    record_hidden_states: bool = False
    """Whether the target's last hidden state is kept at each of these positions, two bytes a number before
    compression (`osd replay stats` says how much that is): what drafts that read hidden states learn from."""
    record_branches: bool = False
    """Whether what the target says behind refused tokens is kept too: positions of texts that the draft alone would
    have gone on with, for `learn.sampling` student and mixed. Chains leave them, trees do not."""
    record_queue_mb: int = Field(default=256, ge=1)
    """Memory for positions that wait to be kept; when it is full, more are dropped and counted."""
    spill_mb: int = Field(default=1024, ge=0)
    """Disk for finished requests while the store is away; when it is full, more are dropped and counted. 0: none."""
    swap_poll_seconds: float = Field(default=0.5, gt=0)
    """How often a server looks for newer draft versions and for routes to new drafts."""
    lossy: Literal["", "typical", "adaptix"] = ""
    """Accept more than the target's distribution allows, above temperature 0. "": never. typical: what is not unlikely
    (Medusa's typical acceptance). adaptix: what one of several draws would have said. Answers, `osd stats` and metrics
    name it."""
    typical_epsilon: float = Field(default=0.09, gt=0, lt=1)
    """ε of typical acceptance: a drafted token this likely is always taken."""
    typical_delta: float = Field(default=0.3, gt=0, lt=1)
    """δ: one is taken that is likelier than δ exp(−H), H the entropy of the target's distribution in nats."""
    draft_memory_mb: int | None = Field(default=None, ge=1)
    """Memory for drafts, their caches included; beyond it the one that served longest ago leaves. None: no limit."""


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


class FleetSettings(Section):
    processes: int = Field(default=1, ge=1, le=256)
    """Processes that `osd serve` starts behind its one port, each with an engine of its own."""
    heartbeat_seconds: float = Field(default=3.0, gt=0)
    """How often a serving process tells the database that it lives, and looks whether it is to drain."""
    gone_seconds: float = Field(default=10.0, gt=0)
    """A serving process that was not heard of for so long is shown as gone, and what it had claimed is free."""
    canary: bool = False
    """Whether one serving process takes a new version first, while two or more live; the others follow when its
    acceptance has not fallen."""
    canary_requests: int = Field(default=64, ge=8)
    """Requests that it finishes with the new version before the others follow."""
    canary_seconds: float = Field(default=600.0, gt=0)
    """They follow at the latest after so long, if what is known by then does not speak against it."""
    canary_confidence: float = Field(default=0.99, gt=0.5, lt=1)
    """One-sided confidence of a fall that takes the version back, over all looks together."""


Condition = Literal["tenant", "model", "pattern", "topic", "language"]


class RouterSettings(Section):
    kind: Literal["auto", "classifier", "pinned", "fixed"] = "auto"
    """fixed honours routes that requests name, pinned also pins, classifier also rules; auto is classifier and chooses
    among a route's drafts by what each is expected to bring. Without rules and candidates they cost the same."""
    poll_seconds: float = Field(default=1.0, gt=0)
    """How often a server looks for changes of routes, pins and taught examples."""
    min_confidence: float = Field(default=0.5, ge=0, le=1)
    """How sure a guess of language or topic must be; below it a request takes the default route."""
    precedence: tuple[Condition, ...] = get_args(Condition)
    """Where several routes with as many conditions match a request, the one that goes by what comes first here wins.
    All five are named: what is known comes before what is guessed, unless this says otherwise."""
    language_model: Path | None = None
    """File of a language model to use instead of the one that ships with osd."""
    choose_by: Literal["prompt", "theorem", "weights", "both"] = "both"
    """What auto goes by: a prediction from the prompt (on-the-fly adaptation, Eq. 3, or its Theorem 3), weights learned
    from verified text, or whichever of prediction and weights does better on a route."""
    choose_dimensions: int = Field(default=16, ge=4)
    """r: features of a prompt from which auto predicts."""
    choose_warm_up: int = Field(default=25, ge=0)
    """Prompts on which auto judges each candidate before it chooses."""
    discover_requests: int = Field(default=0, ge=0)
    """The trainer looks for routes in the traffic after so many served requests; 0: only `osd router discover` does."""
    apply_proposals: bool = False
    """Whether routes that are proposed are made at once, without an admin. Making one keeps prompts
    of the traffic as examples of its topic."""

    @field_validator("precedence")
    @classmethod
    def _names_all(cls, value: tuple[Condition, ...]) -> tuple[Condition, ...]:
        if sorted(value) != sorted(get_args(Condition)):
            raise ValueError(f"it names {', '.join(get_args(Condition))}, each once")
        return value


class UpstreamSettings(Section):
    replicas: tuple[str, ...] = ()
    """Servers that answer in place of an engine of our own: URL, DRAFT=URL, or `engines` for those of `osd engines
    add`. All serve the same target. Empty: our own engine answers."""
    api_key: str | None = None
    """Where the API key is that the replicas ask for, as env:VARIABLE or file:PATH; None: they ask for none. Clients'
    own keys are never sent to them."""
    tenant_header: str = Field(default="X-OSD-Tenant", pattern=r"^[A-Za-z][A-Za-z0-9-]*$")
    """Header that tells replicas the tenant (vLLM's plugin reads the one of OSD_VLLM_TENANT_HEADER)."""
    check_seconds: float = Field(default=2.0, gt=0)
    """How often each replica is asked whether it is well, and the store which engines there are."""
    connect_seconds: float = Field(default=3.0, gt=0)
    """How long a replica may take to accept a connection, and to say that it is well."""


class AttachSettings(Section):
    host: str = "127.0.0.1"
    """Address on which engines hand over answers. Other than this machine's own needs a certificate."""
    port: int = Field(default=8002, ge=0, le=65535)
    """Its port; 0 takes a free one."""
    certificate: Path | None = None
    """TLS certificate (PEM), with which engines on other machines hand over answers."""
    private_key: Path | None = None
    """Its private key."""
    admin_host: str = "127.0.0.1"
    """Address of the dashboard and the admin routes. Other than this machine's own needs keys (`osd keys create`)."""
    admin_port: Annotated[int, Field(ge=0, le=65535)] | Literal["off"] = 8004
    """Their port; 0 takes a free one, off has none."""
    token: str = "env:OSD_VLLM_TOKEN"
    """Where the token is that engines and osd know each other by, as env:VARIABLE or file:PATH."""
    api_key: str | None = None
    """Where the API key is that the engines ask of their clients, likewise; None: they ask none."""
    engine: str | None = None
    """Name of the one engine that this process attends to, for an `osd attach` in the pod of each vLLM; None: all."""
    successors: bool = False
    """Whether a target with which an engine is started again succeeds the one before, if both have one architecture and
    vocabulary; their folders must be seen from here."""
    poll_seconds: float = Field(default=1.0, gt=0)
    """How often engines are looked at: what they draft with, and whether they were started again."""
    lease_seconds: float = Field(default=15.0, gt=0)
    """Another `osd attach` attends to an engine once this one was not heard of for so long."""
    max_batch_mb: int = Field(default=64, ge=1)
    """The largest batch of answers that is taken, unpacked."""
    restart: str | None = None
    """Command that starts a vLLM without the plugin again with a newer draft; the draft's folder comes behind its
    arguments, OSD_ENGINE, OSD_URL and OSD_VERSION stand in its environment."""
    restart_seconds: float = Field(default=900.0, gt=0)
    """It must have ended after so long, and after as long again the engine must be up."""
    device: str = "cpu"
    """Where the draft runs that recovers refused tokens, and the target of attach.target: cpu, cuda or cuda:N."""
    target: str | None = None
    """Folder or hub name of the engines' target. It reads answers that came without the likeliest tokens (beyond
    OSD_VLLM_POSITIONS, with OSD_VLLM_TOP_K=0, or because a client asked for its own); None: those are
    counted only. No use with learn.teacher = "recompute", which needs texts alone."""
