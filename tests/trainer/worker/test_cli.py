"""`python -m trainer once|distil|ping`: what is said, what is written, and with which exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner, Result

from storage.runs import ClaimTerms
from storage.settings import Settings, load_settings
from storage.store import Store
from tests.trainer.conftest import Traffic
from tests.trainer.processes import QUICK, configured
from trainer.__main__ import app
from trainer.distil.scores import score
from trainer.worker.broker import ping


@pytest.fixture
def config(tmp_path: Path, settings: Settings) -> Path:
    return configured(tmp_path, settings, QUICK)


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_once_trains_what_is_due_and_says_what_came_of_it(drafted: Store, config: Path, traffic: Traffic) -> None:
    traffic(12)
    done = call("once", "--config", config, "--json")
    said = json.loads(done.stdout.splitlines()[-1])
    assert done.exit_code == 0 and said["state"] == "published"
    assert said["version"] == drafted.versions.current("default").id
    assert said["evidence"]["after"] > said["evidence"]["before"]
    traffic(12)
    again = call("once", "--config", config)
    assert again.exit_code == 0 and "default: published default-000002-" in again.stdout and "→" in again.stdout
    assert call("once", "--config", config).stdout.strip() == "Nothing is due."


def test_two_workers_on_one_draft_is_an_error_that_names_the_holder(
    drafted: Store, config: Path, traffic: Traffic
) -> None:
    traffic(12)
    drafted.runs.claim("default", "host-a:41:ab", ClaimTerms(1, 9, 600))
    done = call("once", "--config", config, "--draft", "default")
    assert done.exit_code == 6 and "is being trained by host-a:41:ab until" in done.stderr
    assert len(drafted.runs.list()) == 1


def test_a_draft_that_nobody_knows_is_an_error(drafted: Store, config: Path) -> None:
    done = call("once", "--config", config, "--draft", "nobody")
    assert done.exit_code == 3 and "no draft named 'nobody'" in done.stderr


def test_distil_writes_a_plain_folder_that_is_closer_to_the_target(
    drafted: Store, config: Path, traffic: Traffic, draft_folder: Path, tmp_path: Path
) -> None:
    samples, out = traffic(20), tmp_path / "distilled"
    arguments = ("distil", "--config", config, "--draft", draft_folder, "--out", out, "--epochs", 8, "--json")
    done = call(*arguments)
    said = json.loads(done.stdout.splitlines()[-1])
    assert done.exit_code == 0 and (said["requests"], said["epochs"]) == (20, 8)
    before, after = (_expected(folder, samples) for folder in (draft_folder, out))
    assert after > 1.2 * before
    again = call(*arguments)
    assert again.exit_code == 2 and "exists" in again.stderr
    assert drafted.runs.list() == [] and drafted.versions.current("default").number == 0


def _expected(folder: Path, samples: list[object]) -> float:
    return float(score(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), samples).expected.sum())  # type: ignore[arg-type]


def test_distil_takes_an_exported_file_and_a_choice_of_requests(
    drafted: Store, config: Path, traffic: Traffic, draft_folder: Path, tmp_path: Path
) -> None:
    first, second = traffic(6), traffic(5)
    drafted.samples.export(tmp_path / "all.parquet")
    for n, choice in enumerate(
        [("--until", second[0].created_at), ("--since", second[0].created_at), ("--requests", 3)]
    ):
        for source in ([], ["--samples", tmp_path / "all.parquet"]):
            out = tmp_path / f"out{n}{len(source)}"
            command = ("distil", "--config", config, "--draft", draft_folder, "--out", out, "--json", "--epochs", 1)
            done = call(*command, *source, *choice)
            assert json.loads(done.stdout.splitlines()[-1])["requests"] == [len(first), len(second), 3][n]


def test_distil_refuses_what_it_cannot_use(drafted: Store, config: Path, draft_folder: Path, tmp_path: Path) -> None:
    out, broken = tmp_path / "out", tmp_path / "broken.parquet"
    broken.write_bytes(b"not a segment")
    common = ("distil", "--config", config, "--out", out)
    refusals = [
        (call(*common, "--draft", draft_folder), 2, "no samples"),
        (call(*common, "--draft", draft_folder, "--samples", tmp_path / "none"), 2, "There is no file"),
        (call(*common, "--draft", draft_folder, "--samples", broken), 5, "cannot be read"),
    ]
    for done, status, words in refusals:
        assert done.exit_code == status and words in done.stderr and not out.exists()


def test_distil_refuses_a_folder_that_is_no_model(
    drafted: Store, config: Path, traffic: Traffic, tmp_path: Path
) -> None:
    traffic(4)
    done = call("distil", "--config", config, "--draft", tmp_path, "--out", tmp_path / "out")
    assert done.exit_code == 4 and "config.json" in done.stderr and not (tmp_path / "out").exists()


def test_ping_tells_whether_the_broker_answers(tmp_path: Path, settings: Settings) -> None:
    found = call("ping", "--config", configured(tmp_path, settings, QUICK))
    assert found.exit_code == 0 and json.loads(found.stdout)["ok"]
    nowhere = configured(tmp_path, settings, QUICK, broker="redis://:secret@127.0.0.1:1/0")
    missing = call("ping", "--config", nowhere)
    said = json.loads(missing.stdout)
    assert missing.exit_code == 1 and not said["ok"] and said["mend"] and "secret" not in missing.stdout


def test_ping_of_the_files_changes_nothing_and_wants_a_folder(tmp_path: Path) -> None:
    new, file = tmp_path / "new", tmp_path / "file"
    file.touch()
    for directory, ok in ((new, True), (file, False)):
        answer = ping(load_settings(storage={"directory": directory}))
        assert answer["ok"] is ok
    assert str(file) in answer["found"] and "storage.directory" in answer["mend"]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_misspelt_setting_is_named(tmp_path: Path) -> None:
    path = tmp_path / "osd.toml"
    path.write_text("[learn]\nlearning_rat = 1")
    done = call("once", "--config", path)
    assert done.exit_code == 2 and "did you mean 'learning_rate'?" in done.stderr
