"""What of a prompt is written in a human language: code, addresses and markup say nothing about it."""

from __future__ import annotations

import re

from router.features import ends

LIMIT = 1200
"""Characters of a prompt that are looked at: half from its start, half from its end."""
SUSPECT = re.compile(r"[`{}<>=_;/\\|\[\]@#$]|\w\(|\.\w")
"""Without any of these there is no code to take out."""
MARKED = re.compile(r"[`~<@&\\]|://|www\.")
"""What any of the next begins with, or has."""
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
"""Words as programs have them: snake_case, camelCase, a.b, f(x), x1."""
CODE_LINE = re.compile(
    r"\s*(?:(?:def|class|import|from|return|if|elif|else|for|foreach|while|try|except|with|public|private|static|const"
    r"|let|var|func|function|fn|package|using|namespace|case|default|SELECT|INSERT|UPDATE|CREATE|FROM|WHERE)\b.*[({:;=*]"
    r"|(?:import|package|using|from|return)\b[^ ]* [\w.]+;?\s*$"
    r"|(?:end|else|pass|break|continue|fi|done|do|then|begin)\s*$"
    r"|>>>|\$ |#!|#include|\}|\{)"
    r"|.*[;{}]\s*$"  # how lines of C, Java, Perl, … end
    r"|(?: {2,}|\t).*[=(){}]"  # indented, with a sign that prose seldom has
)
DENSE = 0.09
"""A line with so many signs of code a character is code."""
LATIN = re.compile(r"[^\W\d_\u0250-\u1dff\u1f00-\uffff\U00010000-\U0010ffff]+")
OTHER = re.compile(r"[^\W\d_A-Za-z\u0080-\u024f\u1e00-\u1eff]")
WIDE = re.compile(r"[\u2e80-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff]")
WIDTH = 3
"""Letters that a Chinese character, a kana or a Korean syllable is worth; those of other scripts are worth 1.5."""
LEAST = 6
"""Letters that must be left; with fewer the whole prompt is read."""


def readable(text: str) -> str:
    """What tells a prompt's language: its prose, without Latin words where another script says at least as much.

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
    """The part of a prompt that is not code, or all of it when hardly anything else is there."""
    text = ends(text, LIMIT)
    if not SUSPECT.search(text):
        return text
    rest = NOT_PROSE.sub(" ", text) if MARKED.search(text) else text
    rest = " ".join(_words(line) for line in rest.splitlines())
    return rest if sum(1 if c < "\u0250" else WIDTH for c in rest if c.isalpha()) >= LEAST else text


def _words(line: str) -> str:
    """A line without names of programs; nothing where the whole line is code."""
    if CODE_LINE.match(line):
        return ""
    if not SUSPECT.search(line):
        return line
    return "" if len(SIGN.findall(line)) > DENSE * len(line) else NAMES.sub(" ", line)
