"""Answers from kept samples: precision and recall of tokens, what was wanted instead; against a plain count."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from storage.errors import BadInput, SegmentDamaged
from storage.insights.service import Answers
from storage.insights.tokens import tokens
from storage.outcomes.outcome_window import Window
from storage.records import RequestSamples, TokenKind
from storage.store import Store
from tests.storage.make import outcome, samples

ACCEPTED, REJECTED, UNDRAFTED = map(int, (TokenKind.ACCEPTED, TokenKind.REJECTED, TokenKind.UNDRAFTED))


def _request(number: int, seed: int, **changes: object) -> RequestSamples:
    """Twelve positions of six tokens; where a token was accepted, it is the emitted one, as in real traffic."""
    made = samples(number, m=12, **changes)
    rng = np.random.default_rng(seed)
    made.tokens[:] = rng.integers(0, 6, len(made.tokens))
    made.kinds[:] = rng.integers(0, 3, 12)
    emitted = made.tokens[made.positions]
    made.drafted[:] = np.where(made.kinds == REJECTED, (emitted + 1 + number % 2) % 6, emitted)
    return made


def _plainly(batch: list[RequestSamples]) -> dict[str, Counter[int]]:
    found: dict[str, Counter[int]] = {"proposed": Counter(), "accepted": Counter(), "appeared": Counter()}
    for request in batch:
        for position, kind, drafted in zip(request.positions, request.kinds, request.drafted, strict=True):
            emitted = int(request.tokens[position])
            found["appeared"][emitted] += 1
            if kind != UNDRAFTED:
                found["proposed"][int(drafted)] += 1
            if kind == ACCEPTED:
                found["accepted"][emitted] += 1
    return found


def test_precision_and_recall_of_two_versions(store: Store) -> None:
    one = [_request(n, n, draft_version="v1") for n in range(5)]
    two = [_request(n, n, draft_version="v2") for n in range(5, 12)]
    store.samples.add([*one, *two])
    found = Answers(store).tokens(Window(version="v1"), Window(version="v2"), top=4)
    assert [row.rank for row in found] == [1, 2, 3, 4]
    everything = _plainly([*one, *two])["appeared"]
    assert {row.token for row in found} <= {
        token for token, n in everything.items() if n >= sorted(everything.values())[-4]
    }
    for row in found:
        for side, batch in ((row.before, one), (row.after, two)):
            plain = _plainly(batch)
            assert (side.proposed, side.accepted, side.appeared) == tuple(
                plain[name][row.token] for name in ("proposed", "accepted", "appeared")
            )
        facts = row.as_dict()
        assert (
            facts["recall_gain"] == row.after.accepted / row.after.appeared - row.before.accepted / row.before.appeared
        )


def test_the_newest_requests_of_a_stretch_of_time(store: Store) -> None:
    batch = [_request(n, n, created_at=1000.0 + n) for n in range(6)]
    store.samples.add(batch[:3])
    store.samples.add(batch[3:])
    window = Window(since=1001.0, until=1005.0)
    assert Answers(store).judged(window, 100).requests == 4
    newest = Answers(store).judged(window, 2)
    assert newest.requests == 2
    assert sorted(newest.emitted.tolist()) == sorted(int(r.tokens[p]) for r in batch[3:5] for p in r.positions)


def test_tokens_need_accepted_ones(store: Store) -> None:
    only = _request(1, 1)
    only.kinds[:] = REJECTED
    store.samples.add([only, _request(2, 2, draft_version="v2")])
    with pytest.raises(BadInput, match="verified"):
        Answers(store).tokens(Window(version=only.draft_version), Window(version="v2"))
    with pytest.raises(BadInput, match="no kept requests after"):
        Answers(store).tokens(Window(version="v2"), Window(version="v9"))
    assert tokens(Answers(store).judged(Window(version="v2")), Answers(store).judged(Window(version="v2")))


def test_why_acceptance_is_low(store: Store) -> None:
    batch = [_request(n, n) for n in range(8)]
    store.samples.add(batch)
    store.outcomes.add([outcome(route="sql", positions=((10, 2, 8),)), outcome(route="chat", rejections=2)], "a")
    rows = Answers(store).rejections(top=3)
    place, sql, chat, *pairs = rows
    assert (place.by, place.rejections, place.share, place.alpha) == ({"position": 0}, 8, 1.0, 0.2)
    assert (sql.by, sql.share, chat.by, chat.share) == ({"route": "sql"}, 0.8, {"route": "chat"}, 0.2)
    refused = Counter(
        (int(request.drafted[i]), int(request.tokens[request.positions[i]]))
        for request in batch
        for i in np.flatnonzero(request.kinds == REJECTED)
    )
    assert [row.rejections for row in pairs] == [count for _, count in refused.most_common(3)]
    plain = _plainly(batch)
    for row in pairs:
        assert refused[(row.by["drafted"], row.by["wanted"])] == row.rejections
        assert row.share == row.rejections / refused.total()
        drafted = row.by["drafted"]
        assert row.alpha == plain["accepted"][drafted] / plain["proposed"][drafted]


def test_nothing_kept_is_no_rejections(store: Store) -> None:
    assert Answers(store).rejections() == []


def test_a_damaged_segment_is_named(store: Store) -> None:
    store.samples.add([_request(1, 1)])
    (file,) = store.samples.folder.rglob("*.parquet")
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(SegmentDamaged, match=file.name):
        Answers(store).judged(Window())
    file.unlink()
    assert Answers(store).judged(Window()).requests == 0, "a purge took it in the meantime"
