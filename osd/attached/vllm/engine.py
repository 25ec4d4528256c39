"""A running vLLM with osd's plugin, over HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from osd.attached.base import (
    EngineError,
    EngineFacts,
    EngineGain,
    EngineRefused,
    EngineUnsuited,
    RankVersion,
    ServingEngine,
    detail,
)  # fmt: skip
from osd.models.model_digest import digest_of
from storage.versions.feature_kinds import FEATURE_KINDS

COMPLETIONS = "/v1/completions"
PROMPT = (3, 4, 5, 6)
COUNTERS = "vllm:spec_decode_num_"
DRAFT_MODEL = "draft_model"
METHODS = (DRAFT_MODEL, *FEATURE_KINDS)
"""The methods whose drafts osd trains; those of feature drafts have the names of their kinds."""
NO_SPECULATION: Mapping[str, Any] = {
    "method": "", "draft": "", "num_speculative_tokens": 0, "draft_sample_method": "greedy"
}  # fmt: skip
FAKED = ("synthetic", "fly")
"""Ways to accept drafts by which answers are not the target's."""
Schedule = Sequence[tuple[int, int, int]]
"""Draft lengths: (first, last, length) by running requests."""
PAUSED: Schedule = ((1, 1 << 20, 0),)
"""Draft lengths of an engine that drafts nothing."""


class VllmEngine(ServingEngine):
    """A vLLM at a URL."""

    def __init__(self, url: str, token: str, api_key: str | None = None) -> None:
        """``token`` is the plugin's (OSD_VLLM_TOKEN), ``api_key`` vLLM's own, where it has one. Raises BadInput."""
        super().__init__(url, {"X-OSD-Token": token, "X-OSD-Learn": "false"}, api_key)

    def probe(self) -> EngineFacts:
        """Look at what it is, and at what it answers to a greedy request of four tokens. Raises EngineUnreachable, and
        EngineUnsuited with what to do about it."""
        found = self._ask("GET", "/v1/osd/info")
        if reason := self._read("/v1/osd/info", wrong_with, found):
            raise self._unsuited(reason)
        facts = self._read("/v1/osd/info", _facts, found)
        if not facts.speculates:
            return facts
        answer = self._answer(PROMPT, 4, temperature=0)
        spec = self._read(COMPLETIONS, lambda said: said["metrics"]["speculative_decoding"], answer)
        if not spec or "per_step_accepted" not in spec:
            lacks = found.get("lacks") or "its answers lack per_step_accepted"
            reason = f"vLLM {facts.version} does not say what each step accepted ({lacks})"
            raise self._unsuited(reason)
        return facts

    def served(self) -> Sequence[RankVersion]:
        """Return what each rank drafts with."""
        return self._read("/v1/osd/version", _ranks, self._ask("GET", "/v1/osd/version"))

    def publish(self, folder: Path, sha256: str, version: str) -> Sequence[RankVersion]:
        """Load a folder as the draft on every rank, or on none."""
        body = {"folder": str(folder.resolve()), "sha256": sha256, "version": version}
        done = self._ask("POST", "/v1/osd/publish", body)
        return self._read("/v1/osd/publish", lambda said: _ranks(said["workers"]), done)

    def set_gamma(self, schedule: Schedule | None) -> None:
        """Change draft lengths while it runs; None leaves them to what it measures. Raises EngineUnsuited,
        EngineRefused, EngineUnreachable."""
        self._ask("PUT", "/v1/osd/gamma", {"schedule": schedule and [list(part) for part in schedule]})

    def gain(self) -> EngineGain | None:
        """Return what drafting gains; None also for a plugin of an older release."""
        try:
            found = self._ask("GET", "/v1/osd/gain")
        except EngineUnsuited:
            return None
        return found and self._read("/v1/osd/gain", EngineGain.read, found)

    def harvest(self) -> Mapping[str, int]:
        """Return what became of its answers since it was started."""
        return self._read("/v1/osd/info", lambda said: dict(said["harvest"]), self._ask("GET", "/v1/osd/info"))

    def counters(self) -> Mapping[str, float]:
        """Return its counters of speculation, by their names; ``…_per_pos`` with the position behind a colon."""
        return self._read("/metrics", _counters, self._fetch("GET", "/metrics"))

    def complete(self, tokens: Sequence[int], most: int) -> list[int]:
        """Return the tokens of a greedy completion, of which nothing is learned."""
        answer = self._answer(tokens, most, temperature=0)
        return self._read(COMPLETIONS, lambda said: [int(token) for token in said["choices"][0]["token_ids"]], answer)

    def _answer(self, tokens: Sequence[int], most: int, **body: Any) -> Any:
        asked = {"prompt": list(tokens), "max_tokens": most, "return_token_ids": True, **body}
        return self._ask("POST", COMPLETIONS, asked)

    def _refusal(self, status: int, said: str, path: str) -> EngineError:
        if status == 404 and path.startswith("/v1/osd/"):
            reason = "it has no osd plugin; install osd-llm-vllm beside vLLM and start it with VLLM_PLUGINS=osd, and "
            reason += "without VLLM_USE_RUST_FRONTEND, which runs no plugin of Python's"
            return self._unsuited(reason)
        if status == 401:
            reason = detail(said) if "X-OSD-Token" in said else "it wants its API key (attach.api_key)"
            return self._unsuited(reason)
        if status in (403, 409):
            return self._unsuited(detail(said))
        if status == 422:
            return EngineRefused(engine=self.name, reason=detail(said))
        return super()._refusal(status, said, path)


def trial_prompt(number: int) -> list[int]:
    """Return the ids of a prompt for trials: any text will do, where only what changes is looked at."""
    return [3 + (number * 37 + place * 7) % 61 for place in range(24)]


def wrong_with(found: Mapping[str, Any]) -> str | None:
    """Return why an engine cannot be attached, with what to do about it; None where it can."""
    speculation, target, mode = found["speculation"], found["target"], found["logprobs_mode"]
    if speculation and speculation["method"] not in METHODS:
        return f"it drafts by {speculation['method']!r}, and osd trains drafts of the methods {', '.join(METHODS)}"
    if speculation and speculation.get("quantised_head"):
        return "its draft's output layer is quantised; start it without draft_lm_head_quantization"
    if (rejection := (speculation or {}).get("rejection", "standard")) in FAKED:
        return f"it accepts drafts by {rejection!r}, whatever they say; start it without rejection_sample_method"
    if mode != "raw_logprobs":
        return f"its log-probabilities are {mode}; start it with --logprobs-mode raw_logprobs"
    if speculation and found["spec_decode_metrics"] != "detailed":
        return "it does not say what each step accepted; start it with --per-request-spec-decode-metrics detailed"
    if not found["harvests"]:
        return "its answers are not harvested; start it with --middleware osd_vllm.harvest.Harvest"
    if not target["files"]:
        reason = f"the files of {target['name']} are not on its machine, so the target cannot be told"
        return f"{reason}; start it with the model's folder, or have its snapshot in Hugging Face's cache there"
    return None


def _ranks(said: Sequence[Mapping[str, Any]]) -> list[RankVersion]:
    if not said:
        raise ValueError("no rank drafts")
    names = ("rank", "process", "version", "sha256", "folder")
    return [RankVersion(**{name: one[name] for name in names}, target=one.get("target")) for one in said]


def _counters(text: bytes) -> dict[str, float]:
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples if family.name.startswith(COUNTERS) else ():
            if sample.name.endswith("_total"):
                place = f":{sample.labels['position']}" if "position" in sample.labels else ""
                name = sample.name.removesuffix("_total") + place
                found[name] = found.get(name, 0.0) + sample.value
    return found


def _facts(found: Mapping[str, Any]) -> EngineFacts:
    speculation, target = found["speculation"] or NO_SPECULATION, found["target"]
    live = found["live_gamma"] and speculation["num_speculative_tokens"] > 0
    facts = EngineFacts(
        found["engine"], "vllm", found["vllm"], target["name"], digest_of(target["files"]), speculation["method"],
        speculation["draft"], speculation["num_speculative_tokens"], speculation["draft_sample_method"] == "greedy",
        found["top_k"], found["max_num_seqs"], live, tuple(_ranks(found["workers"])), found["harvest"],
        found["plugin"], digest_of(target["files"]), target.get("first_state"), tuple(target.get("placeholders", ())),
    )  # fmt: skip
    return replace(facts, digest=facts.target_of(target.get("state")))
