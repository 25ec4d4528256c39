"""Settings: where they come from, what is refused, and what old names are called now."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from storage.errors import BadSetting
from storage.settings import Section, Settings, load, load_settings
from storage.settings.explain import GONE, RENAMED


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text)
    return path


def at(settings: Settings, name: str) -> Any:
    found: Any = settings
    for part in name.split("."):
        assert part in type(found).model_fields, name
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("old", [*RENAMED, *GONE])
def test_an_old_name_is_refused_and_the_new_one_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str
) -> None:
    section, _, key = old.partition(".")
    said = " and ".join(RENAMED[old]) if old in RENAMED else GONE[old]
    path = written(tmp_path, f"[{section}]\n{key} = 1\n")
    with pytest.raises(BadSetting) as caught:
        load_settings(path)
    assert str(path) in str(caught.value) and old in str(caught.value) and said in str(caught.value)
    monkeypatch.setenv(f"OSD_{section}__{key}".upper(), "1")
    with pytest.raises(BadSetting) as caught:
        load_settings(written(tmp_path, ""))
    assert str(caught.value).startswith(f"environment: {old}: ") and said in str(caught.value)
    with pytest.raises(BadSetting, match=f"option: {old}: "):
        Settings().changed(**{section: {key: 1}})


def test_every_new_name_is_there() -> None:
    for new in (name for names in RENAMED.values() for name in names):
        assert not isinstance(at(Settings(), new), Section)


def test_the_environment_is_stronger_than_the_file_and_options_than_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, '[gamma]\nrule = "fixed"\ninitial = 3\nmax = 7\n[gamma.analytic]\nhistory = 5\n')
    monkeypatch.setenv("OSD_GAMMA__INITIAL", "2")
    monkeypatch.setenv("OSD_GAMMA__MAX", "6")
    monkeypatch.setenv("OSD_GAMMA__ANALYTIC__ESTIMATOR", "truncated")
    monkeypatch.setenv("OSD_GAMMA__ROUTES", json.dumps({"sql": "fsm"}))
    found = load_settings(path, gamma={"max": 9}).gamma
    assert (found.rule, found.initial, found.max, found.routes) == ("fixed", 2, 9, {"sql": "fsm"})
    assert (found.analytic.history, found.analytic.estimator) == (5, "truncated")


@pytest.mark.parametrize("variable", ["OSD_GAMMA__ROUTES", "OSD_GAMMA"])
def test_a_table_in_the_environment_that_is_no_json_is_refused(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "sql: fsm")
    with pytest.raises(BadSetting, match=r"environment: gamma: .*JSON"):
        load_settings()


def test_a_change_leaves_what_it_does_not_name_and_replaces_plain_mappings() -> None:
    given = Settings().changed(
        gamma={"routes": {"sql": "fsm"}, "analytic": {"history": 5}, "mine": {"weight": 1}}, retention={"requests": 9}
    )
    found = given.changed(gamma={"routes": {}, "analytic": {"estimator": "truncated"}})
    assert found.gamma.routes == {} and found.gamma.mine == {"weight": 1}  # type: ignore[attr-defined]
    assert (found.gamma.analytic.history, found.gamma.analytic.estimator) == (5, "truncated")
    assert found.retention == given.retention and found.changed() == found


def test_tables_of_others_are_kept_as_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSD_DRAFTERS__THEIRS__LONGEST", "4")
    found = load_settings(written(tmp_path, "[gamma.theirs]\nweights = [1, 2]\n"))
    assert found.gamma.foreign == {"theirs": {"weights": [1, 2]}}
    assert found.drafters.foreign == {"theirs": {"longest": "4"}}
    assert found.gamma.table("theirs") == {"weights": [1, 2]} and found.gamma.table("unheard") == {}
    assert found.gamma.table("initial") == {}, "a setting is no table"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[gamma]\ninitail = 3\n", "gamma.initail: there is no such setting; did you mean 'initial'?"),
        ("[gamma.analytic]\nhistroy = 3\n", "gamma.analytic.histroy: there is no such setting; did you mean 'history'"),
        ("[gamma]\nanalytic = 3\n", "gamma.analytic: "),
        ("[gama]\nrule = 'fixed'\n", "gama: there is no such setting; did you mean 'gamma'?"),
        ("[ngram]\norder = 9\n", "ngram.order: "),
    ],
)
def test_a_misspelt_key_is_told_apart_from_a_table_of_others(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(BadSetting) as caught:
        load_settings(written(tmp_path, text))
    assert words in str(caught.value)


def test_names_of_the_release_before_still_hold_and_say_what_they_are_called_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    load._warn.cache_clear()
    path = written(tmp_path, "[worker]\nnice = 3\nthreads = 2\n[trainer]\nthreads = 4\n[fleet]\nworkers = 3\n")
    monkeypatch.setenv("OSD_WORKER__POLL_SECONDS", "7")
    monkeypatch.setenv("OSD_FLEET__WORKERS", "5")
    found = load_settings(path)
    assert (found.trainer.nice, found.trainer.threads, found.trainer.poll_seconds) == (3, 2, 7)
    assert found.fleet.processes == 5, "the environment is stronger, under either name"
    said = [record.getMessage() for record in caplog.records]
    assert f"{path}: worker is called trainer now; the next release does not know the old name" in said
    assert any("OSD_FLEET__WORKERS is called OSD_FLEET__PROCESSES now" in line for line in said)
    load_settings(path)
    assert len(caplog.records) == len(said) == 4, "once a process"
    monkeypatch.setenv("OSD_WORKER__POLL_SECOND", "7")
    with pytest.raises(
        BadSetting, match=r"trainer\.poll_second: there is no such setting; did you mean 'poll_seconds'"
    ):
        load_settings(path)
