"""A server that drafts without a model: texts are the target's, what was learned is kept, tenants are kept apart."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osd.drafters.ngram import OtherTokenizer
from osd.drafters.ngram.files import ARRAYS, load_table
from osd.drafters.ngram.table import Table, TableSettings
from osd.drafters.ngram.tables import Tables
from osd.engine.session import serving
from osd.models.pair import Pair
from osd.models.vocabulary import digest_of_tokens
from osd.prompts import encode
from osd.sequence import Completion
from storage.records import Request
from storage.store import Store
from tests.osd.drafters.ngram.conftest import save_table, settings_in
from tests.support.waiting import until

ASKED = ("How many days has a leap year?", "SELECT all users", "def add(a, b):")


def requests(pair: Pair, **facts: Any) -> list[Request]:
    return [Request(tuple(encode(pair.tokenizer, text)), 24, **facts) for text in ASKED]


def tables_of(engine: Any, tenant: str = "default") -> Tables:
    """The engine's, once its thread knows the tenant and has brought the table."""
    tables = engine.drafting.proposer
    assert isinstance(tables, Tables)
    until(lambda: tables._consent.of(tenant))
    allowed = tables._consent.of(tenant)
    assert allowed is not None
    key = ("default", "" if allowed.share else tenant)
    until(lambda: tables._drafter(key))
    return tables


def accepted(done: list[Completion]) -> int:
    return sum(r.accepted for completion in done for r in completion.rounds)


def alone(pair: Pair, asked: list[Request], folder: Path) -> list[tuple[int, ...]]:
    from osd.engine.engine import Engine

    settings = settings_in(folder, drafters__kind="causal", gamma__initial=0)
    done = {c.request.prompt_tokens: c.tokens for c in Engine(pair, settings).run(asked)}
    return [done[request.prompt_tokens] for request in asked]


@pytest.mark.parametrize("drafter", ["trigram", "blended"])
def test_texts_are_the_targets_before_and_after_there_is_a_table(
    pair: Pair, store: Store, tmp_path: Path, drafter: str
) -> None:
    settings = settings_in(tmp_path, drafters__kind=drafter)
    expected = alone(pair, requests(pair), tmp_path)
    with serving(pair, settings, store) as engine:
        for turn in range(3):
            asked = requests(pair)
            done = {c.request.id: c.tokens for c in engine.run(asked)}
            assert [done[request.id] for request in asked] == expected
            if turn == 0:
                tables_of(engine)


@pytest.mark.parametrize(
    "search", [{"method": "greedy"}, {"searches": 3, "breadth": 2}, {"shortest": 3, "kappa": 0.0, "c1": 4.0, "c2": 3.0}]
)
def test_a_table_is_searched_as_the_settings_have_it(
    pair: Pair, store: Store, tmp_path: Path, search: dict[str, Any]
) -> None:
    settings = settings_in(tmp_path, ngram__search=search)
    with serving(pair, settings, store) as engine:
        tables_of(engine)
        list(engine.run(requests(pair)))
        tables_of(engine)
        again = requests(pair)
        done = {c.request.id: c for c in engine.run(again)}
        drafter = tables_of(engine)._drafters[("default", "")]
    assert [done[request.id].tokens for request in again] == alone(pair, again, tmp_path)
    assert accepted(list(done.values())) > 0
    assert {name: getattr(drafter.settings, name) for name in search} == search


def test_what_a_table_learned_is_kept_and_the_next_server_starts_from_it(
    pair: Pair, store: Store, tmp_path: Path
) -> None:
    settings = settings_in(tmp_path)
    with serving(pair, settings, store) as engine:
        tables_of(engine)
        list(engine.run(requests(pair)))
    kept = store.versions.current("ngram")
    assert (kept.kind, kept.number) == ("ngram", 0)
    table = load_table(store.versions.folder(kept), digest_of_tokens(pair.tokenizer, pair.vocab_size))
    with serving(pair, settings, store) as engine:
        tables = tables_of(engine)
        assert tables._drafters[("default", "")].table.learned == table.learned > 0
        done = list(engine.run(requests(pair, learn=False)))
        assert accepted(done) > sum(len(c.rounds) for c in done)
    assert store.versions.current("ngram").id == kept.id  # nothing was learned, nothing is kept
    with serving(pair, settings, store) as engine:
        tables_of(engine)
        list(engine.run(requests(pair)))
    assert store.versions.current("ngram").number == 1


def test_a_damaged_version_is_passed_over(pair: Pair, store: Store, tmp_path: Path) -> None:
    with serving(pair, settings_in(tmp_path), store) as engine:
        tables_of(engine)
        list(engine.run(requests(pair)))
    path = store.versions.folder(store.versions.current("ngram")) / ARRAYS
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-9])
    with serving(pair, settings_in(tmp_path), store) as engine:
        assert tables_of(engine)._drafters[("default", "")].table.learned == 0


def test_a_corpus_is_where_a_table_starts_and_is_refused_where_it_is_of_other_tokens(
    pair: Pair, store: Store, tmp_path: Path
) -> None:
    table = Table(TableSettings(memory=1 << 20))
    table.learn(np.arange(500, dtype=np.int64))
    save_table(tmp_path / "corpus", table, digest_of_tokens(pair.tokenizer, pair.vocab_size))
    save_table(tmp_path / "other", table, digest_of_tokens(None, 7))
    with serving(pair, settings_in(tmp_path, ngram__corpus=tmp_path / "corpus"), store) as engine:
        assert tables_of(engine)._drafters[("default", "")].table.learned == 500
    with pytest.raises(OtherTokenizer), serving(pair, settings_in(tmp_path, ngram__corpus=tmp_path / "other"), store):
        pass


def test_a_table_with_tokens_that_the_target_does_not_know_is_passed_over(
    pair: Pair, store: Store, tmp_path: Path
) -> None:
    table = Table(TableSettings(memory=1 << 20))
    table.learn(np.array([1, pair.vocab_size, 2]))
    save_table(tmp_path / "corpus", table, digest_of_tokens(pair.tokenizer, pair.vocab_size))
    with serving(pair, settings_in(tmp_path, ngram__corpus=tmp_path / "corpus"), store) as engine:
        assert tables_of(engine)._drafters[("default", "")].table.learned == 0


def test_a_tenant_that_does_not_share_has_a_table_of_its_own_that_is_never_written(
    pair: Pair, store: Store, tmp_path: Path
) -> None:
    store.samples.tenants.allow("secret", share=False)
    with serving(pair, settings_in(tmp_path), store) as engine:
        tables = tables_of(engine, "secret")
        tables_of(engine)
        list(engine.run(requests(pair, tenant="secret")))
        learned = {key: drafter.table.learned for key, drafter in tables._drafters.items()}
        assert learned[("default", "secret")] > 0 == learned[("default", "")]
        others = list(engine.run(requests(pair)))
        again = list(engine.run(requests(pair, tenant="secret")))
        assert accepted(again) > accepted(others)
    versions = [version for version in store.versions.list() if version.kind == "ngram"]
    assert len(versions) == 1
    table = load_table(store.versions.folder(versions[0]))
    assert table.learned == sum(len(c.tokens) for c in others)


def test_a_tenants_own_table_learns_its_kept_requests_again_and_no_others(
    pair: Pair, store: Store, tmp_path: Path
) -> None:
    settings = settings_in(tmp_path, privacy__share_tables=False)

    def own(engine: Any, tenant: str) -> Tables:
        tables = engine.drafting.proposer
        until(lambda: tables._consent.of(tenant) and tables._drafter(("default", tenant)))
        return tables

    with serving(pair, settings, store) as engine:
        own(engine, "a")
        own(engine, "b")
        done = list(engine.run(requests(pair, tenant="a")))
    assert not [version for version in store.versions.list() if version.kind == "ngram"]
    with serving(pair, settings, store) as engine:
        learned = own(engine, "a")._drafters[("default", "a")].table
        until(lambda: learned.learned == sum(len(c.tokens) for c in done))
        assert own(engine, "b")._drafters[("default", "b")].table.learned == 0


def test_what_must_not_be_kept_is_not_counted(pair: Pair, store: Store, tmp_path: Path) -> None:
    """Neither of requests with learn=False, nor of tenants whose requests may not be kept; they have drafts all the
    same, also from their own text."""
    store.samples.tenants.allow("quiet", learn=False)
    with serving(pair, settings_in(tmp_path), store) as engine:
        tables_of(engine, "quiet")
        tables = tables_of(engine)
        done = list(engine.run([*requests(pair, learn=False), *requests(pair, tenant="quiet")]))
        assert tables._drafters[("default", "")].table.learned == 0
        assert any(r.drafted for c in done for r in c.rounds)
        assert not tables._seats and not any(tables._rows.values())


def test_tables_are_bounded_and_the_one_unused_longest_leaves_and_is_kept(
    pair: Pair, store: Store, tmp_path: Path
) -> None:
    for tenant in ("a", "b"):
        store.samples.tenants.allow(tenant, share=False)
    with serving(pair, settings_in(tmp_path, ngram__tables=2), store) as engine:
        tables = tables_of(engine)
        list(engine.run(requests(pair)))
        for tenant in ("a", "b"):
            tables_of(engine, tenant)
            list(engine.run(requests(pair, tenant=tenant)))
        assert list(tables._drafters) == [("default", "a"), ("default", "b")]
        until(lambda: not tables._gone)
        assert tables_of(engine)._drafters[("default", "")].table.learned > 0  # it came back with what it had learned
        assert len(tables._drafters) == 2


def test_a_table_that_nobody_asks_for_any_more_makes_room(
    pair: Pair, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row that asked has ended, as those of short requests do before their table is there."""
    monkeypatch.setattr("osd.drafters.ngram.tables.UNASKED", 0.05)
    with serving(pair, settings_in(tmp_path, ngram__tables=2), store) as engine:
        tables = tables_of(engine)

        def arrived(key: tuple[str, str]) -> bool:
            tables._wanted.setdefault(key)
            tables._worker.wake()
            return key in tables._arrived

        for route in ("a", "b", "c", "d"):
            until(lambda route=route: arrived((route, "")))
        assert len(tables._arrived) <= 2


def test_the_store_is_asked_for_nothing_while_decoding(
    pair: Pair, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of tenants, the engine's thread looks only at what is known."""
    import threading

    with serving(pair, settings_in(tmp_path), store) as engine:
        tables_of(engine)
        asking: list[str] = []
        get = store.samples.tenants.get
        monkeypatch.setattr(
            store.samples.tenants, "get", lambda name: asking.append(threading.current_thread().name) or get(name)
        )  # fmt: skip
        list(engine.run(requests(pair, tenant="new")))
        until(lambda: asking)
        assert set(asking) == {"osd-tables"}
    shutil.rmtree(tmp_path / "data", ignore_errors=True)
