"""Streamed text adds up to the whole text, and shows nothing that would have to be taken back."""

from collections.abc import Sequence

from osd.engine.detokenizer import TextStream


class Bytes:
    """A tokenizer whose tokens are bytes."""

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool) -> str:
        return bytes(tokens).decode("utf-8", errors="replace")


def shown(text: str, stops: Sequence[str] = (), whole: str | None = None) -> list[str]:
    stream = TextStream(Bytes(), stops)
    pieces = [stream.push([byte]) for byte in text.encode()]
    return [*pieces, stream.finish(text if whole is None else whole)]


def test_half_a_character_waits_for_the_other_half() -> None:
    assert [piece for piece in shown("aé日b") if piece] == ["a", "é", "日", "b"]


def test_the_beginning_of_a_stop_string_is_held_back() -> None:
    assert "".join(shown("one\nEND", ["\nEND"], whole="one")) == "one"


def test_what_only_looked_like_a_stop_string_is_shown_after_all() -> None:
    pieces = shown("one\nENtwo", ["\nEND"])
    assert "".join(pieces) == "one\nENtwo"
    assert pieces[3:6] == ["", "", ""]
    assert pieces[6] == "\nENt"
