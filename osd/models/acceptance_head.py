"""The acceptance head of SpecDec++: from the draft's embedding of a token to the chance that the target accepts it.

    P̂(Y_i is accepted | Y_1 … Y_{i−1} are) = sigmoid(f_θ(e_i))                        Eq. 4.1

f_θ is a (D + 1)-layer ResNet: D times x ← x + SiLU(W x + b), every layer with weights of its own, then one linear
layer to a number. It is trained with weight w_rej on rejections, which lowers its estimates; ``estimate`` undoes that.
The folder of one, written by :func:`save_head`:

    acceptance_head.json     what it was trained for
    model.safetensors        its weights, float32
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from osd.models.features.base import FeatureDraft
from osd.models.llama_forward_compiled import Acceptance, array_of
from osd.models.model import Model
from storage.errors import HeadMismatch, HeadNotLoaded
from storage.settings import GammaSettings
from storage.versions.weights import HEAD_CONFIG, digest_of, servable_files

WEIGHTS = "model.safetensors"


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """The shape of a head and the draft it reads."""

    hidden_size: int
    """Width of the draft's embedding."""
    depth: int
    """D: residual layers before the output."""
    reject_weight: float
    """The weight w_rej of rejections that it was trained with."""
    draft: str
    """Digest of the draft's number 0: the lineage whose embeddings it reads."""
    trained_for: str
    """Digest of the version whose embeddings it was last trained on."""

    def __post_init__(self) -> None:
        whole = isinstance(self.hidden_size, int) and isinstance(self.depth, int)
        if not (whole and self.hidden_size >= 1 and self.depth >= 0 and self.reject_weight > 0):
            raise ValueError(f"{asdict(self)} describes no acceptance head")


class AcceptanceHead(nn.Module):
    """f_θ as a module. A new one gives sigmoid(bias) for every token, with bias 0."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        size, dtype = config.hidden_size, torch.float32
        self.residual = nn.ModuleList(nn.Linear(size, size, dtype=dtype) for _ in range(config.depth))
        self.out = nn.Linear(size, 1, dtype=dtype)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, embeddings: Tensor) -> Tensor:
        """Compute f_θ: embeddings (…, hidden) → (…)."""
        hidden = embeddings
        for layer in self.residual:
            hidden = hidden + F.silu(layer(hidden))
        logits: Tensor = self.out(hidden).squeeze(-1)
        return logits

    def estimate(self, embeddings: Tensor) -> Tensor:
        """Return the chance of acceptance itself, as a logit: (…, hidden) → (…).

        The weighted loss is least where P̂ / (1 − P̂) = P / (1 − P) / w_rej, so ln w_rej is added back.
        """
        logits: Tensor = self(embeddings)
        return logits + math.log(self.config.reject_weight)


class HeadPass:
    """The head as the draft loop calls it: a copy on the draft's device, without gradients."""

    def __init__(self, head: AcceptanceHead, device: torch.device) -> None:
        self._head = copy.deepcopy(head).requires_grad_(False).float().to(device)
        layers = [layer for layer in self._head.residual if isinstance(layer, nn.Linear)]
        size = head.config.hidden_size
        weights, biases = np.empty((len(layers), size, size), np.float32), np.empty((len(layers), size), np.float32)
        for k, layer in enumerate(layers):
            weights[k], biases[k] = array_of(layer.weight), array_of(layer.bias)
        out = np.concatenate([array_of(self._head.out.weight)[0], array_of(self._head.out.bias)])
        self.arrays: Acceptance | None = (weights, biases, out)
        """The same for :func:`osd.verification.compiled_sampling.read_off`, which runs it along."""

    def __call__(self, embeddings: Tensor) -> Tensor:
        """Embeddings (B, hidden) → sigmoid(f_θ) (B,)."""
        chances: Tensor = self._head(embeddings.float()).sigmoid()
        return chances


class RowHeads:
    """The heads of rows that share a pass and are of several drafts, called like one; NaN for rows without."""

    arrays = None

    def __init__(self, heads: Sequence[HeadPass | None]) -> None:
        """``heads``: of each row."""
        self._rows = {
            head: [row for row, one in enumerate(heads) if one is head] for head in dict.fromkeys(heads) if head
        }

    def __call__(self, embeddings: Tensor) -> Tensor:
        """Embeddings (B, hidden) → sigmoid(f_θ) (B,), each by its own row's θ."""
        chances = torch.full((len(embeddings),), math.nan, dtype=torch.float32, device=embeddings.device)
        for head, rows in self._rows.items():
            chances[rows] = head(embeddings[rows])
        return chances


Heads = HeadPass | RowHeads


def heads_of(rows: Sequence[HeadPass | None]) -> Heads | None:
    """Return what estimates acceptance for rows that share a pass; None where no row's draft has a head."""
    if not any(rows):
        return None
    return rows[0] if rows[0] is not None and all(one is rows[0] for one in rows) else RowHeads(rows)


def save_head(head: AcceptanceHead, folder: Path) -> None:
    """Write a head's files into an existing folder."""
    tensors = {name: tensor.detach().float().cpu().contiguous() for name, tensor in head.state_dict().items()}
    save_file(tensors, folder / WEIGHTS)
    (folder / HEAD_CONFIG).write_text(json.dumps(asdict(head.config), indent=2) + "\n", "utf-8")


def load_head(folder: Path) -> AcceptanceHead:
    """Load a head on the CPU. Raises HeadNotLoaded."""
    try:
        config = HeadConfig(**json.loads((folder / HEAD_CONFIG).read_text("utf-8")))
        head = AcceptanceHead(config)
        head.load_state_dict(load_file(folder / WEIGHTS))
    except (OSError, ValueError, TypeError, RuntimeError, SafetensorError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise HeadNotLoaded(path=folder, reason=reason) from None
    return head


def require_fit(head: AcceptanceHead, name: object, draft: Model, digest: str | None) -> None:
    """Check that the head reads this draft's embeddings: their width, and its lineage where ``digest`` (of the draft's
    files, or of its number 0) is known. Raises HeadMismatch."""
    reads, width = head.config.hidden_size, hidden_size(draft.module)
    if reads != width:
        raise HeadMismatch(head=name, draft=draft.name, reason=f"it reads {reads} numbers, not {width}")
    if digest is not None:
        require_lineage(head, name, draft.name, digest)


def require_lineage(head: AcceptanceHead, name: object, draft: str, digest: str) -> None:
    """Check that the head was trained for a draft with this digest, or that of its number 0. Raises HeadMismatch."""
    config = head.config
    if digest not in (config.draft, config.trained_for):
        reason = f"it was trained for weights {config.draft[:8]}…, these are {digest[:8]}…"
        raise HeadMismatch(head=name, draft=draft, reason=reason)


def head_in_settings(gamma: GammaSettings, draft: Model) -> HeadPass | None:
    """Return the head that ``gamma.specdecpp.head`` names, for an engine without a store. Raises HeadNotLoaded and
    HeadMismatch."""
    if (folder := gamma.specdecpp.head) is None:
        return None
    head = load_head(folder)
    require_fit(head, folder, draft, digest_of_model(Path(draft.name)))
    return HeadPass(head, draft.device)


def hidden_size(draft: nn.Module) -> int:
    """Return the width of the input of the draft's output layer."""
    if isinstance(draft, FeatureDraft):
        return draft.hidden_size
    head: nn.Module = draft.get_output_embeddings()  # type: ignore[operator]
    assert isinstance(head.weight, Tensor)
    return int(head.weight.shape[1])


def digest_of_model(folder: Path) -> str | None:
    """Return the digest that the folder would have as number 0 of a draft; None where it is not a folder here."""
    return digest_of(folder, servable_files(folder)) if folder.is_dir() else None
