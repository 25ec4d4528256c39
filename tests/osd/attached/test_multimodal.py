"""A target that sees images: positions of text alone are learned from, the others are counted, and so it is said."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from osd.attached.samples import HarvestedAnswer, HarvestedFrom, no_distributions, samples_of
from osd.cli.main import app
from storage.records import TokenKind
from storage.settings import Settings
from storage.store import Store
from tests.osd.attached.conftest import Attached, Running, ask, attached
from tests.support.fake_vllm import FakeEngine, make_app
from tests.support.models import noisy, random_module
from tests.support.other_targets import IMAGE, VIDEO, vision_language
from tests.support.settings import changed
from tests.support.waiting import until

ORIGIN = HarvestedFrom("sql", "acme", "v", True, True, "t" * 64, frozenset({IMAGE, VIDEO}))
SEEN = [5, 93, IMAGE, IMAGE, IMAGE, 94, 6]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of a target that sees, and of a draft that reads."""
    root = tmp_path_factory.mktemp("seeing")
    vision_language().save_pretrained(root / "target")
    (root / "target" / "tokenizer.json").write_text("{}")
    noisy(random_module("llama"), 0.4).save_pretrained(root / "draft")
    return {name: root / name for name in ("target", "draft")} | {"root": root}


@pytest.fixture(params=["recorded", "recompute"])
def teacher(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def home(
    store: Store, settings: Settings, fake: FakeEngine, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch,
    teacher: str,
) -> Iterator[Attached]:  # fmt: skip
    monkeypatch.setenv("OSD_VLLM_POSITIONS", "0")
    with attached(store, changed(settings, learn__teacher=teacher), fake, folders, monkeypatch) as made:
        made.attend()
        yield made


def answer(prompt: list[int], tokens: list[int], **tops: Any) -> HarvestedAnswer:
    choice = {"tokens": tokens, "finish_reason": "length", **tops}
    facts = {"id": "a" * 32, "prompt": prompt, "began": 1.0, "ended": 2.0, "temperature": 0.0}
    return HarvestedAnswer(**facts, choices=[choice], accepted=[0, 1], drafted=[1, 1])  # type: ignore[arg-type]


def test_positions_of_images_are_left_out_of_what_is_learned() -> None:
    tokens = [7, IMAGE, 8, VIDEO]
    tops = {"top_ids": [[one, 2] for one in tokens], "top_logprobs": [[-0.1, -3.0]] * 4}
    made = samples_of(answer([5, 6], tokens, **tops), 0, ORIGIN, 2, lambda *_: [3])
    assert made is not None and made.positions.tolist() == [2, 4]
    assert made.tokens.tolist() == [5, 6, *tokens], "what stands before a position is kept whole"
    assert made.topk_ids.tolist() == [[7, 2], [8, 2]] and len(made.kinds) == len(made.drafted) == 2
    alone = samples_of(answer([5], [IMAGE, VIDEO, IMAGE, IMAGE], **tops), 0, ORIGIN, 2, lambda *_: [3])
    assert alone is None, "there is nothing to learn"


def test_what_was_refused_after_an_image_stays_unknown_for_the_draft_saw_no_image() -> None:
    tops = {"top_ids": [[7, 2]] * 4, "top_logprobs": [[-0.1, -3.0]] * 4}
    plain, seen = (samples_of(answer(p, [7] * 4, **tops), 0, ORIGIN, 2, lambda *_: [3]) for p in ([5, 6], SEEN))
    assert plain is not None and seen is not None
    assert TokenKind.REJECTED in plain.kinds and TokenKind.REJECTED not in seen.kinds
    assert np.isnan(seen.acceptance.astype(float)).sum() == 3, "what was accepted is known"


def test_texts_with_images_are_not_read_again() -> None:
    assert samples_of(answer([5, 6], [7] * 4), 0, ORIGIN, 2, lambda *_: [3], no_distributions) is not None
    assert samples_of(answer(SEEN, [7] * 4), 0, ORIGIN, 2, lambda *_: [3], no_distributions) is None
    blind = replace(ORIGIN, placeholders=frozenset())
    assert samples_of(answer(SEEN, [7] * 4), 0, blind, 2, lambda *_: [3], no_distributions) is not None


def test_what_an_engine_that_sees_answers_is_kept_and_counted(home: Attached, teacher: str) -> None:
    said = [ask(home.vllm, prompt) for prompt in ([5, 6, 7], SEEN, [8, 9])]
    until(lambda: len(home.request_ids()) == 3)
    kept = {tuple(one.tokens[: one.prompt_len].tolist()): one for one in home.store.samples.read(home.request_ids())}
    assert (tuple(SEEN) in kept) is (teacher == "recorded") and {(5, 6, 7), (8, 9)} <= kept.keys()
    assert all(
        len(one) == 12 - sum(map((IMAGE, VIDEO).__contains__, one.tokens[one.prompt_len :])) for one in kept.values()
    )
    counts, found = home.intake.counts, 3 + sum(each in (IMAGE, VIDEO) for one in said for each in one)
    assert counts.multimodal.labels("gpu-1")._value.get() == found
    assert counts.unread.labels("gpu-1")._value.get() == (teacher == "recompute")


@pytest.mark.parametrize(("read", "says"), [("recorded", "as the target has answered it"), ("recompute", "read again")])
def test_what_is_learned_is_said_when_it_is_added(fake: FakeEngine, tmp_path: Path, read: str, says: str) -> None:
    vllm = Running(make_app(fake))
    surroundings = {"OSD_STORAGE__DIRECTORY": str(tmp_path / "own"), "OSD_LEARN__TEACHER": read}
    done = CliRunner().invoke(app, ["engines", "add", vllm.url, "--draft", "sql"], env=surroundings)
    vllm.stop()
    said = " ".join(done.stderr.split())
    assert done.exit_code == 0 and "Its target sees more than text" in said and says in said, said
