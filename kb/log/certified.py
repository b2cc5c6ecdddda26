"""What all certificates have in common: their text, and the checks that their changes are in the log of a base."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from colmlm.kb.log import audit
from colmlm.kb.tables import ChangeRow

MAX_ID = 2**63 - 1
Said = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CertificateFinding:
    """The outcome of one part of a check. `found` says in words what was found, or what is wrong."""

    name: str
    ok: bool
    found: str


@dataclass(frozen=True, slots=True)
class Certified:
    """How certificates of one kind are checked.

    `holds` tells for each part of one whether it agrees with the others, and `borne_out` compares it with a base.
    `summary` is what a check repeats of it. The rest says what a check proves, and what it does not.
    """

    holds: Callable[[Said], dict[str, bool]]
    borne_out: Callable[[Session, Said], Iterator[CertificateFinding]]
    summary: Callable[[Said], dict[str, Any]]
    proves: tuple[str, ...]
    proves_here: tuple[str, ...]
    does_not_prove: tuple[str, ...]
    not_offline: tuple[str, ...]


def as_text(signed: Mapping[str, Any]) -> str:
    """Writes a certificate in the only form that a check accepts."""
    return json.dumps(signed, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def subject_of(database: str, seq: int) -> str:
    """Gives the name of a change as the subject of a certificate."""
    return f"urn:colmlm:{database}:change:{seq}"


def is_of(session: Session, said: Said) -> CertificateFinding | None:
    """Gives what is wrong where a certificate is of another base than this."""
    database = audit.database_id(session)
    if said["database"] == database:
        return None
    return CertificateFinding("run", False, f"it is of database {said['database']}, this is {database}")


def kept_change(session: Session, seq: Any, hash_: str) -> CertificateFinding:
    """Says whether this base's log has the change with that hash, unaltered."""
    kept = session.get(ChangeRow, storable(seq))
    if kept is None or kept.hash != hash_:
        return CertificateFinding(
            "change", False, f"this base's log has no change {seq} with the hash that is said"
        )
    if audit.chain_hash(kept) != kept.hash:
        return CertificateFinding("change", False, f"change {seq} of this base's log was altered")
    return CertificateFinding("change", True, "this base's log has the change with that hash")


def storable(value: Any) -> int:
    """Gives the value as an id that the database can store. Raises `ValueError` where it is none."""
    if type(value) is not int or not 0 < value <= MAX_ID:
        raise ValueError(f"{value!r:.40} is no id")
    return value
