"""Keysets: each holds all keys that one checkpoint made, in a partition of its own; one of them is active.

building -> ready (every live fact was keyed once) -> active <-> ready -> retired (its partition is dropped)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import Row, Select, and_, case, exists, false, func, insert, select, text, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.orm import Session

from colmlm.kb.corpus.training_record import RECORDED
from colmlm.kb.errors import InvalidValue, NoActiveKeyset, refusals
from colmlm.kb.facts.edits import IS_LIVE, is_kept
from colmlm.kb.keys import records
from colmlm.kb.keys.calibration import Calibration
from colmlm.kb.keys.records import CheckpointInfo, IndexFit, KeysetHead
from colmlm.kb.log import audit
from colmlm.kb.tables import (
    ChangeRow,
    CheckpointRow,
    DocumentRow,
    FactKeyRow,
    FactRow,
    FactVersionRow,
    KeysetRow,
    copy_columns,
)

DEFAULT_THRESHOLD = 0.7  # the paper's threshold, until the keyset is calibrated
STORED = np.dtype("<f2")

_COLUMNS = (
    KeysetRow.id.label("keyset_id"),
    KeysetRow.checkpoint_id,
    CheckpointRow.name.label("checkpoint_name"),
    CheckpointRow.dim,
    KeysetRow.index_spec,
    KeysetRow.threshold,
    KeysetRow.calibrated,
    KeysetRow.state,
    KeysetRow.applied_seq,
    KeysetRow.accepted_only,
    KeysetRow.index_fit,
    KeysetRow.whole_index_fit,
)
HEADS: Select[*tuple[Any, ...]] = select(*_COLUMNS).join(
    CheckpointRow, CheckpointRow.id == KeysetRow.checkpoint_id
)

Ids = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]

AUTO_SPEC = "auto"  # the spec is chosen by the number of keys whenever the index is built


def create_keyset(
    session: Session, checkpoint: CheckpointInfo, index_spec: str | None, actor: str
) -> KeysetHead:
    """Give the checkpoint's keyset: the one in use, or a new empty one with the `accepted_only` of the active keyset.

    Otherwise a retrained checkpoint's keyset would let proposed facts answer, although somebody had excluded them.
    """
    if not 0 < checkpoint.dim <= 16_384:
        raise InvalidValue("key width", f"{checkpoint.dim} is not between 1 and 16384")
    # Locks the log, which also keeps two creators apart.
    pending = audit.begin_change(session, actor, "keyset")
    register = upsert(CheckpointRow).values(
        id=checkpoint.checkpoint_id,
        name=checkpoint.name,
        dim=checkpoint.dim,
        path=checkpoint.path,
        tokenizer_hash=checkpoint.tokenizer_hash,
        trained_on=checkpoint.trained_on,
    )
    # A relative path is of one working directory, so the first absolute one takes its place; the first record, too.
    is_nowhere = CheckpointRow.path.is_(None) | CheckpointRow.path.not_like("/%")
    is_unrecorded = CheckpointRow.trained_on.is_(None) | CheckpointRow.trained_on.not_like(f"{RECORDED}%")
    session.execute(
        register.on_conflict_do_update(
            index_elements=[CheckpointRow.id],
            set_={
                "path": case((is_nowhere, register.excluded.path), else_=CheckpointRow.path),
                "trained_on": case(
                    (is_unrecorded, func.coalesce(register.excluded.trained_on, CheckpointRow.trained_on)),
                    else_=CheckpointRow.trained_on,
                ),
            },
            where=is_nowhere | is_unrecorded,
        )
    )
    in_use = select(KeysetRow.id).where(
        KeysetRow.checkpoint_id == checkpoint.checkpoint_id, KeysetRow.state != "retired"
    )
    if (found := session.scalar(in_use)) is not None:
        return keyset_head(session, found)
    limit = select(KeysetRow.accepted_only).where(KeysetRow.state == "active").scalar_subquery()
    keyset_id = session.scalars(
        insert(KeysetRow)
        .values(
            checkpoint_id=checkpoint.checkpoint_id,
            index_spec=index_spec or AUTO_SPEC,
            threshold=DEFAULT_THRESHOLD,
            calibrated=False,
            state="building",
            applied_seq=pending.seq - 1,
            accepted_only=func.coalesce(limit, false()),
        )
        .returning(KeysetRow.id)
    ).one()
    create_partition(session, keyset_id)
    return keyset_head(session, keyset_id)


def create_partition(session: Session, keyset_id: int) -> None:
    """Create the table of a keyset's keys. DDL takes no parameters; the id is an integer that the database made."""
    session.execute(
        text(f"CREATE TABLE {_partition(keyset_id)} PARTITION OF fact_key FOR VALUES IN ({keyset_id:d})")
    )


def _partition(keyset_id: int) -> str:
    return f"fact_key_{keyset_id:d}"


_HAS_GROWN = text("""
SELECT pg_relation_size(oid) > 2 * current_setting('block_size')::bigint * relpages FROM pg_class
WHERE oid = CAST(:name AS regclass)
""")


def analyze_keyset(session: Session, keyset_id: int) -> None:
    """Analyse the keyset's table, so that the planner knows its size now and not a minute later.

    With no statistics of a new table the planner reads all of it for every batch of a rekey.
    """
    session.execute(text(f"ANALYZE {_partition(keyset_id)}"))


def analyze_grown(session: Session, keyset_id: int) -> None:
    """Analyse the keyset's table if it has more than doubled since the last time.

    Each ANALYZE reads some 30,000 pages, too many for every small store.
    """
    if session.scalar(_HAS_GROWN, {"name": _partition(keyset_id)}):
        analyze_keyset(session, keyset_id)


def keyset_head(session: Session, keyset_id: int) -> KeysetHead:
    """Give a keyset, without counting its keys. Raises `KeysetNotFound`."""
    if (row := session.execute(HEADS.where(KeysetRow.id == keyset_id)).one_or_none()) is None:
        raise refusals.keyset_not_found(keyset_id)
    return KeysetHead(**head_fields(row))


def active_head(session: Session) -> KeysetHead:
    """Give the active keyset, without counting its keys. Raises `NoActiveKeyset`."""
    if (row := session.execute(HEADS.where(KeysetRow.state == "active")).one_or_none()) is None:
        raise NoActiveKeyset
    return KeysetHead(**head_fields(row))


def heads_in_use(session: Session) -> list[KeysetHead]:
    """Give the keysets that are not retired, by id."""
    rows = session.execute(HEADS.where(KeysetRow.state != "retired").order_by(KeysetRow.id))
    return [KeysetHead(**head_fields(row)) for row in rows]


def head_fields(row: Row[Any]) -> dict[str, Any]:
    """Give the fields of `KeysetHead` from a row of `HEADS`, with all further columns of the row."""
    named: dict[str, Any] = {**row._mapping}
    named["index_fit"] = records.read_stored(IndexFit, row.index_fit, named.pop("whole_index_fit"))
    return named


def require_answering(session: Session, keyset_id: int) -> None:
    """Raise `KeysetNotFound`, or `KeysetNotReady` where this keyset cannot answer lookups."""
    state = session.scalar(select(KeysetRow.state).where(KeysetRow.id == keyset_id))
    if state is None:
        raise refusals.keyset_not_found(keyset_id)
    if state not in ("ready", "active"):
        raise refusals.keyset_not_ready(keyset_id, state)


def ready_keyset_of(session: Session, checkpoint_id: str) -> int | None:
    """Give the keyset of a checkpoint that is ready and not active: it answered before, or may be activated next."""
    of_checkpoint = select(KeysetRow.id).where(KeysetRow.checkpoint_id == checkpoint_id)
    return session.scalar(of_checkpoint.where(KeysetRow.state == "ready"))


def answering_keyset_of(session: Session, checkpoint_id: str) -> int | None:
    """Give the keyset of a checkpoint that is active or ready."""
    of_checkpoint = select(KeysetRow.id).where(KeysetRow.checkpoint_id == checkpoint_id)
    return session.scalar(of_checkpoint.where(KeysetRow.state.in_(("active", "ready"))))


def retire_keyset(session: Session, keyset_id: int, actor: str, reason: str) -> None:
    """Drop this keyset's keys; its row stays, since stored outputs name it."""
    pending = audit.begin_change(session, actor, reason)
    keyset = keyset_head(session, keyset_id)
    if keyset.state == "active":
        raise refusals.keyset_active(keyset_id)
    if keyset.state != "retired":
        session.execute(text(f"DROP TABLE {_partition(keyset_id)}"))
        _set(session, keyset_id, state="retired")
        audit.append_change(session, pending, "retire", payload={"keyset": keyset_id})


def set_threshold(
    session: Session,
    keyset_id: int,
    threshold: float,
    actor: str,
    reason: str,
    *,
    measured: Calibration | None = None,
) -> None:
    """Set the score below which a lookup is no match. It applies to every later lookup, in every process.

    With `measured` the keyset counts as calibrated; without it the threshold was set by hand.
    """
    if not -1 <= threshold <= 1:
        raise InvalidValue("threshold", f"{threshold} is not a cosine, from -1 to 1")
    pending = audit.begin_change(session, actor, reason)
    keyset_head(session, keyset_id)
    is_measured = measured is not None
    _set(session, keyset_id, threshold=threshold, calibrated=is_measured)
    # Stored as text, since JSON may give a float back in another spelling, which would break the hash.
    payload = {"keyset": keyset_id, "threshold": repr(float(threshold)), "calibrated": is_measured}
    if measured is not None:
        payload["measured"] = {name: repr(value) for name, value in asdict(measured).items()}
    audit.append_change(session, pending, "threshold", payload=payload)


def is_threshold_chosen(session: Session, keyset_id: int) -> bool:
    """Say whether somebody measured or set this keyset's threshold; otherwise it is that of every new keyset."""
    chose = exists().where(
        ChangeRow.kind == "threshold", ChangeRow.payload["keyset"].as_integer() == keyset_id
    )
    return bool(session.scalar(select(chose)))


def note_snapshot(session: Session, keyset_id: int, applied_seq: int) -> None:
    """Store the last change that is in the newest snapshot of this keyset."""
    _set(session, keyset_id, applied_seq=applied_seq)


def note_fit(session: Session, keyset_id: int, fit: IndexFit) -> None:
    """Store the fit of a keyset's index: its specification, the lists a search reads, and the recall measured."""
    _set(session, keyset_id, index_fit=records.former_release_fields(fit), whole_index_fit=asdict(fit))


def note_gate(session: Session, keyset_id: int, gate: dict[str, Any] | None) -> None:
    """Store the newest report of this keyset's gate; None demands a new check."""
    _set(session, keyset_id, gate=gate)


def gate_of(session: Session, keyset_id: int) -> dict[str, Any] | None:
    """Give the newest report of this keyset's gate; None where it was never checked."""
    return session.scalar(select(KeysetRow.gate).where(KeysetRow.id == keyset_id))


def checkpoint_of(session: Session, keyset_id: int) -> CheckpointInfo:
    """Give the checkpoint that makes this keyset's keys. Raises `KeysetNotFound`."""
    checkpoint = session.scalar(
        select(CheckpointRow)
        .join(KeysetRow, KeysetRow.checkpoint_id == CheckpointRow.id)
        .where(KeysetRow.id == keyset_id)
    )
    if checkpoint is None:
        raise refusals.keyset_not_found(keyset_id)
    return copy_columns(CheckpointInfo, checkpoint, checkpoint_id=checkpoint.id)


def _set(session: Session, keyset_id: int, **values: Any) -> None:
    session.execute(update(KeysetRow).where(KeysetRow.id == keyset_id).values(**values))


def sample_keys(session: Session, keyset_id: int, dim: int, size: int, num_keys: int) -> Vectors:
    """Sample about `size` keys [n, d] by a hash of the id, so from all corpora; give all where there are fewer."""
    # The ids of two keysets may alternate, so choosing by the id itself, modulo something, would be no fair sample.
    spread = func.hashint8(FactKeyRow.id).op("&")(0x7FFFFFFF)
    statement = select(FactKeyRow.key).where(
        FactKeyRow.keyset_id == keyset_id,
        is_kept(FactKeyRow.fact_id),
        spread % max(1, num_keys // size) == 0,
    )
    return decode_keys(list(session.scalars(statement)), dim)


def decode_keys(keys: list[bytes], dim: int) -> Vectors:
    """Give stored keys exactly, as float32 [n, d]."""
    return np.frombuffer(b"".join(keys), dtype=STORED).reshape(-1, dim).astype(np.float32)


def active_keyset_id(session: Session) -> int | None:
    return session.scalar(select(KeysetRow.id).where(KeysetRow.state == "active"))


# Reads what keys are measured against: questions spread over the facts of a keyset, and its keys with their values.

_AT_ONCE = 20_000  # keys

_FACTS_WITH_QUESTION = text("""
SELECT f.id, f.question, v.value
FROM (
    SELECT f.id, row_number() OVER (ORDER BY f.id) - 1 AS place, count(*) OVER () AS number
    FROM fact_key k
    JOIN fact f ON f.id = k.fact_id AND f.question <> ''
    JOIN fact_version v ON v.fact_id = f.id AND v.to_seq IS NULL
    WHERE k.keyset_id = :keyset_id AND k.kind = 'context'
) AS keyed
JOIN fact f ON f.id = keyed.id
JOIN fact_version v ON v.fact_id = f.id AND v.to_seq IS NULL
WHERE keyed.place % greatest(1, ceil(keyed.number / CAST(:max_facts AS numeric))) = 0 ORDER BY f.id
""")
_KEYS = text("""
SELECT v.value, k.key FROM fact_key k JOIN fact_version v ON v.fact_id = k.fact_id AND v.to_seq IS NULL
WHERE k.keyset_id = :keyset_id AND k.kind = 'context'
""")


@dataclass(frozen=True, slots=True)
class AskedFact:
    """A live fact with the question that asks for it."""

    fact_id: int
    question: str
    value: str


def facts_with_question(session: Session, keyset_id: int, max_facts: int) -> list[AskedFact]:
    """Choose up to `max_facts` live facts that have a question and a context key, spread evenly by id."""
    return [
        AskedFact(row.id, row.question, row.value)
        for row in session.execute(_FACTS_WITH_QUESTION, {"keyset_id": keyset_id, "max_facts": max_facts})
    ]


def valued_keys(session: Session, keyset_id: int, dim: int) -> Iterator[tuple[list[str], Vectors]]:
    """Read the context keys of live facts with their values, a batch at a time."""
    found = session.execute(_KEYS, {"keyset_id": keyset_id}, execution_options={"yield_per": _AT_ONCE})
    for rows in found.partitions():
        yield [row.value for row in rows], decode_keys([row.key for row in rows], dim)


def context_keys(session: Session, keyset_id: int, corpus: str | None) -> tuple[Ids, Vectors]:
    """Give fact ids [n] and context keys [n, d] of live facts, by fact id, all in memory."""
    dim = keyset_head(session, keyset_id).dim
    statement = (
        select(FactKeyRow.fact_id, FactKeyRow.key)
        .join(FactVersionRow, and_(FactVersionRow.fact_id == FactKeyRow.fact_id, IS_LIVE))
        .where(FactKeyRow.keyset_id == keyset_id, FactKeyRow.kind == "context")
        .order_by(FactKeyRow.fact_id)
    )
    if corpus is not None:
        statement = statement.join(FactRow, FactRow.id == FactKeyRow.fact_id).join(
            DocumentRow, DocumentRow.id == FactRow.document_id
        )
        statement = statement.where(DocumentRow.corpus == corpus)
    rows = session.execute(statement).all()
    return np.array([row.fact_id for row in rows], dtype=np.int64), decode_keys(
        [row.key for row in rows], dim
    )
