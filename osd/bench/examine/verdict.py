"""Says what to do about a draft: findings, the gravest first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from osd.bench.examine.figures import FEWEST, Figures, Rows

CHANCE = 0.1
"""Acceptance at which a draft guesses no better than one that knows nothing of the target."""
SURE = 0.3
"""Mean confidence of a draft that has learned something."""
BETTER, FACTOR = 0.05, 1.25
"""By how much more, and how many times as much, another template must bring to be taken for the draft's own."""
EMPTY = 0.25
"""By how much the share of answers that end at once must be larger than in another template."""
FAR = 0.6
"""Share of the others' acceptance below which a group is said to be unknown to the draft."""
LEAST_SHARE = 0.05
"""Share of the positions that a group must have to be named."""


def verdict(
    figures: Figures, templates: Mapping[str, Figures], tokenizers: str | None, *, bound: bool = False
) -> list[str]:
    """Return sentences, the first of which says what to do. ``templates``: the figures with other templates, by what
    they are; ``tokenizers``: what differs between the draft's own tokenizer files and the target's; ``bound``: the
    draft's files name this target's digest."""
    found = [*_template(figures, templates, tokenizers), *_chance(figures, bound), *_groups(figures), *_ends(figures)]
    if tokenizers and not any(tokenizers in each for each in found):
        found.append(f"The draft's folder has {tokenizers}; osd serves with the target's.")
    return [*found, _worth(figures)]


def _template(figures: Figures, templates: Mapping[str, Figures], tokenizers: str | None) -> Iterator[str]:
    name = max(templates, key=lambda each: templates[each].alpha, default=None)
    if name is None:
        return
    there, also = templates[name], f" (its folder has {tokenizers})" if tokenizers else ""
    if there.alpha > max(figures.alpha + BETTER, FACTOR * figures.alpha, 2 * CHANCE):
        yield (
            f"The chat template is wrong: of what the draft says {figures.alpha:.2f} is accepted as you serve, and "
            f"{there.alpha:.2f} {name}{also}. Teach it from your traffic, or serve with the template that it was "
            "taught with."
        )
    elif _empty(figures) > _empty(there) + EMPTY:
        yield (
            f"The chat template is wrong: as you serve {_empty(figures):.0%} of the answers end at once, and "
            f"{_empty(there):.0%} {name}{also}. Serve {name}."
        )


def _empty(figures: Figures) -> float:
    return figures.empty / (figures.empty + figures.answers)


def _chance(figures: Figures, bound: bool) -> Iterator[str]:
    if figures.alpha > CHANCE or figures.right > CHANCE:
        return
    if figures.confidence > SURE and not bound:
        yield (
            f"This draft was made for another target: it is sure of its tokens ({figures.confidence:.2f}), and "
            f"{figures.right:.2f} of them are right. Take the one of this target, or let it learn from number 0 on."
        )
    else:
        yield (
            f"This draft has learned nothing yet: {figures.right:.2f} of its tokens are right. "
            "Serve with it and run `osd trainer`."
        )


def _groups(figures: Figures) -> Iterator[str]:
    """Yield what is said of groups that are far worse than the others, the largest loss first."""
    if figures.alpha <= CHANCE:
        return
    kinds = {what: [*_far(figures.by.get(what, []))] for what in ("class", "topic", "context")}
    if kinds["class"] or kinds["topic"]:
        kinds.pop("context")  # texts of what it does not know may be the longer ones
    unknown = [(loss, what, row) for what, found in kinds.items() for loss, row in found]
    for _, what, row in sorted(unknown, key=lambda each: -each[0]):
        others = f"{row['alpha']:.2f} are accepted, of the others {row['others']:.2f}"
        if what == "context":
            yield f"It knows other lengths of text: at {row['group']} tokens {others}. Teach it with such texts."
        else:
            yield f"It never learned {row['group']}: of such tokens {others}. Teach it with prompts of that kind."


def _far(rows: Rows) -> Iterator[tuple[float, dict[str, object]]]:
    """Yield the loss, in positions, and the row of each group whose acceptance is far below that of the others."""
    total = sum(row["positions"] for row in rows)
    for row in rows:
        left = total - row["positions"]
        if left < FEWEST or row["positions"] < max(FEWEST, LEAST_SHARE * total):
            continue
        others = sum(each["alpha"] * each["positions"] for each in rows if each is not row) / left
        if row["alpha"] + 2 * row["error"] < FAR * others:
            yield (others - row["alpha"]) * row["positions"], row | {"others": others}


def _ends(figures: Figures) -> Iterator[str]:
    ends, foreseen = figures.ends
    if ends >= 8 and foreseen < 0.25 * ends * min(1.0, 2 * figures.right):
        yield f"It runs past the end: of {ends} end tokens it foresaw {foreseen}. Its end token may be another."


def _worth(figures: Figures) -> str:
    best = figures.best
    lookup = max(row["lookup speed"] or row["lookup"] for row in figures.gammas)
    right = f"{figures.right:.2f} of its tokens are right"
    if best["speed"] is None:
        return f"{right}, {best['tokens a round']:.2f} tokens a round with γ = {best['gamma']}; nothing was timed."
    if best["speed"] < 1.02 and lookup < 1.02:
        need = "no acceptance pays here" if figures.break_even is None else f"it pays from {figures.break_even:.2f} on"
        return f"Do not draft with it yet: {right}, and on this machine {need}."
    if lookup > best["speed"]:
        return f"Draft by prompt lookup: it makes {lookup:.2f} × on these texts, this draft {best['speed']:.2f} ×."
    return f"Serve with γ = {best['gamma']}: {right}, which makes {best['speed']:.2f} × the target alone."
