"""Bulk: keys that somebody computed elsewhere, stored in big pieces; and whole documents or corpora deleted at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, func, select, text
from sqlalchemy.orm import Session

from colmlm.kb.errors import (
    ExternalIdNotFound,
    FactDeleted,
    FactNotFound,
    InvalidKeys,
    InvalidValue,
    KeysetNotFound,
)
from colmlm.kb.facts.edits import end_facts
from colmlm.kb.facts.ingest import MANY_FACTS
from colmlm.kb.facts.reading import require_corpus
from colmlm.kb.keys import activation, keysets
from colmlm.kb.keys.keycopy import Keys, copy_keys, require_unit
from colmlm.kb.log import audit
from colmlm.kb.lookup.searchable import SearchableStore
from colmlm.kb.records import Edit, KeysetRecord
from colmlm.kb.tables import Checkpoint, Document, Fact, FactKey, Keyset, key_kinds

KEYS_A_CHANGE = 100_000
_MOST_NAMED = 1000


@dataclass(frozen=True, slots=True)
class Bulk:
    """Bulk verbs on a knowledge base."""

    kb: SearchableStore

    def store_keys(
        self,
        keyset_id: int,
        fact_ids: Keys,
        keys_ND: Keys,
        kind: str = "context",
        *,
        actor: str,
        reason: str,
        on_facts: Callable[[int, int], None] | None = None,
    ) -> list[Edit]:
        """Store one unit vector [n, d] of a kind for each fact [n], 100,000 in a transaction and change.

        Raises `InvalidKeys`, `FactNotFound` or `FactDeleted`; then nothing of that transaction is stored.
        """
        if len(fact_ids) != len(keys_ND):
            raise InvalidValue("keys", f"there are {len(keys_ND)} for {len(fact_ids)} facts")
        edits: list[Edit] = []
        for start in range(0, len(fact_ids), KEYS_A_CHANGE):
            piece = slice(start, start + KEYS_A_CHANGE)
            with self.kb.sessions.begin() as session:
                edits.append(
                    store_keys(
                        session, keyset_id, fact_ids[piece], keys_ND[piece], kind, actor=actor, reason=reason
                    )
                )
            if on_facts is not None:
                on_facts(min(piece.stop, len(fact_ids)), len(fact_ids))
        if len(fact_ids) >= MANY_FACTS:
            with self.kb.sessions.begin() as session:
                keysets.analyze(session, keyset_id)
        return edits

    def finish_keyset(self, keyset_id: int) -> KeysetRecord:
        """Mark a keyset as ready (active where none is) and write its index, as a rekey does at its end."""
        with self.kb.sessions.begin() as session:
            activation.finish_building(session, keyset_id, self.kb.settings.actor)
        self.kb.searcher.prepare(keyset_id)
        with self.kb.sessions() as session:
            return keysets.get_keyset(session, keyset_id)

    def delete_documents(
        self, corpus: str, external_ids: Sequence[str] | None = None, *, actor: str, reason: str
    ) -> Edit:
        """Delete every live fact of these documents, or of the whole corpus, in one change; the texts stay.

        Raises `CorpusNotFound` or `ExternalIdNotFound`. Without a live fact there is no change: `fact_ids` is empty
        and `seq` the last change that was there.
        """
        with self.kb.sessions.begin() as session:
            return delete_documents(session, corpus, external_ids, actor, reason)

    def count_documents(self, corpus: str, external_ids: Sequence[str] | None = None) -> tuple[int, int]:
        """How many current documents and live facts `delete_documents` would be about."""
        with self.kb.sessions() as session:
            chosen = _chosen(session, corpus, external_ids)
            live = select(func.count()).where(Fact.document_id.in_(chosen), Fact.deleted_seq.is_(None))
            current = select(func.count()).where(Document.id.in_(chosen), Document.replaced_seq.is_(None))
            return session.scalar(current) or 0, session.scalar(live) or 0


def store_keys(
    session: Session, keyset_id: int, fact_ids: Keys, keys_ND: Keys, kind: str, *, actor: str, reason: str
) -> Edit:
    """Store these keys in one change, all or none; see `Bulk.store_keys`. Does not commit."""
    if kind not in key_kinds:
        raise InvalidValue("kind", f"{kind!r} is none of {', '.join(key_kinds)}")
    if fact_ids.ndim != 1 or fact_ids.dtype.kind not in "iu":
        raise InvalidValue("fact ids", f"they are {fact_ids.dtype}{fact_ids.shape}, not integers [n]")
    pending = audit.begin(session, actor, reason)
    checkpoint_id, dim = _maker(session, keyset_id)
    require_unit(keys_ND, dim, checkpoint_id)
    asked = fact_ids.tolist()
    if kind != "alias" and (fault := _already_keyed(session, keyset_id, asked, kind)):
        raise InvalidKeys(checkpoint_id, fault)
    _require_live(session, asked)
    first = copy_keys(session, keyset_id, kind, asked, keys_ND)
    # The range of key ids tells an index what to fetch, and history what came when: a million fact ids are not listed.
    payload = {"keyset": keyset_id, "keys": [first, first + len(asked) - 1]}
    seq = audit.append(session, pending, "key", num_facts=len(asked), payload=payload)
    return Edit(seq, "key", ())


def _maker(session: Session, keyset_id: int) -> tuple[str, int]:
    """The checkpoint of the keyset and the width of its keys."""
    statement = select(Keyset.state, Checkpoint.id, Checkpoint.dim).where(Keyset.id == keyset_id)
    found = session.execute(statement.join(Checkpoint, Checkpoint.id == Keyset.checkpoint_id)).one_or_none()
    if found is None:
        raise KeysetNotFound(keyset_id)
    if found.state == "retired":
        raise InvalidKeys(found.id, f"its keyset {keyset_id} is retired")
    return found.id, found.dim


def _already_keyed(session: Session, keyset_id: int, fact_ids: list[int], kind: str) -> str | None:
    """What is wrong where one of these facts would have a second key of this kind."""
    if len(set(fact_ids)) < len(fact_ids):
        return f"a fact is there twice, and has one {kind} key"
    statement = select(FactKey.fact_id).where(
        FactKey.keyset_id == keyset_id, FactKey.kind == kind, FactKey.fact_id == func.any(fact_ids)
    )
    keyed = session.scalars(statement.order_by(FactKey.fact_id).limit(_MOST_NAMED)).all()
    if not keyed:
        return None
    more = " and more" if len(keyed) > 10 else ""
    return f"a {kind} key is there already of fact {', '.join(map(str, keyed[:10]))}{more}"


_NOT_KEPT = text("""
SELECT asked.id, f.id IS NOT NULL AS is_there
FROM unnest(CAST(:fact_ids AS bigint[])) AS asked (id)
LEFT JOIN fact f ON f.id = asked.id
LEFT JOIN fact_version v ON v.fact_id = asked.id AND v.to_seq IS NULL
LEFT JOIN tombstone t ON t.fact_id = asked.id
WHERE v.fact_id IS NULL AND t.fact_id IS NULL ORDER BY asked.id LIMIT :most
""")


def _require_live(session: Session, fact_ids: list[int]) -> None:
    """Tombstones have keys too: a query that points at one abstains."""
    rows = session.execute(_NOT_KEPT, {"fact_ids": fact_ids, "most": _MOST_NAMED}).all()
    if missing := [row.id for row in rows if not row.is_there]:
        raise FactNotFound(missing)
    if rows:
        raise FactDeleted([row.id for row in rows])


def delete_documents(
    session: Session, corpus: str, external_ids: Sequence[str] | None, actor: str, reason: str
) -> Edit:
    """End every live fact of these documents; see `Bulk.delete_documents`. Does not commit."""
    pending = audit.begin(session, actor, reason)
    chosen = _chosen(session, corpus, external_ids)
    live = select(Fact.id).where(Fact.document_id.in_(chosen), Fact.deleted_seq.is_(None))
    fact_ids = session.scalars(live.order_by(Fact.id)).all()
    if not fact_ids:
        return Edit(pending.seq - 1, "delete", ())
    end_facts(session, fact_ids, pending.seq)
    payload: dict[str, Any] = {"corpus": corpus}
    if external_ids is not None:
        payload["documents"] = len(set(external_ids))
    seq = audit.append(session, pending, "delete", fact_ids, payload=payload)
    return Edit(seq, "delete", tuple(fact_ids))


def _chosen(session: Session, corpus: str, external_ids: Sequence[str] | None) -> Select[Any]:
    """SQL: the ids of these documents, replaced editions too: a fact of one may have been restored."""
    require_corpus(session, corpus)
    chosen = select(Document.id).where(Document.corpus == corpus)
    if external_ids is None:
        return chosen
    asked = list(dict.fromkeys(external_ids))
    storable = [name for name in asked if "\x00" not in name]
    found = select(Document.external_id).where(
        Document.corpus == corpus, Document.external_id == func.any(storable)
    )
    there = set(session.scalars(found))
    if missing := [name for name in asked if name not in there]:
        raise ExternalIdNotFound(corpus, missing)
    return chosen.where(Document.external_id == func.any(storable))
