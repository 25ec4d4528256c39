"""The compiled predictions, and what is trusted, beside the plain ones."""

from __future__ import annotations

import numpy as np
import pytest

from osd.drafters.ngram.drafter import NgramDrafter
from osd.drafters.ngram.predictions import COUNTS, MARGIN, NO_PREDICTION, SHARES, SURENESS, new_rates, sureness_of
from osd.drafters.ngram.table import Table, TableSettings
from osd.drafters.table_override import TableGroup, count_predicted
from tests.osd.drafters.ngram.test_table import text_of
from tests.support.plain_blending import Kind, PlainTrust, plain_predictions, plain_sureness
from tests.support.plain_ngram import PlainTable

STEPS = 3


def number_of(kind: Kind) -> int:
    whose, others, length, often, share = kind
    what = ["nothing", "the same", "another"].index(others)
    return (((("shared", "own").index(whose) * 3 + what) * 3 + length - 1) * COUNTS + often) * SHARES + share


class Both:
    """The compiled and the plain one side by side, over the same rows."""

    def __init__(self, order: int) -> None:
        table, self.shared = Table(TableSettings(order)), PlainTable(order)
        table.learn(text_of(0, 2000))
        self.shared.learn(text_of(0, 2000).tolist())
        self.maker, self.trust, self.plain = NgramDrafter(table), new_rates(), PlainTrust()
        self.texts = [text_of(seed, length).tolist() for seed, length in ((1, 200), (2, 1), (3, 40))]
        self.owns = [PlainTable(order) for _ in self.texts]
        for own, text in zip(self.owns, self.texts, strict=True):
            own.learn(text)
        self.places = [self.maker.open(np.array(text)) for text in self.texts]
        self.random, self.put_in, self.unasked = np.random.default_rng(5), 0, 0

    def round(self) -> None:
        self.chains: list[list[int]] = [[], [], []]
        self.notes: list[list[tuple[int, int, int]]] = [[], [], []]
        self.group = TableGroup(self.maker, self.trust, self.places, self.texts, [False] * 3, STEPS)
        for step in range(STEPS):
            self.step(step)
        for row in range(3):
            self.judge_drafted(row)
            self.go_on(row)

    def step(self, step: int) -> None:
        texts = [text + chain for text, chain in zip(self.texts, self.chains, strict=True)]
        predictions = [self.best(own, text) for own, text in zip(self.owns, texts, strict=True)]
        trusted = [prediction[1] for prediction in predictions]
        certain = [t >= 0 and self.plain.gain(t) < MARGIN for t in trusted]
        assert self.group.look_up(step) == certain
        asked = not all(certain)
        said, peaks = self.random.integers(40, 45, 3).tolist(), self.random.uniform(size=3).tolist()
        tokens, sure = self.group.choose(step, said if asked else None, peaks if asked else None)
        for r, prediction in enumerate(predictions):
            kind = plain_sureness(peaks[r])
            wins = prediction[1] >= 0 and (not asked or trusted[r] > self.plain.trust_in_model(kind))
            assert (tokens[r], sure[r]) == (prediction[0] if wins else said[r], trusted[r] if wins else -1.0)
            self.chains[r].append(tokens[r])
            self.notes[r].append((prediction[0], said[r] if asked else NO_PREDICTION, kind))
            self.put_in += wins
        self.unasked += not asked

    def best(self, own: PlainTable, text: list[int]) -> tuple[int, float]:
        """The more trusted prediction, and the trust in it; of equal ones the shared table's."""
        predictions = plain_predictions(self.shared, own, text)
        trusted = [(token, self.plain.trust(self.plain.predictions[kind])) for token, kind in predictions]
        return max(trusted, key=lambda prediction: prediction[1], default=(NO_PREDICTION, -1.0))

    def go_on(self, row: int) -> None:
        """The target goes on with the text, beyond what was drafted, if anything was."""
        before = self.texts[row][-self.maker.order :]
        told = list(before)
        for _ in range(int(self.random.integers(1, 4))):
            predictions = plain_predictions(self.shared, self.owns[row], told)
            right = predictions and self.random.random() < 0.7
            chosen = int(self.random.integers(len(predictions))) if right else 0
            told.append(predictions[chosen][0] if right else int(self.random.integers(40, 45)))
            for token, kind in predictions:
                self.plain.note(self.plain.predictions[kind], told[-1] == token)
        count_predicted(self.maker, self.trust, self.places[row], np.array(told), len(before), sampled=False)

    def judge_drafted(self, row: int) -> None:
        judged = self.notes[row][: int(self.random.integers(0, STEPS + 1))]
        emitted = [max(0, note[int(self.random.choice([0, 0, 0, 1]))]) for note in judged]
        self.group.count_drafted(row, emitted)
        for token, (_, said, sureness) in zip(emitted, judged, strict=True):
            if said != NO_PREDICTION:
                self.plain.hear_model(sureness, token == said)


@pytest.mark.parametrize("order", [2, 3, 4])
def test_guesses_choices_and_trust_are_the_plain_ones(order: int) -> None:
    """Three rows, eighty rounds of three tokens, with made-up tokens of the model and of the target."""
    both = Both(order)
    for _ in range(80):
        both.round()
    for sureness, counts in both.plain.models.items():
        assert both.trust.models[0, sureness] == pytest.approx(counts)
    for kind, counts in both.plain.predictions.items():
        assert both.trust.predictions[0, number_of(kind)] == pytest.approx(counts)
    assert both.put_in > 20 and both.unasked > 0
    assert not both.trust.models[1].any() and not both.trust.predictions[1].any()


def test_every_probability_has_a_kind() -> None:
    peaks = np.linspace(0, 1, 10_001)
    kinds = [sureness_of(float(peak)) for peak in peaks]
    assert kinds == sorted(kinds) and set(kinds) == set(range(SURENESS))
    assert kinds == [plain_sureness(float(peak)) for peak in peaks]


def test_a_sampled_row_is_judged_by_what_was_drafted_of_it() -> None:
    """Of two drafted tokens the table put in the first: of the model nothing is learned there, and at the second it
    is. That the model drew the table's token does not matter."""
    maker, trust = NgramDrafter(Table()), new_rates()
    maker.table.learn(np.array([7, 8, 9] * 50))
    place = maker.open(np.array([7, 8]))
    trust.predictions[1, :, :] = [50.0, 50.0]
    group = TableGroup(maker, trust, [place], [[7, 8]], [True], 2)
    group.look_up(0)
    assert group.choose(0, [9], [0.3]) == ([9], [pytest.approx(51 / 52)])
    trust.models[1, sureness_of(0.9), :2] = [80.0, 80.0]
    group.look_up(1)
    assert group.choose(1, [4], [0.9])[0] == [4]
    before = trust.models[1].copy()
    group.count_drafted(0, [9, 4])
    assert (trust.models[1, sureness_of(0.3), :2] == before[sureness_of(0.3), :2]).all()
    assert trust.models[1, sureness_of(0.9), 0] == pytest.approx(80 * 0.995 + 1)
