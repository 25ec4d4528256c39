"""How drafts learn (``[learn]``), which candidates are published (``[gate]``), and when and where training runs
(``[trainer]``)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic_core.core_schema import ValidationInfo

from storage.settings.section import Section


class LearnSettings(Section):
    loss: Literal["forward_kl", "reverse_kl", "jsd", "total_variation", "cross_entropy"] = "forward_kl"
    """What distillation minimises (OSD Eq. 3; total variation is 1 − acceptance itself). cross_entropy is plain
    fine-tuning on the target's tokens, without its distributions."""
    jsd_beta: float = Field(default=0.5, gt=0, lt=1)
    """β of the generalised Jensen-Shannon divergence."""
    temperature: float = Field(default=1.0, gt=0)
    """τ: both distributions are softened by it before they are compared."""
    positions: Literal["rejected", "verified"] = "verified"
    """Train where the draft was wrong (as the OSD paper), or at every verified position."""
    sampling: Literal["teacher", "student", "mixed"] = "teacher"
    """Whose tokens the draft learns behind (OSD Eq. 4): those of the target's texts; its own, behind refused tokens,
    which `serve.record_branches` keeps; or both."""
    mix: float = Field(default=0.5, gt=0, lt=1)
    """β: the target's share in mixed sampling. Of the loss's weight over what was recorded; offline with a target, of
    the chances that each token is drawn from, β p + (1 − β) q."""
    interval_requests: Annotated[int, Field(ge=1)] | Literal["auto"] = 8
    """I: a run starts when so many new requests wait. "auto": when waiting has cost what a run costs, and only while
    there is capacity to spare."""
    follow: Literal["traffic", "successor"] = "traffic"
    """"successor" is for targets that change all the time, as in an RL loop: a run starts when it saves more decoding
    than it takes, over this target and those that what it learns goes over to, whatever interval_requests says; and
    only about the newest target."""
    max_age_seconds: float = Field(default=60.0, gt=0)
    """A run starts with fewer, if the oldest has waited so long. No effect with interval_requests = "auto" or
    follow = "successor"."""
    max_requests: int = Field(default=512, ge=1)
    """New requests that a run takes at most, oldest first; the rest is the next run's. Where so many wait, "auto"
    starts one."""
    replay_requests: int = Field(default=64, ge=0)
    """Requests of earlier runs that are trained on again beside the new ones."""
    replay: Literal["newest", "reservoir"] = "newest"
    """Which of them: the newest, or, against forgetting, as many of each route and of each age among all that are
    kept."""
    epochs: int = Field(default=3, ge=1)
    """Passes over new and replayed requests."""
    batch_positions: int = Field(default=128, ge=1)
    """Positions that make a step: a batch is full once it has so many. Short answers to long prompts need it."""
    batch_tokens: int = Field(default=8192, ge=16)
    """Tokens of a training batch at most, padding included: a bound on memory."""
    learning_rate: float | None = Field(default=None, gt=0)
    """Peak step size of AdamW; None is 0.4 divided by the draft's hidden size (0.003 at 128, 0.0002 at 2,048), and 1
    divided by it for an adapter (its factors B); twice 0.4 in the first run of a new Medusa, EAGLE, EAGLE-3 or P-EAGLE
    draft."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's weight decay."""
    clip_norm: float = Field(default=1.0, gt=0)
    """Gradients are scaled down to this norm."""
    method: Literal["full", "lora"] = "full"
    """Train all weights, or a LoRA adapter over the starting draft (PEFT). Drafts that read hidden states have about an
    adapter's size and take none."""
    lora_rank: int = Field(default=32, ge=1)
    """Rank of a new adapter in the layers."""
    lora_head_rank: int = Field(default=16, ge=0)
    """Its rank in the output layer, and in the embeddings that are tied to it; 0 leaves them alone."""
    lora_ratio: float = Field(default=8.0, gt=0)
    """Step size of an adapter's factors B as a multiple of that of its A (LoRA+)."""
    teacher: Literal["recorded", "recompute", "engine"] = "recorded"
    """What a draft learns from. recorded: what serving kept of the target (a draft that reads hidden states needs
    serve.record_hidden_states for it). recompute: serve.target reads the recorded texts again, and gives its hidden
    states and whole distributions. engine: a vLLM at learn.teacher_url does, of serve.target only embeddings, final
    norm and output layer are loaded."""
    teacher_url: str | None = None
    """The vLLM of learn.teacher = "engine"; `osd engines teacher` says how it is started."""
    teacher_cache_mb: int = Field(default=1024, ge=0)
    """Memory for hidden states that were recomputed, for further epochs, the gate and later runs; 0: none."""
    steps: int = Field(default=3, ge=1, le=16)
    """Steps that a feature draft is trained and judged on: the first on the target's hidden states, the others on its
    own (EAGLE-3's training-time test); of P-EAGLE and DFlash, the first tokens of a pass: to teach a whole block, set
    its size − 1. Of Medusa all heads are trained, and so many judged."""
    step_weight: float = Field(default=0.8, gt=0, le=1)
    """λ: step k of them, from 0, weighs λ^k."""
    feature_weight: float = Field(default=10.0, ge=0)
    """Weight of EAGLE's regression of the target's features beside the loss."""
    draft_vocabulary: int | None = Field(default=None, ge=16)
    """A feature draft proposes only so many tokens, those that its traffic used most, chosen anew for each version; end
    tokens are always among them. None: all."""
    seed: int = 0
    """Seeds batch order and adapter initialisation."""
    head: Literal["auto", "on", "off"] = "auto"
    """Whether the draft's acceptance head is trained too; auto is where gamma.rule, or a route's, reads it."""
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

    @field_validator("sampling")
    @classmethod
    def _has_labels(cls, value: str, others: ValidationInfo) -> str:
        if value != "teacher" and others.data.get("loss") == "cross_entropy":
            raise ValueError(f"cross_entropy learns the target's own tokens, and {value} sampling has others: teacher")
        return value

    @property
    def most_waiting(self) -> int:
        """The number of new requests at which a run starts in any case."""
        decides = self.interval_requests == "auto" or self.follow == "successor"
        return self.max_requests if decides else int(self.interval_requests)


class GateSettings(Section):
    requests: int = Field(default=48, ge=1)
    """Newest held-out requests that judge a candidate, at most."""
    min_requests: int = Field(default=4, ge=2)
    """With fewer held-out requests than this, newest training requests judge as well, and the evidence says so."""
    confidence: float = Field(default=0.8, gt=0.5, lt=1)
    """One-sided confidence that the candidate's acceptance is higher."""
    min_gain: float = Field(default=0.0, ge=-1, le=1)
    """Expected acceptance that it must gain at least; below 0 it may lose as much, and −1 publishes whatever was
    trained, as the OSD paper does."""
    watch_requests: int = Field(default=40, ge=2)
    """Live requests after a publication on which a fall of acceptance is judged."""
    watch_confidence: float = Field(default=0.999, gt=0.5, lt=1)
    """One-sided confidence of a fall that rolls a version back."""


SPARE = "spare"
"""The value of ``trainer.device`` that lets the trainer choose."""


class TrainerSettings(Section):
    broker: str | None = None
    """Celery broker URL; None is kombu's filesystem transport in the data directory."""
    poll_seconds: float = Field(default=1.0, gt=0)
    """How often the trainer looks in the database for work that is due."""
    lease_seconds: float = Field(default=60.0, gt=0)
    """A trainer that has not been heard of for so long has lost its claim."""
    nice: int = Field(default=10, ge=0, le=19)
    """Priority of training on a shared machine: 0 as serving, 19 last."""
    idle: bool = False
    """Train only while nothing else wants the core (Linux's idle class); on a busy machine that may be never."""
    threads: int = Field(default=1, ge=1)
    """Torch threads for training on the CPU."""
    spare: bool = False
    """Train only while there is capacity to spare on this machine, and pause as soon as there is none. Always so with
    learn.interval_requests = "auto"."""
    spare_busy: float = Field(default=0.5, ge=0, le=1)
    """Share of the time for which an engine on this machine may have work while there is capacity to spare."""
    spare_queue: int = Field(default=0, ge=0)
    """Requests that may wait for a row meanwhile."""
    spare_cpu: float = Field(default=0.8, gt=0, le=1)
    """Share of all cores that others than the trainer may take."""
    spare_gpu_mb: int | None = Field(default=None, ge=0)
    """Megabytes of the GPU that must be free before a run begins (NVML); None asks for none."""
    spare_gpu_busy: float = Field(default=0.5, ge=0, le=1)
    """Utilisation of the GPU up to which a run may begin (NVML)."""
    slice_ms: float = Field(default=50.0, gt=0)
    """With spare, a step of training is cut into slices of so long, and others are looked for after each."""
    turn_seconds: float | None = Field(default=None, gt=0)
    """A turn over the drafts that takes longer is stopped between two batches, and its run's requests go back; one that
    does not end in another 30 s is killed. None: no limit."""
    seconds_per_hour: float | None = Field(default=None, ge=0)
    """Seconds of training in any hour, of all trainers of the store; None: no limit."""
    share: float | None = Field(default=None, gt=0)
    """Seconds of training in any hour ÷ seconds of decoding in it, at most; None: no limit."""
    never_more_than_saved: bool = False
    """Whether no run begins while training has cost a draft more seconds than its speculation saved."""
    resident_mb: int = Field(default=4096, ge=0)
    """Megabytes of models that stay in memory between runs, on the device that trains; 0 reads them anew each run."""
    trackers: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = ()
    """Where losses, acceptance and the gate's verdict of each run go too, by accelerate's trackers; their own variables
    say where that is (WANDB_MODE, MLFLOW_TRACKING_URI), else `trackers` in the data directory."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N, or spare: before each run the GPU with most to spare."""

    processes: int = Field(default=1, ge=1)
    """Processes that distil a draft together, each on a GPU of its own or all on the CPU. Acceptance heads and
    the gate take one."""
    shard: bool = False
    """Whether each of several processes holds a part of the weights, gradients and moments (FSDP), for drafts whose
    training does not fit on one device; not for adapters."""

    @property
    def gives_way(self) -> bool:
        """Whether training waits for capacity to spare."""
        return self.spare or self.device == SPARE
