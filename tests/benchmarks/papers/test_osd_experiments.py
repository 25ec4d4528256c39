"""What the experiments for OSD's Tables 3, 4, 6 and 8 and its Figures 2 to 4, 7 and 10 make of what they measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.papers.entry import PapersBench, PaperSizes
from benchmarks.papers.experiments import distilled_drafts, lengths, medusa, shares, traffic
from benchmarks.papers.experiments.distilled_drafts import judged_by_reading
from benchmarks.papers.experiments.medusa import ALONE, DRAFT_OSD, FAMILIAR, MEDUSA, MEDUSA_OSD, NEW, LearnedDrafts
from benchmarks.papers.experiments.shares import ReadText, matched
from benchmarks.papers.experiments.timing import TimedAnswer, TimedEngine, by_turns
from benchmarks.papers.experiments.traffic import LANGUAGE, TOPIC, RoutedPrompt, share_by_stretch
from osd.bench.harness.watch import Watch
from osd.demo import DRAFT, TARGET
from osd.models.features.decoder import FeatureModel
from osd.models.pair import Pair, load_pair
from storage.errors import BadInput
from storage.insights.judged import JudgedPositions
from storage.insights.tokens import ranked
from storage.records import RequestSamples, TokenKind
from storage.settings import Settings
from tests.benchmarks.papers.test_experiments import finished, require_figures
from tests.support.models import alone, prompts, random_pair
from tests.support.settings import settings_of


@pytest.fixture
def papers_bench(tmp_path: Path) -> PapersBench:
    return PapersBench(settings_of(serve__max_length=128), Watch(), tmp_path, str(TARGET), str(DRAFT))


def timed(rate: float, rounds: int = 10) -> TimedAnswer:
    return TimedAnswer((0,) * 20, 20 / rate, 5, 5, rounds, 4, 4 / rate)


@pytest.fixture
def pair() -> Pair:
    return random_pair("llama", noise=0.2)


def test_answers_go_on_past_their_end_where_that_is_asked(pair: Pair) -> None:
    settings, (prompt,) = settings_of(serve__max_length=128), prompts(1, seed=3)
    text = alone(pair.target.module, prompt, 12)
    ending = Pair(pair.target, pair.draft, None, frozenset(text[3:4]))
    cut = text[: text.index(text[3]) + 1]
    for whole, expected in ((False, cut), (True, text)):
        done = TimedEngine(ending, settings, 12, gamma=3, whole=whole).decode(prompt)
        assert list(done.tokens) == expected
    assert list(TimedEngine(pair, settings, 12, gamma=3).decode(prompt, 5).tokens) == text[:5]


def test_arms_answer_every_prompt_and_time_goes_by(pair: Pair) -> None:
    settings, asked = settings_of(serve__max_length=128), prompts(3, seed=5)
    arms = {gamma: TimedEngine(pair, settings, 16, gamma=gamma) for gamma in (0, 4)}
    found = by_turns(arms, asked, Watch(), "both")
    assert [one.tokens for one in found[0]] == [one.tokens for one in found[4]]
    for one in (*found[0], *found[4]):
        assert len(one.tokens) == 16 and 0 < one.first_seconds < one.seconds and 0 < one.first_tokens < 16
        assert one.rate > 0 and one.later_rate > 0
    assert all(one.accepted == 0 for one in found[0]) and sum(one.accepted for one in found[4]) > 0


def test_lengths_are_compared_without_the_prompts_time() -> None:
    found: dict[int, dict[float, list[TimedAnswer]]] = {
        n: {0.0: [timed(100), timed(120)]}
        | {a: [timed(100 * a * factor), timed(120 * a * factor)] for a in lengths.ALPHAS}
        for n, factor in ((16, 2.0), (64, 3.0))
    }  # fmt: skip
    figures = lengths.told(found).figures
    assert figures["gain_of_length"].value == pytest.approx(np.mean(lengths.ALPHAS))
    assert figures["least_gain_of_length"].value == pytest.approx(0.5)
    assert figures["gain_of_alpha_less_that_of_length"].value == pytest.approx(0.8 - 0.7)


def test_prompts_of_one_length_are_put_together() -> None:
    asked = [tuple(range(5)), tuple(range(10, 17))]
    made = lengths.prefixes(asked, 11)
    assert len(made) == 2 and {len(prompt) for prompt in made} == {11} and made[0] == (*asked[0], *asked[1][:6])
    with pytest.raises(BadInput, match="too few"):
        lengths.prefixes([(1,), (1,)], 4)


def test_distilled_drafts_are_compared_with_what_they_were() -> None:
    seen = {
        name: {"alone": [timed(100), timed(100)], "before": [timed(90), timed(90)], "after": [timed(up), timed(up)]}
        for name, up in (("sql", 180), ("chat", 120))
    }
    figures = distilled_drafts.speeds_told(seen).figures
    assert figures["least_speed_up"].value == pytest.approx(1.2) and figures["speed_up"].value == pytest.approx(1.5)
    assert figures["after_vs_before"].value == pytest.approx(1.5 / 0.9) and figures["speed_up"].count == 4


def test_a_draft_is_judged_at_every_position_of_an_answer(pair: Pair) -> None:
    texts = []
    for prompt in prompts(3, seed=6, longest=6):
        answer = alone(pair.target.module, prompt, 8)
        whole, n = np.array([*prompt, *answer], np.int32), len(prompt)
        texts.append(
            RequestSamples(
                "r", "default", "default", "", 1.0, n, whole, np.arange(n, n + 8, dtype=np.int32),
                np.full(8, TokenKind.UNDRAFTED, np.uint8), whole[n:], np.zeros((8, 1), np.int32),
                np.zeros((8, 1), np.float16), np.zeros(8, np.float32),
            )
        )  # fmt: skip
    itself, other = (judged_by_reading(model, texts) for model in (pair.target, pair.draft))
    assert len(itself) == 24 and (itself.kinds == TokenKind.ACCEPTED).all()
    for i, text in enumerate(texts):
        tokens = torch.tensor([text.tokens.tolist()])
        said = pair.draft.module(tokens).logits[0, text.prompt_len - 1 : -1].argmax(-1)
        assert other.drafted[8 * i : 8 * i + 8].tolist() == said.tolist()


def positions(drafted: list[int], emitted: list[int]) -> JudgedPositions:
    right = np.array(drafted) == np.array(emitted)
    kinds = np.where(right, TokenKind.ACCEPTED, TokenKind.REJECTED).astype(np.int64)
    return JudgedPositions(1, kinds, np.array(drafted), np.array(emitted))


def test_tokens_that_gain_most_are_named_by_data_set(papers_bench: PapersBench) -> None:
    emitted = [1, 1, 1, 2, 2, 3]
    found = {
        "sql": ranked(positions([9] * 6, emitted), positions([1, 1, 1, 2, 9, 9], emitted)),
        "chat": ranked(positions([9] * 3, [5, 5, 6]), positions([5, 5, 6], [5, 5, 6])),
    }
    names = {name: {row.token: f"t{row.token}" for row in rows} for name, rows in found.items()}
    told = distilled_drafts.tokens_told(found, [0.8, 0.9], names)
    recall = [1.0, 0.5, 0.0, 1.0, 1.0]
    assert told.figures["recall_gain"].value == pytest.approx(np.mean(recall))
    assert told.figures["precision_gain"].value == pytest.approx(np.mean([1.0, 1.0, 0.0, 1.0, 1.0]))
    assert told.figures["least_recall_gain"].value == pytest.approx(0.5)
    assert told.figures["own_tokens_among_best"].value == 1
    assert told.figures["share_of_tokens"].value == pytest.approx(0.85)
    (rows,) = told.tables.values()
    assert rows[0]["tokens"].startswith("t1, t2")


def test_medusa_is_told_by_traffic() -> None:
    seen = {
        kind: {
            ALONE: [timed(100, 20)] * 3, MEDUSA: [timed(100 * bare, 15)] * 3, MEDUSA_OSD: [timed(200, 10)] * 3,
            DRAFT_OSD: [timed(150, 12)] * 3,
        }
        for kind, bare in ((NEW, 1.25), (FAMILIAR, 2.0))
    }  # fmt: skip
    told = medusa.told(seen, {MEDUSA: 7, DRAFT_OSD: 5})
    figures = told.figures
    assert figures["osd_vs_medusa_new"].value == pytest.approx(1.6)
    assert figures["rounds_saved_new"].value == pytest.approx(1 / 3)
    assert figures["draft_vs_medusa_osd_familiar"].value == pytest.approx(0.75)
    assert figures["medusa_vs_draft_familiar"].value == pytest.approx(2 / 1.5)
    (rows,) = told.tables.values()
    assert [row["weights"] for row in rows] == [7, 7, 5] and rows[1]["tokens a round, new"] == 2


def test_heads_serve_and_learn_and_are_not_taught_twice(tmp_path: Path) -> None:
    bench = PapersBench(Settings(), Watch(), tmp_path, str(TARGET), str(DRAFT))
    drafts = LearnedDrafts(bench, PaperSizes(8, 8))
    assert len(drafts.served[NEW]) == 9 and not set(drafts.served[NEW]) & set(drafts.tests[NEW])
    heads = drafts.random_heads(load_pair(TARGET, DRAFT, device="cpu"))
    taught = drafts.learned(heads, NEW, "heads", **medusa.HEADS_LEARN)
    before = sorted(path.name for path in drafts.folder.iterdir())
    assert drafts.learned(heads, NEW, "heads", **medusa.HEADS_LEARN) == taught
    assert sorted(path.name for path in drafts.folder.iterdir()) == before
    assert isinstance(load_pair(TARGET, taught, device="cpu").draft, FeatureModel)


def test_the_make_up_of_traffic_is_told_from_routes(papers_bench: PapersBench) -> None:
    some = [RoutedPrompt("en" if i < 60 else "fi", "en" if i < 50 else "fi", i / 100) for i in range(100)]
    assert share_by_stretch(some, "fi")[5] == (1.0, 0.0) and share_by_stretch(some, "en")[0] == (1.0, 1.0)
    figures = traffic.told({LANGUAGE: some, TOPIC: [one._replace(told=one.true) for one in some]}).figures
    assert abs(figures["language_share_off"].value) == pytest.approx(0.1)
    assert figures["language_off_by_stretch"].value == pytest.approx(0.1)
    assert figures["topic_share_off"].value == 0 and figures["topic_off_by_stretch"].reach == 0
    papers_bench.kept["traffic"] = {LANGUAGE: some, TOPIC: some}
    require_figures(traffic.MAKE_UP, papers_bench)


def test_a_served_stream_is_routed_by_language_and_topic(papers_bench: PapersBench) -> None:
    papers_bench.settings = Settings()
    found = traffic._streams(papers_bench, PaperSizes(6, 2))
    for trait, labels in ((LANGUAGE, {"en", "fi"}), (TOPIC, {"sql", "arithmetic", "python", "finnish"})):
        assert len(found[trait]) == 24 and {one.true for one in found[trait]} == labels
        assert sum(one.told == one.true for one in found[trait]) >= 22


def test_drafts_of_a_share_are_held_against_the_same_texts() -> None:
    class Text:
        def __init__(self, number: int) -> None:
            self.request_id = f"prompt-{number}"

        def __len__(self) -> int:
            return 20

    mine = [_served(2, 0.5), _served(1, 0.4), _served(3, 0.9)]
    texts: list[Any] = [Text(0), Text(1)]
    found = matched(mine, texts, {0.1: [6.0, 8.0]})
    assert found == [ReadText("sql", 0.0, 20, 10.0, {0.1: 8.0}), ReadText("sql", 1 / 3, 20, 8.0, {0.1: 6.0})]


def _served(number: int, online: float) -> Any:
    return replace(finished(number, "sql", online, 0.2, 0.5), number=number)


def test_begins_and_ends_are_of_the_right_sets() -> None:
    some = [
        ReadText(name, place, 20, 20 * online, dict.fromkeys((0.1, 0.3, 0.7, 1.0), 8.0))
        for name in ("sql", "chat") for place, online in ((0.0, 0.2), (0.05, 0.3), (0.5, 0.9), (0.7, 0.6), (0.9, 0.5))
    ]  # fmt: skip
    figures, table = shares.told(some)
    assert figures["begin_minus_tenth"].value == pytest.approx(-0.15) and figures["begin_minus_tenth"].count == 2
    assert figures["end_minus_tenth"].value == pytest.approx(0.15) and figures["end_minus_tenth"].count == 4
    assert figures["end_minus_70"].count == 2 and figures["after_change_minus_30"].value == pytest.approx(-0.15)
    (rows,) = table.values()
    assert [row["texts"] for row in rows] == ["first tenth", "last third"] and "100%" in rows[0]
