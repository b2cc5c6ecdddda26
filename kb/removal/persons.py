"""A person: finds every place that names somebody, plans what to erase there, and blanks names in place.

Every column of texts of every table is searched (`kb.tables.declarative`). A fact that names the person is erased as a
whole. Elsewhere the name is blanked, and the rest of the text stays. Names of things, such as tokens and corpora, stay
and are reported, with what to do about them (`STAYING`).

A plan is signed by the base. It names places, with a digest of the value found there, and holds no text. So it can be
kept, and a place that was edited since is noticed. An entry of the log that is blanked has another hash than before:
the erasure appends a seal of that break, so that the chain tells which entries were blanked and by which change.

The functions take the session first and never commit.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy import Text, func, inspect, literal_column, or_, select, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Session

from colmlm.kb.errors import InvalidValue, SignatureRefused, describe_misread, refusals
from colmlm.kb.facts.records import NamedStretch, PersonFindings, PersonPlace, PersonReport
from colmlm.kb.facts.redaction import (
    FACT,
    MARK,
    BlankedStretch,
    NamePlace,
    held_documents,
    held_facts,
    place_name,
)
from colmlm.kb.log import audit, signing
from colmlm.kb.removal.quotations import row_classes, rows_of_places
from colmlm.kb.removal.scan import LEAST
from colmlm.kb.removal.traces import AROUND, Trace, as_one_text, strings_of_value
from colmlm.kb.store.waits import lift_statement_limit
from colmlm.kb.tables import (
    ERASED_BY_REDACTION,
    LEFT_BUT_NAMED,
    ChangeRow,
    DocumentRow,
    FactPastRow,
    FactRow,
    FactVersionRow,
    GenerationRow,
    JobRow,
    MissRow,
    SentenceRow,
    TableRow,
    columns_of,
)
from colmlm.kb.texts.names import NameSpan, PersonFinder

if TYPE_CHECKING:
    from colmlm.kb.store.store import Store

FORMAT = "colmlm-person-plan-1"
_MADE_HERE = "Make one here with `colmlm person find NAME --output FILE`."
DECISIONS = ("erase", "keep")
MOST_UNSURE = 1000  # places that are not sure, as a report lists them
_SHOWN = 40  # characters to either side of a name in a report
_DIGEST = 32  # hexadecimal digits

_FACTS = (FactRow, FactVersionRow, FactPastRow)
_NOUNS = {
    "change": "change of the log",
    "denial": "denied request",
    "erasure_request": "request to erase",
    "forget_run": "forget run",
    "generation": "output",
    "question": "kept question",
    "question_outcome": "outcome of a run of questions",
    "question_run": "run of questions",
    "question_set": "set of questions",
}
# What an erasure of a person leaves, and what to do about it, by table or by column.
STAYING = {
    "api_key": "It is the name of a token. Revoke the token, and make one with another name.",
    "browser_session": "It is a group of a person who signed in. It goes with the session.",
    "checkpoint": "It names a checkpoint. Register that under another name.",
    "idempotency": "It is the key of a request. It goes by itself after a day.",
    "synced_file": "It names a file of a folder. Rename the file, then run: colmlm corpus sync",
    "synced_folder": "It names a folder. Rename the folder, then run: colmlm corpus sync --move",
    "webhook": "It is the address of a webhook. Remove that, and add another one.",
    "corpus": "It names a corpus. Add its documents to one of another name, then erase this one.",
    "checkpoint_id": "It names a checkpoint.",
    "reader": "It names a reader.",
}
_STAYING_COLUMNS = {"corpora": "corpus", "other_corpus": "corpus"}
_UNFINISHED = "The job is not over. Cancel it or wait, then find the person again."


@dataclass(frozen=True, slots=True)
class PersonPlan:
    """The facts to erase and the places to blank for a person, in the base `database` as of change `seq`."""

    database: str
    seq: int
    at: str
    facts: tuple[NamePlace, ...]
    places: tuple[NamePlace, ...]

    @property
    def fact_ids(self) -> tuple[int, ...]:
        return tuple(one.row_id for one in self.facts)

    def to_json(self) -> dict[str, Any]:
        named = {name: [one.to_json() for one in getattr(self, name)] for name in ("facts", "places")}
        return {"format": FORMAT, "database": self.database, "seq": self.seq, "at": self.at, **named}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Read a plan that this base stored or signed. Raises `InvalidValue` for anything else."""
        try:
            if stored["format"] != FORMAT:
                raise ValueError(f"its format is {stored['format']!r}")
            named = (tuple(map(NamePlace.from_json, stored[name])) for name in ("facts", "places"))
            return cls(str(stored["database"]), int(stored["seq"]), str(stored["at"]), *named)
        except (LookupError, TypeError, ValueError) as error:
            cause = (
                f"`colmlm person find` did not write it ({describe_misread(error)}). {_MADE_HERE.rstrip('.')}"
            )
            raise InvalidValue("plan", cause) from error


# Finding: every column of every table is read, facts with all their versions.


@dataclass(slots=True)
class _NamedValue:
    """A column's value that names the person, or the texts of a fact, with the spans of the names in it."""

    place: NamePlace
    what: str
    treatment: str
    value: Any
    spans: list[tuple[int, NameSpan]]
    source: str = ""
    remedy: str = ""
    document_id: int | None = None

    def stretches(self, *, sure: bool) -> tuple[NamedStretch, ...]:
        texts = list(strings_of_value(self.value))
        return tuple(
            NamedStretch(
                part,
                span.start,
                span.end,
                texts[part][span.start : span.end],
                texts[part][max(0, span.start - _SHOWN) : span.start],
                texts[part][span.end : span.end + _SHOWN],
                span.doubt,
            )
            for part, span in self.spans
            if (span.doubt is None) is sure
        )

    def settle(self) -> None:
        self.spans = [(part, span._replace(doubt=None)) for part, span in self.spans]


def find_person(
    kb: Store, name: str, *, also: Sequence[str] = (), decide: Mapping[str, str] | None = None
) -> PersonFindings:
    """Find every place that names the person, and plan to erase what is sure. Changes nothing.

    `also` are other spellings and names of the person. `decide` says for the name of a place whether to "erase" unsure
    names there, too, or to "keep" the place. Raises `InvalidValue` for a blank name and for an unknown place.
    """
    for one in (name, *also):
        audit.check_name("name", one)
    finder, chosen = PersonFinder.of(name, also), dict(decide or {})
    if wrong := sorted(set(chosen.values()) - set(DECISIONS)):
        raise InvalidValue("decision", f"{wrong[0]!r} is not one of {', '.join(DECISIONS)}")
    key = signing.signing_key(kb.settings.home)
    with kb.sessions() as session:
        session.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
        lift_statement_limit(session)
        found = {one.place.name: one for one in _search(session, finder)}
        kept = {at for at, decision in chosen.items() if decision == "keep"}
        taken = chosen.keys() - kept
        for at in taken & found.keys():
            found[at].settle()
        _add_facts_within(session, found, kept)
        if unknown := sorted(chosen.keys() - found.keys()):
            raise InvalidValue("place", f"{unknown[0]!r} does not name the person. See `colmlm person find`")
        if fixed := [at for at in chosen if found[at].treatment == "stay"]:
            raise InvalidValue("place", f"{fixed[0]!r} stays: {found[fixed[0]].remedy}")
        for at in taken:
            found[at].settle()
        left = [one for at, one in found.items() if at not in kept]
        report = _report(session, name, also, left, sorted(kept))
        return PersonFindings(report, signing.sign_bytes(key, _plan(report, left).to_json()))


def _report(
    session: Session, name: str, also: Sequence[str], found: Sequence[_NamedValue], left_out: Sequence[str]
) -> PersonReport:
    of_facts = held_facts(session, [one.place.row_id for one in found if one.place.table == FACT])
    of_documents = held_documents(
        session, [one.place.row_id for one in found if one.place.table == "document"]
    )
    certain = {one.place.name for one in found if one.stretches(sure=True)}
    documents = {one.document_id for one in found if one.document_id and one.stretches(sure=True)}

    def place_of(one: _NamedValue, stretches: tuple[NamedStretch, ...]) -> PersonPlace:
        holds = {"fact": of_facts, "document": of_documents}.get(one.place.table, {})
        beside = one.place.name in certain or one.document_id in documents
        return PersonPlace(
            one.place.name, one.what, one.treatment, stretches, one.source, one.remedy,
            tuple(holds.get(one.place.row_id, ())), beside,
        )  # fmt: skip

    erasable = [one for one in found if one.treatment != "stay"]
    unsure = [place_of(one, said) for one in erasable if (said := one.stretches(sure=False))]
    unsure.sort(key=lambda one: not one.beside_sure)
    stays = [one for one in found if one.treatment == "stay"]
    return PersonReport(
        name=name,
        also=tuple(also),
        database=audit.database_id(session),
        seq=audit.head_seq(session),
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        sure=tuple(place_of(one, said) for one in erasable if (said := one.stretches(sure=True))),
        unsure=tuple(unsure[:MOST_UNSURE]),
        num_unsure=len(unsure),
        staying=tuple(place_of(one, said) for one in stays if (said := one.stretches(sure=True))),
        left_out=tuple(left_out),
    )


def _plan(report: PersonReport, found: Sequence[_NamedValue]) -> PersonPlan:
    chosen = [
        replace(
            one.place,
            stretches=tuple(
                BlankedStretch(part, span.start, span.end) for part, span in one.spans if span.doubt is None
            ),
        )
        for one in found
        if one.treatment != "stay" and one.stretches(sure=True)
    ]
    facts = tuple(sorted((one for one in chosen if one.table == FACT), key=lambda one: one.row_id))
    places = tuple(one for one in chosen if one.table != FACT)
    return PersonPlan(report.database, report.seq, report.at, facts, places)


def _search(session: Session, finder: PersonFinder) -> Iterator[_NamedValue]:
    digest = digests_of_values(session)
    yield from _search_facts(session, finder, FactRow.erased_seq.is_(None), digest)
    missed = set(session.scalars(select(MissRow.generation_id).distinct()))
    for row in sorted(row_classes().values(), key=lambda one: one.__tablename__):
        if row in _FACTS or row.__tablename__ == "fact_pair":
            continue
        keys, columns = inspect(row).primary_key, columns_of(row, ERASED_BY_REDACTION, LEFT_BUT_NAMED)
        if not columns:
            continue
        extra = [JobRow.finished_at] if row is JobRow else [DocumentRow.corpus, DocumentRow.external_id]
        told = extra if row in (JobRow, DocumentRow) else []
        may = finder.condition(as_one_text(columns))
        statement = select(*keys, *columns, *told).where(may).order_by(*keys)
        first = len(keys)
        for found in session.execute(statement.execution_options(yield_per=500)):
            row_id: Any = found[0] if first == 1 else ",".join(map(str, found[:first]))
            for column, value in zip(columns, found[first:], strict=False):
                if spans := _spans(finder, value):
                    remedy = _remedy(row, column.name) or (
                        _UNFINISHED if row is JobRow and found[-1] is None else ""
                    )
                    table = row.__tablename__
                    noun = _NOUNS.get(table, table.replace("_", " "))
                    is_miss = row is GenerationRow and row_id in missed
                    yield _NamedValue(
                        NamePlace(table, column.name, row_id, digest(value)),
                        f"{column.name.replace('_', ' ')} of {noun} {row_id}{', a miss' if is_miss else ''}",
                        "stay" if remedy else "blank",
                        value,
                        spans,
                        f"{found[-2]}/{found[-1]}" if row is DocumentRow else "",
                        remedy,
                        found[0] if row is DocumentRow else None,
                    )


def _remedy(row: type[TableRow], column: str) -> str:
    """Say what to do about a column that an erasure leaves; "" if the column is blanked."""
    return STAYING.get(row.__tablename__, "") or STAYING.get(_STAYING_COLUMNS.get(column, column), "")


def _spans(finder: PersonFinder, value: Any) -> list[tuple[int, NameSpan]]:
    return [(n, span) for n, one in enumerate(strings_of_value(value)) for span in finder.spans(one)]


# Every text that a fact has or had, in an order that does not change.
_TEXTS_OF_FACT = """
ARRAY[fact.question, fact.answer]
|| (SELECT coalesce(array_agg(v.value ORDER BY v.version), '{}') FROM fact_version v WHERE v.fact_id = fact.id)
|| (SELECT coalesce(array_agg(s ORDER BY p.version, n), '{}')
    FROM fact_past p, LATERAL unnest(ARRAY[p.question, p.answer]) WITH ORDINALITY AS u (s, n)
    WHERE p.fact_id = fact.id)
"""


def _search_facts(
    session: Session, finder: PersonFinder | None, condition: Any, digest: Callable[[Any], str]
) -> Iterator[_NamedValue]:
    """Yield the facts that fit a condition, with all their texts; with a finder, those that name the person."""
    texts = literal_column(_TEXTS_OF_FACT, ARRAY(Text)).label("texts")
    statement = (
        select(FactRow.id, FactRow.document_id, DocumentRow.corpus, DocumentRow.external_id, texts)
        .select_from(FactRow)
        .outerjoin(DocumentRow, DocumentRow.id == FactRow.document_id)
        .where(condition)
        .order_by(FactRow.id)
    )
    if finder is not None:
        version = select(FactVersionRow.fact_id).where(finder.condition(FactVersionRow.value))
        past = select(FactPastRow.fact_id).where(
            finder.condition(as_one_text([FactPastRow.question, FactPastRow.answer]))
        )
        asked = finder.condition(as_one_text([FactRow.question, FactRow.answer]))
        statement = statement.where(or_(asked, FactRow.id.in_(version.union(past))))
    for found in session.execute(statement.execution_options(yield_per=500)):
        value = [one for one in found.texts if one is not None]
        spans = _spans(finder, value) if finder is not None else []
        if spans or finder is None:
            source = "" if found.document_id is None else f"{found.corpus}/{found.external_id}"
            yield _NamedValue(
                NamePlace(FACT, "", found.id, digest(value)), f"fact {found.id}", "erase", value, spans, source,
                document_id=found.document_id,
            )  # fmt: skip


def _add_facts_within(session: Session, found: dict[str, _NamedValue], kept: Collection[str]) -> None:
    """Add the facts whose spans overlap a document's names, and, as not sure, those in a sentence with a name.

    Raises `InvalidValue` where a fact is kept and the name that its span overlaps is not.
    """
    doubts: dict[int, str | None] = {}
    for at, one in found.items():
        if one.place.table == "document" and one.place.column == "text" and at not in kept:
            for fact_id, doubt in _doubts_within(session, one):
                if doubts.get(fact_id, "") is not None:
                    doubts[fact_id] = doubt if doubt != "sentence" else doubts.get(fact_id, doubt)
    for fact_id in [one for one, doubt in doubts.items() if doubt is None]:
        if (name := place_name(FACT, "", fact_id)) in kept:
            raise InvalidValue("place", f"{name!r} stands in a name that is not kept. Keep the document, too")
        if name in found and not found[name].stretches(sure=True):
            found[name].settle()
    wanted = [one for one in doubts if place_name(FACT, "", one) not in found]
    digest = digests_of_values(session)
    for fact in _search_facts(session, None, FactRow.id == func.any(sorted(wanted)), digest):
        first = next((n for n, words in enumerate(fact.value) if words), 0)
        fact.spans = [(first, NameSpan(0, len(fact.value[first]), doubts[fact.place.row_id]))]
        found[fact.place.name] = fact


def _doubts_within(session: Session, document: _NamedValue) -> Iterator[tuple[int, str | None]]:
    """Yield facts with a doubt: None if a sure name overlaps its span, "overlap" if an unsure one, else "sentence"."""
    of_document = FactRow.document_id == document.place.row_id
    whole = FactRow.erased_seq.is_(None), FactRow.span_start.is_not(None)
    spans = select(FactRow.id, FactRow.span_start, FactRow.span_end).where(of_document, *whole)
    facts: Sequence[Any] = session.execute(spans).all()
    lines = select(SentenceRow.span_start, SentenceRow.span_end)
    near: Sequence[Any] = session.execute(
        lines.where(SentenceRow.document_id == document.place.row_id) if facts else lines.limit(0)
    ).all()
    for _, name in document.spans:
        reached = [one for one in near if one.span_start < name.end and name.start < one.span_end]
        for fact in facts:
            if fact.span_start < name.end and name.start < fact.span_end:
                yield fact.id, None if name.doubt is None else "overlap"
            elif name.doubt is None and any(
                one.span_start < fact.span_end and fact.span_start < one.span_end for one in reached
            ):
                yield fact.id, "sentence"


def digests_of_values(session: Session) -> Callable[[Any], str]:
    """Give a function that makes the digest of a JSON value, keyed by this database's secret and cut short."""
    digest = audit.keyed_digests(session)
    return lambda value: digest(json.dumps(value, sort_keys=True, ensure_ascii=False))[:_DIGEST]


# Plans: read, compared with the base, and carried out.


def read_plan(kb: Store, signed: Mapping[str, Any]) -> PersonPlan:
    """Read a plan that this base signed. Raises `SignatureRefused` or `InvalidValue` for another one."""
    names, own = signing.verify_signature(signed, "plan", _MADE_HERE), signing.own_key_names(kb.settings.home)
    if own is None or names != own:
        cause = f"it was signed by key {names.fingerprint}, not by this base"
        raise SignatureRefused("plan", cause, _MADE_HERE)
    plan = PersonPlan.from_json(signed)
    with kb.sessions() as session:
        if plan.database != audit.database_id(session):
            raise InvalidValue("plan", f"it was made for another base. {_MADE_HERE.rstrip('.')}")
    return plan


def words_at_places(session: Session, plan: PersonPlan) -> set[str]:
    """Give the words at the places of a plan. Raises `PlanStale` if the text of a place was edited since."""
    digest, said, changed = digests_of_values(session), set[str](), list[str]()
    facts = _search_facts(session, None, FactRow.id == func.any(list(plan.fact_ids)), digest)
    values: dict[str, Any] = {one.place.name: one.value for one in facts}
    for place, row in rows_of_places(session, plan.places):
        values[place.name] = getattr(row, place.column, None)
    for place in (*plan.facts, *plan.places):
        value = values.get(place.name)
        if value is None or digest(value) != place.digest:
            changed.append(place.name)
            continue
        texts = list(strings_of_value(value))
        said.update(texts[part][start:end] for part, start, end in place.stretches)
    if changed:
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise refusals.plan_stale(0, (), f"{', '.join(changed[:3])}{more} were")
    return said


def blanked_changes(plan: PersonPlan) -> list[int]:
    """Give the numbers of the log's entries that a plan blanks."""
    return sorted({place.row_id for place in plan.places if place.table == ChangeRow.__tablename__})


def places_here(session: Session, stored: Sequence[Any]) -> PersonPlan:
    """Make a plan that blanks the `stored` places of an erasure once more, in a base that was restored since.

    A place is left out where its value here is not the one that the erasure blanked.
    """
    digest, found = digests_of_values(session), list[NamePlace]()
    for place, row in rows_of_places(session, [NamePlace.from_json(one) for one in stored]):
        if row is not None and digest(getattr(row, place.column)) == place.digest:
            found.append(place)
    return PersonPlan(audit.database_id(session), audit.head_seq(session), "", (), tuple(found))


def count_unblanked(session: Session, stored: Sequence[Any]) -> int:
    """Count the `stored` places of an erasure's change at which a name can be read now."""
    return sum(
        _is_readable(row, place)
        for place, row in rows_of_places(session, [NamePlace.from_json(one) for one in stored])
    )


def _is_readable(row: Any, place: NamePlace) -> bool:
    texts = list(strings_of_value(getattr(row, place.column, None)))
    said = "".join(texts[one.part][one.start : one.end] for one in place.stretches if one.part < len(texts))
    return bool(said.replace(MARK, "").strip())


def count_places(plan: PersonPlan) -> dict[str, int]:
    """Count the places of a plan by table and column."""
    return dict(sorted(Counter(f"{one.table}.{one.column}" for one in plan.places).items()))


def make_place_traces(session: Session, plan: PersonPlan) -> Iterator[Trace]:
    """Yield a trace of each name with the text around it, so that namesakes elsewhere are no residue."""
    for place, row in rows_of_places(session, plan.places):
        texts = list(strings_of_value(getattr(row, place.column, None)))
        for part, start, end in place.stretches:
            around = texts[part][max(0, start - AROUND) : end + AROUND].encode() if part < len(texts) else b""
            if len(around) >= LEAST:
                yield Trace(0, "context", around)
