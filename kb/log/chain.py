"""The chain of the change log: each entry holds the hash of the one before, which reveals altered and inserted entries.

An entry that does not fit is a break. The check goes on after it and compares each later entry with the one before as
that is stored. An operator who knows the cause of a break may seal it, by a change that states what was found and what
was expected. A sealed break is still reported, as known; any other fault, even in the same entry, is a new break.

Beside the log, the requests that were refused for who sent them are kept for auditors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from colmlm.kb.errors import refusals
from colmlm.kb.log import audit
from colmlm.kb.tables import ChangeRow, DenialRow, copy_columns

SEAL = "seal"
BLANKING = "erasure"  # in the payload of a seal: the change that blanked words of the sealed entries


@dataclass(frozen=True, slots=True)
class Break:
    """An entry that does not fit the one before it or its own hash.

    `causes` are among "gap" (another number was expected here), "prev_hash" (it names another entry's hash as the one
    before) and "hash" (its content has another hash than it states). Each figure found has its `expected` one. A hash
    that is too long to be one is given by its own SHA-256.
    """

    seq: int
    causes: tuple[str, ...]
    expected_seq: int
    prev_hash: str
    expected_prev_hash: str
    hash: str
    expected_hash: str
    sealed_by: int | None = None

    @property
    def first_seq(self) -> int:
        """The first change at fault: this one, or the first that is missing before it."""
        return min(self.seq, self.expected_seq) if "gap" in self.causes else self.seq

    def statement(self) -> dict[str, Any]:
        """Give the break as a seal states it, in JSON's own types."""
        said = {**asdict(self), "causes": list(self.causes)}
        del said["sealed_by"]
        return said


@dataclass(frozen=True, slots=True)
class CheckedChain:
    """The result of checking `checked` changes: the last one's `seq` and `hash`, open breaks and `sealed` ones."""

    checked: int
    seq: int
    hash: str
    breaks: tuple[Break, ...]
    sealed: tuple[Break, ...]

    @property
    def first_break(self) -> int | None:
        return self.breaks[0].first_seq if self.breaks else None


@dataclass(slots=True)
class Chain:
    """Checks the entries of a log one after the other."""

    checked: int = 0
    seq: int = 0
    hash: str = audit.GENESIS
    _breaks: list[Break] = field(default_factory=list)
    _seals: dict[int, list[tuple[int, Any]]] = field(default_factory=dict)

    def take(self, entry: Mapping[str, Any], hash_: str) -> Break | None:
        """Check the next entry and its stored hash against those before; give its break, or None if it fits."""
        computed = audit.entry_hash(entry)
        expected = {
            "gap": (entry["seq"], self.seq + 1),
            "prev_hash": (entry["prev_hash"], self.hash),
            "hash": (hash_, computed),
        }
        causes = tuple(cause for cause, (found, wanted) in expected.items() if found != wanted)
        found = None
        if causes:
            found = Break(
                entry["seq"],
                causes,
                self.seq + 1,
                _short(entry["prev_hash"]),
                _short(self.hash),
                _short(hash_),
                computed,
            )
            self._breaks.append(found)
        elif entry["kind"] == SEAL:
            self._note(entry["seq"], entry["payload"])
        self.checked, self.seq, self.hash = self.checked + 1, entry["seq"], hash_
        return found

    def _note(self, seq: int, payload: Any) -> None:
        said = payload.get("breaks") if isinstance(payload, dict) else None
        for one in said if isinstance(said, list) else ():
            if isinstance(one, dict) and isinstance(one.get("seq"), int):
                self._seals.setdefault(one["seq"], []).append((seq, one))

    def end(self) -> CheckedChain:
        """Give the result of the check, after all entries."""
        looked_up = [self._sealed_break(found) for found in self._breaks]
        return CheckedChain(
            self.checked,
            self.seq,
            self.hash,
            tuple(found for found in looked_up if found.sealed_by is None),
            tuple(found for found in looked_up if found.sealed_by is not None),
        )

    def _sealed_break(self, found: Break) -> Break:
        """Give the break with the number of the first later change that seals exactly it."""
        said = found.statement()
        by = next(
            (seq for seq, one in self._seals.get(found.seq, ()) if seq > found.seq and one == said), None
        )
        return Break(**{**said, "causes": found.causes, "sealed_by": by})


def _short(hash_: str) -> str:
    return hash_ if len(hash_) <= 64 else f"sha256:{hashlib.sha256(hash_.encode()).hexdigest()}"


def verify_chain(session: Session) -> CheckedChain:
    """Check the whole log of this database."""
    chain = Chain()
    for change in read_changes(session):
        chain.take(audit.canonical_entry(change), change.hash)
    return chain.end()


def read_changes(session: Session) -> Iterator[ChangeRow]:
    """Yield every change, oldest first, and keep none in memory."""
    statement = select(ChangeRow).order_by(ChangeRow.seq).execution_options(yield_per=1000)
    with closing(session.scalars(statement)) as log:  # closed also where a reader stops in the middle
        for change in log:
            yield change
            session.expunge(change)


@dataclass(frozen=True, slots=True)
class Sealed:
    """A change that acknowledged breaks of the log."""

    seq: int
    breaks: tuple[Break, ...]


def seal_breaks(
    session: Session, seqs: Sequence[int], actor: str, reason: str, *, erasure: int | None = None
) -> Sealed:
    """Append a change that acknowledges the breaks at these changes, all or none. Does not commit.

    `erasure` is the change that blanked words in these entries, where that broke them.
    Raises `NoOpenBreak` where one of them fits, does not exist, or is sealed already.
    """
    pending = audit.begin_change(session, actor, reason)
    open_breaks = {found.seq: found for found in verify_chain(session).breaks}
    if others := sorted(set(seqs) - set(open_breaks)):
        raise refusals.no_open_break(others)
    breaks = tuple(open_breaks[seq] for seq in sorted(set(seqs)))
    payload: dict[str, Any] = {"breaks": [found.statement() for found in breaks]}
    if erasure is not None:
        payload[BLANKING] = erasure
    seq = audit.append_change(session, pending, SEAL, payload=payload)
    return Sealed(seq, tuple(replace(found, sealed_by=seq) for found in breaks))


KEPT = timedelta(days=90)
MAX_PATH = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDenial:
    """A denial to record. `actor` is the name of the token, None where none was valid; `cause` names the refusal.

    `path` is the template of the route, or "unrouted" where none was reached: a path itself may hold a text.

    `num_unrecorded` counts the denials since the last recorded one, since a flood of them is only counted.
    """

    request_id: str
    actor: str | None
    method: str
    path: str
    status: int
    cause: str
    num_unrecorded: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DenialRecord(NewDenial):
    denial_id: int
    at: datetime


def record_denial(session: Session, denial: NewDenial) -> None:
    """Record a denial, and delete those older than `KEPT`."""
    session.execute(delete(DenialRow).where(DenialRow.at < func.now() - KEPT))
    session.add(DenialRow(**asdict(denial) | {"method": _clean(denial.method), "path": _clean(denial.path)}))


def list_denials(session: Session, *, after: int = 0, limit: int = 100) -> list[DenialRecord]:
    """List denials, newest first; with `after` only those with a smaller id."""
    statement = select(DenialRow).order_by(DenialRow.id.desc()).limit(limit)
    if after:
        statement = statement.where(DenialRow.id < after)
    return [copy_columns(DenialRecord, row, denial_id=row.id) for row in session.scalars(statement)]


def _clean(text: str) -> str:
    """Give the start of a stranger's text, with "?" for characters that would act on a log or a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text[:MAX_PATH])
