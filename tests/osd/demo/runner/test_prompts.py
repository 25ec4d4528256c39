"""The demo's prompts: many, different, the same for the same seed."""

from __future__ import annotations

from functools import cache

import pytest

from osd.demo import DRAFT, TARGET
from osd.demo import prompts as module
from osd.demo.prompts import DOMAINS, functions, prompts
from osd.models.vocabulary import load_tokenizer
from osd.prompts import encode
from storage.errors import BadSetting

COUNT = 400
parsed = cache(lambda path: list(functions(path)))


@pytest.fixture(autouse=True)
def parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the standard library is parsed once for all tests."""
    monkeypatch.setattr(module, "functions", parsed)


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_domain_has_hundreds_of_different_prompts(domain: str) -> None:
    found = prompts(domain, COUNT)
    assert len(found) == len({" ".join(prompt.split()) for prompt in found}) == COUNT


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_seed_decides(domain: str) -> None:
    assert prompts(domain, 40, seed=3) == prompts(domain, 80, seed=3)[:40]
    assert set(prompts(domain, 40, seed=3)) != set(prompts(domain, 40, seed=4))


@pytest.mark.parametrize("domain", DOMAINS)
def test_no_template_is_left_unfilled(domain: str) -> None:
    for prompt in prompts(domain, COUNT):
        assert prompt.strip() and (domain == "python" or not set("{}") & set(prompt))


def test_python_prompts_come_from_the_library_and_end_after_the_docstring() -> None:
    for prompt in prompts("python", 50):
        assert prompt.startswith("def ") and prompt.rstrip().endswith(('"', "'"))


def test_an_unknown_domain_is_named() -> None:
    with pytest.raises(BadSetting, match="cooking"):
        prompts("cooking", 1)


@pytest.mark.parametrize("folder", [TARGET, DRAFT])
def test_the_shipped_tokenizer_frames_a_prompt_as_the_models_learned_it(folder: object) -> None:
    tokenizer = load_tokenizer(str(folder))
    assert tokenizer is not None
    assert tokenizer.decode(encode(tokenizer, "How many?")) == "<|user|>\nHow many?\n<|assistant|>\n"
