"""``--worker-extension-cls osd_vllm.worker.OsdWorker``: loads drafts in every worker, between two steps.

Loading is two calls, so that either all ranks take a version or none does: ``osd_draft_check`` reads and checks a
folder on every rank, ``osd_draft_load`` loads what was checked.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections import Counter
from functools import wraps
from pathlib import Path
from typing import Any

import torch

from .needs import PUBLISH, REST, lacking
from .options import absolute
from .weights import NotSeen, Refused, check, load_tensors, read, shapes, shared_parameters, sharers, weights_digest

Facts = dict[str, Any]
PROCESS = uuid.uuid4().hex
"""This process's identity: a worker that was started again has another, and the draft of its command line."""


def let_drafts_rest() -> None:
    """Have vLLM's runner leave out the draft's pass in steps that the scheduler class marked so (osd_vllm.rest).

    vLLM returns the same where it drafts nothing, and runs the pass before. A vLLM that is built otherwise, or another
    kind of draft, goes on as it is.
    """
    try:
        from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner
    except ImportError:
        return
    if lacking(REST):
        return
    ask, propose = GPUModelRunner.propose_draft_token_ids, SpecDecodeBaseProposer.propose

    def asked(self: Any, scheduler_output: Any, *more: Any) -> Any:
        self.drafter.osd_rests = getattr(scheduler_output, "osd_rests", False)
        return ask(self, scheduler_output, *more)

    def proposed(self: Any, *args: Any, **named: Any) -> Any:
        if getattr(self, "osd_rests", False):
            tokens = named["next_token_ids"]
            return torch.empty(len(tokens), 0, device=tokens.device, dtype=torch.int64)
        return propose(self, *args, **named)

    GPUModelRunner.propose_draft_token_ids, SpecDecodeBaseProposer.propose = asked, proposed


def let_medusa_vary() -> None:
    """Have vLLM's Medusa heads, which read no cache and propose all tokens in one pass, propose as many as a step asks
    for. vLLM asserts that these are all."""
    try:
        from vllm.v1.spec_decode.medusa import MedusaProposer
    except ImportError:  # 0.33 has none
        return
    propose = MedusaProposer.propose

    def proposed(
        self: Any, num_speculative_tokens: int, target_hidden_states: torch.Tensor, *more: Any, **named: Any
    ) -> Any:
        if not num_speculative_tokens:
            return target_hidden_states.new_empty(len(target_hidden_states), 0, dtype=torch.int64)
        tokens = propose(self, self.num_speculative_tokens, target_hidden_states, *more, **named)
        return tokens[:, :num_speculative_tokens]

    MedusaProposer.propose = proposed


let_drafts_rest()
let_medusa_vary()
SAMPLED = 64
"""Numbers of a parameter that are looked at, about."""
CHANGES: Counter[str] = Counter()
"""How often this process was told to change the target's weights, by method."""


def count_changes() -> None:
    """Have vLLM's runner and worker count the calls that replace the target's weights: a state has a name of its own
    after each, even where the numbers that are looked at are the same, or vLLM has packed them away."""
    try:
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner
        from vllm.v1.worker.gpu_worker import Worker
    except ImportError:
        return
    for owner, names in ((GPUModelRunner, ("reload_weights",)), (Worker, ("finish_weight_update", "wake_up"))):
        for name in names:
            if hasattr(owner, name):
                setattr(owner, name, _counted(name, getattr(owner, name)))


def _counted(name: str, method: Any) -> Any:
    @wraps(method)
    def counted(*args: Any, **named: Any) -> Any:
        CHANGES[name] += 1  # before: what fails half-way has changed something, too
        return method(*args, **named)

    return counted


count_changes()


def weights_state(model: torch.nn.Module) -> str:
    """Return a name of a model's weights as they are in memory: the SHA-256 of some numbers of each parameter. Training
    changes all of them a little, so that any change shows, whoever made it."""
    picked = [one.detach().reshape(-1) for _, one in sorted(model.named_parameters()) if one.numel()]
    numbers = torch.cat([one[:: max(1, one.numel() // SAMPLED)].float() for one in picked]).cpu()
    return hashlib.sha256(numbers.numpy().tobytes()).hexdigest()[:16]


class OsdWorker:
    """Methods that vLLM adds to its workers."""

    def osd_draft_info(self) -> Facts:
        """Return what drafts here: rank, process, drafter, parameters shared with the target, version and digest."""
        runner: Any = self.model_runner  # type: ignore[attr-defined]
        model, config = self._osd_draft()
        served = getattr(self, "_osd_serves", None)
        if served is None and model is not None:
            digest = weights_digest(Path(config.model))
            served = self._osd_serves = {"version": None, "sha256": digest, "folder": absolute(config.model)}
        return {
            "rank": self.rank, "process": PROCESS,  # type: ignore[attr-defined]
            "drafter": type(getattr(runner, "drafter", getattr(runner, "speculator", None))).__name__,
            "runner": type(runner).__module__,
            "shared": list(shared_parameters(model, runner.get_model())) if model is not None else [],
            "config": config.hf_config.to_dict() if model is not None else None,
            **(served or {"version": None, "sha256": None, "folder": None}),
        }  # fmt: skip

    def osd_target_state(self) -> Facts:
        """Return the state of the target's weights: how often they were replaced, and a name of what they are; and the
        ``seconds`` that it took to look at them."""
        runner: Any = self.model_runner  # type: ignore[attr-defined]
        began = time.perf_counter()
        state = f"{sum(CHANGES.values())}-{weights_state(runner.get_model())}"
        took = time.perf_counter() - began
        return {"rank": self.rank, "state": state, "seconds": took}  # type: ignore[attr-defined]

    def osd_target_changes(self) -> Facts:
        """Return how often the target's weights were replaced, without a look at them."""
        return {"rank": self.rank, "changes": sum(CHANGES.values())}  # type: ignore[attr-defined]

    def osd_draft_check(self, folder: str, sha256: str) -> Facts:
        """Read and check a folder, and hold it until ``osd_draft_load``. Returns ``refused`` with the reason, and
        ``unseen`` where that is no fault of the draft's; both empty where it may be loaded. Nothing is changed."""
        model, config = self._osd_draft()
        if model is None:
            return {"refused": "vLLM runs without a draft model here", "unseen": True}
        if missing := lacking(PUBLISH):
            return {"refused": f"this vLLM cannot be published to ({missing})", "unseen": True}
        shared = shared_parameters(model, self.model_runner.get_model())  # type: ignore[attr-defined]
        known = shapes(Path(config.model))
        try:
            tensors = check(Path(folder), sha256, config.hf_config, known, shared)
        except Refused as error:
            return {"refused": str(error), "unseen": isinstance(error, NotSeen)}
        self._osd_checked = (folder, sha256, tensors)
        return {"refused": "", "unseen": False}

    def osd_draft_load(self, sha256: str, version: str) -> Facts:
        """Load what was checked; where vLLM fails in the middle of it, put back what was there. Raises Refused."""
        folder, checked, tensors = getattr(self, "_osd_checked", ("", "", {}))
        if checked != sha256:
            raise Refused("another folder was checked meanwhile; publish again")
        self._osd_checked = ("", "", {})
        before = self.osd_draft_info()
        try:
            count = self._osd_put(tensors)
        except Exception as error:
            former = read(Path(before["folder"]))
            self._osd_put({name: each for name, each in former.items() if not sharers(name, before["shared"])})
            raise Refused(f"vLLM did not load {folder}, and has its former draft back ({error})") from error
        self._osd_serves = {"version": version, "sha256": sha256, "folder": folder}
        return {"rank": self.rank, "process": PROCESS, "tensors": count, **self._osd_serves}  # type: ignore[attr-defined]

    def osd_draft_release(self) -> Facts:
        """Drop what was checked: another rank has refused it."""
        self._osd_checked = ("", "", {})
        return {}

    def _osd_draft(self) -> tuple[Any, Any]:
        """Return the draft's module and vLLM's configuration of it; None twice where there is none on this rank."""
        model = self.model_runner.get_draft_model()  # type: ignore[attr-defined]
        speculative = self.vllm_config.speculative_config  # type: ignore[attr-defined]
        return (None, None) if model is None else (model, speculative.draft_model_config)

    def _osd_put(self, tensors: dict[str, torch.Tensor]) -> int | None:
        from vllm.config import set_current_vllm_config

        model, config = self._osd_draft()
        with set_current_vllm_config(self.vllm_config):  # type: ignore[attr-defined]
            count = load_tensors(model, config, tensors)
            drafter = getattr(self.model_runner, "drafter", None)  # type: ignore[attr-defined]
            masked = getattr(drafter, "parallel_drafting_hidden_state_tensor", None)
            if masked is not None and "mask_hidden" in tensors:
                with torch.inference_mode():
                    masked.copy_(model.combine_hidden_states(model.mask_hidden.view(-1)))
        return count
