"""What a redaction hook takes out is in the store by no command: not in a file, not in the database."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osd.drafters.ngram.table import Table, TableSettings
from osd.drafters.ngram.table_store import TableStore
from osd.server.start import SHIPPED
from storage.redaction import NothingReadsTokens, Passage, Redactor
from storage.settings import load_settings
from storage.store import Store, open_store
from tests.osd.cli.conftest import Osd
from tests.storage.make import samples

TARGET, DRAFT = SHIPPED / "target", SHIPPED / "draft"
SECRET = "zebra"
HOOKS = "hooks_of_this_test"


@pytest.fixture(autouse=True)
def hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Any = types.ModuleType(HOOKS)
    made.nothing = lambda passage: None
    made.masked = lambda passage: passage.without(SECRET, 4)
    made.clinics = lambda passage: None if passage.tenant == "clinic" else passage.tokens
    monkeypatch.setitem(sys.modules, HOOKS, made)


def told(name: str) -> dict[str, str]:
    return {"OSD_PRIVACY__REDACT": f"{HOOKS}:{name}", "OSD_SERVE__TARGET": str(TARGET)}


def opened(data: Path, **privacy: Any) -> Store:
    return open_store(load_settings(storage={"directory": data}, privacy=privacy))


def texts_on_disk(data: Path) -> bytes:
    """Every byte of the store, decompressed where it is a segment, by the tokens' text."""
    return b"".join(path.read_bytes() for path in data.rglob("*") if path.is_file())


@pytest.fixture
def logged(tmp_path: Path) -> Path:
    path = tmp_path / "logged.jsonl"
    lines = [{"prompt": f"Which {SECRET} is {i}?", "response": f"The {SECRET}.", "tenant": tenant}
             for i, tenant in enumerate(["clinic", "acme"])]  # fmt: skip
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def kept(data: Path) -> list[tuple[str, str]]:
    """Tenant and text of each stored request."""
    from tests.support.chat_templates import tokenizer

    with opened(data) as store:
        found = store.samples.read(store.samples.recent(limit=99))
    return sorted((one.tenant, tokenizer().decode(one.tokens.tolist())) for one in found)


@pytest.mark.parametrize(("hook", "tenants"), [("nothing", []), ("clinics", ["acme"]), ("masked", ["acme", "clinic"])])
def test_an_import_passes_the_hook(osd: Osd, logged: Path, data: Path, hook: str, tenants: list[str]) -> None:
    done = osd("replay", "import", logged, "--target", TARGET, "--draft", DRAFT, "--json", **told(hook))
    assert done.exit_code == 0 and json.loads(done.stdout)["requests"] == len(tenants)
    assert json.loads(done.stdout)["known"] == 2 - len(tenants)
    assert [tenant for tenant, _ in kept(data)] == tenants
    assert all((SECRET in text) is (hook != "masked") for _, text in kept(data))
    with opened(data) as store:
        stored = sum(one.positions for one in store.samples.stats())
    assert json.loads(done.stdout)["positions"] == stored


def test_an_import_asks_consent_and_what_was_forgotten(osd: Osd, logged: Path, data: Path) -> None:
    assert osd("replay", "tenant", "clinic", "--no-learn").exit_code == 0
    assert osd("replay", "import", logged, "--target", TARGET, "--draft", DRAFT).exit_code == 0
    assert [tenant for tenant, _ in kept(data)] == ["acme"]
    exported = data.parent / "kept.parquet"
    assert osd("replay", "export", exported).exit_code == 0
    with opened(data) as store:
        (request,) = store.samples.recent(limit=9)
    assert osd("replay", "forget", "--request", request, "--yes").exit_code == 0
    assert "Kept 0 requests" in osd("replay", "import", logged, "--target", TARGET).stderr
    assert "Kept 0 requests" in osd("replay", "import", exported).stderr
    assert kept(data) == []


@pytest.mark.parametrize("rule", ["forgotten", "consent"])
def test_an_export_that_comes_back_is_old_text_of_its_tenant(osd: Osd, logged: Path, data: Path, rule: str) -> None:
    osd("replay", "import", logged, "--target", TARGET, "--draft", DRAFT)
    exported = data.parent / "kept.parquet"
    assert osd("replay", "export", exported).exit_code == 0
    osd("replay", "forget", "--tenant", "clinic", "--yes")
    osd("replay", "forget", "--tenant", "acme", "--yes") if rule == "forgotten" else None
    osd("replay", "tenant", "clinic", "--no-learn") if rule == "consent" else None
    assert osd("replay", "import", exported).exit_code == 0
    assert [tenant for tenant, _ in kept(data)] == ([] if rule == "forgotten" else ["acme"])


def taught(osd: Osd, tmp_path: Path, **variables: str) -> None:
    assert osd("router", "teach", "animals", f"How fast is a {SECRET}?", **variables).exit_code == 0


def imported(osd: Osd, tmp_path: Path, **variables: str) -> None:
    file = tmp_path / "routes.json"
    assert osd("router", "export", file, OSD_STORAGE__DIRECTORY=str(tmp_path / "other")).exit_code == 0
    routes = json.loads(file.read_text())
    example = {"topic": "animals", "text": f"How fast is a {SECRET}?"}
    file.write_text(json.dumps({**routes, "examples": [example]}))
    assert osd("router", "import", file, "--yes", **variables).exit_code == 0


def in_file(osd: Osd, tmp_path: Path, **variables: str) -> None:
    (tmp_path / "labelled.jsonl").write_text(json.dumps({"topic": "animals", "text": f"How fast is a {SECRET}?"}))
    assert osd("router", "teach", "--file", tmp_path / "labelled.jsonl", **variables).exit_code == 0


@pytest.mark.parametrize("way", [taught, imported, in_file])
@pytest.mark.parametrize("hook", ["nothing", "masked", None])
def test_examples_pass_the_hook(
    osd: Osd, data: Path, tmp_path: Path, way: Callable[..., None], hook: str | None
) -> None:
    way(osd, tmp_path, **(told(hook) if hook else {}))
    with opened(data) as store:
        examples = store.examples.list()
    assert len(examples) == (hook != "nothing")
    assert (SECRET.encode() in texts_on_disk(data)) is (hook is None)
    assert all("How fast is" in text for _, text in examples)


def test_a_hook_that_nobody_shows_text_lets_nothing_pass(osd: Osd, data: Path) -> None:
    """A way that forgets to say which tokenizer it is writes nothing, and says so."""
    with opened(data, redact=f"{HOOKS}:masked") as store:
        with pytest.raises(NothingReadsTokens, match=r"serve\.target"):
            store.samples.add([samples(0)])
        with pytest.raises(NothingReadsTokens):
            store.examples.teach([("animals", SECRET)])
        assert not store.samples.recent(limit=9) and not store.examples.list()
    done = osd("router", "teach", "animals", SECRET, OSD_PRIVACY__REDACT=f"{HOOKS}:masked")
    assert done.exit_code and "serve.target" in done.stderr


def test_the_stores_own_writer_asks_the_hook_whoever_calls_it(data: Path) -> None:
    with opened(data, redact=f"{HOOKS}:clinics") as store:
        store.samples.redactor.load(lambda: None)
        assert store.samples.add([samples(0, tenant="clinic")]) is None
        assert store.samples.add([samples(1), samples(2, tenant="clinic")]) is not None
        assert store.samples.recent(limit=9) == ["r1"]
        assert (store.samples.redactor.refused, store.samples.redactor.failed) == (2, 0)


def test_a_text_that_the_hook_answers_wrongly_is_not_kept() -> None:
    class Letters:
        def encode(self, text: str, add_special_tokens: bool) -> list[int]:
            return list(map(ord, text))

        def batch_decode(self, ids: list[list[int]]) -> list[str]:
            return [chr(token) for (token,) in ids]

        def decode(self, ids: list[int]) -> str:
            return "".join(map(chr, ids))

    for answer in ([1], "wrong", 5):
        redactor = Redactor(lambda passage, answer=answer: answer, Letters)  # type: ignore[misc]
        assert redactor.text("abc") is None and redactor.failed == 1

    def seen(passage: Passage) -> tuple[int, ...]:
        assert (passage.tenant, passage.prompt_len) == ("default", 3)
        return passage.without("b", ord("-"))

    assert Redactor(seen, Letters).text("abc") == "a-c"


@pytest.mark.parametrize("hook", ["clinics", None])
def test_tables_of_what_the_hook_has_not_seen_are_not_kept(data: Path, hook: str | None) -> None:
    from osd.server.start import PairNames

    settings = load_settings(storage={"directory": data}, privacy={"redact": f"{HOOKS}:{hook}"} if hook else {})
    pair = PairNames(str(TARGET), str(DRAFT)).load(settings.serve)
    with open_store(settings) as store:
        tables = TableStore(pair, settings.ngram, store)
        table = Table(TableSettings(3, 1 << 20))
        table.born = 0
        table.learn(np.arange(50), 0)
        assert tables.keep("default", table) is (hook is None)
        assert bool(store.versions.list()) is (hook is None)
