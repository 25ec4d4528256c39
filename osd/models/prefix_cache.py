"""Prefix cache: keys and values of prompt beginnings seen before are copied into a row instead of computed again.

Kept in blocks of BLOCK tokens, as vLLM keeps them. A block is found by the block before it and its own tokens, which
are compared, not only hashed: what is copied was computed for these tokens after those. The first block follows its
owner, so that prompts of different owners share nothing. Memory is taken once, at the first prompt, and bounded; the
least recently used block makes room.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from osd.models.kv_cache import RaggedCache
from storage.settings import ServeSettings

BLOCK = 32
"""Tokens of a block."""
DRAFTS_PART = 4
"""Divisor of the memory: the default draft gets this part, 1/4, and the target the rest."""
Key = tuple[Hashable, tuple[int, ...]]
"""The owner, or the number of the block before, and a block's tokens."""


class PrefixCache:
    """The blocks of one KV cache. Not thread-safe."""

    def __init__(self, cache: RaggedCache, budget: int, *, shared: bool) -> None:
        """Start empty. ``budget``: bytes. ``shared``: tenants share their prompts' beginnings."""
        self.cache, self.budget, self.shared = cache, budget, shared
        self._known: OrderedDict[Key, tuple[int, int]] = OrderedDict()
        """Number and slot of each block, the least recently used first. A block is used whenever one that follows it
        is, and counts as newer then: so the first has no follower."""
        self._free: list[int] = []
        self._pool: list[Tensor] = []
        """(heads, blocks, BLOCK, head_dim) for each tensor of the cache."""
        self._count = 0

    @property
    def blocks(self) -> int:
        """Number of blocks that are kept."""
        return len(self._known)

    def owner(self, tenant: str, version: str = "") -> Hashable:
        """Return whose blocks a prompt may use: its tenant's, unless they share, of one version of the weights."""
        return None if self.shared else tenant, version

    def fetch(self, place: int, prompt: Sequence[int], owner: Hashable, *, read: int = 0, leave: int = 0) -> int:
        """Copy what is known of a prompt's beginning to a place, all but ``leave`` tokens of what is to be read; return
        the tokens that are there then: ``read``, if no more is known than that."""
        if len(self._pool) != len(self.cache.kept):
            return read
        path = self._path(prompt, owner, len(prompt) - 1 - leave)
        if len(path) * BLOCK <= read:
            return read
        self._touch([key for key, _ in path])
        self.cache.extend(place, [len(path) * BLOCK])
        slots, line = self._slots([slot for _, (_, slot) in path]), self.cache.line(place, 0, len(path) * BLOCK)
        for kept, pool in zip(self.cache.kept, self._pool, strict=True):
            kept[:, line] = pool[:, slots.to(pool.device)].flatten(1, 2)
        return len(path) * BLOCK

    def keep(self, place: int, prompt: Sequence[int], owner: Hashable) -> None:
        """Keep what is new of a prompt that was read, its last token aside."""
        self._open()
        known = self._path(prompt, owner, len(prompt) - 1)
        wanted = _blocks(prompt, len(prompt) - 1)
        self._touch([key for key, _ in known])
        new = wanted[len(known) : len(self._free) + len(self._known)]
        slots = [self._take() for _ in new]
        line = self.cache.line(place, len(known) * BLOCK, (len(known) + len(new)) * BLOCK)
        for kept, pool in zip(self.cache.kept if new else (), self._pool, strict=False):
            pool[:, self._slots(slots).to(pool.device)] = kept[:, line].view(len(kept), len(new), BLOCK, -1)
        self._chain(owner, known, list(zip(new, slots, strict=True)))

    def _path(self, prompt: Sequence[int], owner: Hashable, length: int) -> list[tuple[Key, tuple[int, int]]]:
        """Return the blocks that are known of a prompt's first ``length`` tokens."""
        before, path = owner, []
        for tokens in _blocks(prompt, length) if self._known else ():
            if (found := self._known.get((before, tokens))) is None:
                break
            path.append(((before, tokens), found))
            before = found[0]
        return path

    def _chain(
        self, owner: Hashable, known: list[tuple[Key, tuple[int, int]]], new: list[tuple[tuple[int, ...], int]]
    ) -> None:
        """Enter new blocks after those that are known."""
        before: Hashable = known[-1][1][0] if known else owner
        keys = [key for key, _ in known]
        for tokens, slot in new:
            keys.append((before, tokens))
            self._count += 1
            self._known[keys[-1]] = self._count, slot
            before = self._count
        self._touch(keys)

    def _touch(self, path: Sequence[Key]) -> None:
        for key in reversed(path):
            self._known.move_to_end(key)

    def _take(self) -> int:
        """Return a free slot, evicting a block if need be. Blocks of the prompt at hand were touched just now, and
        stay."""
        return self._free.pop() if self._free else self._known.popitem(last=False)[1][1]

    def _open(self) -> None:
        """Allocate memory, once the shapes are known; anew where the cache has come to keep more of a position."""
        kept = self.cache.kept
        if self._pool and len(self._pool) == len(kept):
            return
        self._known.clear()
        size = BLOCK * sum(each[:, :1].numel() * each.element_size() for each in kept)
        blocks = self.budget // max(1, size)
        self._pool = [each.new_zeros(len(each), blocks, BLOCK, each.shape[2]) for each in kept]
        self._free = list(range(blocks)) if kept else []

    def _slots(self, slots: Sequence[int]) -> Tensor:
        return torch.tensor(slots, device=self._pool[0].device)


def target_prefixes(serve: ServeSettings, cache: RaggedCache) -> PrefixCache | None:
    """Return the target's prefix cache; None where the settings give it no memory."""
    whole = serve.prefix_cache_mb << 20
    return PrefixCache(cache, whole - whole // DRAFTS_PART, shared=serve.prefix_shared) if whole else None


def draft_prefixes(serve: ServeSettings, cache: RaggedCache) -> PrefixCache | None:
    """Return the default draft's prefix cache; None where the settings give it no memory."""
    whole = serve.prefix_cache_mb << 20
    return PrefixCache(cache, whole // DRAFTS_PART, shared=serve.prefix_shared) if whole else None


def _blocks(tokens: Sequence[int], length: int) -> list[tuple[int, ...]]:
    """Split the first ``length`` tokens into whole blocks, leaving out the rest."""
    return [tuple(tokens[at : at + BLOCK]) for at in range(0, length - BLOCK + 1, BLOCK)]
