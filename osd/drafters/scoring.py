"""Scores finished texts with every draft that could have served them, in idle moments.

Text that the target has verified tells for any draft where it would have been accepted. So a router learns how *all*
candidates of a route do, not only the one that served (full information, as HedgeSpec). At temperature 0 that takes no
target pass: the draft reads the text once and is right where its argmax is the token that stands there. Above 0 a
drafted token is accepted with chance Σ min(p, q), both after the request's warping, so the target reads the text once
more too, for all candidates. Either is the acceptance that Eq. 2 of on-the-fly adaptation counts, in expectation.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from osd.drafters.feature_drafter import FeatureDraftModel
from osd.drafters.loaded_draft import LoadedDraft
from osd.drafters.pool import DraftPool
from osd.models.decoder import Decoder
from osd.models.features.base import AHEAD, FeatureDraft
from osd.models.features.decoder import FeatureDecoder
from osd.models.features.target import FeatureTarget, read_states
from osd.models.lora.bank import AdapterRows
from osd.sequence import Completion, SequenceState
from osd.verification.warping import Warp
from router.throughput import TextScore
from storage.sampling import Sampling

WAITING = 64
"""Finished requests that are kept until there is time; the oldest are dropped."""
SCORED = 256
"""Tokens of a sampled text that are scored at most."""
SHARE = 0.02
"""Share of the time that scoring may take while requests are being served."""

Reader = Decoder | FeatureDecoder
"""A draft's passes over a text that is finished."""
Scored = Callable[[str, Mapping[str, TextScore]], None]
"""Takes the request's id, and how each draft did on it."""


class DraftScorer:
    """Scores requests for one engine, on the engine's thread: a text takes a draft a pass or two."""

    def __init__(self, pool: DraftPool, router: Any, target: Decoder) -> None:
        """Prepare to score. ``router`` gets the scores by its method ``scored``; without one nothing is scored.
        ``target`` reads sampled texts, beside its own cache."""
        self._pool, self._target = pool, target
        self._scored: Scored | None = getattr(router, "scored", None)
        self._waiting: deque[tuple[tuple[str, ...], Completion]] = deque(maxlen=WAITING)
        self._begun, self._spent = time.perf_counter(), 0.0

    def keep(self, row: SequenceState, completion: Completion) -> None:
        """Keep a finished request for later; one whose route has a single draft is of no interest."""
        drafts = row.decision.route.drafts
        if self._scored and len(drafts) > 1 and completion.tokens:
            self._waiting.append((drafts, completion))

    def work(self, *, idle: bool) -> bool:
        """Score a request if one waits and there is time; return whether one was scored."""
        if not self._waiting or not (idle or self._spent < SHARE * (time.perf_counter() - self._begun)):
            return False
        begun = time.perf_counter()
        drafts, completion = self._waiting.pop()  # the newest: what drafts are worth now
        here = [(draft, loaded) for draft in drafts if (loaded := self._pool.loaded_drafts.get(draft))]
        loaded_drafts = {draft: loaded for draft, loaded in here if not isinstance(loaded.body, FeatureDraftModel)}
        try:
            if len(loaded_drafts) > 1 and self._scored:
                completion = part_of(completion)
                p = drawn_from(self._target, completion)
                scores = {draft: score(loaded, completion, p) for draft, loaded in loaded_drafts.items()}
                self._scored(completion.request.id, scores)
        except Exception as error:  # a draft that cannot read a text costs a score, no more
            self._pool.failures.note_failure("scoring", error)
        self._spent += time.perf_counter() - begun
        return True


def part_of(completion: Completion) -> Completion:
    """Return as much of a text as is scored: of a sampled one the first tokens, whose distributions are in memory
    together."""
    drawn = not completion.request.sampling.greedy
    return replace(completion, tokens=completion.tokens[:SCORED]) if drawn else completion


@torch.inference_mode()
def score(loaded: LoadedDraft, completion: Completion, p: Tensor | None = None) -> TextScore:
    """Return how a draft does on a finished text, as far as it can be read whole; of a sampled one by what its tokens
    were drawn from, ``p`` (n, V)."""
    tokens = [*completion.prompt, *completion.tokens][: loaded.limit]
    judged = len(tokens) - len(completion.prompt)
    if judged <= 0:
        return TextScore(0.0, 0)
    reader = reader_of(loaded, len(tokens))
    found = expected_hits(reader, tokens, judged, completion.request.sampling, p)
    reader.cache.drop()
    return TextScore(sum(found) / judged, judged)


@torch.inference_mode()
def drawn_from(target: Decoder, completion: Completion) -> Tensor | None:
    """Return p after warping for every token of a sampled text, (n, V) float32, read by the target beside its own
    cache; None of a greedy text, where the token that stands there has all of it."""
    if completion.request.sampling.greedy or not completion.tokens:
        return None
    tokens = [*completion.prompt, *completion.tokens]
    reader = target.beside(1, len(tokens))
    p = distributions(reader, tokens, len(completion.tokens), completion.request.sampling)
    reader.cache.drop()
    return p


def expected_hits(
    decoder: Reader, tokens: list[int], judged: int, sampling: Sampling, p: Tensor | None
) -> Sequence[float]:
    """Return for each of the last ``judged`` tokens of a text the probability that the target accepts what a draft says
    there: Σ min(p, q) over both distributions after warping, with the target's ``p`` (``judged`` or more, V); of a
    greedy text, without ``p``, whether the draft's likeliest token is the one that stands there."""
    if p is None:
        return matches(decoder, tokens, judged)
    q = distributions(decoder, tokens, judged, sampling, p.shape[1])
    found: list[float] = torch.minimum(p[:judged], q.to(p.device)).sum(-1).tolist()
    return found


def reader_of(loaded: LoadedDraft, length: int) -> Decoder:
    """Return a decoder of the draft's weights over a cache of one row of ``length`` tokens."""
    decoder, bank = loaded.body.decoder.beside(1, length), AdapterRows()
    decoder.adapters = bank.mix if bank.set_rows([loaded.adapter]) else None
    return decoder


def matches(decoder: Reader, tokens: list[int], judged: int) -> list[bool]:
    """Return for each of the last ``judged`` tokens whether it is the likeliest one after those before it."""
    said = logits_of(decoder, tokens, judged).argmax(-1)
    found: list[bool] = (said == torch.tensor(tokens[-judged:], device=decoder.device)).tolist()
    return found


@torch.inference_mode()
def distributions(
    decoder: Reader, tokens: list[int], judged: int, sampling: Sampling, vocabulary: int | None = None
) -> Tensor:
    """Return what a model draws each of the last ``judged`` tokens from, after warping: (judged, V) float32. Its logits
    are cut or padded to ``vocabulary``, as when it drafts."""
    logits = logits_of(decoder, tokens, judged)
    logits = F.pad(logits, (0, (vocabulary or logits.shape[1]) - logits.shape[1]), value=-torch.inf)
    return Warp([sampling], logits.shape[1], logits.device)(logits[None])[0]


@torch.inference_mode()
def logits_of(decoder: Reader, tokens: list[int], judged: int) -> Tensor:
    """Return the draft's logits for each of the last ``judged`` tokens: (judged, V). An encoder reads those before the
    token that comes before these, so they are a whole output. What a feature draft says is a chain's first token."""
    if isinstance(decoder, FeatureDecoder):
        return _feature_logits(decoder, tokens, judged)
    start = len(tokens) - judged
    decoder.prefill(0, tokens[: start - 1])
    read = torch.tensor([tokens[start - 1 : -1]], device=decoder.device)
    return decoder.logits(read, [start - 1])[0]


def _feature_logits(decoder: FeatureDecoder, tokens: list[int], judged: int) -> Tensor:
    """Let the target read the text for its hidden states, and the draft those; zeros for a text's first tokens."""
    draft, target = decoder.draft, decoder.target
    read = torch.tensor([tokens], device=decoder.device)
    features = torch.cat(read_states(target.module, read, decoder.layers), dim=-1)
    said = next(chain_logits(target, draft, features, tokens, judged, 1))
    return F.pad(said, (0, 0, judged - len(said), 0))


def chain_logits(
    target: FeatureTarget, draft: FeatureDraft, features: Tensor, tokens: Sequence[int], judged: int, steps: int
) -> Iterator[Tensor]:
    """Yield each step's logits of chains for the last ``judged`` tokens of a text, of which ``features`` (1, T, F) are:
    (n, V), fewer than ``judged`` where a text's first tokens are among them, which no chain reaches."""
    read = torch.tensor([tokens], device=target.head.weight.device)
    for step, each in enumerate(draft.unroll(features, read, target.embed, target.head, steps)):
        end = len(tokens) - AHEAD - step  # column t speaks of place t + AHEAD + step
        begin = max(0, end - judged)
        yield draft.whole(each.logits[0].float())[begin : max(begin, end)]
