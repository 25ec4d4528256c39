"""`osd drafts examine`: why a draft is good or bad."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from osd.bench.plans import Examination
from osd.cli.context import CommandContext
from osd.cli.drafts import app
from osd.cli.out import Output, note, print_json, say
from storage.errors import BadInput, BadSetting

if TYPE_CHECKING:
    from osd.bench.examine.examine import Answered
    from storage.store import Store


@app.command()
def examine(here: CommandContext, asked: Examination, output: Output) -> None:
    """Say why a draft is good or bad, without serving: one sentence, a page, a picture, JSON.

    The target answers your prompts, and the draft reads its answers: acceptance by the token's number in the draft, by
    place in the text, topic and class of token, what is refused most often, chat template and end tokens, what γ makes
    most. Without --prompts a draft of the store reads the newest texts that it keeps.

    Example: `osd drafts examine ./draft --target ./target --prompts asked.jsonl`
    """
    from osd.bench.examine.examine import examine as read

    stored: list[Answered] = []
    folder, target = Path(asked.draft), asked.target or here.settings.serve.target
    if not folder.is_dir():
        with here.store() as store:
            folder, named, stored = in_store(store, asked)
        target = target or named
    if target is None:
        raise BadSetting(source="option", key="--target", reason="name the draft's target, or set serve.target")
    if not (asked.prompts or stored):
        raise BadInput(
            reason="There are no texts to read: give --prompts FILE, or the name of a draft that has served."
        )
    found = read(asked, target, folder, stored, here.settings)
    if output.as_json:
        print_json(found.as_dict())
        return
    for sentence in found.findings:
        say(sentence)
    note(f"More: {found.files['page']}")


def in_store(store: Store, asked: Examination) -> tuple[Path, str | None, list[Answered]]:
    """Return the folder of a draft's current version, its target's name, and the newest texts kept of its traffic.
    Raises UnknownDraft."""
    from osd.attached.follower import servable_folder

    version = store.versions.current(asked.draft)
    ids = store.samples.recent(version.draft, limit=asked.count) if not asked.prompts else []
    texts = [
        (one.tokens[: one.prompt_len].tolist(), one.tokens[one.prompt_len :].tolist(), one.route)
        for one in store.samples.read(ids)
    ]  # fmt: skip
    return servable_folder(store, version), store.targets.name_of(store.versions.target_of(version.draft)), texts
