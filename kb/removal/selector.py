"""Selectors: choose the facts to forget by what they have in common. Parts are joined by *and*.

A selector is stored with its run as JSON, so that auditors see what was asked for, and not only what it matched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, Self

from sqlalchemy import and_, exists, func, select
from sqlalchemy.orm import Session

from colmlm.kb.errors import FactNotFound, refusals
from colmlm.kb.facts.edits import IS_LIVE, MAX_ID
from colmlm.kb.facts.reading import text_condition
from colmlm.kb.keys import keysets
from colmlm.kb.keys.keyspace import KeySpace
from colmlm.kb.keys.records import KeysetHead
from colmlm.kb.tables import ChangeRow, DocumentRow, FactRow, FactVersionRow

_TIMES = ("since", "until")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """A choice of facts: those that match every part given.

    `document` is an id or "corpus/external_id". `text` is searched for in value and question, literally and in either
    case; `question` is the exact text. `first_seq`, `last_seq`, `since` and `until` (not before, not after) bound
    the change that created the fact. `like` is a fact that others must resemble: the cosine of their keys is at
    least `radius` (None: the keyset's threshold). `everything` says that giving no part at all is meant.
    """

    fact_ids: tuple[int, ...] = ()
    document: str | None = None
    corpus: str | None = None
    uri: str | None = None
    uri_prefix: str | None = None
    text: str | None = None
    question: str | None = None
    licence: str | None = None
    first_seq: int | None = None
    last_seq: int | None = None
    since: datetime | None = None
    until: datetime | None = None
    like: int | None = None
    radius: float | None = None
    everything: bool = False

    def __post_init__(self) -> None:
        for name in _TIMES:
            if (at := getattr(self, name)) is not None:
                _check_time(name, at)
        for name in ("document", "corpus", "uri", "uri_prefix", "text", "question", "licence"):
            if (said := getattr(self, name)) is not None and (not said or "\x00" in said):
                raise refusals.invalid_selector(
                    f"{name} is empty or holds a NUL character. Give it a text, or leave it out"
                )
        for name in ("like", "first_seq", "last_seq"):
            if not 0 <= (getattr(self, name) or 0) <= MAX_ID:
                raise refusals.invalid_selector(
                    f"{name} {getattr(self, name)} is not an id. Give a number from 0 to {MAX_ID}"
                )
        if self.radius is not None and not (self.like is not None and -1 <= self.radius <= 1):
            raise refusals.invalid_selector(
                f"a radius, {self.radius:g}, goes with a fact to be like, and is from -1 to 1. Give both"
            )
        if self.everything and self.parts != ("everything",):
            raise refusals.invalid_selector(
                "everything cannot be combined with other parts. Leave it or them out"
            )
        if not self.parts:
            raise refusals.invalid_selector(
                "it is empty and would select every fact. To select them all, say everything"
            )

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the parts that this selector has."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) not in (None, (), False))

    def to_json(self) -> dict[str, Any]:
        """Give the parts that are given as JSON, from which `from_json` makes the selector again."""
        said = {name: getattr(self, name) for name in self.parts}
        for name in _TIMES:
            if name in said:
                said[name] = said[name].astimezone(UTC).isoformat()
        return {**said, "fact_ids": list(self.fact_ids)} if self.fact_ids else said

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Self:
        if unknown := set(said) - {f.name for f in fields(cls)}:
            raise refusals.invalid_selector(f"it has no part {', '.join(sorted(unknown))}. Leave it out")
        times = {name: datetime.fromisoformat(said[name]) for name in _TIMES if said.get(name)}
        return cls(**{**said, **times, "fact_ids": tuple(said.get("fact_ids") or ())})


def _check_time(name: str, at: datetime) -> None:
    if at.tzinfo is None:
        raise refusals.invalid_selector(
            f"{name} {at.isoformat()} has no time zone. Add one, as in {at.isoformat()}Z"
        )
    try:
        at.astimezone(UTC)
    except OverflowError as error:
        raise refusals.invalid_selector(
            f"{name} is beyond the years 1 to 9999. Give a time within them"
        ) from error


def select_facts(
    session: Session, selector: Selector, *, keyset: KeysetHead | None = None, allow_empty: bool = False
) -> list[int]:
    """Give the ids of the live facts that match, in order. Raises `NothingSelected` if none does, unless `allow_empty`.

    Raises `FactNotFound` for an id that no fact ever had, so that a typing error does not pass for a deleted fact.
    `like` compares keys of this keyset, by default the active one.
    """
    if selector.fact_ids:
        _require_known(session, selector.fact_ids)
    statement = (
        select(FactRow.id)
        .join(FactVersionRow, and_(FactVersionRow.fact_id == FactRow.id, IS_LIVE))
        .outerjoin(DocumentRow, DocumentRow.id == FactRow.document_id)
        .outerjoin(ChangeRow, ChangeRow.seq == FactRow.created_seq)
        .where(*_selector_conditions(selector))
        .order_by(FactRow.id)
    )
    found = list(session.scalars(statement))
    if selector.like is not None:
        alike = _near_facts(session, keyset or keysets.active_head(session), selector.like, selector.radius)
        found = [fact_id for fact_id in found if fact_id in alike]
    if not found and not allow_empty:
        raise refusals.nothing_selected()
    return found


def _require_known(session: Session, fact_ids: tuple[int, ...]) -> None:
    storable = [fact_id for fact_id in fact_ids if 0 < fact_id <= MAX_ID]
    known = set(session.scalars(select(FactRow.id).where(FactRow.id == func.any(storable))))
    if missing := sorted(set(fact_ids) - known):
        raise FactNotFound(missing)


def _selector_conditions(selector: Selector) -> list[Any]:
    said = selector
    conditions: list[Any] = []
    if said.fact_ids:
        conditions.append(FactRow.id == func.any(list(said.fact_ids)))
    if said.document is not None:
        conditions.append(_document_condition(said.document))
    if said.text is not None:
        conditions.append(text_condition(said.text))
    if said.uri_prefix is not None:
        conditions.append(DocumentRow.uri.startswith(said.uri_prefix, autoescape=True))
    compared = (
        (said.corpus, DocumentRow.corpus.__eq__),
        (said.uri, DocumentRow.uri.__eq__),
        (said.licence, DocumentRow.licence.__eq__),
        (said.question, FactRow.question.__eq__),
        (said.first_seq, FactRow.created_seq.__ge__),
        (said.since, ChangeRow.at.__ge__),
        (said.last_seq, FactRow.created_seq.__le__),
        (said.until, ChangeRow.at.__le__),
    )
    return conditions + [compare(wanted) for wanted, compare in compared if wanted is not None]


def _document_condition(named: str) -> Any:
    if named.isdecimal() and len(named) < 20 and int(named) <= MAX_ID:
        return DocumentRow.id == int(named)
    corpus, slash, external_id = named.partition("/")
    if not slash:
        raise refusals.invalid_selector(
            f"document {named!r} is neither an id nor corpus/external_id. See `colmlm corpus documents`"
        )
    return and_(DocumentRow.corpus == corpus, DocumentRow.external_id == external_id)


def _near_facts(session: Session, keyset: KeysetHead, fact_id: int, radius: float | None) -> set[int]:
    """Give live facts with a key whose cosine with one of this fact is at least `radius`, also itself if it is live."""
    pattern = KeySpace.of_facts(session, keyset, [fact_id])
    if not len(pattern):
        if session.get(FactRow, fact_id) is None:
            raise refusals.invalid_selector(
                f"there is no fact {fact_id}. List facts with `colmlm facts list`"
            )
        fill = f"`colmlm keysets fill {keyset.keyset_id}`"
        if session.scalar(select(exists().where(FactVersionRow.fact_id == fact_id, IS_LIVE))):
            raise refusals.invalid_selector(
                f"fact {fact_id} has no key in keyset {keyset.keyset_id} yet. Make it with {fill}"
            )
        raise refusals.invalid_selector(
            f"fact {fact_id} is deleted and has no key in keyset {keyset.keyset_id}. Name a live fact with --like "
            f"(like), or run `colmlm facts restore {fact_id}` and {fill}"
        )
    live = KeySpace.live(session, keyset)
    near = live.are_within(pattern.vectors(), keyset.threshold if radius is None else radius)
    return set(live.fact_ids[near].tolist())
