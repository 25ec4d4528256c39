"""Settings: where they come from, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from storage.errors import BadSetting
from storage.settings import Settings, load_settings


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text)
    return path


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
