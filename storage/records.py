"""The records of osd: the data that travels between decoding, storing and training.

Records are frozen, contain no tensors, and name the draft version that made them. Times are Unix
seconds, durations milliseconds, token ids those of the target's tokenizer.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from storage.branches import Branches
from storage.sampling import GREEDY, Grammar, Sampling

DEFAULT_ROUTE = "default"
DEFAULT_DRAFT = "default"
DEFAULT_TENANT = "default"
EVERYBODY = "*"
"""The tenant of a pin that applies to all tenants without one of their own."""


def new_id() -> str:
    """Return a fresh id for a request or a run: 32 hexadecimal digits."""
    return uuid.uuid4().hex


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to complete."""

    prompt_tokens: tuple[int, ...]
    max_new_tokens: int = 128
    """Maximum number of new tokens, the end token included; 0 only prefills."""
    sampling: Sampling = GREEDY
    stop: tuple[str, ...] = ()
    """Generation ends when the text contains one of these; the text returned ends before it."""
    include_stop_str_in_output: bool = False
    """Whether the text returned ends with what ended it: the stop string, or the token where that has a text."""
    skip_special_tokens: bool = True
    """Whether special tokens are left out of the text."""
    stop_token_ids: tuple[int, ...] = ()
    """Generation ends with one of these tokens too, also where it continues past end tokens."""
    min_tokens: int = 0
    """New tokens before which neither end tokens nor ``stop_token_ids`` come, and no stop string ends the text."""
    ignore_eos: bool = False
    """Continue past the end token (for benchmarks of fixed length)."""
    route: str | None = None
    """Route requested by name; None lets the router choose."""
    tenant: str = DEFAULT_TENANT
    model: str = ""
    """The name of the model that it asks for, of an adapter perhaps; empty where it names none."""
    learn: bool = True
    """Whether this request may be kept for learning."""
    text: str | None = None
    """The prompt as text, for the router; None lets the engine decode it where a router reads text."""
    language: str | None = None
    """The prompt's language if the caller knows it, ISO 639-1 (else 639-3); it overrides detection."""
    gamma: int | None = None
    """Draft so many tokens every round, at most ``gamma.max``; None leaves it to the controller."""
    grammar: Grammar | None = None
    """What the output must match, with the end token where it does; None lets it be anything."""
    prompt_logprobs: int | None = None
    """Compute the log-probabilities of the prompt's tokens, and of so many of the likeliest at each; None for none."""
    operation: str = "text_completion"
    """What it asks for, by OpenTelemetry's names: ``text_completion`` or ``chat``."""
    id: str = field(default_factory=new_id)


@dataclass(frozen=True, slots=True)
class Round:
    """One draft-then-verify round of one request."""

    gamma: int
    """Draft length that the controller asked for; 0 means no speculation."""
    drafted: int
    """Tokens actually drafted (fewer than gamma near a length limit or after an early stop); for a tree, all its
    tokens."""
    accepted: int
    """Drafted tokens that the target accepted and that were emitted."""
    emitted: int
    """Tokens emitted, the target's own included."""
    draft_ms: float
    """Milliseconds that the batch spent drafting."""
    verify_ms: float
    """Milliseconds that the batch spent in the target's pass and in accepting."""
    draft_version: str
    depth: int | None = None
    """Length of the drafted chain; for a tree, its depth along the path that the target took. None means
    ``drafted``."""
    behind: int = 0
    """Further drafted tokens that the target accepted, behind the text's end."""

    @property
    def judged_right(self) -> int:
        """Drafted tokens that the target accepted, emitted or not."""
        return self.accepted + self.behind

    @property
    def places(self) -> int:
        """Positions of the text for which tokens were drafted, along the path that the target took."""
        return self.drafted if self.depth is None else self.depth

    @property
    def rejected(self) -> bool:
        """Whether the round ended with a rejected draft token."""
        return self.judged_right < self.places


class TokenKind(IntEnum):
    """The origin of an output token."""

    ACCEPTED = 0  # the draft proposed it and the target agreed
    REJECTED = 1  # the draft proposed another token, the target corrected it
    UNDRAFTED = 2  # the target's own: after a fully accepted draft, or without speculation


@dataclass(frozen=True, slots=True, eq=False)
class RequestSamples:
    """The data that one finished request stores for learning: its tokens and m sampled positions."""

    request_id: str
    route: str
    tenant: str
    draft_version: str
    """The version that served the request's last round."""
    created_at: float
    prompt_len: int
    tokens: npt.NDArray[np.int32]
    """(n,) prompt and output."""
    positions: npt.NDArray[np.int32]
    """(m,) index in ``tokens`` of the token predicted, the distribution being p(· | tokens[:position]); ascending, each
    ≥ prompt_len."""
    kinds: npt.NDArray[np.uint8]
    """(m,) TokenKind."""
    drafted: npt.NDArray[np.int32]
    """(m,) the token that the draft proposed there; the emitted token where the kind is UNDRAFTED."""
    topk_ids: npt.NDArray[np.int32]
    """(m, k) the target's likeliest token ids, likeliest first; k = 0 where texts alone were kept."""
    topk_logprobs: npt.NDArray[np.float16]
    """(m, k) their natural log-probabilities at temperature 1, before any warping."""
    outside: npt.NDArray[np.float32]
    """(m,) the target's probability mass outside those k."""
    acceptance: npt.NDArray[np.float16] | None = None
    """(m,) min(1, p/q) of the drafted token under the request's own sampling, NaN where none was drafted; None where it
    was not kept at all."""
    target: str | None = None
    """Digest of the target that answered; None where a release before targets were named stored it."""
    hidden_states: npt.NDArray[np.float16] | None = None
    """(m, D) the target's last hidden state after its final norm, from which its distribution at the position comes;
    None where it was not kept."""
    branches: Branches | None = None
    """What the target says behind refused tokens, where ``serve.record_branches`` kept it."""
    weight: float = 1.0
    """What its positions weigh in training; in memory alone."""

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def k(self) -> int:
        """Tokens of the target's distribution that are kept at a position; none where texts alone are."""
        return int(self.topk_ids.shape[1])


@dataclass(frozen=True, slots=True)
class Outcome:
    """Totals of one finished request under one draft version.

    A request that lived through a swap leaves one outcome a version; ``requests`` is 1 on the last.
    """

    request_id: str
    route: str
    tenant: str
    draft_version: str
    controller: str
    """The gamma controller's name, and the lossy mode in which it served, where one did."""
    finished_at: float
    requests: int
    """1, or 0 for the earlier parts of a request that lived through a swap."""
    rounds: int
    drafted: int
    """Drafted tokens that were verified; for trees, all their tokens."""
    accepted: int
    """Drafted tokens that the target accepted, those behind the text's end included: vLLM, too, counts what was judged
    before it looks for the end."""
    rejections: int
    """Rounds that ended with a rejected draft token."""
    emitted: int
    prompt_tokens: int
    draft_ms: float
    """This request's share of the batch's drafting time."""
    verify_ms: float
    """This request's share of the batch's verifying time."""
    positions: tuple[tuple[int, int, int], ...] = ()
    """(drafted, accepted, rejected) rounds of each position in a draft.

    Their sums are ``drafted`` (for trees less: several tokens may be for one position), ``accepted`` and
    ``rejections``; empty where they were not counted. Not stored in the log of single outcomes.
    """

    @property
    def alpha(self) -> float | None:
        """Token acceptance rate α: accepted ÷ (accepted + rejections), Eq. 2 of on-the-fly adaptation."""
        return ratio(self.accepted, self.accepted + self.rejections)

    @property
    def draft_acceptance_rate(self) -> float | None:
        """Accepted ÷ drafted: what vLLM calls the acceptance rate."""
        return ratio(self.accepted, self.drafted)

    @property
    def mean_acceptance_length(self) -> float | None:
        """τ: emitted ÷ rounds, the target's own token included."""
        return ratio(self.emitted, self.rounds)


def ratio(part: float, whole: float) -> float | None:
    """Return part ÷ whole, or None where whole is 0."""
    return part / whole if whole else None


@dataclass(frozen=True, slots=True)
class Route:
    """A kind of traffic and the draft that serves it."""

    name: str = DEFAULT_ROUTE
    draft: str = DEFAULT_DRAFT
    matches: Mapping[str, Any] = field(default_factory=dict)
    """Conditions that send a request here: ``language``, ``topic``, ``tenant`` (lists), ``pattern`` (a regular
    expression).

    All given conditions must hold; a route without any serves just the requests that name it (``default`` serves the
    rest).
    """
    candidates: tuple[str, ...] = ()
    """Further drafts that may serve it: the router chooses among them and ``draft`` by expected throughput."""

    @property
    def drafts(self) -> tuple[str, ...]:
        """``draft`` and the candidates, each once."""
        return tuple(dict.fromkeys((self.draft, *self.candidates)))


class VersionState(str, Enum):
    """The life cycle of a draft version.

    CANDIDATE ──> READY ──> SERVING ──> RETIRED
        │           │          │
     REJECTED  QUARANTINED  ROLLED_BACK
    """

    CANDIDATE = "candidate"  # written, not yet judged by the gate
    READY = "ready"  # the gate found it better; servers may load it
    SERVING = "serving"  # a server has loaded it and drafts with it
    RETIRED = "retired"  # a newer version took its place
    REJECTED = "rejected"  # the gate found it no better; never served
    ROLLED_BACK = "rolled_back"  # served, then taken back because live acceptance fell or an admin said so
    QUARANTINED = "quarantined"  # its files differ from what was published; refused


@dataclass(frozen=True, slots=True)
class DraftVersion:
    """One version of one draft's weights."""

    id: str
    """The draft's name, a running number, and the digest's first 8 digits: ``default-000003-9f2c01ab``."""
    draft: str
    number: int
    """0 for the weights that osd started with, then counting up."""
    parent: str | None
    """The version it was trained from; None for number 0."""
    digest: str
    """SHA-256 of the folder's files (names and contents), hexadecimal."""
    kind: str
    """``full``, ``lora``, ``head`` for an acceptance head, or a feature draft's kind."""
    state: VersionState
    created_at: float
    path: str
    """Folder relative to the weights directory."""
    run_id: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """The gate's measurements, see trainer.distil.gate."""
    bytes: int | None = None
    """Size of its files; None where it is not known."""
    served_at: float | None = None
    """When a server first drafted with it."""
    deleted_at: float | None = None
    """When its weights were deleted; the rest stays known."""
    has_master: bool = False
    """Whether float32 weights to train on lie beside those that are served."""


class RunState(str, Enum):
    """The life cycle of a training run."""

    CLAIMED = "claimed"  # a worker holds the lease and trains
    PUBLISHED = "published"  # its candidate passed the gate
    REJECTED = "rejected"  # its candidate failed the gate
    FAILED = "failed"  # it ended with an error; what it claimed is free again
    LOST = "lost"  # its lease ran out; what it claimed is free again


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """A training run: what it claimed, its settings, and its result."""

    id: str
    draft: str
    holder: str
    """The worker, by :func:`storage.sql.holders.holder_name`."""
    state: RunState
    started_at: float
    heartbeat_at: float
    lease_until: float
    parent: str
    """The draft version trained from."""
    request_ids: tuple[str, ...]
    """Requests claimed (never held-out ones)."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    finished_at: float | None = None
    version: str | None = None
    """The draft version that it produced."""
    result: Mapping[str, Any] = field(default_factory=dict)
    """Losses, evidence, durations, or the reason for a failure."""


def now() -> float:
    """Return the current time in Unix seconds."""
    return time.time()
