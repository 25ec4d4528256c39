"""A smaller causal language model as the drafter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from osd.draft import Draft
from osd.drafters.base import ChainOverride, DraftRequest, PassSignals
from osd.drafters.chain import Chain, PassInfo, SampledChoice, Signals
from osd.models.acceptance_head import Heads
from osd.models.captured_pass import CapturedDraft
from osd.models.decoder import Decoder
from osd.models.prefill import PrefillChunk, read_pieces
from osd.models.prefix_cache import PrefixCache, draft_prefixes
from osd.models.vocabulary import NEVER
from osd.sequence import SequenceState
from osd.verification import compiled_sampling
from osd.verification.warping import draw
from storage.settings import ServeSettings

Feed = tuple[Tensor, Sequence[int], Sequence[int]]
"""Tokens (B, T), the position of each row's first, and how many of them are not padding."""


class CausalDrafter:
    """Drafts chains, one pass a token; all rows of the batch share the passes."""

    def __init__(self, decoder: Decoder, vocabulary: int, head: Heads | None = None) -> None:
        """Wrap a decoder. ``vocabulary``: width of the target's logits, to which the draft's are cut or padded."""
        self.decoder, self.vocabulary = decoder, vocabulary
        self.use_heads(head)
        self.prefixes: PrefixCache | None = None
        """Prefix cache of prompts; None where there is none."""
        self.failure: Exception | None = None
        """What was raised in the newest round."""
        self._same_width = False
        """Whether the draft's own logits were as wide as the target's, once there were any."""

    def use_heads(self, head: Heads | None) -> None:
        """Use these acceptance heads from the next round on, for gamma rules that ask; None for none."""
        self.head = head
        self.decoder.cache.want_embedding(head is not None)

    def keep_prefixes(self, serve: ServeSettings) -> None:
        """Keep a cache of prompts' prefixes, where the settings give it memory."""
        if self.prefixes is None and not self.decoder.encodes:
            self.prefixes = draft_prefixes(serve, self.decoder.cache)

    def propose(self, request: DraftRequest) -> Draft:
        """Draft chains. What is raised ends them, and is ``failure``."""
        chain, self.failure = Chain(request, self.vocabulary, self.decoder.device), None
        try:
            self._grow(request, chain)
        except Exception as error:
            self.failure = error
            chain.cut()
        return chain.draft()

    def _grow(self, request: DraftRequest, chain: Chain) -> None:
        """Draft token by token, as far as the rows go on."""
        make = request.override if any(chain.lengths) else None
        override = make(request.rows, max(chain.lengths)) if make else None
        while not chain.is_whole():
            if override and not override.needs_draft(chain.going):
                tokens, signals = override.put_in()
                chain.put_in(tokens)
                request.should_continue(request.rows, chain.lengths, chain.size, signals.read)
                continue
            if not chain.passes:
                chain.lengths = self._prefill(request, chain.lengths, chain.size)
                if chain.is_whole():
                    break
            for each in self._add_tokens(request, chain, override):
                request.should_continue(request.rows, chain.lengths, chain.size, each.read)

    def _add_tokens(self, request: DraftRequest, chain: Chain, override: ChainOverride | None) -> Iterator[PassSignals]:
        """Add a token to the chains, or where one graph drafts several and no rule looks at them, several."""
        fed = self._feed(request, chain)
        if self.decoder.drafts and override is None and self._draws_alone(request, chain):
            warp, chance = request.warp, request.chance
            choice = None if warp is None or chance is None else SampledChoice(warp, chance, chain.size)
            if drafted := self.decoder.draft(*fed, max(chain.lengths) - chain.size, choice):
                yield from self._add_captured(chain, drafted)
                return
        yield self._add_token(request, chain, fed, override)

    def _draws_alone(self, request: DraftRequest, chain: Chain) -> bool:
        """Return whether nothing but the draft's logits decides on its tokens, and no rule on their number."""
        changed = self.head is not None or chain.processed or not self._same_width
        return not changed and all(row.controller.signal == "none" for row in request.rows)

    def _add_captured(self, chain: Chain, drafted: CapturedDraft) -> Iterator[PassSignals]:
        """Add the tokens that a graph drafted."""
        for i, tokens in enumerate(drafted.tokens.unbind(1)):
            signals = Signals(drafted.logits[:, i], tokens)
            chain.read()
            chain.add(tokens, None if drafted.q is None else drafted.q[:, i])
            yield signals

    def _add_token(self, request: DraftRequest, chain: Chain, fed: Feed, override: ChainOverride | None) -> PassSignals:
        """Run one pass, and add the token that it brings."""
        logits, embedding = self._logits(fed), self._embedding()
        logits = chain.process(logits)
        read_off = compiled_sampling.read_off(logits, embedding, self.head.arrays if self.head else None)
        if request.warp is None and read_off:
            chosen, q = read_off.choices, None
        else:
            chosen, q = self._choose(request, logits, chain.size)
        signals: PassSignals = Signals(logits[:, 0], chosen, PassInfo(read_off, self.head, embedding))
        if override:
            chosen, signals = override.overrule(chosen, q, signals)
        chain.read()
        chain.add(chosen, q)
        return signals

    def commit(self, row: SequenceState, length_before: int, accepted: int, draft: Draft) -> None:
        """Note what was accepted; see :meth:`osd.drafters.base.Drafting.commit`."""
        if row.drafter_seen == length_before:  # it has read the whole text, so the row was among those that drafted
            row.drafter_seen = length_before + min(accepted, draft.fed)

    def move_row(self, source: int, target: int, row: SequenceState) -> None:
        """Move a row in the cache."""
        self.decoder.move_row(source, target, row.drafter_seen)

    def _prefill(self, request: DraftRequest, lengths: Sequence[int], size: int) -> list[int]:
        """Prefill the unread tokens of rows that go on after ``size`` tokens, and return the rows' lengths: those with
        more left to read stop there."""
        rows = request.rows
        late = [(place, row) for place, row in enumerate(rows) if lengths[place] > size and row.unread()]
        for place, row in late:
            if self.prefixes is not None and not row.drafter_seen:
                row.drafter_version = row.loaded.version
                owner = self.prefixes.owner(row.request.tenant, row.loaded.version)
                row.drafter_seen = self.prefixes.fetch(place, row.request.prompt_tokens, owner)
        self._encode(late)
        pieces = [
            PrefillChunk(place, row.drafter_seen, row.tokens[row.drafter_seen : -1][: request.most_read])
            for place, row in late
        ]
        read_pieces(self.decoder, pieces)
        for (place, row), piece in zip(late, pieces, strict=True):
            row.drafter_seen += len(piece.tokens)
            if self.prefixes is not None and not row.unread() and row.drafter_version == row.loaded.version:
                owner = self.prefixes.owner(row.request.tenant, row.loaded.version)
                self.prefixes.keep(place, row.request.prompt_tokens, owner)
        return [min(size, length) if row.unread() else length for row, length in zip(rows, lengths, strict=True)]

    def _encode(self, late: Sequence[tuple[int, SequenceState]]) -> None:
        """Let the draft's encoder, where it has one, read the prompts that it has not read, each in one piece."""
        unread = [(place, row) for place, row in late if row.drafter_seen < row.encoded]
        read_pieces(self.decoder, [PrefillChunk(place, 0, row.tokens[: row.encoded]) for place, row in unread])
        for _, row in unread:
            row.drafter_seen = row.encoded

    def _logits(self, fed: Feed) -> Tensor:
        """Return the logits (B, 1, V) after the last of each row's tokens."""
        tokens, starts, counts = fed
        last = torch.tensor([count - 1 for count in counts], device=self.decoder.device)
        logits = self.decoder.logits(tokens, starts, last=last if tokens.shape[1] > 1 else None)
        missing = self.vocabulary - logits.shape[-1]
        self._same_width = not missing
        if missing:
            logits = F.pad(logits, (0, missing), value=max(NEVER, torch.finfo(logits.dtype).min))
        return logits if self.decoder.shared is None else self.decoder.shared.bar(logits)

    def _embedding(self) -> Tensor | None:
        """Return what the output layer read in the newest pass, (B, 1, D); None where nobody asked for it."""
        return self.decoder.cache.embedding

    def _feed(self, request: DraftRequest, chain: Chain) -> Feed:
        """Return what the next pass feeds: the last drafted token, or before the first pass what the caches lack of the
        drafting rows' texts, then the chains so far.

        All rows feed as many tokens as the widest lag: feeding a token again writes what is there already. Rows that do
        not draft are padding; what they write is not counted as seen.
        """
        rows = request.rows
        if chain.passes:
            tokens = chain.unread()
            return tokens, [row.length + chain.fed for row in rows], [tokens.shape[1]] * len(rows)
        drafting = [row for row, goes in zip(rows, chain.going, strict=True) if goes]
        lag = max(row.length - row.drafter_seen for row in drafting)
        for row in drafting:
            row.drafter_seen = row.length
        starts = [max(row.encoded, row.length - lag) for row in rows]
        chains = chain.unread().tolist() if chain.size else [[]] * len(rows)
        texts = [row.tokens[start:] + drafted for row, start, drafted in zip(rows, starts, chains, strict=True)]
        padded = [(text + [0] * lag)[: lag + chain.size] for text in texts]
        return torch.tensor(padded, device=self.decoder.device), starts, [len(text) for text in texts]

    def _choose(self, request: DraftRequest, logits: Tensor, step: int) -> tuple[Tensor, Tensor | None]:
        """Return the tokens of a step (B,), and in a batch that samples what they were drawn from, (B, V)."""
        warp, chance = request.warp, request.chance
        if warp is None or chance is None:
            return logits[:, 0].argmax(-1), None
        if compiled_sampling.takes(logits):
            return compiled_sampling.draw(logits[:, 0], warp, chance, step)
        probabilities = warp(logits)[:, 0]
        return draw(probabilities, chance[:, step]), probabilities
