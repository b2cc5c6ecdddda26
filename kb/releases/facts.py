"""Stores the facts of a release: each in a document without a text, its sample, as the number that it has there.

A piece is one transaction with one change of the log, which says where in the release it is. So the log tells what is
here already and under which ids, whatever became of the facts since.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import BigInteger, cast, func, select
from sqlalchemy.orm import Session

from colmlm.kb.corpus.format import NO_TEXT, AnnotatedDocument, digests
from colmlm.kb.corpus.release import ReleasedFact
from colmlm.kb.errors import InvalidRelease
from colmlm.kb.facts.suppression import SpanPlace, Suppressor
from colmlm.kb.log import audit
from colmlm.kb.store.copying import copy_blocks, escaped, joined, reserve
from colmlm.kb.store.references import checked_at_once
from colmlm.kb.tables import ChangeRow, DocumentRow, FactRow

PIECE = 10_000  # facts in one transaction

_COPY_SAMPLES = b"COPY document (id, corpus, external_id, revision, sha256, record_sha256, text) FROM STDIN"
_COPY_FACTS = b"COPY fact (id, document_id, ordinal, created_seq) FROM STDIN"
_COPY_VERSIONS = b"COPY fact_version (fact_id, version, value, from_seq) FROM STDIN"


@dataclass(frozen=True, slots=True)
class StoredPiece:
    """How many facts and new samples a transaction stored, by which change, and how many were erased before."""

    seq: int
    facts: int
    samples: int
    suppressed: int


@dataclass(frozen=True, slots=True)
class StoredPieces:
    """Which entries of a release are stored in a corpus, up to number `upto`, and under which ids of facts."""

    first_N: npt.NDArray[np.int64]
    fact_id_N: npt.NDArray[np.int64]
    upto: int

    @classmethod
    def read(cls, session: Session, digest: str, corpus: str) -> StoredPieces:
        """Reads them from the log. Pieces are stored in their order."""
        payload = ChangeRow.payload
        numbers = (payload["first"], payload["inserted"][0], payload["inserted"][1])
        first, fact_id, last_id = (cast(number.astext, BigInteger) for number in numbers)
        of = ChangeRow.kind == "ingest", payload.contains({"release": digest, "corpus": corpus})
        rows = session.execute(select(first, fact_id, last_id).where(*of).order_by(first)).all()
        found = np.array([tuple(row) for row in rows], np.int64).reshape(-1, 3)
        upto = found[-1, 0] + found[-1, 2] - found[-1, 1] + 1 if len(found) else 0
        return cls(found[:, 0], found[:, 1], int(upto))

    def fact_ids(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Gives the facts that these entries are stored as."""
        piece = np.searchsorted(self.first_N, numbers, side="right") - 1
        ids: npt.NDArray[np.int64] = self.fact_id_N[piece] + numbers - self.first_N[piece]
        return ids


@dataclass(frozen=True, slots=True)
class FactsOfRelease:
    """Stores pieces of one release in a corpus."""

    digest: str
    corpus: str
    actor: str
    reason: str

    def store(self, session: Session, first: int, facts: Sequence[ReleasedFact]) -> StoredPiece:
        """Stores a piece, whose first entry has this number. Does not commit."""
        suppressor = Suppressor(session)
        pending = audit.begin(session, self.actor, self.reason)
        samples = self._samples(session, facts)
        new = [name for name in dict.fromkeys(f.sample_id for f in facts) if name not in samples]
        document_id = reserve(session, "document_id_seq", len(new)) if new else 0
        samples |= {name: document_id + n for n, name in enumerate(new)}
        fact_id = reserve(session, "fact_id_seq", len(facts))
        kept = [(fact_id + n, fact) for n, fact in enumerate(facts) if not _is_erased(suppressor, fact)]
        with checked_at_once(session, len(kept)):  # samples are inserted here or never deleted
            copy_blocks(session, _COPY_SAMPLES, joined(self._sample_lines(document_id, new)))
            copy_blocks(
                session, _COPY_FACTS,
                joined(f"{n}\t{samples[f.sample_id]}\t{f.fact_idx}\t{pending.seq}\n" for n, f in kept),
            )  # fmt: skip
            copy_blocks(
                session,
                _COPY_VERSIONS,
                joined(f"{n}\t1\t{escaped(f.value)}\t{pending.seq}\n" for n, f in kept),
            )
        payload: dict[str, Any] = {
            "corpus": self.corpus, "documents": len(new), "release": self.digest, "first": first,
            "inserted": [fact_id, fact_id + len(facts) - 1],
        }  # fmt: skip
        seq = audit.append(session, pending, "ingest", num_facts=len(kept), payload=payload)
        return StoredPiece(seq, len(kept), len(new), len(facts) - len(kept))

    def _samples(self, session: Session, facts: Sequence[ReleasedFact]) -> dict[str, int]:
        """Gives the ids of samples that are here. Raises where one has a text, or one of these facts already."""
        names = list({fact.sample_id for fact in facts})
        statement = select(DocumentRow.external_id, DocumentRow.id, DocumentRow.sha256).where(
            DocumentRow.corpus == self.corpus,
            DocumentRow.external_id == func.any(names),
            DocumentRow.replaced_seq.is_(None),
        )
        rows = session.execute(statement).all()
        if with_text := next((row.external_id for row in rows if row.sha256 != NO_TEXT), None):
            raise self._clash(f"{with_text!r} is a document with a text")
        ids = {row.external_id: row.id for row in rows}
        there = select(FactRow.document_id, FactRow.ordinal).where(
            FactRow.document_id == func.any([*ids.values()])
        )
        known = {tuple(row) for row in session.execute(there)} if ids else set()
        for fact in facts:
            if (ids.get(fact.sample_id), fact.fact_idx) in known:
                raise self._clash(
                    f"sample {fact.sample_id!r} has its fact {fact.fact_idx} from another release, or another edition"
                )
        return ids

    def _clash(self, cause: str) -> InvalidRelease:
        return InvalidRelease(
            f"in corpus {self.corpus!r} {cause}", "Import into another corpus: --corpus NAME"
        )

    def _sample_lines(self, document_id: int, names: Sequence[str]) -> Iterator[str]:
        corpus, revision = escaped(self.corpus), f"release {self.digest[:16]}"
        for n, name in enumerate(names):
            _, record = digests(AnnotatedDocument(name, ""))
            yield f"{document_id + n}\t{corpus}\t{escaped(name)}\t{revision}\t{NO_TEXT}\t{record}\t\n"


def _is_erased(suppressor: Suppressor, fact: ReleasedFact) -> bool:
    return suppressor.matches([fact.value], None, SpanPlace.in_sample(fact.sample_id, fact.fact_idx))
