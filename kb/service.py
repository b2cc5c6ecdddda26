"""KnowledgeBase: the verbs that the command line and the API share. One verb is one transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from copy import copy
from types import TracebackType
from typing import Self

from sqlalchemy import Engine
from sqlalchemy.orm import sessionmaker

from colmlm.kb.corpus.format import AnnotatedDocument, Parsed
from colmlm.kb.evidence import attribution
from colmlm.kb.facts import edits as facts
from colmlm.kb.facts import reading
from colmlm.kb.facts.export import export
from colmlm.kb.facts.ingest import COMMIT_EVERY, Ingest
from colmlm.kb.keys import activation, keysets
from colmlm.kb.keys.calibration import Calibration
from colmlm.kb.keys.keysets import Ids, Vectors
from colmlm.kb.keys.rekey import Encoder, Rekey
from colmlm.kb.log import audit
from colmlm.kb.lookup.searchable import SearchableStore
from colmlm.kb.records import (
    ChangeRecord,
    CheckpointInfo,
    CorpusStats,
    Edit,
    FactDraft,
    FactRecord,
    FactTrace,
    FsckReport,
    GenerationRecord,
    IngestReport,
    KeysetRecord,
    NewGeneration,
    OutputTrace,
)
from colmlm.kb.store import database
from colmlm.kb.store.contention import tried_again
from colmlm.kb.store.settings import Settings
from colmlm.kb.store.waits import Waits
from colmlm.kb.upkeep.fsck import fsck


class KnowledgeBase(SearchableStore):
    """Facts, their keys, their history. Safe to share between threads; several processes may open one base."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        super().__init__(settings, engine)
        self.pools = {"upkeep": engine, "lookups": self.searcher.reader}
        self._opened = [engine, self.searcher.reader]

    @classmethod
    def open(cls, settings: Settings, application: str = "colmlm") -> KnowledgeBase:
        """Start or join the database of `settings`, which knows this program by the name `application`.

        Raises `DatabaseUnavailable` or `MigrationNeeded`.
        """
        engine = database.connect(settings, application)
        try:
            database.require_head(engine)
        except BaseException:
            engine.dispose()
            raise
        return cls(settings, engine)

    def beside(self, pool: str, waits: Waits, connections: int) -> KnowledgeBase:
        """This knowledge base on connections of its own, which wait and run so long at most; closed with this one.

        Lookups are the same: one index a process.
        """
        other = copy(self)
        other.engine = database.beside(self.engine, f"colmlm {pool}", waits, connections)
        other.sessions = sessionmaker(other.engine, expire_on_commit=False)
        self.pools[pool] = other.engine
        self._opened.append(other.engine)
        return other

    def close(self) -> None:
        for engine in self._opened:
            engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Documents and facts

    def ingest(
        self,
        parsed: Iterable[Parsed],
        corpus: str,
        *,
        actor: str,
        reason: str,
        on_document: Callable[[int], None] | None = None,
        on_piece: Callable[[IngestReport], None] | None = None,
        commit_every: int | None = None,
        dry_run: bool = False,
        allow_erased: bool = False,
    ) -> IngestReport:
        """Take the sound documents into a corpus, so many in one transaction and change: these, or (on kill -9) none.

        `on_piece` hears what is committed so far; calling again with the same documents goes on from there. What was
        erased stays out, unless `allow_erased`.
        """
        every = commit_every or COMMIT_EVERY
        run = Ingest(self.sessions, corpus, actor, reason, every, dry_run, allow_erased)
        return run.run(parsed, on_document, on_piece)

    def export(self, corpus: str, *, live_only: bool = True) -> Iterator[AnnotatedDocument]:
        """The corpus as documents, from one snapshot of the database: with the live facts their texts still say, or
        (not `live_only`) with every fact and what became of it, as an ingest takes it back."""
        with self.sessions() as session:
            reading.require_corpus(session, corpus)
        return self._export(corpus, live_only)

    def _export(self, corpus: str, live_only: bool) -> Iterator[AnnotatedDocument]:
        with self.sessions() as session:
            yield from export(session, corpus, live_only=live_only)

    @tried_again
    def insert(
        self,
        question: str,
        value: str,
        *,
        answer: str | None = None,
        actor: str,
        reason: str,
        allow_erased: bool = False,
    ) -> Edit:
        """Add a fact that no document says. Lookups find it once a rekey has given it a key.

        Raises `FactSuppressed` where this question and value were erased, unless `allow_erased`.
        """
        with self.sessions.begin() as session:
            draft = FactDraft(question, value, answer)
            return facts.insert_facts(session, [draft], actor, reason, allow_erased=allow_erased)

    @tried_again
    def update(self, fact_id: int, value: str, *, actor: str, reason: str) -> Edit:
        """Correct a fact's value; at commit every process answers with it."""
        with self.sessions.begin() as session:
            return facts.update_facts(session, {fact_id: value}, actor, reason)

    @tried_again
    def delete(self, fact_ids: Sequence[int], *, actor: str, reason: str, abstain: bool = False) -> Edit:
        """Delete facts, all or none; at commit no process answers with them.

        With `abstain` a query that points at one of them gets no match instead of the runner-up.
        """
        with self.sessions.begin() as session:
            return facts.delete_facts(session, fact_ids, actor, reason, abstain=abstain)

    @tried_again
    def restore(self, fact_ids: Sequence[int], *, actor: str, reason: str) -> Edit:
        """Undo the delete of facts, all or none."""
        with self.sessions.begin() as session:
            return facts.restore_facts(session, fact_ids, actor, reason)

    def fact(self, fact_id: int) -> FactRecord:
        with self.sessions() as session:
            return reading.get_fact(session, fact_id)

    def facts(
        self,
        *,
        corpus: str | None = None,
        document_id: int | None = None,
        text: str | None = None,
        deleted: bool | None = False,
        after: int = 0,
        limit: int = 50,
    ) -> list[FactRecord]:
        """Facts past id `after`, by id. `deleted=None` gives both; `text` is sought in value and question as it is."""
        with self.sessions() as session:
            return reading.list_facts(session, corpus, text, deleted, after, limit, document_id)

    def document_text(self, document_id: int) -> str:
        with self.sessions() as session:
            return reading.document_text(session, document_id)

    def corpora(self) -> list[CorpusStats]:
        with self.sessions() as session:
            return reading.corpora(session)

    # The change log

    def changes(self, after: int = 0, limit: int = 100) -> list[ChangeRecord]:
        """Changes past `after`, oldest first."""
        with self.sessions() as session:
            return audit.changes(session, after, limit)

    def head_seq(self) -> int:
        with self.sessions() as session:
            return audit.head_seq(session)

    # Keysets

    @tried_again
    def create_keyset(self, checkpoint: CheckpointInfo, index_spec: str | None = None) -> KeysetRecord:
        """Register a checkpoint and give its keyset: the one it has, unless that is retired, or a new one."""
        with self.sessions.begin() as session:
            return keysets.create_keyset(session, checkpoint, index_spec, self.settings.actor)

    def keysets(self) -> list[KeysetRecord]:
        with self.sessions() as session:
            return keysets.list_keysets(session)

    def active_keyset(self) -> KeysetRecord:
        with self.sessions() as session:
            return keysets.active_keyset(session)

    @tried_again
    def retire(self, keyset_id: int) -> KeysetRecord:
        """Drop a keyset's keys for good. Raises `KeysetActive`."""
        with self.sessions.begin() as session:
            return keysets.retire(session, keyset_id, self.settings.actor, "retire")

    @tried_again
    def calibrate(self, keyset_id: int, measured: Calibration) -> KeysetRecord:
        """Give a keyset the threshold that was measured for it: below this score a lookup is no match."""
        with self.sessions.begin() as session:
            actor, threshold = self.settings.actor, measured.threshold
            return keysets.set_threshold(
                session, keyset_id, threshold, actor, "calibrated", measured=measured
            )

    @tried_again
    def set_threshold(self, keyset_id: int, threshold: float) -> KeysetRecord:
        """Set a keyset's threshold by hand; it is not calibrated then."""
        with self.sessions.begin() as session:
            return keysets.set_threshold(session, keyset_id, threshold, self.settings.actor, "set by hand")

    def has_threshold(self, keyset_id: int) -> bool:
        """Whether a keyset's threshold was measured or set by hand, and so is not to be chosen unasked."""
        with self.sessions() as session:
            return keysets.is_threshold_chosen(session, keyset_id)

    def rekey(
        self,
        encoder: Encoder,
        *,
        corpus: str | None = None,
        batch: int = 64,
        on_facts: Callable[[int, int], None] | None = None,
        kinds: Collection[str] = ("context",),
    ) -> KeysetRecord:
        """Give every live fact (of `corpus`) a key of the encoder's checkpoint; kill it and call again to resume.

        Several transactions: one a batch of documents, then the keyset is ready (active if none was)
        and its index lies on disk, so that activating it keeps no lookup waiting.
        `on_facts` hears (keyed, of how many). With "question" among the `kinds`, facts of documents get a second key
        from their question, in this keyset from now on.
        """
        if corpus is not None:
            with self.sessions() as session:
                reading.require_corpus(session, corpus)
        keyset = self.create_keyset(encoder.checkpoint)
        actor = self.settings.actor
        Rekey(self.sessions, encoder, keyset.keyset_id, actor, corpus, batch, on_facts, kinds).run()
        with self.sessions.begin() as session:
            keyset = activation.finish_building(session, keyset.keyset_id, self.settings.actor)
        self.searcher.prepare(keyset.keyset_id)
        return self._keyset(keyset.keyset_id)

    def _keyset(self, keyset_id: int) -> KeysetRecord:
        with self.sessions() as session:
            return keysets.get_keyset(session, keyset_id)

    def keys(self, keyset_id: int, *, corpus: str | None = None) -> tuple[Ids, Vectors]:
        """Fact ids [n] and context keys [n, d] of live facts, by fact id."""
        with self.sessions() as session:
            return keysets.context_keys(session, keyset_id, corpus)

    # Attribution

    @tried_again
    def record(self, generation: NewGeneration) -> int:
        """Store an output with its splices and give its id."""
        with self.sessions.begin() as session:
            return attribution.record(session, generation)

    def trace_output(self, generation_id: int) -> OutputTrace:
        with self.sessions() as session:
            return attribution.trace_output(session, generation_id)

    def trace_fact(self, fact_id: int) -> FactTrace:
        with self.sessions() as session:
            return attribution.trace_fact(session, fact_id)

    def generations(self, after: int = 0, limit: int = 50) -> list[GenerationRecord]:
        """Stored outputs, newest first; `after` an id gives those older than it."""
        with self.sessions() as session:
            return attribution.generations(session, after, limit)

    def fsck(self) -> FsckReport:
        """Compare facts, keys, index, texts and log, and change nothing."""
        with self.sessions() as session:
            return fsck(session, self.settings.index_directory)
