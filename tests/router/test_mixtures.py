"""Languages and topics mixed as in real traffic: a topic takes no prompt in a language in which nobody taught it."""

from __future__ import annotations

import gzip
import json
from itertools import islice
from pathlib import Path

import pytest

from router.classifier_models import learn_topics, spoken
from router.language import shipped
from storage.records import Request, Route
from tests.router.words import Known, classifier

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
TAUGHT = 100
HELD = 100
MIXTURES = [
    ({"sql": "wikisql", "math": "gsm8k"}, "fi", ("oasst_fi", "fi")),
    ({"sql": "wikisql", "math": "gsm8k"}, "de", ("mgsm", "de")),
    ({"sql": "wikisql", "math": "gsm8k"}, "es", ("mgsm", "es")),
    ({"sql": "wikisql", "math": "gsm8k"}, "zh", ("alpaca_zh", "zh")),
    ({"code": "mbxp", "banking": "banking77"}, "fr", ("mgsm", "fr")),
    ({"code": "mbxp", "banking": "banking77"}, "ru", ("mgsm", "ru")),
    ({"code": "mbxp", "math": "gsm8k"}, "th", ("mgsm", "th")),
    ({"code": "mbxp", "math": "gsm8k", "sql": "wikisql"}, "fi", ("oasst_fi", "fi")),
    ({"code": "mbxp", "math": "gsm8k", "sql": "wikisql"}, "ar", ("xquad", "ar")),
    ({"summary": "dialogsum", "math": "gsm8k"}, "tr", ("xquad", "tr")),
    ({"summary": "dialogsum", "sql": "wikisql"}, "vi", ("xquad", "vi")),
]


def prompts(name: str, language: str = "en", count: int = TAUGHT + HELD) -> list[str]:
    with gzip.open(DATA / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = (json.loads(line) for line in lines)
        return [row["prompt"] for row in islice((row for row in rows if row["language"] == language), count)]


@pytest.mark.skipif(not DATA.is_dir(), reason="needs the open prompts beside the repository")
@pytest.mark.parametrize(("topics", "language", "strangers"), MIXTURES)
def test_prompts_in_an_untaught_language_pass_by(
    topics: dict[str, str], language: str, strangers: tuple[str, str]
) -> None:
    """At most 3 of 100 prompts in a language that was not taught reach a topic's route."""
    examples = [(topic, text) for topic, name in topics.items() for text in prompts(name)[:TAUGHT]]
    model = learn_topics(examples)
    model.languages = spoken(examples, shipped())
    rules = [Route(topic, matches={"topic": [topic]}) for topic in topics]
    router = classifier([Route(), *rules, Route("native", matches={"language": [language]})], Known(shipped(), model))
    found = [router.route(Request((), text=text)).name for text in prompts(*strangers, count=150)]
    assert sum(name in topics for name in found) <= 0.03 * len(found)
    assert found.count("native") >= 0.9 * len(found)
