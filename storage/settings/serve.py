"""The pair, its batch and its memory: ``[serve]``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

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
