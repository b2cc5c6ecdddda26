"""Releases: examined as a whole, and then imported in pieces, each of which stays when the process is killed.

The keys of a release are adopted as its index gives them back, and marked as approximate. A block of them is one
transaction with one change of the log, which says how much of the index was read by then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import BigInteger, cast, func, select, text
from sqlalchemy.orm import Session

from colmlm.kb.corpus.format import NO_TEXT, AnnotatedDocument, document_digests
from colmlm.kb.corpus.release import ExaminedRelease, Release, ReleasedFact
from colmlm.kb.errors import Invalid, count_of, refusals
from colmlm.kb.facts.redaction import MARK
from colmlm.kb.facts.suppression import SpanPlace, Suppressor
from colmlm.kb.keys import keysets
from colmlm.kb.keys.keycopy import Keys, copy_keys
from colmlm.kb.keys.keysets import decode_keys
from colmlm.kb.keys.records import CheckpointInfo
from colmlm.kb.log import audit
from colmlm.kb.lookup.index import Ids, SealedIndex, Vectors
from colmlm.kb.lookup.searchable import SearchableStore
from colmlm.kb.store.database import (
    checked_at_once,
    connection_of,
    copy_blocks,
    escape_words,
    id_array,
    join_lines,
    reserve_ids,
)
from colmlm.kb.store.waits import retry_on_contention
from colmlm.kb.tables import ADOPTED, ChangeRow, DocumentRow, FactKeyRow, FactRow, FactVersionRow, KeysetRow

OnDone = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class ReleaseProgress:
    """Callbacks, each told how many are done, of how many: entries examined, keys read, facts and keys stored."""

    examined: OnDone | None = None
    read: OnDone | None = None
    facts: OnDone | None = None
    keys: OnDone | None = None


@dataclass(frozen=True, slots=True)
class Releases:
    """Imports releases into a store."""

    store: SearchableStore

    def examine(
        self, folder: Path, corpus: str, checkpoint: CheckpointInfo | None, progress: ReleaseProgress
    ) -> ImportReport:
        """Read all of a release and report what is in it; store nothing. Raises `InvalidRelease`.

        `checkpoint` is the one that made its keys; None where that is unknown.
        """
        release = Release(folder)
        examined, index = release.examine(progress.examined), SealedIndex(release.index)
        _require_fit(examined, index, checkpoint)
        _read_all(index, progress.read)
        keys = release.index_digest()
        with self.store.sessions() as session:
            begun = begun_releases(session, release, examined, corpus)
            digest = maker = examined.order
            if begun is None:
                digest = examined.digest
                maker = hashlib.sha256(f"{digest} {keys}".encode()).hexdigest()
            made_by = checkpoint or CheckpointInfo(f"release-{maker[:16]}", folder.name, index.dim)
            there = StoredPieces.read(session, digest, corpus).upto
            require_one_index(session, digest, corpus, made_by.checkpoint_id, keys)
            if begun is not None:
                require_same_keys(session, begun, index, made_by.checkpoint_id)
        return ImportReport(
            corpus, digest, keys, examined.num_facts, 0, there, 0, 0, 0,
            index.dim, index.kind, made_by.checkpoint_id, None, None,
        )  # fmt: skip

    def take(
        self,
        folder: Path,
        corpus: str,
        checkpoint: CheckpointInfo | None = None,
        *,
        actor: str,
        reason: str,
        progress: ReleaseProgress | None = None,
    ) -> ImportReport:
        """Import a release into a corpus; after a kill a second call goes on where the first was.

        Its keys go into the keyset of `checkpoint`, or of a checkpoint of unknown name, which is ready then (active if
        none was). Raises `InvalidRelease` before anything is stored.
        """
        audit.check_text("corpus", corpus, blank=False, limit=200)
        audit.check_who(actor, reason)
        progress = progress or ReleaseProgress()
        report = self.examine(folder, corpus, checkpoint, progress)
        facts = FactsOfRelease(report.digest, corpus, actor, reason)
        report = self._take_facts(Release(folder), facts, report, progress.facts)
        made_by = checkpoint or CheckpointInfo(report.checkpoint_id, folder.name, report.dim)
        keyset_id = self._create(made_by)
        keys = KeysOfRelease(report.digest, report.index_digest, corpus, keyset_id, actor, reason)
        report = replace(report, keyset_id=keyset_id)
        return self._take_keys(SealedIndex(Release(folder).index), keys, report, progress.keys)

    def _take_facts(
        self, release: Release, facts: FactsOfRelease, report: ImportReport, on_facts: OnDone | None
    ) -> ImportReport:
        done = report.there
        for piece in release.pieces(PIECE, done):
            stored = self._store_facts(facts, done, piece)
            done += len(piece)
            report = replace(
                report,
                facts=report.facts + stored.facts,
                samples=report.samples + stored.samples,
                suppressed=report.suppressed + stored.suppressed,
                seq=stored.seq,
            )
            if on_facts is not None:
                on_facts(done, report.entries)
        if report.facts:
            with self.store.sessions.begin() as session:
                analyze_facts(session)
        return report

    @retry_on_contention
    def _store_facts(self, facts: FactsOfRelease, first: int, piece: Sequence[ReleasedFact]) -> StoredPiece:
        with self.store.sessions.begin() as session:
            return facts.store(session, first, piece)

    @retry_on_contention
    def _create(self, checkpoint: CheckpointInfo) -> int:
        with self.store.sessions.begin() as session:
            return keysets.create_keyset(session, checkpoint, None, self.store.settings.actor).keyset_id

    def _take_keys(
        self, index: SealedIndex, keys: KeysOfRelease, report: ImportReport, on_keys: OnDone | None
    ) -> ImportReport:
        with self.store.sessions() as session:
            stored, done = (
                StoredPieces.read(session, report.digest, report.corpus),
                keys.count_read_keys(session),
            )
        for numbers, keys_ND in index.blocks(BLOCK, done):
            done += len(numbers)
            adopted = self._store_keys(keys, stored.fact_ids(numbers), keys_ND, done)
            report = replace(report, adopted=report.adopted + adopted)
            if on_keys is not None:
                on_keys(done, report.entries)
        if report.adopted:
            with self.store.sessions.begin() as session:
                keysets.analyze_keyset(session, keys.keyset_id)
        return report

    @retry_on_contention
    def _store_keys(self, keys: KeysOfRelease, fact_ids: Ids, keys_ND: Vectors, upto: int) -> int:
        with self.store.sessions.begin() as session:
            return keys.store(session, fact_ids, keys_ND, upto)


def _require_fit(examined: ExaminedRelease, index: SealedIndex, checkpoint: CheckpointInfo | None) -> None:
    if index.count != examined.num_facts:
        cause = f"{index.name} has {count_of(index.count, 'key')} for {count_of(examined.num_facts, 'entry')}"
        raise refusals.invalid_release(cause, "The files must come from the same release.")
    if checkpoint is not None and checkpoint.dim != index.dim:
        cause = (
            f"its keys have {index.dim} numbers, and those of checkpoint {checkpoint.name!r} {checkpoint.dim}"
        )
        raise refusals.invalid_release(cause, "Name the checkpoint that made the keys, or none.")
    index.require_numbered()


def _read_all(index: SealedIndex, on_keys: OnDone | None) -> None:
    """Decode every key and keep none, so that an index that does not give all of them is refused beforehand."""
    done = 0
    for numbers, _ in index.blocks(BLOCK):
        done += len(numbers)
        if on_keys is not None:
            on_keys(done, index.count)


# The records that importing a release gives.


@dataclass(frozen=True, slots=True)
class ImportReport:
    """Record what an import of a release found and stored, and the keyset that its keys are in.

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


# Resumed: imports that the program's release before began. It knew a store by the order of its entries alone.
#
# So another edition of the same entries would pass for it. What is stored of such an import is compared with
# the store before it goes on.

_REMEDY = "Import into another corpus: --corpus NAME"
_SAME = 0.002  # by how much numbers of a key may differ once they were stored with half the bits


def begun_releases(
    session: Session, release: Release, examined: ExaminedRelease, corpus: str
) -> StoredPieces | None:
    """Give the pieces of this release that an earlier program version stored; None where this version began the import.

    Raises `InvalidRelease` where the stored facts are other ones.
    """
    stored = StoredPieces.read(session, examined.order, corpus)
    if not stored.upto or StoredPieces.read(session, examined.digest, corpus).upto:
        return None
    for n, piece in enumerate(release.pieces(PIECE)):
        numbers = np.arange(n * PIECE, min(n * PIECE + len(piece), stored.upto), dtype=np.int64)
        if not len(numbers):
            break
        _require_same(session, corpus, piece[: len(numbers)], stored.fact_ids(numbers))
    return stored


def _require_same(session: Session, corpus: str, facts: Sequence[ReleasedFact], fact_ids: Ids) -> None:
    """Raise `InvalidRelease` unless each fact is stored with this value and place. Erased and redacted facts pass."""
    statement = (
        select(FactRow.id, FactVersionRow.value, DocumentRow.external_id, FactRow.ordinal)
        .join(FactVersionRow, FactVersionRow.fact_id == FactRow.id)
        .join(DocumentRow, DocumentRow.id == FactRow.document_id)
        .where(FactRow.id == func.any(fact_ids.tolist()), FactVersionRow.version == 1)
    )
    said: dict[int, tuple[Any, ...]] = {row[0]: tuple(row[1:]) for row in session.execute(statement)}
    for fact_id, fact in zip(fact_ids.tolist(), facts, strict=True):
        value, *place = said.get(fact_id, (MARK,))
        if MARK not in value and (value, *place) != (fact.value, fact.sample_id, fact.fact_idx):
            cause = f"in corpus {corpus!r} entry {fact.entry_id} is stored from another edition"
            raise refusals.invalid_release(cause, _REMEDY)


def require_same_keys(session: Session, stored: StoredPieces, index: SealedIndex, checkpoint_id: str) -> None:
    """Raise `InvalidRelease` where the checkpoint's keyset has other keys than the first block of the index gives."""
    numbers, keys_ND = next(islice(index.blocks(BLOCK), 1))
    there = numbers < stored.upto
    fact_ids, ours_ND = stored.fact_ids(numbers[there]), keys_ND[there]
    statement = (
        select(FactKeyRow.fact_id, FactKeyRow.key)
        .join(KeysetRow, KeysetRow.id == FactKeyRow.keyset_id)
        .where(KeysetRow.checkpoint_id == checkpoint_id, KeysetRow.state != "retired")
        .where(FactKeyRow.kind == ADOPTED, FactKeyRow.fact_id == func.any(fact_ids.tolist()))
    )
    kept = {row.fact_id: row.key for row in session.execute(statement)}
    rows = [row for row, fact_id in enumerate(fact_ids.tolist()) if fact_id in kept]
    theirs_ND = decode_keys([kept[fact_id] for fact_id in fact_ids[rows].tolist()], index.dim)
    if not np.allclose(theirs_ND, ours_ND[rows], atol=_SAME):
        raise refusals.invalid_release(
            "the keys that are stored of these facts are from another index", _REMEDY
        )


# Stores the facts of a release: each in a document without a text, its sample, as the number that it has
# there.
#
# A piece is one transaction with one change of the log, which says where in the release it is. So the log
# tells what is here already and under which ids, whatever became of the facts since.

PIECE = 10_000  # facts in one transaction

_COPY_SAMPLES = b"COPY document (id, corpus, external_id, revision, sha256, record_sha256, text) FROM STDIN"
_COPY_FACTS = b"COPY fact (id, document_id, ordinal, created_seq) FROM STDIN"
_COPY_VERSIONS = b"COPY fact_version (fact_id, version, value, from_seq) FROM STDIN"


@dataclass(frozen=True, slots=True)
class StoredPiece:
    """The numbers of facts and new samples that change `seq` stored, and of facts that it left out as erased before."""

    seq: int
    facts: int
    samples: int
    suppressed: int


@dataclass(frozen=True, slots=True)
class StoredPieces:
    """The stored pieces of a release, by first entry number and first fact id. Entries before `upto` are stored."""

    first_N: npt.NDArray[np.int64]
    fact_id_N: npt.NDArray[np.int64]
    upto: int

    @classmethod
    def read(cls, session: Session, digest: str, corpus: str) -> StoredPieces:
        """Read the stored pieces of a release from the change log, in their order."""
        payload = ChangeRow.payload
        numbers = (payload["first"], payload["inserted"][0], payload["inserted"][1])
        first, fact_id, last_id = (cast(number.astext, BigInteger) for number in numbers)
        of = ChangeRow.kind == "ingest", payload.contains({"release": digest, "corpus": corpus})
        rows = session.execute(select(first, fact_id, last_id).where(*of).order_by(first)).all()
        found = np.array([tuple(row) for row in rows], np.int64).reshape(-1, 3)
        upto = found[-1, 0] + found[-1, 2] - found[-1, 1] + 1 if len(found) else 0
        return cls(found[:, 0], found[:, 1], int(upto))

    def fact_ids(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Give the ids of the facts that the entries of these numbers are stored as."""
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
        """Store a piece of facts, whose first entry has the number `first`. Does not commit."""
        suppressor = Suppressor(session)
        pending = audit.begin_change(session, self.actor, self.reason)
        samples = self._stored_samples(session, facts)
        new = [name for name in dict.fromkeys(f.sample_id for f in facts) if name not in samples]
        document_id = reserve_ids(session, "document_id_seq", len(new)) if new else 0
        samples |= {name: document_id + n for n, name in enumerate(new)}
        fact_id = reserve_ids(session, "fact_id_seq", len(facts))
        kept = [(fact_id + n, fact) for n, fact in enumerate(facts) if not _is_erased(suppressor, fact)]
        with checked_at_once(session, len(kept)):  # samples are inserted here or never deleted
            copy_blocks(session, _COPY_SAMPLES, join_lines(self._sample_lines(document_id, new)))
            copy_blocks(
                session, _COPY_FACTS,
                join_lines(f"{n}\t{samples[f.sample_id]}\t{f.fact_idx}\t{pending.seq}\n" for n, f in kept),
            )  # fmt: skip
            copy_blocks(
                session,
                _COPY_VERSIONS,
                join_lines(f"{n}\t1\t{escape_words(f.value)}\t{pending.seq}\n" for n, f in kept),
            )
        payload: dict[str, Any] = {
            "corpus": self.corpus, "documents": len(new), "release": self.digest, "first": first,
            "inserted": [fact_id, fact_id + len(facts) - 1],
        }  # fmt: skip
        seq = audit.append_change(session, pending, "ingest", num_facts=len(kept), payload=payload)
        return StoredPiece(seq, len(kept), len(new), len(facts) - len(kept))

    def _stored_samples(self, session: Session, facts: Sequence[ReleasedFact]) -> dict[str, int]:
        """Give ids of stored samples by name. Raises `InvalidRelease` if one has a text or some of the facts."""
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

    def _clash(self, cause: str) -> Invalid:
        return refusals.invalid_release(
            f"in corpus {self.corpus!r} {cause}",
            "Import into another corpus: --corpus NAME",
            f"Its pieces of {PIECE:,} facts before this one stay imported.",
        )

    def _sample_lines(self, document_id: int, names: Sequence[str]) -> Iterator[str]:
        corpus, revision = escape_words(self.corpus), f"release {self.digest[:16]}"
        for n, name in enumerate(names):
            _, record = document_digests(AnnotatedDocument(name, ""))
            yield f"{document_id + n}\t{corpus}\t{escape_words(name)}\t{revision}\t{NO_TEXT}\t{record}\t\n"


def _is_erased(suppressor: Suppressor, fact: ReleasedFact) -> bool:
    return suppressor.matches([fact.value], None, SpanPlace.in_sample(fact.sample_id, fact.fact_idx))


BLOCK = 20_000  # keys in one transaction

# Facts that were deleted since, or keyed otherwise, get none. The others are locked, as a check of each key would do.
_WANTING = b"""
SELECT f.id FROM fact f WHERE f.id = ANY(%s::bigint[])
  AND (f.deleted_seq IS NULL OR EXISTS (SELECT FROM tombstone t WHERE t.fact_id = f.id))
  AND NOT EXISTS (SELECT FROM fact_key k WHERE k.keyset_id = %s AND k.fact_id = f.id OFFSET 0)
FOR KEY SHARE OF f
"""


@dataclass(frozen=True, slots=True)
class KeysOfRelease:
    """Stores blocks of one release's keys in a keyset, for its facts in a corpus."""

    digest: str
    index_digest: str
    corpus: str
    keyset_id: int
    actor: str
    reason: str

    def count_read_keys(self, session: Session) -> int:
        """Count, by the log, the keys of this index that were read before. Entries without an index count, too."""
        payload = ChangeRow.payload
        upto = select(func.max(cast(payload["upto"].astext, BigInteger))).where(
            ChangeRow.kind == "key",
            payload.contains({"release": self.digest, "corpus": self.corpus, "keyset": self.keyset_id}),
            func.coalesce(payload["index"].astext, self.index_digest) == self.index_digest,
        )
        return session.scalar(upto) or 0

    def store(self, session: Session, fact_ids: npt.NDArray[np.int64], keys_ND: Keys, upto: int) -> int:
        """Store the keys of facts that lack one and are live or forgotten, and give their number. Does not commit.

        `upto` is the number of the index's keys that are read by then.
        """
        pending = audit.begin_change(session, self.actor, self.reason)
        asked = (id_array(fact_ids.tolist()), self.keyset_id)
        rows = connection_of(session).execute(_WANTING, asked).fetchall()
        wanted = np.isin(fact_ids, np.array([row[0] for row in rows], np.int64))
        payload: dict[str, Any] = {
            "keyset": self.keyset_id, "release": self.digest, "index": self.index_digest, "corpus": self.corpus,
            "upto": upto,
        }  # fmt: skip
        if number := int(wanted.sum()):
            with checked_at_once(session, number):
                first = copy_keys(
                    session, self.keyset_id, ADOPTED, fact_ids[wanted].tolist(), keys_ND[wanted]
                )
            payload |= {"keys": [first, first + number - 1]}
        audit.append_change(session, pending, "key", num_facts=number, payload=payload)
        return number


def require_one_index(
    session: Session, digest: str, corpus: str, checkpoint_id: str, index_digest: str
) -> None:
    """Raise `InvalidRelease` where the checkpoint's keyset has keys of these facts from another index."""
    payload = ChangeRow.payload
    of_another = (
        select(KeysetRow.id)
        .join(ChangeRow, payload["keyset"].as_integer() == KeysetRow.id)
        .where(
            KeysetRow.checkpoint_id == checkpoint_id, KeysetRow.state != "retired", ChangeRow.kind == "key"
        )
        .where(payload.contains({"release": digest, "corpus": corpus}))
        .where(payload["index"].astext != index_digest)
    )
    if (keyset_id := session.scalar(of_another.limit(1))) is not None:
        remedy = (
            f"Take that index, import into another corpus, or drop them: colmlm keysets retire {keyset_id}"
        )
        raise refusals.invalid_release(
            f"keyset {keyset_id} has keys of these facts from another index", remedy
        )


def analyze_facts(session: Session) -> None:
    """Update the statistics of PostgreSQL's planner on documents and facts, without reading their texts."""
    session.execute(
        text(
            "ANALYZE document (id, corpus, external_id, replaced_seq), fact (id, document_id, ordinal, deleted_seq)"
        )
    )
    session.execute(text("ANALYZE fact_version (fact_id, version, from_seq, to_seq)"))
