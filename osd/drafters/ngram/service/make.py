"""Makes the proposer that a server's settings name, over its store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from osd.drafters.factory import make_proposer, proposer_name
from osd.drafters.tree import Proposer
from osd.models.pair import Pair
from storage.settings import ServeSettings
from storage.store import Store


@contextmanager
def proposer_of(pair: Pair, serve: ServeSettings, store: Store) -> Iterator[Proposer | None]:
    """Yield the proposer, None where drafts are the draft model's alone; at the end what was learned is saved.

    Raises ModelFileDamaged, OtherTokenizer and BadTable for the corpus of ``serve.corpus``.
    """
    name = proposer_name(serve)
    if name == "trigram":
        from osd.drafters.ngram.service.consent import Consent
        from osd.drafters.ngram.service.shelf import Shelf
        from osd.drafters.ngram.service.tables import Tables

        tables = Tables(serve, Shelf(pair, serve, store), Consent(store.samples.tenants))
        try:
            yield tables
        finally:
            tables.close()
    else:
        yield None if name is None else make_proposer(name, serve)
