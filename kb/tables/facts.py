"""The tables of documents, facts and their versions, of what was forgotten and erased, and of the change log.

With them go those of checkpoints, keysets and keys, and of the outputs made with them.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Float,
    ForeignKey,
    Identity,
    Index,
    Integer,
    Sequence,
    and_,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, REAL, TSVECTOR
from sqlalchemy.orm import Mapped, mapped_column

from colmlm.kb.tables.declarative import (
    Content,
    ContentObject,
    Digest,
    Figures,
    Name,
    NameObject,
    Names,
    TableRow,
    Word,
)
from colmlm.kb.texts.asked import ANSWER_MODES

forget_states = ("planned", "applied", "restored", "erased")
forget_policies = ("successor", "abstain")
review_states = ("proposed", "accepted", "rejected")


class DocumentRow(TableRow):
    """A text as ingested. A newer text under the same external id is a new row; the old one stays as evidence.

    `replaced_seq` is the change that replaced the document or took it out of use. `erased_seq` is the change that
    erased all of its text.
    """

    __tablename__ = "document"
    __table_args__ = (
        Index(
            "document_live_external_id_key",
            "corpus",
            "external_id",
            unique=True,
            postgresql_where=text("replaced_seq IS NULL"),
        ),
        Index("document_corpus_idx", "corpus", "id"),
        Index(
            "document_replaced_idx",
            "corpus",
            "external_id",
            "replaced_seq",
            postgresql_where=text("replaced_seq IS NOT NULL"),
        ),
    )

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    corpus: Mapped[Name]
    external_id: Mapped[Name]
    uri: Mapped[Name | None]
    title: Mapped[Name | None]
    licence: Mapped[Content | None]
    revision: Mapped[Content | None]
    sha256: Mapped[Digest]
    record_sha256: Mapped[Digest]
    text: Mapped[Content]
    ingested_at: Mapped[datetime] = mapped_column(server_default=func.now())
    replaced_seq: Mapped[int | None]
    erased_seq: Mapped[int | None]


class DocumentSeenRow(TableRow):
    """Record when a document was last found unchanged by an ingest or a sync; without a row, when it was ingested."""

    __tablename__ = "document_seen"

    document_id: Mapped[int] = mapped_column(ForeignKey("document.id"), primary_key=True, autoincrement=False)
    at: Mapped[datetime]


class SyncedFileRow(TableRow):
    """A file that a sync filled a corpus from, or a part of one while it is read: `kb.facts.corpora`."""

    __tablename__ = "synced_file"

    corpus: Mapped[Name] = mapped_column(primary_key=True)
    path: Mapped[Name] = mapped_column(primary_key=True)
    part: Mapped[int] = mapped_column(primary_key=True)
    digest: Mapped[Digest | None]
    documents: Mapped[Names]


class SyncedFolderRow(TableRow):
    """The folder that a corpus follows, by the paths that lead to it: `kb.facts.corpora`."""

    __tablename__ = "synced_folder"

    corpus: Mapped[Name] = mapped_column(primary_key=True)
    places: Mapped[Names]


class FactRow(TableRow):
    """A fact, with its question and place as they are now. The text of its span is the value of version `said_version`.

    Without a span it is a fact of a release (`kb.releases`): its document is a sample whose text is not here, and
    `ordinal` the fact's number in that sample. `frame` is a digest of the words around it in its sentence
    (`kb.texts.searched`), NULL until it is computed. `review_seq` is the change that last settled its review, `doubt`
    the code of the fault that the annotator's check found.
    """

    __tablename__ = "fact"
    __table_args__ = (
        CheckConstraint("document_id IS NOT NULL OR span_start IS NULL", name="span"),
        CheckConstraint("num_nonnulls(span_start, span_end) <> 1", name="ends"),
        CheckConstraint("span_start >= 0 AND span_start < span_end", name="order"),
        CheckConstraint("document_id IS NOT NULL OR question IS NOT NULL", name="keyable"),
        CheckConstraint(f"review IN {review_states}", name="review"),
        Index("fact_document_id_idx", "document_id", "ordinal"),
        Index("fact_created_seq_idx", "created_seq"),
        Index(
            "fact_inbox_idx",
            text("(doubt IS NULL)"),
            text("coalesce(document_id, 0)"),
            "id",
            postgresql_where=text("review = 'proposed' AND deleted_seq IS NULL"),
        ),
        Index("fact_reviewed_idx", "review", postgresql_where=text("review_seq IS NOT NULL")),
        Index("fact_question_words_idx", text("words_of(question)"), postgresql_using="gin"),
        Index(
            "fact_live_asked_idx",
            text("asked_as(question)"),
            "id",
            postgresql_where=text("question IS NOT NULL AND deleted_seq IS NULL"),
        ),
        Index("fact_frame_idx", "frame", "id", postgresql_where=text("frame <> 0 AND deleted_seq IS NULL")),
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    document_id: Mapped[int | None] = mapped_column(ForeignKey("document.id"))
    ordinal: Mapped[int] = mapped_column(Integer)
    span_start: Mapped[int | None] = mapped_column(Integer)
    span_end: Mapped[int | None] = mapped_column(Integer)
    question: Mapped[Content | None]
    answer: Mapped[Content | None]
    created_seq: Mapped[int]
    deleted_seq: Mapped[int | None]
    erased_seq: Mapped[int | None]
    said_version: Mapped[int] = mapped_column(Integer, server_default=text("1"))
    review: Mapped[Word] = mapped_column(server_default="accepted")
    review_seq: Mapped[int | None]
    doubt: Mapped[Word | None]
    frame: Mapped[int | None]


class FactVersionRow(TableRow):
    """A value, true from change `from_seq` until `to_seq` (exclusive; NULL: still true).

    Where both are the same it was never true in this base: the fact was ingested as already corrected or deleted.
    """

    __tablename__ = "fact_version"
    __table_args__ = (
        CheckConstraint("to_seq >= from_seq", name="range"),
        Index("fact_version_live_key", "fact_id", unique=True, postgresql_where=text("to_seq IS NULL")),
        Index("fact_version_ended_idx", "fact_id", postgresql_where=text("to_seq IS NOT NULL")),
        Index("fact_version_value_words_idx", text("words_of(value)"), postgresql_using="gin"),
    )

    fact_id: Mapped[int] = mapped_column(ForeignKey("fact.id"), primary_key=True)
    version: Mapped[int] = mapped_column(Integer, primary_key=True)
    value: Mapped[Content]
    from_seq: Mapped[int]
    to_seq: Mapped[int | None]


IS_SAID = and_(FactVersionRow.fact_id == FactRow.id, FactVersionRow.version == FactRow.said_version)


class FactPastRow(TableRow):
    """The question and the place that a fact had up to `version`, before an edit changed them.

    Those of version N are in the row with the lowest `version` from N on, or in the fact itself where there is none.
    """

    __tablename__ = "fact_past"

    fact_id: Mapped[int] = mapped_column(ForeignKey("fact.id"), primary_key=True)
    version: Mapped[int] = mapped_column(Integer, primary_key=True)
    question: Mapped[Content | None]
    answer: Mapped[Content | None]
    document_id: Mapped[int | None] = mapped_column(ForeignKey("document.id"))
    span_start: Mapped[int | None] = mapped_column(Integer)
    span_end: Mapped[int | None] = mapped_column(Integer)
    said_version: Mapped[int] = mapped_column(Integer)


class FactPairRow(TableRow):
    """Two live facts with the same question: duplicates (`same_value`), or a contradiction.

    Their questions have the same words, or their keys the cosine `score`. A `score` of 1 is also that of two facts
    whose sentences are the same apart from their values. The pair is valid as long as both have these versions.
    `given_seq` is the change that set the fact's value, and by change `held_seq` somebody said that both are right.
    """

    __tablename__ = "fact_pair"
    __table_args__ = (
        CheckConstraint("fact_id < other_id", name="order"),
        Index("fact_pair_facts_key", "fact_id", "other_id", unique=True),
        Index("fact_pair_other_id_idx", "other_id"),
        Index("fact_pair_corpus_idx", "corpus", "same_value"),
        Index("fact_pair_other_corpus_idx", "other_corpus", "same_value"),
        Index("fact_pair_open_idx", "same_value", "id", postgresql_where=text("held_seq IS NULL")),
    )

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    fact_id: Mapped[int] = mapped_column(ForeignKey("fact.id"))
    other_id: Mapped[int] = mapped_column(ForeignKey("fact.id"))
    version: Mapped[int] = mapped_column(Integer)
    other_version: Mapped[int] = mapped_column(Integer)
    given_seq: Mapped[int]
    other_given_seq: Mapped[int]
    corpus: Mapped[Name | None]
    other_corpus: Mapped[Name | None]
    same_value: Mapped[bool]
    score: Mapped[float | None] = mapped_column(REAL)
    found_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    held_seq: Mapped[int | None]


class SentenceRow(TableRow):
    """A sentence of a current document, or of a live fact without one: its place in that text, and its words.

    A reader reads from `read_from` on. `led_by` has the offsets of lines further up that lead it, a start and an end
    each: headings, the question of an FAQ, the lead-in of a list, the header of a table. From `own_start` to `own_end`
    is the sentence itself, from `passage_start` to `passage_end` what may be said with it. All of it follows from the
    text: `kb.facts.sentences` writes it, and triggers delete it where the text changes.
    """

    __tablename__ = "sentence"
    __table_args__ = (
        CheckConstraint("(document_id IS NULL) <> (fact_id IS NULL)", name="of_one"),
        CheckConstraint("span_start >= 0 AND span_start < span_end", name="order"),
        Index(
            "sentence_document_id_key",
            "document_id",
            "ordinal",
            unique=True,
            postgresql_where=text("document_id IS NOT NULL"),
        ),
        Index(
            "sentence_fact_id_key",
            "fact_id",
            "ordinal",
            unique=True,
            postgresql_where=text("fact_id IS NOT NULL"),
        ),
        Index("sentence_words_idx", "words", postgresql_using="gin"),
    )

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    document_id: Mapped[int | None] = mapped_column(ForeignKey("document.id"))
    fact_id: Mapped[int | None] = mapped_column(ForeignKey("fact.id"))
    ordinal: Mapped[int] = mapped_column(Integer)
    span_start: Mapped[int] = mapped_column(Integer)
    span_end: Mapped[int] = mapped_column(Integer)
    words: Mapped[str] = mapped_column(TSVECTOR)
    read_from: Mapped[int | None] = mapped_column(Integer)
    own_start: Mapped[int | None] = mapped_column(Integer)
    own_end: Mapped[int | None] = mapped_column(Integer)
    passage_start: Mapped[int | None] = mapped_column(Integer)
    passage_end: Mapped[int | None] = mapped_column(Integer)
    led_by: Mapped[list[int] | None] = mapped_column(ARRAY(Integer))


class SentenceVectorRow(TableRow):
    """The vector of a sentence by an encoder of sentences (`kb.lookup.searchable`). It is deleted with the sentence.

    It has a table of its own, since writing it into `sentence` would write the words of each anew into their index.
    """

    __tablename__ = "sentence_vector"

    sentence_id: Mapped[int] = mapped_column(ForeignKey("sentence.id", ondelete="CASCADE"), primary_key=True)
    encoder: Mapped[int] = mapped_column(Integer)
    vector: Mapped[bytes]


class ChangeRow(TableRow):
    """An entry of the append-only log, which `kb.log.audit` chains. Triggers refuse DELETE and TRUNCATE, and each
    UPDATE but one that puts redaction marks in place of characters of its texts.
    """

    __tablename__ = "change"
    __table_args__ = (Index("change_fact_ids_idx", "fact_ids", postgresql_using="gin"),)

    seq: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[Word]
    fact_ids: Mapped[list[int]]
    num_facts: Mapped[int]
    actor: Mapped[Name]
    reason: Mapped[Name]
    at: Mapped[datetime]
    prev_hash: Mapped[Digest]
    hash: Mapped[Digest]
    payload: Mapped[NameObject]


class CorpusReviewRow(TableRow):
    """Record whether lookups find only the accepted facts of a corpus, as change `seq` set it. Without a row they find
    all.
    """

    __tablename__ = "corpus_review"

    corpus: Mapped[Name] = mapped_column(primary_key=True)
    accepted_only: Mapped[bool]
    seq: Mapped[int]


class TombstoneRow(TableRow):
    """A deleted fact whose keys stay in the index on purpose: a query that points at it gets no match."""

    __tablename__ = "tombstone"

    fact_id: Mapped[int] = mapped_column(ForeignKey("fact.id"), primary_key=True, autoincrement=False)
    seq: Mapped[int]


class SuppressionRow(TableRow):
    """A keyed digest of an erased fact, so that an ingest does not bring it back unasked."""

    __tablename__ = "suppression"

    digest: Mapped[bytes] = mapped_column(primary_key=True)
    seq: Mapped[int]


class ErasedTextRow(TableRow):
    """A text of an erased fact as digests of its words, by which it is recognised where something still says it."""

    __tablename__ = "erased_text"
    __table_args__ = (Index("erased_text_seq_idx", "seq"),)

    fact_id: Mapped[int] = mapped_column(ForeignKey("fact.id"), primary_key=True, autoincrement=False)
    digest: Mapped[bytes] = mapped_column(primary_key=True)
    first_word: Mapped[bytes]
    num_words: Mapped[int] = mapped_column(Integer)
    seq: Mapped[int]
    at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    everywhere: Mapped[bool]


class ForgetRunRow(TableRow):
    """A set of facts chosen for forgetting: the plan, what was done, and the evidence that they were forgotten.

    `corpora` are those on which a scoped caller who planned it had rights (NULL: on all).
    """

    __tablename__ = "forget_run"
    __table_args__ = (
        CheckConstraint(f"state IN {forget_states}", name="state"),
        CheckConstraint(f"policy IN {forget_policies}", name="policy"),
    )

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    state: Mapped[Word]
    policy: Mapped[Word]
    selector: Mapped[ContentObject]
    fact_ids: Mapped[list[int]]
    plan: Mapped[ContentObject]
    verification: Mapped[ContentObject | None]
    certificate: Mapped[NameObject | None]
    planned_seq: Mapped[int]
    applied_seq: Mapped[int | None]
    restored_seq: Mapped[int | None]
    actor: Mapped[Name]
    reason: Mapped[Content]
    at: Mapped[datetime] = mapped_column(server_default=func.now())
    on_behalf_of: Mapped[Content | None]
    corpora: Mapped[Names | None]


class SecretRow(TableRow):
    """Random bytes of this database, made by the first migration, that key the digests in the change log."""

    __tablename__ = "secret"

    name: Mapped[Word] = mapped_column(primary_key=True)
    value: Mapped[bytes]


class SealingKeyRow(TableRow):
    """A seed of the tree that the keys of backups are derived from; `path` leads to it, a bit for each level.

    No stored seed is above another in the tree. Where texts are redacted, triggers destroy the seed of their key.
    Backups leave this table out: `kb.removal.sealing` writes it to a file of its own.
    """

    __tablename__ = "sealing_key"

    path: Mapped[Word] = mapped_column(primary_key=True)
    seed: Mapped[bytes]


KEY_IDS = "fact_key_id_seq"
ADOPTED = "adopted"
key_kinds = ("context", "question", "alias", ADOPTED)
keyset_states = ("building", "ready", "active", "retired")
answer_modes = ANSWER_MODES
_BOTH = "num_nonnulls({0}_start, {0}_end) IN (0, 2) AND {0}_start >= 0 AND {0}_start < {0}_end"


class CheckpointRow(TableRow):
    __tablename__ = "checkpoint"

    id: Mapped[Name] = mapped_column(primary_key=True)
    name: Mapped[Name]
    dim: Mapped[int] = mapped_column(Integer)
    path: Mapped[Name | None]
    tokenizer_hash: Mapped[Digest | None]
    trained_on: Mapped[Name | None]
    registered_at: Mapped[datetime] = mapped_column(server_default=func.now())


class KeysetRow(TableRow):
    __tablename__ = "keyset"
    __table_args__ = (
        CheckConstraint(f"state IN {keyset_states}", name="state"),
        Index("keyset_active_key", "state", unique=True, postgresql_where=text("state = 'active'")),
        Index(
            "keyset_checkpoint_id_key",
            "checkpoint_id",
            unique=True,
            postgresql_where=text("state <> 'retired'"),
        ),
    )

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    checkpoint_id: Mapped[Name] = mapped_column(ForeignKey("checkpoint.id"))
    index_spec: Mapped[Word]
    threshold: Mapped[float] = mapped_column(Float)
    calibrated: Mapped[bool]
    state: Mapped[Word]
    applied_seq: Mapped[int]
    gate: Mapped[NameObject | None]
    accepted_only: Mapped[bool] = mapped_column(server_default=text("false"))
    index_fit: Mapped[Figures | None]
    shared_snapshot: Mapped[NameObject | None]
    # The same with what the release before does not know (`kb.keys.records`).
    whole_index_fit: Mapped[Figures | None]
    whole_shared_snapshot: Mapped[NameObject | None]
    # The last key at a time when none was made of a question of a document's fact (`kb.keys.calibration`).
    no_question_keys_upto: Mapped[int | None]


class FactKeyRow(TableRow):
    """A unit vector of a fact, as little-endian fp16 bytes. `id` is the Faiss id, from one sequence and never reused.

    An "adopted" key was reconstructed from the codes of a release's index, and is approximate. Writers draw from a
    plain sequence, since identity columns on partitioned tables need PostgreSQL 17.
    """

    __tablename__ = "fact_key"
    __table_args__ = (
        CheckConstraint(f"kind IN {key_kinds}", name="kind"),
        Index(
            "fact_key_one_of_a_kind_key",
            "keyset_id",
            "fact_id",
            "kind",
            unique=True,
            postgresql_where=text("kind <> 'alias'"),
        ),
        Index("fact_key_fact_id_idx", "fact_id"),
        {"postgresql_partition_by": "LIST (keyset_id)"},
    )

    # It needs no foreign key, which every key would pay for: a partition exists only for a keyset that exists.
    keyset_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    id: Mapped[int] = mapped_column(
        Sequence(KEY_IDS, data_type=BigInteger, metadata=TableRow.metadata), primary_key=True
    )
    fact_id: Mapped[int] = mapped_column(ForeignKey("fact.id"))
    kind: Mapped[Word]
    key: Mapped[bytes]


class GenerationRow(TableRow):
    """An output. One that quotes a document has the offsets of the quote; rows of documents are never deleted.

    `checkpoint_id` is empty where nothing was encoded, as for an answer that was found by words alone.
    """

    __tablename__ = "generation"
    __table_args__ = (
        CheckConstraint(
            "num_nonnulls(document_id, quoted_start, quoted_end) IN (0, 3)"
            " AND quoted_start >= 0 AND quoted_start < quoted_end",
            name="quoted",
        ),
        CheckConstraint("ranking IN ('key', 'words', 'reader')", name="ranking"),
    )

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    prompt: Mapped[Content]
    output: Mapped[Content]
    checkpoint_id: Mapped[Name]
    keyset_id: Mapped[int | None]
    seq: Mapped[int]
    mode: Mapped[Word]
    at: Mapped[datetime] = mapped_column(server_default=func.now())
    redacted_seq: Mapped[int | None]
    document_id: Mapped[int | None]
    quoted_start: Mapped[int | None] = mapped_column(Integer)
    quoted_end: Mapped[int | None] = mapped_column(Integer)
    ranking: Mapped[Word] = mapped_column(server_default="key")
    accepted_only: Mapped[bool] = mapped_column(server_default=text("false"))
    corpora: Mapped[Names] = mapped_column(server_default=text("'{}'"))
    is_scoped: Mapped[bool] = mapped_column(
        server_default=text("false")
    )  # asked with a token of some corpora
    principal: Mapped[
        NameObject | None
    ]  # who was authenticated when it was asked for; None of outputs from before


class AttributionRow(TableRow):
    """One lookup of an output. It has no foreign key to the fact, since the record must outlive the fact.

    `query` is the query, as fp16 bytes in the space of the generation's checkpoint. `part_start` and `part_end` bound
    the part of the value that the output says (NULL: all), `quoted_start` and `quoted_end` its place in the document.
    """

    __tablename__ = "attribution"
    __table_args__ = (
        CheckConstraint("outcome IN ('hit', 'no_match', 'abstained')", name="outcome"),
        CheckConstraint(
            "(outcome = 'hit') = (fact_id IS NOT NULL AND fact_version IS NOT NULL)", name="evidence"
        ),
        CheckConstraint(_BOTH.format("part"), name="part"),
        CheckConstraint(_BOTH.format("quoted"), name="quoted"),
        Index("attribution_fact_id_idx", "fact_id"),
    )

    generation_id: Mapped[int] = mapped_column(
        ForeignKey("generation.id", ondelete="CASCADE"), primary_key=True
    )
    ordinal: Mapped[int] = mapped_column(Integer, primary_key=True)
    output_start: Mapped[int] = mapped_column(Integer)
    output_end: Mapped[int] = mapped_column(Integer)
    fact_id: Mapped[int | None]
    fact_version: Mapped[int | None] = mapped_column(Integer)
    score: Mapped[float | None] = mapped_column(Float)
    outcome: Mapped[Word]
    query: Mapped[bytes | None]
    part_start: Mapped[int | None] = mapped_column(Integer)
    part_end: Mapped[int | None] = mapped_column(Integer)
    quoted_start: Mapped[int | None] = mapped_column(Integer)
    quoted_end: Mapped[int | None] = mapped_column(Integer)
