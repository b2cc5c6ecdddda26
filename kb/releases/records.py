"""The records that importing a release gives."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import of a release found and stored, and the keyset that its keys are in.

    `entries` are in the release; of these `there` were imported before, `suppressed` say what was erased here and stay
    out, and `facts` were stored now, of `samples` documents that were new. `adopted` keys were stored now, of an index
    of this `kind`: they are approximate. `digest` identifies the facts in their order, and `index_digest` the index.
    After a dry run nothing is stored, and there is no keyset.
    """

    corpus: str
    digest: str
    index_digest: str
    entries: int
    facts: int
    there: int
    samples: int
    suppressed: int
    adopted: int
    dim: int
    kind: str
    checkpoint_id: str
    keyset_id: int | None
    seq: int | None
