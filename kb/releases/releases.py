"""Releases: examined as a whole, and then imported in pieces, each of which stays when the process is killed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from colmlm.kb.corpus.release import Examined, Release, ReleasedFact
from colmlm.kb.errors import InvalidRelease
from colmlm.kb.keys import keysets
from colmlm.kb.keys.records import CheckpointInfo
from colmlm.kb.log import audit
from colmlm.kb.lookup.sealed import Ids, SealedIndex, Vectors
from colmlm.kb.lookup.searchable import SearchableStore
from colmlm.kb.releases import resumed
from colmlm.kb.releases.facts import PIECE, FactsOfRelease, StoredPiece, StoredPieces
from colmlm.kb.releases.keys import BLOCK, KeysOfRelease, analyze_facts, require_one_index
from colmlm.kb.releases.records import ImportReport
from colmlm.kb.store.contention import tried_again

OnDone = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class ReleaseProgress:
    """Who hears how far an import is: entries examined, keys read, facts stored, keys adopted, each of how many."""

    examined: OnDone | None = None
    read: OnDone | None = None
    facts: OnDone | None = None
    keys: OnDone | None = None


@dataclass(frozen=True, slots=True)
class Releases:
    """The releases that a store takes in."""

    store: SearchableStore

    def examine(
        self, folder: Path, corpus: str, checkpoint: CheckpointInfo | None, progress: ReleaseProgress
    ) -> ImportReport:
        """Reads all of a release and says what it is; stores nothing. Raises `InvalidRelease`.

        `checkpoint` is the one that made its keys; None where nobody knows.
        """
        release = Release(folder)
        examined, index = release.examined(progress.examined), SealedIndex(release.index)
        _require_fit(examined, index, checkpoint)
        _read_all(index, progress.read)
        keys = release.index_digest()
        with self.store.sessions() as session:
            begun = resumed.begun(session, release, examined, corpus)
            digest = maker = examined.order
            if begun is None:
                digest = examined.digest
                maker = hashlib.sha256(f"{digest} {keys}".encode()).hexdigest()
            made_by = checkpoint or CheckpointInfo(f"release-{maker[:16]}", folder.name, index.dim)
            there = StoredPieces.read(session, digest, corpus).upto
            require_one_index(session, digest, corpus, made_by.checkpoint_id, keys)
            if begun is not None:
                resumed.require_same_keys(session, begun, index, made_by.checkpoint_id)
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
        """Imports a release into a corpus; after a kill a second call goes on where the first was.

        Its keys go into the keyset of `checkpoint`, or of one of unknown name, which is ready then (active if none
        was). Raises `InvalidRelease` before anything is stored.
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

    @tried_again
    def _store_facts(self, facts: FactsOfRelease, first: int, piece: Sequence[ReleasedFact]) -> StoredPiece:
        with self.store.sessions.begin() as session:
            return facts.store(session, first, piece)

    @tried_again
    def _create(self, checkpoint: CheckpointInfo) -> int:
        with self.store.sessions.begin() as session:
            return keysets.create_keyset(session, checkpoint, None, self.store.settings.actor).keyset_id

    def _take_keys(
        self, index: SealedIndex, keys: KeysOfRelease, report: ImportReport, on_keys: OnDone | None
    ) -> ImportReport:
        with self.store.sessions() as session:
            stored, done = StoredPieces.read(session, report.digest, report.corpus), keys.read(session)
        for numbers, keys_ND in index.blocks(BLOCK, done):
            done += len(numbers)
            adopted = self._store_keys(keys, stored.fact_ids(numbers), keys_ND, done)
            report = replace(report, adopted=report.adopted + adopted)
            if on_keys is not None:
                on_keys(done, report.entries)
        if report.adopted:
            with self.store.sessions.begin() as session:
                keysets.analyze(session, keys.keyset_id)
        return report

    @tried_again
    def _store_keys(self, keys: KeysOfRelease, fact_ids: Ids, keys_ND: Vectors, upto: int) -> int:
        with self.store.sessions.begin() as session:
            return keys.store(session, fact_ids, keys_ND, upto)


def _require_fit(examined: Examined, index: SealedIndex, checkpoint: CheckpointInfo | None) -> None:
    if index.count != examined.num_facts:
        cause = f"{index.name} has {index.count:,} keys for {examined.num_facts:,} entries"
        raise InvalidRelease(cause, "The files must come from the same release.")
    if checkpoint is not None and checkpoint.dim != index.dim:
        cause = (
            f"its keys have {index.dim} numbers, and those of checkpoint {checkpoint.name!r} {checkpoint.dim}"
        )
        raise InvalidRelease(cause, "Name the checkpoint that made the keys, or none.")
    index.require_numbered()


def _read_all(index: SealedIndex, on_keys: OnDone | None) -> None:
    """Decodes every key and keeps none, so that an index that does not give all of them is refused beforehand."""
    done = 0
    for numbers, _ in index.blocks(BLOCK):
        done += len(numbers)
        if on_keys is not None:
            on_keys(done, index.count)
