"""`osd generate` with the pair that ships with osd."""

import json
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from osd.prompts import encode
from osd.server.start import SHIPPED

PROMPT = "How many apples are five apples and seven apples?"


def target_alone(prompt: str, tokens: int) -> str:
    """What the target says by itself, greedily."""
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED / "target")
    model = AutoModelForCausalLM.from_pretrained(SHIPPED / "target", dtype="float32")
    ids = encode(tokenizer, prompt)
    output = model.generate(model.dummy_inputs["input_ids"].new_tensor([ids]), max_new_tokens=tokens, do_sample=False)
    return str(tokenizer.decode(output[0, len(ids) :], skip_special_tokens=True))


def test_one_prompt_says_what_the_target_alone_says(osd):
    done = osd("generate", PROMPT, "--max-tokens", 24)
    assert done.stdout == target_alone(PROMPT, 24) + "\n"
    assert "24 tokens" in done.stderr
    assert "ships with osd" in done.stderr


def test_a_target_alone_is_enough_for_drafts_without_a_model(osd):
    done = osd("generate", PROMPT, "--max-tokens", 24, "--target", SHIPPED / "target", "--drafter", "lookup")
    assert done.stdout == target_alone(PROMPT, 24) + "\n"
    assert "ships with osd" not in done.stderr
    refused = osd("generate", PROMPT, "--target", SHIPPED / "target", "--drafter", "blended")
    assert refused.exit_code == 2
    assert "give --draft too, or set drafters.kind to one that needs no draft model" in refused.stderr


def test_one_is_not_called_many(osd):
    assert "1 token in 1 round," in osd("generate", PROMPT, "--max-tokens", 1, "--no-learn").stderr


def test_a_prompt_from_stdin_is_the_same_prompt(osd):
    said = [osd("generate", PROMPT, "--max-tokens", 8), osd("generate", "-", "--max-tokens", 8, stdin=PROMPT)]
    assert said[0].stdout == said[1].stdout


def test_what_was_served_is_kept_and_no_learn_opens_no_store(osd, data: Path):
    osd("generate", PROMPT, "--max-tokens", 8, "--no-learn")
    assert not data.exists()
    osd("generate", PROMPT, "--max-tokens", 8, "--tenant", "acme")
    assert json.loads(osd("replay", "stats", "--json").stdout)[0]["requests"] == 1
    (row,) = json.loads(osd("stats", "acceptance", "--by", "tenant,version", "--json").stdout)
    assert (row["tenant"], row["emitted"]) == ("acme", 8)


def test_a_broken_line_is_named_and_the_others_go_on(osd, tmp_path: Path):
    lines = [
        '{"prompt": "one", "id": 7}',
        '{"prompt": ',
        '{"prompt": "three", "route": "nowhere"}',
        '{"prompt": "four", "tenant": null, "route": null}',
        '{"prompt": "five", "tenant": 7}',
        '{"prompt": "six", "route": ["a"]}',
    ]
    (tmp_path / "asked.jsonl").write_text("\n".join(lines))
    done = osd("generate", "--prompts", "asked.jsonl", "--max-tokens", 4, "--json", "--no-learn")
    said = {row["line"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert done.exit_code == 2
    assert sorted(said) == [1, 2, 3, 4, 5, 6]
    assert (said[1]["id"], said[1]["tokens"], said[4]["tokens"]) == (7, 4, 4)
    assert "line 2 is not JSON" in said[2]["error"]
    assert "'nowhere'" in said[3]["error"]
    assert "tenant: 7 is no text" in said[5]["error"] and "route: ['a'] is no text" in said[6]["error"]
    assert "line 2" in done.stderr


def test_a_seed_repeats_a_drawn_text(osd):
    """With drafts of fixed length; ``analytic`` sizes them by measured time, which changes what is drawn."""

    def drawn(seed: int) -> str:
        options = ("--temperature", 1, "--seed", seed, "--no-learn", "--max-tokens", 24)
        return osd("generate", PROMPT, *options, OSD_GAMMA__RULE="fixed").stdout

    assert drawn(1) == drawn(1) != drawn(2)


def test_a_stop_string_ends_the_text_before_it(osd):
    whole = osd("generate", PROMPT, "--max-tokens", 24, "--no-learn").stdout
    stop = whole[len(whole) // 2 :][:3]
    done = osd("generate", PROMPT, "--max-tokens", 24, "--no-learn", "--stop", stop)
    assert done.stdout == whole[: whole.index(stop)] + "\n"
    assert "(stop)" in done.stderr


def test_a_second_draft_under_the_same_name_is_refused(osd, data: Path):
    target = SHIPPED / "target"
    osd("generate", PROMPT, "--max-tokens", 2)
    done = osd("generate", PROMPT, "--max-tokens", 2, "--target", target, "--draft", target)
    assert done.exit_code == 5
    assert "default" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("half", ["--target", "--draft"])
def test_half_a_pair_is_refused(osd, half):
    done = osd("generate", PROMPT, half, SHIPPED / "target")
    assert done.exit_code == 2
    assert "give --" in done.stderr
