"""Topics: learned one at a time and many at once, forgotten, kept in files, and not guessed where nothing is known."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from router.linear import CONSTANT, Linear
from router.topic import TopicModel, confidence, features_of, margins
from router.topic_training import train_topics
from storage.errors import ModelFileDamaged, StoreWriteFailed

WORDS = {
    "cooking": "boil simmer carrots onions soup oven bake butter recipe dough garlic pepper pan stew roast flour",
    "travel": "flight hotel passport visa luggage airport train ticket island beach tour museum ferry cabin map",
    "money": "loan interest bank account deposit mortgage invoice tax budget salary savings credit debit fee",
}

KINDS = {f"{word} {end}": topic for topic, words in (
    ("garden", "roses lawn hedge compost"), ("health", "fever cough aspirin doctor")
) for word in words.split() for end in ("today", "again", "at home")}  # fmt: skip


def examples(count: int, seed: int = 0) -> tuple[list[str], list[str]]:
    """Four words of one topic among words of none."""
    rng = np.random.default_rng(seed)
    labels = [str(rng.choice(list(WORDS))) for _ in range(count)]
    common = ["how", "do", "i", "the", "please", "a", "my", "tell", "me", "about", "for", "is", "what"]
    texts = [
        " ".join(rng.permutation([*rng.choice(WORDS[label].split(), 3), *rng.choice(common, 4)])) for label in labels
    ]
    return texts, labels


def share(model: TopicModel, texts: list[str], labels: list[str]) -> float:
    return float(np.mean([model.best(text).label == label for text, label in zip(texts, labels, strict=True)]))


@pytest.fixture(scope="module")
def trained() -> TopicModel:
    return train_topics(*examples(300))


def test_learning_one_at_a_time_gets_better() -> None:
    model, right = TopicModel(), []
    for text, label in zip(*examples(300), strict=True):
        right.append(model.predict(text).label == label)
        model.learn_example(features_of(text), label)
    assert not right[0] and sum(right[:20]) < sum(right[-20:]) and sum(right[-100:]) >= 95
    assert set(model.labels) == set(WORDS)


def test_training_at_once_guesses_what_it_has_not_seen(trained: TopicModel) -> None:
    assert trained.labels == tuple(sorted(WORDS))
    assert share(trained, *examples(200, seed=1)) >= 0.97


def test_one_more_example_moves_a_trained_model() -> None:
    model = train_topics(*examples(300))
    text = "prune the roses and water the seedlings"
    assert model.predict(text).label is None
    for example in ("when to prune roses", "water seedlings daily", "plant the seedlings", "the roses have greenfly"):
        model.learn_example(features_of(example), "garden")
    assert model.predict(text).label == "garden"
    assert share(model, *examples(200, seed=1)) >= 0.95


def test_an_example_of_no_topic_makes_unsure() -> None:
    model, text = train_topics(*examples(300)), "museum of the mortgage"
    before = model.best(text)
    model.learn_example(features_of(text), None)
    after = model.best(text)
    assert after.confidence < before.confidence and after.outside > before.outside


@pytest.mark.parametrize("text", ["", "   ", "?!…", "\n"])
def test_a_text_without_words_has_no_topic_and_teaches_nothing(trained: TopicModel, text: str) -> None:
    assert trained.predict(text).label is None and trained.predict(text).confidence == 0
    model = TopicModel()
    model.learn_example(features_of(text), "cooking")
    assert model.labels == () and model.vector.texts == 0


@pytest.mark.parametrize("text", ["zxq vvkw pqqj wwzz", "қазақ тілі", "0 1 2 3"])
def test_gibberish_goes_to_the_default_route(trained: TopicModel, text: str) -> None:
    guess, known = trained.predict(text), trained.predict("bake the dough with butter")
    assert guess.label is None and guess.confidence < 0.5
    assert known.label == "cooking" and known.confidence > 0.7 and guess.outside > known.outside


def test_without_topics_nothing_is_guessed() -> None:
    guess = TopicModel().predict("boil carrots")
    assert (guess.label, guess.confidence, guess.outside) == (None, 0.0, math.inf)


def test_confidence_is_the_share_that_is_right() -> None:
    """Labels of which a fifth are wrong: nobody can be surer than 0.8, and a fitted confidence says so."""
    texts, labels = examples(1500)
    rng = np.random.default_rng(3)
    noisy = [str(rng.choice(list(WORDS))) if rng.random() < 0.3 else label for label in labels]
    model = train_topics([*texts, "sun and rain", "rain and wind"], [*noisy, None, None])
    test, truth = examples(500, seed=4)
    assert 0.7 < np.mean([model.best(text).confidence for text in test]) < 0.9
    assert share(model, test, truth) > 0.9


def test_without_examples_of_no_topic_a_text_of_another_kind_is_still_unsure() -> None:
    texts, labels = examples(300)
    others, of = examples(300, seed=9)
    model = train_topics(texts + list(KINDS), labels + list(KINDS.values()))
    strange = ["parrot feathers", "the goalkeeper of the team", "a violin sonata", "planets and comets", "knit a scarf"]
    assert np.mean([model.best(text).confidence for text in strange]) < 0.4
    assert np.mean([model.best(text).confidence for text in others]) > 0.8 and share(model, others, of) > 0.95


def test_the_same_examples_make_the_same_model_and_the_same_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        train_topics(*examples(120)).save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_saved_model_answers_and_learns_as_before(trained: TopicModel, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "topics.npz"
    trained.save(path)
    loaded = TopicModel.load(path)
    assert loaded.labels == trained.labels and loaded.calibration == trained.calibration
    for text in [*examples(50, seed=6)[0], "zxq vvkw", ""]:
        one, other = trained.predict(text), loaded.predict(text)
        assert one.label == other.label and one.confidence == pytest.approx(other.confidence, abs=2e-3)
    loaded.learn_example(features_of("prune roses"), "garden")
    loaded.save(path)
    assert "garden" in TopicModel.load(path).labels
    assert [each.name for each in path.parent.iterdir()] == ["topics.npz"]


def test_an_empty_model_can_be_kept(tmp_path: Path) -> None:
    TopicModel().save(tmp_path / "empty")
    assert TopicModel.load(tmp_path / "empty").labels == ()


@pytest.mark.parametrize("cut", [0, 1, 40, 2000, -30])
def test_half_a_file_is_refused(trained: TopicModel, tmp_path: Path, cut: int) -> None:
    path = tmp_path / "topics.npz"
    trained.save(path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ModelFileDamaged, match=r"topics\.npz is not a topic model"):
        TopicModel.load(path)


def test_a_flipped_byte_is_found_or_harmless(trained: TopicModel, tmp_path: Path) -> None:
    path = tmp_path / "topics.npz"
    trained.save(path)
    whole, refused = path.read_bytes(), 0
    for place in range(0, len(whole), len(whole) // 40):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            assert TopicModel.load(path).labels == trained.labels
        except ModelFileDamaged:
            refused += 1
    assert refused >= 30  # the rest lies in dates and attributes of the archive


def test_other_files_are_refused(trained: TopicModel, tmp_path: Path) -> None:
    arrays = tmp_path / "arrays.npz"
    np.savez(arrays, weights=np.zeros(3))
    pickled = tmp_path / "pickled.npz"
    np.savez(pickled, header=np.array([{"kind": "osd-topics-1"}], dtype=object))
    text = tmp_path / "text"
    text.write_text("not a model")
    for path in (arrays, pickled, text, tmp_path / "nowhere", tmp_path):
        with pytest.raises(ModelFileDamaged, match=str(path)):
            TopicModel.load(path)


def test_parts_that_do_not_fit_together_are_refused(trained: TopicModel, tmp_path: Path) -> None:
    from router.linear import read_arrays, write_arrays

    path = tmp_path / "topics.npz"
    trained.save(path)
    facts, arrays = read_arrays(path, "osd-topics-1", "a topic model")
    for facts_too, arrays_too, word in (
        ({"labels": ["a", "a", "b"]}, {}, "labels"),
        ({}, {"weights": arrays["weights"][:-1]}, "weights"),
        ({}, {"weights": np.full_like(arrays["weights"], np.nan)}, "weights"),
        ({}, {"ids": arrays["ids"] + np.uint32(1 << 30)}, "features"),
        ({}, {"ids": arrays["ids"][::-1]}, "features"),
        ({"calibration": [1.0]}, {}, "calibration"),
        ({}, {"bias": np.zeros(7)}, "bias"),
    ):
        write_arrays(path, "osd-topics-1", facts | facts_too, arrays | arrays_too)
        with pytest.raises(ModelFileDamaged, match=f"its {word} cannot be right"):
            TopicModel.load(path)
    write_arrays(path, "osd-topics-2", facts, arrays)
    with pytest.raises(ModelFileDamaged, match="'osd-topics-2', not 'osd-topics-1'"):
        TopicModel.load(path)


def test_what_cannot_be_written_is_said(trained: TopicModel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreWriteFailed):
        trained.save(tmp_path / "file" / "topics.npz")


def test_scores_are_those_of_a_dense_matrix() -> None:
    rng, linear = np.random.default_rng(0), Linear(50, ("a", "b", "c"))
    weights, bias = np.zeros((50, 3)), np.zeros(3)
    for truth in ("a", "b", None, "c", "a"):
        ids, values = rng.integers(0, 50, 9), rng.random(9).astype(np.float32)
        x = np.bincount(ids, values, 50)
        for c, label in enumerate("abc"):  # Crammer et al. 2006, PA-I, with the bias as one more feature
            y = 1 if label == truth else -1
            step = min(1.0, max(0.0, 1 - y * (weights[:, c] @ x + bias[c])) / (x @ x + CONSTANT**2)) * y
            weights[:, c] += step * x
            bias[c] += CONSTANT * step
        linear.learn(ids, values, truth)
        np.testing.assert_allclose(linear.scores(ids, values), x @ weights + bias, atol=1e-5)
    np.testing.assert_array_equal(linear.learned()[0], np.flatnonzero(weights.any(axis=1)))


def test_many_new_features_find_room() -> None:
    linear = Linear(5000, ("a",))
    for start in range(0, 5000, 500):
        linear.learn(np.arange(start, start + 500), np.ones(500, np.float32), "a")
    assert linear.learned()[0].size == 5000


def test_margins_and_confidence() -> None:
    assert margins(np.array([0.5, -1, 0.25], np.float32)) == (0.5, 0.25)
    assert margins(np.array([0.5], np.float32)) == (0.5, 0.5)
    assert confidence(1.0, 2.0, (0.0, 0.0, 0.0)) == 0.5
    assert confidence(-1e9, 0.0, (0.0, 1.0, 1.0)) == pytest.approx(0, abs=1e-20)
    assert confidence(0.2, 0.4, (0.1, 1.0, 2.0)) == pytest.approx(1 / (1 + math.exp(-1.1)))


def test_unequal_lists_and_single_topics() -> None:
    with pytest.raises(ValueError, match="2 texts and 1 labels"):
        train_topics(["a", "b"], ["x"])
    assert train_topics(["boil carrots", "bake dough"], ["cooking"] * 2).labels == ("cooking",)
    texts, labels = examples(60)
    model = train_topics(texts, ["spend" if label == "money" else None for label in labels])
    assert model.labels == ("spend",) and model.predict("loan interest of the bank").label == "spend"
    assert model.predict("flight and hotel").label is None


STRANGE = ["weather", "tomorrow", "rain", "umbrella", "forecast", "sunny", "cloud", "wind", "street", "concert", "film"]


def strangers(count: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.permutation([*rng.choice(STRANGE, 3), "how", "is", "the", "please"])) for _ in range(count)]


def test_a_background_that_holds_topics_of_its_own_teaches_what_belongs_to_none() -> None:
    texts, labels = examples(60, seed=1)
    background = [features_of(text) for text in (*strangers(40, seed=2), *examples(40, seed=3)[0])]
    alone, told = train_topics(texts, labels), train_topics(texts, labels, background)
    assert share(told, *examples(60, seed=4)) >= 0.95
    known, unknown = examples(60, seed=4)[0], strangers(60, seed=5)
    assert np.mean([told.predict(text).label is not None for text in known]) >= 0.9
    assert np.mean([told.predict(text).label is not None for text in unknown]) <= 0.05
    sure = [np.mean([model.best(text).confidence for text in unknown]) for model in (told, alone)]
    assert sure[0] < sure[1]
