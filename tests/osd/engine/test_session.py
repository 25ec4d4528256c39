"""An engine inside the circle: what may not be learned from leaves nothing of its text in the store."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from osd.engine.session import serving
from osd.models.pair import load_pair
from osd.prompts import encode
from osd.sequence import Completion
from osd.server.start import SHIPPED
from storage.records import Request
from storage.settings import load_settings
from storage.store import open_store

OPEN, PRIVATE = "How many days has a leap year?", "My door code is 4711, the key lies under the blue pot."


def kept_tokens(data: Path) -> list[list[int]]:
    """The tokens of every request in every segment."""
    tables = [pq.read_table(path) for path in data.rglob("*.parquet")]
    return [tokens for table in tables for tokens in table.column("tokens").to_pylist()]


def kept_bytes(data: Path) -> bytes:
    """Every file but the weights: the database, its journal, the segments."""
    return b"".join(p.read_bytes() for p in data.rglob("*") if p.is_file() and "weights" not in p.parts)


def test_a_request_that_may_not_be_learned_from_leaves_totals_and_no_text(tmp_path: Path) -> None:
    data = tmp_path / "data"
    settings = load_settings(storage={"directory": data, "holdout": 0.0}, serve={"max_batch": 2})
    pair = load_pair(SHIPPED / "target", SHIPPED / "draft")
    asked = {text: Request(tuple(encode(pair.tokenizer, text)), 24, learn=text == OPEN) for text in (OPEN, PRIVATE)}
    with open_store(settings) as store:
        with serving(pair, settings, store) as engine:
            done = {completion.request.id: completion for completion in engine.run(asked.values())}
        served, private = done[asked[OPEN].id], done[asked[PRIVATE].id]
        assert sum(row.requests for row in store.outcomes.acceptance()) == 2
        assert [s.request_id for s in store.samples.read([served.request.id, private.request.id])] == [
            served.request.id
        ]
    assert kept_tokens(data) == [[*served.request.prompt_tokens, *served.tokens]]
    told = kept_bytes(data)
    assert served.request.id.encode() in told
    assert [trace for trace in traces(private) if trace.encode() in told] == []


def traces(private: Completion) -> list[str]:
    """What would betray it: its texts, and its tokens as a database might write them."""
    prompt, answer = list(private.request.prompt_tokens), list(private.tokens)
    return [PRIVATE, str(private.text), *(str(tokens)[1:-1] for tokens in (prompt, answer))]
