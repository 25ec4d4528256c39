"""Languages: the shipped model, models of our own sentences, their files, and what of a prompt is read."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from benchmarks.router.train_languages import save_languages, train_languages
from router.language import (
    ALPHA,
    FEATURES,
    PRIOR,
    LanguageModel,
    load_languages,
    shipped,
)
from router.language_text import TWO_LETTERS, primary, prose, readable
from storage.errors import ModelFileDamaged

SENTENCES = [
    ("en", "the cat sits on the mat"), ("en", "where is the old house"), ("en", "this is the last train"),
    ("deu", "die katze sitzt auf der matte"), ("de", "wo ist das alte haus"), ("de-AT", "das ist der letzte zug"),
    ("ru", "кошка сидит на коврике"), ("ru", "где старый дом"), ("rus", "это последний поезд"),
]  # fmt: skip


def small() -> LanguageModel:
    return train_languages([text for _, text in SENTENCES], [language for language, _ in SENTENCES])


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("What is the capital of France?", "en"),
        ("Wie viele Einwohner hat die Stadt heute?", "de"),
        ("¿Cuántos habitantes tiene la ciudad?", "es"),
        ("Quels sont les effets de la pluie sur les plantes ?", "fr"),
        ("Как называется столица этой страны?", "ru"),
        ("この町には何人が住んでいますか。", "ja"),
        ("这个城市有多少人口？", "zh"),
        ("ما هي عاصمة هذا البلد؟", "ar"),
        ("इस शहर की आबादी कितनी है?", "hi"),
        ("Kuinka monta asukasta kaupungissa on?", "fi"),
        ("Ποια είναι η πρωτεύουσα της χώρας;", "el"),
        ("이 도시에는 사람이 몇 명 살고 있습니까?", "ko"),
    ],
)
def test_the_shipped_model_knows_a_question(text: str, language: str) -> None:
    guess = shipped().predict(text)
    assert guess.label == language and guess.confidence > 0.6


@pytest.mark.parametrize("text", ["", " ", "?!", "12345", "=== 3 * 4 ===", "ગુજરાતી ભાષા", "ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ", "😀😀"])
def test_what_cannot_be_read_has_no_language(text: str) -> None:
    guess = shipped().predict(text)
    assert guess.label is None and guess.confidence < 0.1


@pytest.mark.parametrize("text", ["qwrtp zxcvb mnbvcx", "ok", "no", "Berlin"])
def test_gibberish_and_single_words_are_guessed_without_confidence(text: str) -> None:
    assert shipped().predict(text).confidence < 0.6


def test_scores_are_the_formulas() -> None:
    """Against dictionaries and logarithms, n-gram by n-gram."""
    model, counts = small(), defaultdict(Counter)
    for language, text in SENTENCES:
        counts[primary(language)].update(FEATURES.buckets(text).tolist())
    often = Counter()
    for each in counts.values():
        often.update(each)
    kept = {bucket for bucket, count in often.items() if count >= 2}
    totals = {c: sum(n for b, n in each.items() if b in kept) for c, each in counts.items()}
    for text in ("the old train", "das haus", "дом", "la maison"):
        seen = [bucket for bucket in FEATURES.buckets(text).tolist() if bucket in kept]
        wanted = [
            sum(math.log((counts[c][b] + ALPHA) / (totals[c] + ALPHA * len(kept))) for b in seen)
            / math.sqrt(max(1, len(seen)))
            + (PRIOR * math.log(4 / 12) if seen else 0)
            for c in model.labels
        ]
        np.testing.assert_allclose(model.scores(FEATURES.buckets(text)), wanted, rtol=1e-5)


def test_rows_of_many_languages_and_of_few_add_up_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {}
    for crowd in (0, 1, 99):
        monkeypatch.setattr("router.language.CROWD", crowd)
        tables[crowd] = small().scores(FEATURES.buckets("the last house is in der stadt"))
    np.testing.assert_allclose(tables[0], tables[99], rtol=1e-5)
    np.testing.assert_allclose(tables[1], tables[99], rtol=1e-5)


def test_training_spells_languages_one_way_and_learns_them() -> None:
    model = small()
    assert model.labels == ("de", "en", "ru")
    assert [model.predict(text).label for text in ("the last cat", "der letzte zug", "старый дом")] == [
        "en",
        "de",
        "ru",
    ]
    with pytest.raises(ValueError, match="1 texts and 2 languages"):
        train_languages(["a"], ["en", "de"])
    with pytest.raises(ValueError, match="too few texts"):
        train_languages(["", "?"], ["en", "de"])


def test_confidence_is_fitted_so_that_it_is_the_share_that_is_right() -> None:
    """Two languages that share their words but for one in ten texts: no better than a coin for the rest."""
    rng, words = np.random.default_rng(0), [f"w{chr(97 + i % 26)}{chr(97 + i // 26)}" for i in range(200)]
    texts, languages = [], []
    for _ in range(2000):
        languages.append(str(rng.choice(["aa", "bb"])))
        texts.append(" ".join(rng.choice(words, 4)) + (f" only{languages[-1]}" if rng.random() < 0.1 else ""))
    model = train_languages(texts[:1500], languages[:1500])
    guesses = [model.predict(text) for text in texts[1500:]]
    right = np.mean([guess.label == truth for guess, truth in zip(guesses, languages[1500:], strict=True)])
    assert abs(np.mean([guess.confidence for guess in guesses]) - right) < 0.1


def test_a_saved_model_answers_as_before(tmp_path: Path) -> None:
    model = small()
    for name in ("a.npz", "b.npz"):
        save_languages(model, tmp_path / name)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    loaded = load_languages(tmp_path / "a.npz")
    assert loaded.labels == model.labels and loaded.sharpness == model.sharpness
    np.testing.assert_allclose(loaded.counts, model.counts, rtol=0.021)
    np.testing.assert_array_equal(loaded.ids, model.ids)
    for _, text in SENTENCES:
        assert loaded.predict(text).label == model.predict(text).label


@pytest.mark.parametrize("cut", [0, 10, 500, -20])
def test_half_a_file_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "languages.npz"
    save_languages(small(), path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ModelFileDamaged, match=r"languages\.npz is not a language model"):
        load_languages(path)


def test_parts_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    from router.linear import read_arrays, write_arrays

    path = tmp_path / "languages.npz"
    save_languages(small(), path)
    facts, arrays = read_arrays(path, "osd-languages-1", "a language model")
    for facts_too, arrays_too, word in (
        ({"labels": ["de", "de", "ru"]}, {}, "labels"),
        ({"shares": [0.5, 0.5]}, {}, "shares"),
        ({"sharpness": -1.0}, {}, "sharpness"),
        ({}, {"gaps": arrays["gaps"] * 0}, "n-grams"),
        ({}, {"gaps": arrays["gaps"] + np.uint32(1 << 18)}, "n-grams"),
        ({}, {"languages": arrays["languages"] + np.uint8(9)}, "languages"),
        ({}, {"lengths": arrays["lengths"] + np.uint16(1)}, "counts"),
    ):
        write_arrays(path, "osd-languages-1", facts | facts_too, arrays | arrays_too)
        with pytest.raises(ModelFileDamaged, match=f"its {word} cannot be right"):
            load_languages(path)
    write_arrays(path, "osd-languages-1", facts, {"gaps": arrays["gaps"]})
    with pytest.raises(ModelFileDamaged, match="list of parts"):
        load_languages(path)


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("Erkläre das:\n```python\ndef f(x):\n    return x\n```", "Erkläre das:"),
        ("Erkläre das:\n```\nimport this", "Erkläre das:"),
        ("Was macht `sorted(xs)` mit Listen?", "Was macht mit Listen?"),
        ("siehe https://example.org/a/page bitte", "siehe bitte"),
        ("Warum ist my_variable hier camelCase und obj.attr leer", "Warum ist hier und leer"),
        ("Bitte korrigieren\n    for (int i = 0; i < n; i++) {\n        total += i;\n    }", "Bitte korrigieren"),
        ("plain words (with brackets), and commas; fine.", "plain words (with brackets), and commas; fine."),
    ],
)
def test_prose_is_what_is_not_code(text: str, rest: str) -> None:
    assert " ".join(prose(text).split()) == rest


@pytest.mark.parametrize("text", ["def f(x): return x", "```\nx = 1\n```", "x = foo(bar);", "a.b.c"])
def test_where_all_is_code_all_is_read(text: str) -> None:
    assert prose(text) == text


def test_latin_names_do_not_outvote_another_script() -> None:
    assert "Tom" not in readable("我是 Tom Hunter 的朋友") and "Tom" in readable("I met Tom at the 北京 station today")
    assert readable("Grüße aus Köln") == "Grüße aus Köln"
    assert "sort" not in readable("Объясни, что делает sort здесь")


def test_tags_have_one_spelling() -> None:
    same = {
        "de": "de deu ger DE-at de_CH",
        "zh": "zh zho chi cmn zh-Hant-TW",
        "nb": "nb nob no nor",
        "ms": "zsm msa ms",
    }
    for wanted, tags in same.items():
        assert {primary(tag) for tag in tags.split()} == {wanted}
    assert primary(" ceb ") == "ceb" and primary("en-US-x-twain") == "en"
    assert all(len(three) in (2, 3) and len(two) == 2 for three, two in TWO_LETTERS.items())
    assert all(primary(label) == label for label in shipped().labels) and len(shipped().labels) == 113
