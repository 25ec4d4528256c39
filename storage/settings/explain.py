"""What is said of a setting that is wrong: the key, what would be right, and what an old name is called now."""

from __future__ import annotations

import difflib

from pydantic import BaseModel, ValidationError

from storage.errors import BadSetting
from storage.settings.drafters import LOOKUP

RENAMED = {
    "serve.gamma": ("gamma.rule",),
    "serve.gamma_routes": ("gamma.routes",),
    "serve.gamma_initial": ("gamma.initial",),
    "serve.gamma_max": ("gamma.max",),
    "serve.gamma_history": ("gamma.analytic.history",),
    "serve.gamma_estimator": ("gamma.analytic.estimator",),
    "serve.gamma_eta": ("gamma.gammatune.eta", "gamma.gammatune_plus.eta"),
    "serve.gamma_delta": ("gamma.gammatune.delta", "gamma.gammatune_plus.delta"),
    "serve.gamma_confidence": ("gamma.confidence.threshold", "gamma.gammatune_plus.threshold"),
    "serve.gamma_confidence_adapts": ("gamma.confidence.adapts",),
    "serve.gamma_warmup": ("gamma.q_learning.warmup",),
    "serve.gamma_seed": ("gamma.q_learning.seed",),
    "serve.gamma_head_threshold": ("gamma.specdecpp.threshold",),
    "serve.gamma_head": ("gamma.specdecpp.head",),
    "serve.drafter": ("drafters.kind",),
    "serve.branches": ("drafters.branches",),
    "serve.tree_nodes": ("drafters.tree_nodes",),
    "serve.corpus": ("ngram.corpus",),
    "serve.table": ("ngram.table",),
    "serve.table_order": ("ngram.order",),
    "serve.table_mb": ("ngram.memory_mb",),
    "serve.tables": ("ngram.tables",),
    "serve.table_seconds": ("ngram.keep_seconds",),
}
"""Names of earlier releases, and what they are called now."""
GONE = {"serve.suffix_requests": LOOKUP, "serve.suffix_seconds": LOOKUP}
"""Names of earlier releases that nothing took the place of, and what to use instead."""


def explain(error: ValidationError, source: str, model: type[BaseModel], inside: str = "") -> BadSetting:
    """Return the first of the errors in words. ``inside``: the key of ``model`` itself, where it is not all of the
    settings."""
    problem = error.errors()[0]
    path = [str(part) for part in problem["loc"]]
    key, known = ".".join([*filter(None, [inside]), *path]), _fields_at(model, path[:-1])
    no_table = problem["type"] == "dict_type" and path[-1] not in known  # an open section takes unknown tables alone
    if problem["type"] == "extra_forbidden" or no_table:
        return unknown(source, key, key, known)
    return BadSetting(source=source, key=key, reason=f"{problem['msg']} (got {problem['input']!r})")


def unknown(source: str, shown: str, key: str, known: list[str]) -> BadSetting:
    """Return the error of a key that there is not, ``shown`` as whoever set it wrote it."""
    if now := RENAMED.get(key):
        return BadSetting(source=source, key=shown, reason=f"is now {' and '.join(now)}")
    near = difflib.get_close_matches(key.rpartition(".")[2], known, n=1)
    hint = GONE.get(key) or (f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}")
    return BadSetting(source=source, key=shown, reason=f"there is no such setting; {hint}")


def _fields_at(model: type[BaseModel], path: list[str]) -> list[str]:
    """Return the keys of the section or table at a path; none where there is no such."""
    for part in path:
        found = model.model_fields[part].annotation if part in model.model_fields else None
        if not (isinstance(found, type) and issubclass(found, BaseModel)):
            return []
        model = found
    return list(model.model_fields)
