"""The part of a prompt in a human language, without code, addresses and markup."""

from __future__ import annotations

import re

from router.features import ends

LIMIT = 1200
"""Maximum characters read of a prompt: half from its start, half from its end."""
SUSPECT = re.compile(r"[`{}<>=_;/\\|\[\]@#$]|\w\(|\.\w")
"""A text without any of these contains no code to remove."""
MARKED = re.compile(r"[`~<@&\\]|://|www\.")
"""One of these occurs in every match of the next expression."""
NOT_PROSE = re.compile(
    r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)"  # fenced blocks, the last one perhaps open
    r"|`[^`\n]*`"
    r"|\b(?:https?://|www\.)\S+|\S+@\S+\.\S+"
    r"|</?[A-Za-z][^<>\n]*>"
    r"|&[a-z]+;|\\[a-zA-Z]+",
    re.DOTALL,
)
SIGN = re.compile(r"[{}()\[\]<>=+/\\|&;$@_^~%]|->|\.\w")
NAMES = re.compile(r"(?<!\S)\S*?(?:\w[_./\\]\w|[a-z][A-Z]|[_$@#]\w|\w\(|\w\d)\S*")
"""Words from programs: snake_case, camelCase, a.b, f(x), x1."""
CODE_LINE = re.compile(
    r"\s*(?:(?:def|class|import|from|return|if|elif|else|for|foreach|while|try|except|with|public|private|static|const"
    r"|let|var|func|function|fn|package|using|namespace|case|default|SELECT|INSERT|UPDATE|CREATE|FROM|WHERE)\b.*[({:;=*]"
    r"|(?:import|package|using|from|return)\b[^ ]* [\w.]+;?\s*$"
    r"|(?:end|else|pass|break|continue|fi|done|do|then|begin)\s*$"
    r"|>>>|\$ |#!|#include|\}|\{)"
    r"|.*[;{}]\s*$"  # ends of lines in C, Java, Perl, …
    r"|(?: {2,}|\t).*[=(){}]"  # indented, with a sign that prose seldom has
)
DENSE = 0.09
"""Share of code characters above which a line is code."""
LATIN = re.compile(r"[^\W\d_\u0250-\u1dff\u1f00-\uffff\U00010000-\U0010ffff]+")
OTHER = re.compile(r"[^\W\d_A-Za-z\u0080-\u024f\u1e00-\u1eff]")
WIDE = re.compile(r"[\u2e80-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff]")
WIDTH = 3
"""Letters that a Chinese character, a kana or a Korean syllable counts as; other non-Latin scripts count 1.5."""
LEAST = 6
"""Minimum letters that must be left; with fewer the whole prompt is used."""


def readable(text: str) -> str:
    """Return the part that tells a prompt's language: its prose, without Latin words where another script weighs as
    much.

    A Chinese or Russian question about `sort()` or Tom Hunter is Chinese or Russian.
    """
    text = prose(text)
    if text.isascii():
        return text
    other, wide = len(OTHER.findall(text)), len(WIDE.findall(text))
    if not other:
        return text
    latin = sum(map(len, LATIN.findall(text)))
    return LATIN.sub(" ", text) if 1.5 * (other - wide) + WIDTH * wide >= latin else text


def prose(text: str) -> str:
    """Return the part of a prompt that is not code, or all of it when there is hardly anything else."""
    text = ends(text, LIMIT)
    if not SUSPECT.search(text):
        return text
    rest = NOT_PROSE.sub(" ", text) if MARKED.search(text) else text
    rest = " ".join(_words(line) for line in rest.splitlines())
    return rest if sum(1 if c < "\u0250" else WIDTH for c in rest if c.isalpha()) >= LEAST else text


def _words(line: str) -> str:
    """Return a line without identifiers; empty where the whole line is code."""
    if CODE_LINE.match(line):
        return ""
    if not SUSPECT.search(line):
        return line
    return "" if len(SIGN.findall(line)) > DENSE * len(line) else NAMES.sub(" ", line)
