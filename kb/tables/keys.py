"""The tables of checkpoints, keysets and keys, and of the outputs made with them."""

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
    func,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from colmlm.kb.tables.declarative import Content, Digest, Figures, Name, NameObject, TableRow, Word
from colmlm.kb.texts.asked import ANSWER_MODES

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
    # The same with what the release before does not know (`kb.keys.stored`).
    whole_index_fit: Mapped[Figures | None]
    whole_shared_snapshot: Mapped[NameObject | None]
    # The last key at a time when none was made of a question of a document's fact (`kb.keys.calibration`).
    no_question_keys_upto: Mapped[int | None]


class FactKeyRow(TableRow):
    """A unit vector of a fact, as little-endian fp16 bytes. `id` is the Faiss id, from one sequence and never reused.

    An "adopted" one was reconstructed from the codes of somebody's index, and is approximate.
    Writers draw from a plain sequence, since identity columns on partitioned tables need PostgreSQL 17.
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
    """An output. What quotes names the stretch of a document that it says; that row stays, whatever becomes of it.

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


class AttributionRow(TableRow):
    """One lookup of an output. It has no foreign key to the fact, since the record must outlive that.

    `query` is the query, as fp16 bytes in the space of the generation's checkpoint. The part is that of the value which
    the output says (null: all of it), and `quoted_start` to `quoted_end` is where the quoted document says it.
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
