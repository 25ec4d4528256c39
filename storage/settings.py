"""The one configuration of osd: ``osd.toml``, overridden by ``OSD_…`` variables, frozen once read.

A section a part, a sentence under each setting. A misspelt key or a value out of range is a
:class:`~storage.errors.BadSetting` that names the key and what would be right.

    [learn]                         OSD_LEARN__INTERVAL_REQUESTS=8
    interval_requests = 8
"""

from __future__ import annotations

import difflib
import os
import tomllib
from pathlib import Path
from typing import Any, Literal

from platformdirs import user_cache_path, user_data_path
from pydantic import BaseModel, Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from storage.errors import BadSetting
from storage.fleet_settings import FleetSettings
from storage.privacy_settings import PrivacySettings
from storage.retention_settings import RetentionSettings
from storage.section import Section as Section
from storage.server_settings import ServerSettings

CONFIG_NAME = "osd.toml"
LOOKUP = "suffix matching over kept requests left serving, look-up in a request's own text drafts more: use lookup"
GONE = {"suffix_requests": LOOKUP, "suffix_seconds": LOOKUP}
"""Settings of earlier releases, and what to use instead."""


class StorageSettings(Section):
    url: str | None = None
    """SQLAlchemy URL of the metadata; None is a SQLite file in the data directory."""
    directory: Path | None = None
    """Where segments, weights and the SQLite file live; None is the XDG data directory."""
    samples: str | None = None
    """Where samples are kept: a folder, or an fsspec URL such as s3://BUCKET/samples; None is segments/ in the data
    directory. Credentials come from the environment (AWS_…) or fsspec's configuration."""
    weights: str | None = None
    """Where drafts' weights are kept, likewise; None is weights/ in the data directory."""
    cache: Path | None = None
    """Where weights of an object store are kept on this machine to be loaded; None is the XDG cache directory."""
    encryption: str | None = None
    """Key ring that encrypts samples and exports, as env:VARIABLE or file:PATH; None encrypts nothing."""
    top_k: int = Field(default=64, ge=1, le=4096)
    """How many of the target's log-probabilities are kept at a position."""
    flush_requests: int = Field(default=256, ge=1)
    """Finished requests that make a segment."""
    flush_seconds: float = Field(default=5.0, gt=0)
    """A segment is written at the latest after so many seconds, however few requests it holds."""
    holdout: float = Field(default=0.15, ge=0, lt=1)
    """Share of prompts that are never trained on and only judge candidates (chosen by a hash of the prompt)."""

    def data_directory(self) -> Path:
        """The data directory: set, or the XDG one."""
        return (self.directory or user_data_path("osd")).expanduser()

    def cache_directory(self) -> Path:
        """The cache directory: set, or the XDG one."""
        return (self.cache or user_cache_path("osd")).expanduser()

    def database_url(self) -> str:
        """The database's URL: set, or the SQLite file in the data directory."""
        return self.url or f"sqlite:///{self.data_directory() / 'osd.db'}"


GammaRule = Literal[
    "goodput", "fixed", "analytic", "fsm", "cache_fsm", "q_learning", "gammatune", "gammatune_plus", "heuristic",
    "confidence", "moving_average", "specdecpp",
]  # fmt: skip


class ServeSettings(Section):
    target: str | None = None
    """Hugging Face folder or hub name of the target."""
    draft: str | None = None
    """Hugging Face folder or hub name of the draft that learning starts from."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """auto is float32 on the CPU and the checkpoint's own on a GPU."""
    max_batch: int = Field(default=8, ge=1)
    """Rows that decode together."""
    max_length: int = Field(default=2048, ge=8)
    """Prompt and output tokens of a row at most (the models' own limit, if that is less)."""
    prefill_tokens: int = Field(default=512, ge=64)
    """Prompt tokens that a step reads at most, of all rows together, before it decodes."""
    prefix_cache_mb: int = Field(default=64, ge=0)
    """Memory for beginnings of prompts that were read before, a quarter of it the default draft's; 0: none."""
    prefix_shared: bool = False
    """Whether tenants share them. How soon an answer begins then tells a tenant what others have asked."""
    threads: int | None = Field(default=None, ge=1)
    """Torch threads for decoding on the CPU; None leaves torch's own choice, and `osd serve` one core less."""
    gamma: GammaRule = "goodput"
    """The controller that sizes the drafts."""
    gamma_routes: dict[str, GammaRule] = Field(default={})
    """Other controllers for single routes: route = controller."""
    gamma_initial: int = Field(default=4, ge=0)
    """Drafted tokens of a request's first round (every round, for fixed)."""
    gamma_max: int = Field(default=12, ge=1)
    """Drafted tokens of a round at most."""
    gamma_history: int = Field(default=12, ge=1)
    """h: newest rounds of a request from which analytic estimates its acceptance."""
    gamma_estimator: Literal["ratio", "truncated"] = "ratio"
    """How analytic estimates it: Eq. 2 of on-the-fly adaptation, or the root of its Eq. 11."""
    gamma_eta: float = Field(default=0.5, gt=0, le=1)
    """η: weight of the newest round in GammaTune's moving average."""
    gamma_delta: int = Field(default=2, ge=1)
    """δ: tokens by which GammaTune lengthens a window that was accepted whole."""
    gamma_confidence: float = Field(default=0.4, gt=0, lt=1)
    """τ: gammatune_plus and confidence stop drafting after a token where the draft is less sure than this."""
    gamma_confidence_adapts: bool = False
    """Whether confidence moves τ to what a request's judged tokens say, as transformers does."""
    gamma_warmup: int = Field(default=25, ge=0)
    """Requests in which q_learning tries gammas at random, fewer and fewer."""
    gamma_seed: int = 0
    """Seeds the random gammas of q_learning."""
    gamma_head_threshold: float = Field(default=0.7, gt=0, lt=1)
    """h: specdecpp stops drafting once the head's chance that a token was refused is above it."""
    gamma_head: Path | None = None
    """Folder of the acceptance head to start from; None waits until the first one was learned."""
    drafter: Literal["causal", "blended", "trigram", "lookup", "mixed"] = "causal"
    """Who drafts: the draft; the draft, and a table of n-grams that learns from what is served where that is more often
    right; that table alone; look-up in a request's own text; or the draft with branches of one of these two."""
    branches: Literal["trigram", "lookup"] = "trigram"
    """Whose branches mixed takes."""
    corpus: Path | None = None
    """Folder of `osd corpus build` that a table of n-grams starts from, where none was kept yet."""
    table: str = "ngram"
    """The draft in the store whose versions the tables of n-grams are kept as; other routes' are TABLE.ROUTE."""
    table_order: int = Field(default=4, ge=2, le=4)
    """Tokens of the longest n-grams that they count. A table that was kept with fewer goes on with so many."""
    table_mb: int = Field(default=64, ge=1)
    """Memory of one table of n-grams."""
    tables: int = Field(default=8, ge=1)
    """Tables in memory: one a route, one for each tenant that does not share. The one unused longest makes room."""
    table_seconds: float = Field(default=600, gt=0)
    """How often tables that learned a tenth more are kept as a new version; they are at the end, too."""
    tree_nodes: int = Field(default=24, ge=1, le=1024)
    """Drafted tokens of a row at most where drafts are trees; a chain that mixed has drawn is never cut for it."""
    record: Literal["off", "rejected", "verified"] = "verified"
    """What is kept for learning: nothing, the positions that the draft got wrong (as the OSD paper), or every
    verified position."""
    record_queue_mb: int = Field(default=256, ge=1)
    """Memory for positions that wait to be kept; when it is full, more are dropped and counted."""
    spill_mb: int = Field(default=1024, ge=0)
    """Disk for finished requests while the store is away; when it is full, more are dropped and counted. 0: none."""
    swap_poll_seconds: float = Field(default=0.5, gt=0)
    """How often a server looks for newer draft versions and for routes to new drafts."""
    draft_memory_mb: int | None = Field(default=None, ge=1)
    """Memory for drafts, their caches included; beyond it the one that served longest ago leaves. None: no limit."""

    @field_validator("drafter", "branches", mode="before")
    @classmethod
    def _refuse_suffix(cls, value: object) -> object:
        if value == "suffix":
            raise ValueError(LOOKUP)
        return value


class RouterSettings(Section):
    kind: Literal["auto", "classifier", "pinned", "fixed"] = "auto"
    """fixed honours routes that requests name, pinned also pins, classifier also rules; auto is classifier and chooses
    among a route's drafts by what each is expected to bring. Without rules and candidates they cost the same."""
    poll_seconds: float = Field(default=1.0, gt=0)
    """How often a server looks for changes of routes, pins and taught examples."""
    min_confidence: float = Field(default=0.5, ge=0, le=1)
    """How sure a guess of language or topic must be; below it a request takes the default route."""
    language_model: Path | None = None
    """File of a language model to use instead of the one that ships with osd."""
    choose_by: Literal["prompt", "weights", "both"] = "both"
    """What auto goes by: a prediction from the prompt (on-the-fly adaptation), weights learned from verified text, or
    whichever of the two does better on a route."""
    choose_dimensions: int = Field(default=16, ge=4)
    """r: features of a prompt from which auto predicts."""
    choose_warm_up: int = Field(default=25, ge=0)
    """Prompts on which auto judges each candidate before it chooses."""
    discover_requests: int = Field(default=0, ge=0)
    """The worker looks for routes in the traffic after so many served requests; 0: only `osd router discover` does."""
    apply_proposals: bool = False
    """Whether routes that are proposed are made at once, without an admin. Making one keeps prompts
    of the traffic as examples of its topic."""


class LearnSettings(Section):
    loss: Literal["forward_kl", "reverse_kl", "jsd", "total_variation"] = "forward_kl"
    """What distillation minimises (OSD Eq. 3; total variation is 1 − acceptance itself)."""
    jsd_beta: float = Field(default=0.5, gt=0, lt=1)
    """β of the generalised Jensen-Shannon divergence."""
    temperature: float = Field(default=1.0, gt=0)
    """τ: both distributions are softened by it before they are compared."""
    positions: Literal["rejected", "verified"] = "verified"
    """Train where the draft was wrong (as the OSD paper), or at every verified position."""
    interval_requests: int = Field(default=8, ge=1)
    """I: a run starts when so many new requests wait."""
    max_age_seconds: float = Field(default=60.0, gt=0)
    """A run starts with fewer, if the oldest has waited so long."""
    max_requests: int = Field(default=512, ge=1)
    """New requests that a run takes at most, oldest first; the rest is the next run's."""
    replay_requests: int = Field(default=64, ge=0)
    """Requests of earlier runs, newest first, that are trained on again beside the new ones."""
    epochs: int = Field(default=3, ge=1)
    """Passes over new and replayed requests."""
    batch_positions: int = Field(default=128, ge=1)
    """Positions that make a step: a batch is full once it has so many. Short answers to long prompts need it."""
    batch_tokens: int = Field(default=8192, ge=16)
    """Tokens of a training batch at most, padding included: a bound on memory."""
    learning_rate: float | None = Field(default=None, gt=0)
    """Peak step size of AdamW; None is 0.4 divided by the draft's hidden size (0.003 at 128, 0.0002 at 2,048), and 1
    divided by it for an adapter (its factors B)."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's weight decay."""
    clip_norm: float = Field(default=1.0, gt=0)
    """Gradients are scaled down to this norm."""
    method: Literal["full", "lora"] = "full"
    """Train all weights, or a LoRA adapter over the starting draft (PEFT)."""
    lora_rank: int = Field(default=32, ge=1)
    """Rank of a new adapter in the layers."""
    lora_head_rank: int = Field(default=16, ge=0)
    """Its rank in the output layer, and in the embeddings that are tied to it; 0 leaves them alone."""
    lora_ratio: float = Field(default=8.0, gt=0)
    """Step size of an adapter's factors B as a multiple of that of its A (LoRA+)."""
    seed: int = 0
    """Seeds batch order and adapter initialisation."""
    head: Literal["auto", "on", "off"] = "auto"
    """Whether the draft's acceptance head is trained too; auto is where serve.gamma, or a route's, reads it."""
    head_depth: int = Field(default=3, ge=0, le=16)
    """D: residual layers of a new acceptance head (0 is a linear one)."""
    head_reject_weight: float = Field(default=6.0, gt=0)
    """w_rej: weight of rejections in the head's loss."""
    head_learning_rate: float = Field(default=5e-4, gt=0)
    """Peak step size of Adam for the head."""
    head_epochs: int = Field(default=1, ge=1)
    """The head's passes over a run's drafted tokens, replayed ones included."""
    head_batch: int = Field(default=256, ge=1)
    """Drafted tokens of one of its steps."""


class GateSettings(Section):
    requests: int = Field(default=48, ge=1)
    """Newest held-out requests that judge a candidate, at most."""
    min_requests: int = Field(default=4, ge=2)
    """With fewer held-out requests than this, newest training requests judge as well, and the evidence says so."""
    confidence: float = Field(default=0.8, gt=0.5, lt=1)
    """One-sided confidence that the candidate's acceptance is higher."""
    min_gain: float = Field(default=0.0, ge=0)
    """Expected acceptance that it must gain at least."""
    watch_requests: int = Field(default=40, ge=2)
    """Live requests after a publication on which a fall of acceptance is judged."""
    watch_confidence: float = Field(default=0.999, gt=0.5, lt=1)
    """One-sided confidence of a fall that rolls a version back."""


class WorkerSettings(Section):
    broker: str | None = None
    """Celery broker URL; None is kombu's filesystem transport in the data directory."""
    poll_seconds: float = Field(default=1.0, gt=0)
    """How often the worker looks in the database for work that is due."""
    lease_seconds: float = Field(default=60.0, gt=0)
    """A worker that has not been heard of for so long has lost its claim."""
    nice: int = Field(default=10, ge=0, le=19)
    """Priority of training on a shared machine: 0 as serving, 19 last."""
    idle: bool = False
    """Train only while nothing else wants the core (Linux's idle class); on a busy machine that may be never."""
    threads: int = Field(default=1, ge=1)
    """Torch threads for training on the CPU."""
    spare: bool = False
    """Train only while there is capacity to spare on this machine, and pause as soon as there is none."""
    spare_busy: float = Field(default=0.5, ge=0, le=1)
    """Of the time, how much an engine on this machine may have work for there to be any to spare."""
    spare_queue: int = Field(default=0, ge=0)
    """Requests that may wait for a row meanwhile."""
    spare_cpu: float = Field(default=0.8, gt=0, le=1)
    """Of all cores, how much others than the trainer may take."""
    spare_gpu_mb: int | None = Field(default=None, ge=0)
    """Megabytes of the GPU that must be free before a run begins (NVML); None asks for none."""
    slice_ms: float = Field(default=50.0, gt=0)
    """With spare, a step of training is cut into slices of so long, and others are looked for after each."""
    seconds_per_hour: float | None = Field(default=None, ge=0)
    """Seconds of training in any hour, of all workers of the store; None: no limit."""
    never_more_than_saved: bool = False
    """Whether no run begins while training has cost a draft more seconds than its speculation saved."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""


class TraceSettings(Section):
    endpoint: str | None = None
    """OpenTelemetry endpoint for traces, as http://HOST:4318/v1/traces; None traces nothing. Needs the extra `otel`."""
    share: float = Field(default=1.0, ge=0, le=1)
    """Share of requests that are traced; training runs and versions all are."""


class Settings(BaseSettings):
    """All of it. Read with :func:`load_settings`, not by hand."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix="OSD_", env_nested_delimiter="__", use_attribute_docstrings=True
    )

    storage: StorageSettings = StorageSettings()
    serve: ServeSettings = ServeSettings()
    server: ServerSettings = ServerSettings()
    fleet: FleetSettings = FleetSettings()
    router: RouterSettings = RouterSettings()
    learn: LearnSettings = LearnSettings()
    gate: GateSettings = GateSettings()
    worker: WorkerSettings = WorkerSettings()
    retention: RetentionSettings = RetentionSettings()
    privacy: PrivacySettings = PrivacySettings()
    trace: TraceSettings = TraceSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return env_settings, init_settings  # the environment overrides the file, which arrives as arguments


def load_settings(path: Path | None = None, **overrides: dict[str, Any]) -> Settings:
    """The settings from a file, the environment, and ``overrides`` (section → {key: value}), the last strongest.

    ``path`` defaults to ``$OSD_CONFIG``, then ``./osd.toml``, then no file. Raises BadSetting.
    """
    path = path or _default_path()
    _refuse_unknown_variables()
    values = _read_toml(path) if path else {}
    try:
        settings = Settings(**values)
    except ValidationError as error:
        raise _explain(error, str(path or "environment"), []) from None
    for section, changes in overrides.items():
        settings = settings.model_copy(update={section: _changed(section, getattr(settings, section), changes)})
    return settings


def _changed(name: str, section: Section, changes: dict[str, Any]) -> Section:
    try:
        return type(section)(**{**section.model_dump(), **changes})
    except ValidationError as error:
        raise _explain(error, "option", [name]) from None


def _default_path() -> Path | None:
    if named := os.environ.get("OSD_CONFIG"):
        return Path(named)
    return Path(CONFIG_NAME) if Path(CONFIG_NAME).exists() else None


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadSetting(source=path, key="file", reason=f"cannot be read ({error.strerror})") from None
    except tomllib.TOMLDecodeError as error:
        raise BadSetting(source=path, key="syntax", reason=str(error)) from None


def _refuse_unknown_variables() -> None:
    """pydantic ignores an unknown OSD_… variable; a misspelt one is an error here like a misspelt key."""
    for name in os.environ:
        if name.startswith("OSD_") and name != "OSD_CONFIG":
            section = name.removeprefix("OSD_").lower().split("__")[0]
            if section not in Settings.model_fields:
                raise _unknown("environment", name, section, list(Settings.model_fields))


def _explain(error: ValidationError, source: str, inside: list[str]) -> BadSetting:
    problem = error.errors()[0]
    path = inside + [str(part) for part in problem["loc"]]
    key = ".".join(path)
    if problem["type"] == "extra_forbidden":
        return _unknown(source, key, path[-1], _known_beside(path))
    return BadSetting(source=source, key=key, reason=f"{problem['msg']} (got {problem['input']!r})")


def _known_beside(path: list[str]) -> list[str]:
    if len(path) < 2:
        return list(Settings.model_fields)
    section = Settings.model_fields[path[0]].annotation
    return list(section.model_fields) if isinstance(section, type) and issubclass(section, BaseModel) else []


def _unknown(source: str, key: str, word: str, known: list[str]) -> BadSetting:
    near = difflib.get_close_matches(word, known, n=1)
    hint = GONE.get(word) or (f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}")
    return BadSetting(source=source, key=key, reason=f"there is no such setting; {hint}")
