"""What stands below the fields of a dataclass, which is the help of the options that are made of them."""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache
from itertools import pairwise


@cache
def field_docs(group: type) -> dict[str, str]:
    """Return the docstring of each field of a dataclass, and of those that it extends, on one line."""
    found: dict[str, str] = {}
    for part in group.__mro__[-2::-1]:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(part))).body
        assert isinstance(tree, ast.ClassDef)
        for field, below in pairwise(tree.body):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                found[ast.unparse(field.target)] = " ".join(ast.literal_eval(below.value).split())
    return found
