"""What the arms of the bench came to: plain numbers, ready for JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from storage.records import ratio

LAST = 100
"""Requests of each domain over which acceptance is reported."""


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """One finished request of one arm."""

    domain: str
    route: str
    """The one that it took."""
    draft: str
    """The draft that served its last round."""
    version: str
    emitted: int
    """Tokens of output: the positions that are scored."""
    hits: float
    """Positions at which the draft that serves such requests now finds the target's token likeliest; of a sampled text
    Σ min(p, q) over them."""
    frozen_hits: float
    """The same for the draft that learning started from."""
    seconds: float
    """Its share of the time spent decoding."""
    number: int
    """Its place in the traffic, from 0: the same request in every arm."""


@dataclass
class ArmResult:
    """One arm."""

    seen: list[RoutedRequest] = field(default_factory=list)
    """In the order of finishing."""
    published: int = 0
    failed: int = 0
    checked: int = 0
    """Texts that the target decoded again alone, and of those the ones that differ."""
    differing: int = 0
    forgotten: float | None = None
    """Acceptance of the first domain's last requests when they were served, less that of the same texts when they are
    read again at the end of the stream."""
    memory: list[dict[str, Any]] = field(default_factory=list)
    """The drafts that were in memory at the end: name, kind and bytes."""
    seconds: float = 0.0

    def refuse(self) -> None:
        """Count a request that could not be served."""
        self.failed += 1

    def ended(self, checked: int, differing: int, forgotten: float | None) -> ArmResult:
        """Return it with what is known once the stream is over."""
        return replace(self, checked=checked, differing=differing, forgotten=forgotten)

    def of(self, domain: str) -> list[RoutedRequest]:
        """Return a domain's requests."""
        return [one for one in self.seen if one.domain == domain]


def alpha(seen: Sequence[RoutedRequest], *, frozen: bool = False) -> float | None:
    """Return followed acceptance, of the draft that learning started from where it is ``frozen``: see
    osd.demo.runner.measure."""
    return ratio(sum(one.frozen_hits if frozen else one.hits for one in seen), sum(one.emitted for one in seen))


def summary(arms: Mapping[str, ArmResult], domains: Sequence[str]) -> dict[str, Any]:
    """Return the figures of the bench; arms that did not run are left out."""
    per_domain = {name: _domain(arms, name) for name in domains}
    routed = arms.get("routed") or arms.get("routed_lora")
    line: dict[str, Any] = {"domains": per_domain, "bytes_per_draft": _bytes(arms), "misrouted": _misrouted(routed)}
    line["gain"] = _gain(per_domain)
    line["forgotten"] = {name: arm.forgotten for name, arm in arms.items() if arm.forgotten is not None}
    line["failed"] = sum(arm.failed for arm in arms.values())
    line["lossless_checked"] = sum(arm.checked for arm in arms.values())
    line["lossless_failed"] = sum(arm.differing for arm in arms.values())
    line["tokens_per_s"] = {
        name: ratio(sum(one.emitted for one in arm.seen), sum(one.seconds for one in arm.seen))
        for name, arm in arms.items()
    }
    return line


def _domain(arms: Mapping[str, ArmResult], name: str) -> dict[str, float | None]:
    found = {arm: alpha(result.of(name)[-LAST:]) for arm, result in arms.items()}
    anyone = next(iter(arms.values()))
    return {"frozen": alpha(anyone.of(name)[-LAST:], frozen=True), **found}


def _gain(domains: Mapping[str, Mapping[str, float | None]]) -> float | None:
    """Return the mean over domains of routed − single."""
    pairs = [(part.get("routed"), part.get("single")) for part in domains.values()]
    gains = [routed - single for routed, single in pairs if routed is not None and single is not None]
    return ratio(sum(gains), len(gains))


def _misrouted(arm: ArmResult | None) -> float | None:
    """Return the share of requests that took another domain's route, or none."""
    return None if arm is None else ratio(sum(s.route != s.domain for s in arm.seen), len(arm.seen))


def _bytes(arms: Mapping[str, ArmResult]) -> dict[str, float]:
    """Return the weights of one more draft, by kind: the mean over drafts in memory, without the base that adapters
    share."""
    found: dict[str, float] = {}
    for kind in ("full", "lora"):
        sizes = [one["bytes"] for arm in arms.values() for one in arm.memory if one["kind"] == kind]
        if sizes:
            found[kind] = round(sum(sizes) / len(sizes))
    return found
