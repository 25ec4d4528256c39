"""The newest requests token by token, from what the store keeps of replicas that osd harvests.

Nothing is held for it: what was never kept, or was purged, is not shown. Text needs the target's ``tokenizer.json`` on
this machine; without it tokens are shown by their ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osd.server.admin.snapshots import may_inspect
from osd.server.http.keys import KeyRing
from storage.records import Outcome, RequestSamples, TokenKind
from storage.settings import Settings
from storage.store import Store

NEWEST = 50
"""Maximum number of requests listed."""
FILE = "tokenizer.json"
Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class KeptRound:
    """One round of a request, as far as its kept tokens tell."""

    tokens: list[int]
    accepted: int
    refused: int | None
    """The drafted token that the target refused; None where none is known."""


class StoredInside:
    """The newest requests that the store keeps (:class:`osd.server.admin.snapshots.LookInside`)."""

    def __init__(self, store: Store, settings: Settings, ring: KeyRing) -> None:
        self._store, self._settings, self._ring = store, settings, ring
        self._tokenizer: tuple[Path, Any] | None = None

    @property
    def allowed(self) -> bool:
        """Whether texts may be shown now."""
        return may_inspect(self._settings, self._ring)

    def newest(self) -> list[dict[str, Any]]:
        """Return kept requests, newest first, without text. Raises StoreError."""
        if not self.allowed:
            return []
        outcomes = self._store.outcomes.recent(limit=NEWEST)
        kept = set(self._store.samples.recent(limit=2 * NEWEST))
        tenants = self._store.tenants.learnable({one.tenant for one in outcomes})
        return [_line(one) for one in outcomes if one.request_id in kept and one.tenant in tenants]

    def show(self, request_id: str) -> dict[str, Any] | None:
        """Return a request with its text; None where it is not kept, or may not be shown. Raises StoreError."""
        outcomes = self._store.outcomes.recent(request_id=request_id, limit=1) if self.allowed else []
        if not outcomes or not self._store.tenants.learnable([outcomes[0].tenant]):
            return None
        found = self._store.samples.read([request_id])
        if not found:
            return None
        samples, decode = found[0], self._decode()
        prompt = decode(samples.tokens[: samples.prompt_len].tolist())
        rounds = list(_shown(rounds_of(samples), samples.draft_version, decode))
        return {**_line(outcomes[0]), "prompt": prompt, "rounds": rounds}

    def _decode(self) -> Decode:
        """Return what makes text of tokens. The tokenizer is the target's, that of an engine or of the settings."""
        targets = [engine.facts.get("target") for engine in self._store.engines.list()]
        files = [Path(name) / FILE for name in (*targets, self._settings.serve.target) if name]
        file = next((file for file in files if file.is_file()), None)
        if file is None or (tokenizer := self._loaded(file)) is None:
            return lambda tokens: "".join(f" {token}" for token in tokens)
        return lambda tokens: str(tokenizer.decode(list(tokens), skip_special_tokens=False))

    def _loaded(self, file: Path) -> Any:
        """Return a file's tokenizer; None where it cannot be read."""
        if self._tokenizer is None or self._tokenizer[0] != file:
            from tokenizers import Tokenizer

            self._tokenizer = file, None
            with suppress(Exception):  # it raises nothing narrower
                self._tokenizer = file, Tokenizer.from_file(str(file))
        return self._tokenizer[1]


def rounds_of(samples: RequestSamples) -> Iterator[KeptRound]:
    """Yield the rounds of a request: each ends with a token of the target's own. Positions that were not kept are the
    target's own."""
    begin, tokens = samples.prompt_len, samples.tokens
    kinds = dict(zip(samples.positions.tolist(), samples.kinds.tolist(), strict=True))
    drafted = dict(zip(samples.positions.tolist(), samples.drafted.tolist(), strict=True))
    taken: list[int] = []
    for place in range(begin, len(tokens)):
        taken.append(int(tokens[place]))
        kind = kinds.get(place, TokenKind.UNDRAFTED)
        if kind != TokenKind.ACCEPTED:
            refused = drafted[place] if kind == TokenKind.REJECTED else None
            yield KeptRound(taken, len(taken) - 1, refused)
            taken = []
    if taken:
        yield KeptRound(taken, len(taken), None)


def _shown(rounds: Iterator[KeptRound], version: str, decode: Decode) -> Iterator[dict[str, Any]]:
    before: list[int] = []
    text = ""
    for one in rounds:
        pieces = []
        for place, token in enumerate(one.tokens):
            before.append(token)
            whole = decode(before)
            piece = whole[len(text) :] if whole.startswith(text) and not whole.endswith("\ufffd") else ""
            text += piece  # an incomplete character comes with the token that completes it
            own = "own" if one.refused is None else "corrected"
            pieces.append({"text": piece, "kind": "accepted" if place < one.accepted else own})
        refused = None if one.refused is None else decode([one.refused])
        drafted = one.accepted + (refused is not None)
        facts = {"gamma": drafted, "drafted": drafted, "accepted": one.accepted, "version": version}
        yield facts | {"pieces": pieces, "refused": refused}


def _line(one: Outcome) -> dict[str, Any]:
    return {
        "id": one.request_id, "at": one.finished_at, "route": one.route, "tenant": one.tenant, "tokens": one.emitted,
        "rounds_taken": one.rounds, "seconds": None, "finish_reason": None, "accepted": min(one.accepted, one.emitted),
        "drafted": one.drafted, "version": one.draft_version,
    }  # fmt: skip
