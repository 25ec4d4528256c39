"""Token ids as text, by the target's tokenizer where its folder is known, else as numbers. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from osd.server.start import choose_pair
from storage.errors import BadSetting
from storage.settings import ServeSettings

FILE = "tokenizer.json"
Text = Callable[[int], str | None]


def tokenizer_file(folder: Path | None, serve: ServeSettings) -> Path | None:
    """Return the tokenizer file of the folder, else of the configured target, else of the draft; None if none is local.

    Raises BadSetting for a folder that was asked for and has none.
    """
    if folder is not None:
        if not (folder / FILE).is_file():
            raise BadSetting(source="option", key="--tokenizer", reason=f"there is no {FILE} in {folder}")
        return folder / FILE
    pair = choose_pair(serve)
    return next((file for name in (pair.target, pair.draft) if (file := Path(name) / FILE).is_file()), None)


def token_text(file: Path | None) -> Text:
    """Return a function from token id to text, or to None without a tokenizer. Raises BadSetting for an invalid
    file."""
    if file is None:
        return lambda _: None
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception
        raise BadSetting(source="option", key="--tokenizer", reason=f"{file} cannot be read ({error})") from error

    def text(token: int) -> str | None:
        return tokenizer.decode([token], skip_special_tokens=False) or tokenizer.id_to_token(token)

    return text


def with_text(rows: Iterable[dict[str, object]], text: Text, keys: Iterable[str]) -> list[dict[str, object]]:
    """Return the rows with ``<key>_text`` after each of these keys; keys missing in a row are skipped."""
    wanted = set(keys)
    shown = []
    for row in rows:
        new: dict[str, object] = {}
        for key, value in row.items():
            new[key] = value
            if key in wanted and isinstance(value, int):
                new[f"{key}_text"] = text(value)
        shown.append(new)
    return shown
