"""Encryption at rest: nothing readable on the disk, keys by name, old keys stay, wrong ones are said to be wrong."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from storage.errors import BadSetting, CannotDecrypt, SegmentDamaged
from storage.files.cipher import open_cipher, parse_ring
from storage.replay import segments
from storage.settings import load_settings
from storage.store import Store, open_store
from tests.storage.make import assert_same, samples
from tests.storage.places import segments_of

FIRST = "2025 " + base64.b64encode(b"a" * 32).decode()
SECOND = "2026 " + base64.b64encode(b"b" * 16).decode()
OTHER = "2025 " + base64.b64encode(b"c" * 32).decode()
RING = "TEST_KEY_RING"


@contextmanager
def keeping(folder: Path, ring: str | None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store with a key ring, or without one."""
    monkeypatch.setenv(RING, ring or "")
    kept = {"directory": folder, "encryption": f"env:{RING}" if ring else None}
    with open_store(load_settings(storage=kept)) as store:
        yield store


def everything(store: Store) -> bytes:
    return b"".join(segments_of(store).read(name) for name in segments_of(store).names())


def test_what_is_kept_is_read_with_its_key_only(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = samples(1, tokens=np.full(9, 0x41424344, np.int32))
    with keeping(memory, FIRST, monkeypatch) as store:
        store.samples.add([one])
        assert everything(store)[:4] == b"PARE" and b"request_id" not in everything(store)
        assert_same(store.samples.read(["r1"])[0], one)
        assert store.keeper.verify().faults == ()
    for ring, said in (
        (None, "storage.encryption"), (SECOND, "no key '2025'"), (OTHER, "not the one that it was written with"),
    ):  # fmt: skip
        with keeping(memory, ring, monkeypatch) as store:
            for attempt in (
                lambda store=store: store.samples.read(["r1"]),
                lambda store=store: store.keeper.verify(),
            ):
                with pytest.raises(CannotDecrypt, match=said) as caught:
                    attempt()
                assert ".parquet" in str(caught.value)
            assert len(segments_of(store).names()) == 1


def test_a_new_first_key_writes_and_old_ones_read(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with keeping(memory, None, monkeypatch) as store:
        store.samples.add([samples(0)])
    with keeping(memory, FIRST, monkeypatch) as store:
        store.samples.add([samples(1)])
    with keeping(memory, f"# newest first\n{SECOND}\n{FIRST}\n", monkeypatch) as store:
        store.samples.add([samples(2)])
        assert len(store.samples.read(["r0", "r1", "r2"])) == 3
        assert store.keeper.compact(16).after == 1, "what is put together is written with the first key"
    with keeping(memory, SECOND, monkeypatch) as store:
        assert len(store.samples.read(["r0", "r1", "r2"])) == 3


def test_a_purge_needs_the_key_of_what_it_writes_anew(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with keeping(memory, FIRST, monkeypatch) as store:
        store.samples.add([samples(1), samples(2)])
    with keeping(memory, SECOND, monkeypatch) as store:
        with pytest.raises(CannotDecrypt):
            store.samples.purge(request_id="r1")
        assert sorted(store.samples.recent(limit=9)) == ["r1", "r2"]
        assert store.samples.purge(everything=True).requests == 2, "to drop a whole segment needs none"


def test_damage_is_not_taken_for_a_wrong_key(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with keeping(memory, FIRST, monkeypatch) as store:
        store.samples.add([samples(1, m=50)])
        (name,) = segments_of(store).names()
        whole = segments_of(store).read(name)
        wrapped = whole.index(b"wrappedDEK") + 20  # that one cannot be told from a wrong key
        for place, error in ((len(whole) // 4, SegmentDamaged), (-60, SegmentDamaged), (wrapped, CannotDecrypt)):
            damaged = bytearray(whole)
            damaged[place] = ord("A") if damaged[place] != ord("A") else ord("B")  # the wrapped key stays base64
            segments_of(store).write(name, bytes(damaged))
            with pytest.raises(error, match=r"Failed decryption|verif|or the file is damaged"):
                store.samples.read(["r1"])


def test_exports_are_encrypted_and_taken_in_with_the_key(
    memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with keeping(memory / "here", FIRST, monkeypatch) as store:
        store.samples.add([samples(number) for number in range(70)])
        store.samples.export(tmp_path / "all.parquet")
    with pytest.raises(OSError):
        pq.read_table(tmp_path / "all.parquet")
    with keeping(memory / "there", SECOND, monkeypatch) as store, pytest.raises(CannotDecrypt, match="no key '2025'"):
        store.samples.import_file(tmp_path / "all.parquet")
    with keeping(memory / "there", f"{SECOND}\n{FIRST}", monkeypatch) as store:
        assert store.samples.import_file(tmp_path / "all.parquet").requests == 70
        assert_same(store.samples.read(["r3"])[0], samples(3, created_at=store.samples.read(["r3"])[0].created_at))


def test_each_file_has_a_key_of_its_own(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RING, FIRST)
    cipher = open_cipher(f"env:{RING}")
    one, same = (bytes(segments.encode([samples(1)], cipher)) for _ in range(2))
    assert one != same


BAD_RINGS = {
    "": "is not set",
    "# nothing\n": "empty",
    "2025": "line 1 of the key ring is not NAME KEY",
    "2025 c2hvcnQ=": "not base64 of 16, 24 or 32",
    "2025 S3cr3t!": "not base64 of 16, 24 or 32",
    f"{FIRST}\n{FIRST}": "second time",
}


@pytest.mark.parametrize("ring", BAD_RINGS)
def test_a_bad_ring_is_named_by_its_line_and_never_shown(ring: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RING, ring)
    with pytest.raises(BadSetting, match=BAD_RINGS[ring]) as caught:
        open_cipher(f"env:{RING}")
    assert all(word not in str(caught.value) for word in ("c2hvcnQ", "S3cr3t", FIRST.split()[1]))


def test_a_key_in_the_setting_itself_is_refused_and_not_repeated(tmp_path: Path) -> None:
    for named in (FIRST.split()[1], "env:", "file:", json.dumps(FIRST)):
        with pytest.raises(BadSetting, match="env:VARIABLE or file:PATH") as caught:
            open_cipher(named)
        assert FIRST.split()[1] not in str(caught.value)
    with pytest.raises(BadSetting, match="cannot be read"):
        open_cipher(f"file:{tmp_path / 'none'}")
    (tmp_path / "ring").write_text(FIRST)
    cipher = open_cipher(f"file:{tmp_path / 'ring'}")
    assert repr(cipher) == "Cipher(2025)" and list(parse_ring(FIRST)) == ["2025"]
