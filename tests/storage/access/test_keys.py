"""API keys: what is kept of one, until when it opens, and the trail."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import text

from storage.access.keys import PREFIX, digest
from storage.errors import BadInput, UnknownKey
from storage.sql import audit
from storage.store import Store


def test_only_a_hash_of_a_key_is_kept(store: Store) -> None:
    secret, key = store.keys.create("acme", name="laptop", requests_per_minute=60)
    assert secret.startswith(PREFIX) and len(secret) > 40
    assert store.keys.list() == [key] and key.hash == digest(secret) and key.scopes == ("infer",)
    with store.db.session(read_only=True) as session:
        rows = [*session.execute(text("SELECT * FROM api_keys")), *session.execute(text("SELECT * FROM audit"))]
    assert secret not in repr(rows) and secret[8:] not in repr(rows)


def test_a_key_ends_by_itself_or_is_ended(store: Store) -> None:
    now = time.time()
    _, short = store.keys.create("acme", expires_at=now + 60)
    assert short.valid(now) and not short.valid(now + 61)
    ended = store.keys.revoke(short.id, who="ada")
    assert not ended.valid(now) and store.keys.revoke(short.id) == ended, "ending it twice changes nothing"
    with pytest.raises(UnknownKey, match="osd keys list"):
        store.keys.revoke("key-none")


def test_the_trail_says_who_made_and_ended_a_key(store: Store) -> None:
    _, key = store.keys.create("acme", scopes=["infer", "admin"], who="ada")
    store.keys.revoke(key.id, who="bob")
    with store.db.session(read_only=True) as session:
        ended, made = audit.history(session, key.id)
    assert (made.who, made.action, made.after["scopes"]) == ("ada", "keys create", ["infer", "admin"])
    assert (ended.who, ended.action, ended.before["revoked_at"]) == ("bob", "keys revoke", None)
    assert ended.after["revoked_at"]
    assert key.hash not in repr((made, ended))


@pytest.mark.parametrize(
    ("tenant", "options", "wrong"),
    [
        (" ", {}, "names no tenant"),
        ("*", {}, "names no tenant"),
        ("acme", {"scopes": []}, "given: none"),
        ("acme", {"scopes": ["root"]}, "given: root"),
        ("acme", {"requests_per_minute": 0}, "1 or more"),
        ("acme", {"tokens_per_minute": -1}, "1 or more"),
        ("acme", {"expires_at": 1.0}, "expired already"),
    ],
)
def test_a_key_that_could_open_nothing_is_not_made(store: Store, tenant: str, options: dict, wrong: str) -> None:
    with pytest.raises(BadInput, match=wrong):
        store.keys.create(tenant, **options)
    assert store.keys.list() == []
