"""The checks of `osd doctor` for what serves: the rules, the ports, and the pair."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from osd.cli.checks import CheckResult, broken, ok, warning
from osd.cli.context import CommandContext
from osd.server.process.listen import listen
from osd.server.start import PairNames, choose_pair, draft_in_store
from storage.errors import BadSetting, OsdError

if TYPE_CHECKING:
    from osd.models.pair import Pair
    from storage.settings import Settings


def choices(here: CommandContext) -> Iterator[CheckResult]:
    """Check that the gamma rule and the drafter that the settings name are there, and their own tables are right."""
    from osd.drafters.factory import require_drafter_kind
    from osd.gamma import require_rules

    try:
        require_rules(here.settings.gamma)
        require_drafter_kind(here.settings)
    except BadSetting as error:
        yield broken("settings", error, "correct it; docs/extending.md says how others are added")


def ports(here: CommandContext) -> Iterator[CheckResult]:
    """Check whether the addresses are free on which `osd serve` would listen."""
    server = here.settings.server
    addresses = ("server.port", server.host, server.port), ("server.admin_port", server.admin_host, server.admin_port)
    for key, host, port in addresses:
        try:
            listen(host, port, key).close()
        except BadSetting as error:
            mend = "the server that runs there may be yours (`osd servers list`); else set it, or give --port"
            yield warning(key, str(error), mend)


def named_pair(here: CommandContext) -> PairNames:
    """Return the pair that `osd serve` would take: a draft may be named as the store calls it. Raises OsdError."""
    names = choose_pair(here.settings.serve, drafter=here.settings.drafters.kind)
    with here.store_as_it_is() as store:
        return draft_in_store(names, store) if store else names


def pair(here: CommandContext) -> Iterator[CheckResult]:
    """Check whether target and draft load and serve together."""
    from osd.models.limits import cut_short

    try:
        names = named_pair(here)
        found = names.load(here.settings.serve, once=True)
        from osd.models.generation_config import generation_config

        generation_config(found.target, found.tokenizer, here.settings.serve.generation_config)
    except OsdError as error:
        yield broken("pair", error, "set serve.target and serve.draft, or give --target and --draft")
        return
    yield from trees(found, here.settings.drafters.kind)
    named = "the one that ships with osd" if names.shipped else f"{names.target} with {names.draft or 'no draft model'}"
    said = f"{named}: {found.vocab_size} tokens, {found.limit} positions"
    if reason := cut_short(found.target.module.config):
        said += f" ({reason})"
    if found.target.start:
        said += ", an encoder's and a decoder's together"
    if found.draft.limit < found.limit:
        said += f"; the draft drafts up to {found.draft.limit}"
    yield ok("pair", said)
    yield from weights_held(found)
    yield cache_held(found, here.settings)


def weights_held(pair: Pair) -> Iterator[CheckResult]:
    """Tell what the weights take in memory, beside their files."""
    from osd.models.pair import files_bytes, weights_in_memory
    from osd.models.target_only import has_draft

    for what, model in [("target", pair.target), ("draft", pair.draft)][: 1 + has_draft(pair)]:
        held, files = weights_in_memory(model), files_bytes(model)
        beside = "" if files is None else f", {held / files:.2f} × the {files / 1e6:,.0f} MB of its files"
        if files is not None and held > 1.5 * files and model.device.type == "cpu":
            beside += f"; serve.dtype = bfloat16 would take about {files / 1e6:,.0f}"
        yield ok(f"{what}'s weights", f"{held / 1e6:,.0f} MB in memory{beside}")


def cache_held(pair: Pair, settings: Settings) -> CheckResult:
    """Tell what keys and values of the target may come to take, and whether serve.cache_mb holds a row of them."""
    import torch

    from osd.models.kv_blocks import BLOCK, blocks_for
    from osd.models.pair import row_length

    serve, length = settings.serve, row_length(pair, settings)
    with torch.inference_mode():
        decoder = pair.target.decoder(serve.max_batch, length)
        one = decoder.beside(1, 1)
        one.logits(torch.zeros(1, 1, dtype=torch.long, device=one.device), [0])
        try:
            if serve.cache_mb is not None:
                decoder.bound(serve.cache_mb << 20)
        except BadSetting as error:
            return broken("KV cache", error, "correct it")
    block, whole = one.cache.slot_bytes * BLOCK, serve.max_batch * blocks_for(length)
    most = whole if decoder.cache.total is None else min(whole, decoder.cache.total)
    said = f"{block / 1024:,.0f} KiB a block of {BLOCK} tokens; {most:,} blocks at most, {most * block / 1e6:,.0f} MB"
    if most < whole:
        said += f", where {serve.max_batch} rows of {length:,} would take {whole * block / 1e6:,.0f}"
    return ok("KV cache", said)


def trees(pair: Pair, drafter: str) -> Iterator[CheckResult]:
    """Check whether the target can verify draft trees."""
    from osd.models.pair import CHAINS
    from osd.models.tree_check import check_model

    try:
        check_model(pair.target)
    except OsdError as error:
        found = warning if drafter in CHAINS else broken
        yield found("trees", str(error), "leave drafters.kind at causal")
        return
    yield ok("trees", "the target checks drafts that branch")
