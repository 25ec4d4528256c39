"""A running vLLM without osd's plugin, behind `osd attach --proxy`: it is published to by starting it again, and what
it accepts tells which draft it has.

Where drafts are greedy, a step accepts exactly the tokens that the draft would have drafted there, so one pass of a
folder's model over an answer says what each step should have accepted. Drafts that guess alike cannot be told apart.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from osd.attached.base import PROXIED, EngineFacts, EngineUnreachable, EngineUnsuited, RankVersion
from osd.attached.vllm.engine import COMPLETIONS, DRAFT_MODEL, VllmEngine, trial_prompt
from osd.attached.vllm.plugin.osd_vllm.weights import placeholders, weights_digest
from osd.models.model_digest import local_folder, model_digest
from osd.models.weights import read_weights
from storage.versions.feature_kinds import feature_kind, read_config

ANSWERS, OUTPUT = 6, 32
"""Answers that tell which draft serves, and tokens of each."""
TOP_K = 20
"""vLLM's --max-logprobs where nobody gave one."""
ALIKE = 0.9
"""Share of steps that must have gone as the draft's own pass says: kernels differ at ties."""
PROMPT = (3, 4, 5, 6)
PENALTY = {"repetition_penalty": 0.01}
"""Makes the prompt's tokens by far the likeliest, in log-probabilities that are not raw."""
TOLERANCE = 0.1
"""By which a raw log-probability may differ between two requests: kernels of half precision differ by less."""
TURN = threading.Lock()
"""One engine is started again at a time."""
STARTED = re.compile(r"^(?:process_start_time_seconds|vllm:\w+_created\{[^\n]*\}) (\S+)$", re.MULTILINE)
"""When a process of Python's client of Prometheus began to count."""


class StockVllm(VllmEngine):
    """A stock vLLM. It does not say which draft it has loaded: what it accepts tells (:func:`agreement`)."""

    def __init__(
        self, url: str, api_key: str | None, target: str | None, draft: str | None, hook: RestartHook | None,
        known: Sequence[Mapping[str, Any]] = (),
    ) -> None:  # fmt: skip
        """``target`` and ``draft``: folders that it was started with. ``known``: its rank as it was noted last, which
        holds until it is started again."""
        super().__init__(url, "", api_key)
        self._target, self._draft, self._hook = target, Path(draft or ""), hook
        self._rank = RankVersion(**known[0]) if known else None
        self._published: tuple[str | None, Path] | None = None
        """Version and folder that were published last."""
        self._failed: tuple[str, str, str] | None = None
        """Version, process and reason of a restart that failed: the same is not tried again."""

    def probe(self) -> EngineFacts:
        """Return what it is. Raises EngineUnreachable, and EngineUnsuited with what to do about it."""
        served = self._read(
            "/v1/models", lambda said: str(said["data"][0].get("root") or ""), self._ask("GET", "/v1/models")
        )
        target = self._target or served
        digest = model_digest(target) if target else None
        if digest is None:
            raise self._unsuited(
                f"its target {target!r} is neither a folder here nor in the cache; give --target FOLDER"
            )
        if not any(self._draft.glob("*.safetensors")):
            raise self._unsuited("the draft that it was started with is needed; give its folder by --draft-folder")
        if not self.counters():
            raise self._unsuited("it runs without speculation; start it with --speculative-config")
        self._require_raw()
        rank, gamma = self.served()[0], max([n for one in self._answers(1) for n in one.drafted], default=0)
        if rank.sha256 is None:
            raise self._unsuited(f"it does not draft as {self._draft} does; give the folder that it was started with")
        version = self._read("/version", lambda said: str(said["version"]), self._ask("GET", "/version"))
        draft = str(self._draft)
        method = feature_kind(Path(draft)) or DRAFT_MODEL
        return EngineFacts(
            self.name, PROXIED, version, target, digest, method, draft, gamma, True, TOP_K, None, False, (rank,), {},
            placeholders=tuple(placeholders(read_config(local_folder(target) or Path(target)))),
        )  # fmt: skip

    def served(self) -> Sequence[RankVersion]:
        """Return what it drafts with. After a restart that was not ours, what it accepts tells; without counts it is
        taken to have the draft of its command line."""
        process = self._process()
        if self._rank is None or self._rank.process != process:
            candidates = [self._published] if self._published else []
            candidates.append((None, self._draft))
            said = ((one, self._drafts_as(one[1])) for one in candidates)
            found = next((one for one, alike in said if alike or (alike is None and one is candidates[-1])), None)
            version, digest = (found[0], weights_digest(found[1])) if found else (None, None)
            self._rank = RankVersion(0, process, version, digest)
        return [self._rank]

    def publish(self, folder: Path, sha256: str, version: str) -> Sequence[RankVersion]:
        """Start it again with a folder as its draft, and see that it came up with that. Raises EngineUnsuited."""
        before = self._process()
        if self._failed and self._failed[:2] == (version, before):
            raise self._unsuited(self._failed[2])
        try:
            with TURN:
                process = self._start_again(folder, version, before)
        except EngineUnsuited as error:
            self._failed = (version, before, error.facts["reason"])
            raise
        self._published, self._rank = (version, folder), RankVersion(0, process, version, sha256)
        return [self._rank]

    def _require_raw(self) -> None:
        """Raise EngineUnsuited where log-probabilities depend on a request's penalties: the target's own do not.

        Both requests are greedy. Where a CPU speculates, a sampled one puts stray tokens into its neighbours' answers.
        """
        plain, penalised = (
            self._read(COMPLETIONS, _highest, self._answer(PROMPT, 1, logprobs=1, temperature=0, **more))
            for more in ({}, PENALTY)
        )
        if abs(plain - penalised) > TOLERANCE:
            reason = "its log-probabilities change with penalties; start it with --logprobs-mode raw_logprobs"
            raise self._unsuited(reason)

    def _start_again(self, folder: Path, version: str, before: str) -> str:
        """Return the new process's identity."""
        if self._hook is None:
            raise self._unsuited("no command starts it again with a newer draft; give one by attach.restart")
        self._hook(self.name, self.url, folder, version)
        until = time.monotonic() + self._hook.seconds
        while (process := self._process_if_up()) in (None, before):
            if time.monotonic() > until:
                raise self._unsuited(f"attach.restart did not bring it up again within {self._hook.seconds:.0f} s")
            time.sleep(0.2)
        if self._drafts_as(folder) is False:
            raise self._unsuited(f"attach.restart started it, but it does not draft as {folder} does")
        return str(process)

    def _drafts_as(self, folder: Path) -> bool | None:
        """Return whether what it accepts is what a folder's model would have had right; None where nothing tells."""
        share = self._read(COMPLETIONS, partial(agreement, folder), self._answers(ANSWERS))
        return None if share is None else share >= ALIKE

    def _answers(self, count: int) -> list[SpeculatedAnswer]:
        found = []
        for number in range(count):
            prompt = trial_prompt(number)
            answer = self._answer(prompt, OUTPUT, temperature=0)
            found.append(self._read(COMPLETIONS, partial(_speculated, prompt), answer))
        return found

    def _process(self) -> str:
        """Return what is another once it was started again: when its counters began."""
        found = STARTED.findall(self._fetch("GET", "/metrics").decode(errors="replace"))
        if not found:
            raise self._unsuited("its /metrics does not say since when it counts, so restarts would pass unseen")
        return str(min(map(float, found)))

    def _process_if_up(self) -> str | None:
        try:
            self._fetch("GET", "/health")
            return self._process()
        except EngineUnreachable:
            return None


def _highest(said: Mapping[str, Any]) -> float:
    return max(float(value) for value in said["choices"][0]["logprobs"]["top_logprobs"][0].values())


def _speculated(prompt: Sequence[int], answer: Mapping[str, Any]) -> SpeculatedAnswer:
    steps = (answer.get("metrics") or {}).get("speculative_decoding") or {}
    accepted, drafted = steps.get("per_step_accepted") or (), steps.get("per_step_drafted") or ()
    return SpeculatedAnswer(prompt, answer["choices"][0]["token_ids"], accepted, drafted)


@dataclass(frozen=True, slots=True)
class RestartHook:
    """Runs a command with the draft's folder behind its own arguments, and OSD_ENGINE, OSD_URL and OSD_VERSION in its
    environment. It may return before the engine is up."""

    command: str
    seconds: float
    """It must have ended after so long, and after as long again the engine must be up."""

    def __call__(self, engine: str, url: str, folder: Path, version: str) -> None:
        """Run it. Raises EngineUnsuited with what it said last, where it fails."""
        environment = {**os.environ, "OSD_ENGINE": engine, "OSD_URL": url, "OSD_VERSION": version}
        try:
            done = subprocess.run(
                [*shlex.split(self.command), str(folder.absolute())], env=environment, timeout=self.seconds,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise self._failed(engine, f"had not ended after {self.seconds:.0f} s (attach.restart_seconds)") from None
        except (OSError, ValueError) as error:
            raise self._failed(engine, f"cannot be run: {error}") from None
        if done.returncode:
            said = (done.stdout.strip().splitlines() or ["nothing"])[-1][:300]
            raise self._failed(engine, f"ended with {done.returncode} and said: {said}")

    def _failed(self, engine: str, how: str) -> EngineUnsuited:
        return EngineUnsuited(engine=engine, reason=f"`{shlex.split(self.command)[0]}` (attach.restart) {how}")


@dataclass(frozen=True, slots=True)
class SpeculatedAnswer:
    """A greedy answer, and what each step after its first token accepted and drafted."""

    prompt: Sequence[int]
    tokens: Sequence[int]
    accepted: Sequence[int]
    drafted: Sequence[int]


@torch.inference_mode()
def agreement(folder: Path, answers: Sequence[SpeculatedAnswer]) -> float | None:
    """Return the share of steps that accepted what the folder's model would have had right; None where there are none.

    The step that an answer's end may have cut is left out. None for a feature draft, too, which guesses by what the
    target has computed.
    """
    if feature_kind(folder):
        return None
    module: Any = read_weights(folder, torch.float32)
    module.eval()
    judged = [same for one in answers for same in _steps(module, one)]
    return sum(judged) / len(judged) if judged else None


def _steps(module: Any, answer: SpeculatedAnswer) -> list[bool]:
    tokens = [*answer.prompt, *answer.tokens]
    likeliest = module(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].argmax(-1).tolist()
    judged, place = [], len(answer.prompt) + 1
    for accepted, drafted in zip(answer.accepted, answer.drafted, strict=True):
        if place + drafted >= len(tokens):
            break
        right = [likeliest[at - 1] == tokens[at] for at in range(place, place + drafted)]
        judged.append((right.index(False) if False in right else drafted) == accepted)
        place += accepted + 1
    return judged
