"""Drafts without a model: n-gram tables, tree search, prompt look-up.

Its errors; the tree is in :mod:`storage.errors`:

BadInput         BadCorpus, BadTable
PairError        OtherTokenizer
"""

from __future__ import annotations

from storage.errors import BadInput, PairError


class BadCorpus(BadInput):
    """{path}: {reason}"""


class BadTable(BadInput):
    """{name}: {reason}"""


class OtherTokenizer(PairError):
    """{what} was made with another tokenizer: its vocabulary's digest is {found:.8}…, that of {tokenizer} is
    {wanted:.8}…. Its token numbers mean other words here; build it anew with `osd corpus build --tokenizer`."""
