"""Makes the proposer that a server's settings name, over its store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from osd.drafters.factory import make_proposer, proposer_name, require_drafter_kind
from osd.drafters.tree import Proposer
from osd.models.pair import Pair
from storage.settings import Settings
from storage.store import Store


@contextmanager
def proposer_of(pair: Pair, settings: Settings, store: Store) -> Iterator[Proposer | None]:
    """Yield the proposer of tokens, None where drafts are the draft's alone; at the end what was learned is kept.

    Raises BadSetting, and ModelFileDamaged, OtherTokenizer and BadTable for the corpus of ``ngram.corpus``.
    """
    require_drafter_kind(settings)
    name = proposer_name(settings)
    if name == "trigram":
        from osd.drafters.ngram.service.consent import Consent
        from osd.drafters.ngram.service.shelf import TableStore
        from osd.drafters.ngram.service.tables import Tables

        tables = Tables(settings, TableStore(pair, settings.ngram, store), Consent(store.samples.tenants))
        try:
            yield tables
        finally:
            tables.close()
    else:
        yield None if name is None else make_proposer(name, settings)
