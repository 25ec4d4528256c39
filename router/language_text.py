"""What of a prompt tells its language: its prose, without code, addresses and markup. And languages' tags in one
spelling: ISO 639-1 where there is one, else ISO 639-3."""

from __future__ import annotations

import re

from router.features import ends

PAIRS = """
    aar:aa abk:ab afr:af aka:ak alb:sq als:sq amh:am ara:ar arb:ar arg:an arm:hy asm:as ava:av ave:ae aym:ay ayr:ay
    aze:az azj:az bak:ba bam:bm baq:eu bel:be ben:bn bis:bi bod:bo bos:bs bre:br bul:bg bur:my cat:ca ces:cs cha:ch
    che:ce chi:zh chu:cu chv:cv cmn:zh cor:kw cos:co cre:cr cym:cy cze:cs dan:da deu:de div:dv dut:nl dzo:dz ekk:et
    ell:el eng:en epo:eo est:et eus:eu ewe:ee fao:fo fas:fa fij:fj fin:fi fra:fr fre:fr fry:fy ful:ff geo:ka ger:de
    gla:gd gle:ga glg:gl glv:gv gre:el grn:gn gug:gn guj:gu hat:ht hau:ha hbs:sh heb:he her:hz hin:hi hmo:ho hrv:hr
    hun:hu hye:hy ibo:ig ice:is ido:io iii:ii iku:iu ile:ie ina:ia ind:id ipk:ik isl:is ita:it iw:he jav:jv ji:yi
    jpn:ja jw:jv kal:kl kan:kn kas:ks kat:ka kau:kr kaz:kk khk:mn khm:km kik:ki kin:rw kir:ky kom:kv kon:kg kor:ko
    kua:kj kur:ku lao:lo lat:la lav:lv lim:li lin:ln lit:lt ltz:lb lub:lu lug:lg lvs:lv mac:mk mah:mh mal:ml mao:mi
    mar:mr may:ms mkd:mk mlg:mg mlt:mt mon:mn mri:mi msa:ms mya:my nau:na nav:nv nbl:nr nde:nd ndo:ng nep:ne nld:nl
    nno:nn no:nb nob:nb nor:nb npi:ne nya:ny oci:oc oji:oj ori:or orm:om ory:or oss:os pan:pa per:fa pes:fa pli:pi
    plt:mg pol:pl por:pt pus:ps que:qu roh:rm ron:ro rum:ro run:rn rus:ru sag:sg san:sa sin:si slk:sk slo:sk slv:sl
    sme:se smo:sm sna:sn snd:sd som:so sot:st spa:es sqi:sq srd:sc srp:sr ssw:ss sun:su swa:sw swe:sv swh:sw tah:ty
    tam:ta tat:tt tel:te tgk:tg tgl:tl tha:th tib:bo tir:ti ton:to tsn:tn tso:ts tuk:tk tur:tr twi:tw uig:ug ukr:uk
    urd:ur uzb:uz uzn:uz ven:ve vie:vi vol:vo wel:cy wln:wa wol:wo xho:xh yid:yi yor:yo zha:za zho:zh zsm:ms zul:zu
"""
TWO_LETTERS = dict(pair.split(":") for pair in PAIRS.split())
"""Map to ISO 639-1 from 639-3 and 639-2/B, from a macrolanguage's usual member (``cmn``, ``zsm``, ``lvs``), and from
withdrawn codes (``iw``). Plain Norwegian is Bokmål, as most of it is."""


def primary(tag: str) -> str:
    """Return a tag's language in osd's spelling: ``de-AT`` and ``deu`` are ``de``, ``zsm`` is ``ms``, ``ceb`` stays."""
    first = re.split(r"[-_]", tag.strip().lower(), maxsplit=1)[0]
    return TWO_LETTERS.get(first, first)


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
