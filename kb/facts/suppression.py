"""Suppression: keeps erased facts from coming back with the next ingest of the same file.

The database keeps digests of erased facts, HMACs under its own secret: of value and question, of value and
the 40 characters before it, of these within one document, of value and place in that document, and of the value
in that document of that corpus alone, so that it stays out of later editions. Texts are compared by their words
(`kb.texts.wording`). The other spans of the document are blanked before digesting, so that it does not matter which
of them were erased, or in which order. The 40 characters are digested as they are, too, since who marks the same text
again may mark other spans in them.

A digest that another fact shares is not kept, since the same is still said on purpose elsewhere.

An advisory lock keeps erasures apart from transactions that store texts of facts. An erasure holds it exclusively;
ingests, inserts, outputs, plans, jobs and kept answers share it (`hold_off_erasure`), and check for erased texts once
they have it. It is taken before the lock of the change log, and that before any row:
see `docs/explanation/architecture.md`, "Edits".
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Self

from sqlalchemy import ColumnElement, Row, delete, func, or_, select, text, true
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.orm import Session, aliased

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan
from colmlm.kb.errors import refusals
from colmlm.kb.facts.records import SuppressedSpan
from colmlm.kb.facts.redaction import (
    ABOUT,
    ErasureTarget,
    blank_out,
    redacted_columns,
    spans_apart,
    strings_of,
)
from colmlm.kb.log import audit
from colmlm.kb.tables import (
    ChangeRow,
    DocumentRow,
    ErasedTextRow,
    FactRow,
    FactVersionRow,
    SecretRow,
    SuppressionRow,
)
from colmlm.kb.texts.wording import (
    ComparedText,
    Phrases,
    Reading,
    Span,
    forms_of_text,
    forms_said,
    may_say,
    normalise_wording,
    normalised_before,
    words_before,
)

ERASE_LOCK = 0x636F6C6D03
BEFORE = 40  # characters, as many as an ingest compares to find the facts that a document keeps


def hold_off_erasure(session: Session) -> None:
    """Keep erasures from committing until this transaction ends.

    Transactions that store texts they read earlier call it before they lock the change log or any row.
    """
    session.execute(text("SELECT pg_advisory_xact_lock_shared(:key)"), {"key": ERASE_LOCK})


def begin_erasure(session: Session) -> None:
    """Wait for transactions that store texts, block later ones until this ends. Call it before locking log or rows."""
    session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": ERASE_LOCK})


def check_inserts(session: Session, said: Iterable[tuple[str, str]], *, allow_erased: bool) -> int:
    """Raise `FactSuppressed` if one of these questions and values was erased; `allow_erased` lifts the suppression.

    Gives the number of digests that were removed.
    """
    suppressor, pairs = Suppressor(session, allow_erased=allow_erased), list(said)
    for number, (question, value) in enumerate(pairs, start=1):
        if suppressor.matches([value], question, None) and not allow_erased:
            if len(pairs) == 1:
                raise refusals.fact_suppressed("A fact with this question and value", "it was not added")
            raise refusals.fact_suppressed(
                f"Fact {number} of these {len(pairs)}, by its question and value,", "none of them was added"
            )
    return suppressor.lift(session)


class Suppressor:
    """Recognises erased facts during one transaction, and holds off erasures until it ends.

    With `allow_erased` it leaves nothing out and remembers the digests that matched, which `lift` then removes. `found`
    are the spans that were left out.
    """

    def __init__(self, session: Session, *, allow_erased: bool = False) -> None:
        hold_off_erasure(session)
        self.allow_erased = allow_erased
        self.found: list[SuppressedSpan] = []
        self._allowed: set[bytes] = set()
        self._erased = frozenset(session.scalars(select(SuppressionRow.digest)))
        self._digests = Digests.of(session) if self._erased else None

    def apply(self, document: AnnotatedDocument, corpus: str) -> tuple[AnnotatedDocument, int]:
        """Give the document without its erased facts, whose text is redacted, and their number."""
        if self._digests is None:
            return document, 0
        spans = [(span.start, span.end) for span in document.facts]
        erased: list[FactSpan] = []
        for span in sorted(document.facts, key=lambda one: one.start):
            before = text_before(document.text, spans, span.start)
            gone = [(one.start, one.end) for one in erased]
            for unmarked in {text_before(document.text, one, span.start) for one in ((), gone)}:
                place = SpanPlace(document.external_id, span.start, before, corpus, unmarked)
                if self.matches((span.value, span.current), span.question, place):
                    erased.append(span)
                    break
        if not erased or self.allow_erased:
            return document, 0
        gone = [(span.start, span.end) for span in erased]
        self.found += [SuppressedSpan(document.external_id, start, end) for start, end in gone]
        kept = tuple(span for span in document.facts if (span.start, span.end) not in set(gone))
        # Mentions of the value elsewhere in the document go too, as the erasure redacted them.
        said = Phrases(value for span in erased for value in (span.value, span.current) if value)
        mentioned = spans_apart(said.spans(document.text), [(span.start, span.end) for span in kept])
        about = redacted_columns(document, ABOUT, said)
        text = blank_out(document.text, (*gone, *mentioned))
        return replace(document, **about, text=text, facts=kept), len(gone)

    def matches(self, values: Iterable[str | None], question: str | None, place: SpanPlace | None) -> bool:
        """Say whether a fact with one of these values, and this question or place, was erased."""
        if self._digests is None:
            return False
        made = [
            digest
            for value in values
            if value
            for digest in self._digests.possible_digests(value, question, place)
        ]
        met = self._erased.intersection(made)
        self._allowed |= met
        return bool(met)

    def lift(self, session: Session) -> int:
        """Remove the digests of erased facts that were allowed back in; give their number."""
        if not (self.allow_erased and self._allowed):
            return 0
        session.execute(delete(SuppressionRow).where(SuppressionRow.digest == func.any(list(self._allowed))))
        return len(self._allowed)


@dataclass(frozen=True, slots=True)
class SpanPlace:
    """The place of a span in a document, and the 40 characters before it: with other spans blanked (`before`), and as
    they are (`unmarked`).
    """

    external_id: str
    start: int
    before: str
    corpus: str = ""
    unmarked: str = ""

    @classmethod
    def in_sample(cls, sample_id: str, fact_idx: int) -> SpanPlace:
        """Give the place of a fact of a release: its number in its sample as the offset, and no text before it."""
        return cls(sample_id, fact_idx, "")


@dataclass(frozen=True, slots=True)
class Digests:
    """Computes digests (HMAC) of erased texts under the database's secret."""

    _hmac: hmac.HMAC = field(repr=False)

    @classmethod
    def of(cls, session: Session) -> Digests:
        secret = session.scalars(select(SecretRow.value).where(SecretRow.name == "change_log")).one()
        return cls(hmac.new(secret, b"suppression\0", hashlib.sha256))

    def of_fact(self, value: str, question: str | None, place: SpanPlace | None) -> list[bytes]:
        """Compute a fact's digests: for each kind (`_digested_texts`) one by each form of its value (`kb.texts`)."""
        return self._of_forms(forms_of_text(value), value, question, place)

    def possible_digests(self, value: str, question: str | None, place: SpanPlace | None) -> list[bytes]:
        """Compute every digest that this or an earlier version of colmlm stored for this fact, if it was erased."""
        every = list(_digested_texts(value, question, place))
        texts = {text for said in every for text in said}
        now, *before = (
            {text: way(text) for text in texts} for way in (normalise_wording, normalised_before, _by_blanks)
        )
        ways = {tuple(map(way.__getitem__, said)) for way in (now, *before) for said in every}
        read = forms_said(value)
        cut = self._of_forms(read, value, question, place) if len(read) > 1 else ()
        return [*map(self._make, ways), *cut]

    def _of_forms(
        self, every: Iterable[str], value: str, question: str | None, place: SpanPlace | None
    ) -> list[bytes]:
        said = [
            (kind, *map(normalise_wording, rest))
            for kind, _, *rest in _digested_texts(value, question, place)
        ]
        return [self._make((kind, form, *rest)) for form in every for kind, *rest in said]

    def of_words(self, words: Iterable[str]) -> bytes:
        """Compute the digest of words that follow one another in a text."""
        return self._make(("words", *words))

    def of_first_word(self, word: str) -> bytes:
        """Compute the digest of a text's first word, cut to 8 bytes: it only says where to compare all words."""
        return self._make(("first word", word))[:8]

    def _make(self, texts: Iterable[str]) -> bytes:
        digest = self._hmac.copy()
        digest.update("\0".join(texts).encode())
        return digest.digest()


def _digested_texts(value: str, question: str | None, place: SpanPlace | None) -> Iterator[tuple[str, ...]]:
    """Give the texts that each digest of a fact is made of; the first text is the digest's kind."""
    if question:
        yield "question", value, question
    if place is not None:
        if place.corpus:
            yield "anywhere", value, place.corpus, place.external_id
        yield "place", value, place.external_id, str(place.start)
        yield "document", value, place.external_id, place.before
        for before in dict.fromkeys((place.before, place.unmarked)):
            if len(before) == BEFORE:  # fewer characters identify nothing, as at the start of a text
                yield "context", value, before


def _by_blanks(value: str) -> str:
    """Normalise a text as the first version of colmlm did: single spaces and folded case."""
    return " ".join(value.split()).casefold()


def text_before(document_text: str, spans: Iterable[Span], start: int) -> str:
    """Give the 40 characters before a span, with other spans blanked."""
    first = max(0, start - BEFORE)
    inside = [(max(s, first) - first, min(e, start) - first) for s, e in spans if s < start and first < e]
    return blank_out(document_text[first:start], inside)


def remember_suppressed(
    session: Session, targets: Sequence[ErasureTarget], seq: int, others: Collection[int]
) -> tuple[int, list[int]]:
    """Store the digests of the facts that change `seq` erases; called while their texts still exist.

    `others` are the ids of facts that share a text with them. Gives the number of new digests, and the ids of others
    that share one: these digests are not stored.
    """
    digests = Digests.of(session)
    made: set[bytes] = set()
    for state in (state for target in targets for state in target.states):
        place = None
        if state.document_id is not None:
            before = text_before(state.text, state.spans, state.start)
            unmarked = text_before(state.text, (), state.start)
            place = SpanPlace(state.external_id, state.start, before, state.corpus, unmarked)
        elif state.external_id:
            place = SpanPlace.in_sample(state.external_id, state.start)
        for value in dict.fromkeys(state.values):
            made.update(digests.of_fact(value, state.question, place))
    shared = {
        fact_id: made & theirs
        for fact_id, theirs in _digests_of_others(session, targets, digests, others).items()
    }
    made = made.difference(*shared.values())
    statement = upsert(SuppressionRow).on_conflict_do_nothing().returning(SuppressionRow.digest)
    rows = [{"digest": digest, "seq": seq} for digest in sorted(made)]
    kept = len(session.scalars(statement, rows).all()) if rows else 0
    return kept, sorted(fact_id for fact_id, alike in shared.items() if alike)


def _digests_of_others(
    session: Session, targets: Sequence[ErasureTarget], digests: Digests, fact_ids: Collection[int]
) -> dict[int, set[bytes]]:
    """Give, by fact id, the digests of those of these facts that share a value with one of the targets."""
    wanted = {form for target in targets for value in target.values for form in forms_of_text(value)}
    before = func.right(func.substr(DocumentRow.text, 1, FactRow.span_start), BEFORE)
    statement = (
        select(
            FactRow,
            FactVersionRow.value,
            DocumentRow.external_id,
            DocumentRow.corpus,
            before.label("before"),
            _SPANS_BEFORE.label("spans"),
        )
        .join(FactVersionRow, FactVersionRow.fact_id == FactRow.id)
        .outerjoin(DocumentRow, DocumentRow.id == FactRow.document_id)
        .where(FactRow.id == func.any(list(fact_ids)))
    )
    others: dict[int, set[bytes]] = {}
    for row in session.execute(statement.execution_options(yield_per=READ_AT_ONCE)):
        if any(form in wanted for form in forms_of_text(row.value)):
            made = digests.of_fact(row.value, row.FactRow.question, _span_place_of_row(row))
            others.setdefault(row.FactRow.id, set()).update(made)
    return others


_Other = aliased(FactRow)
_SPANS_BEFORE = (
    select(
        func.coalesce(
            func.jsonb_agg(func.jsonb_build_array(_Other.span_start, _Other.span_end)), text("'[]'")
        )
    )
    .where(_Other.document_id == FactRow.document_id)
    .where(_Other.span_start < FactRow.span_start, _Other.span_end > FactRow.span_start - BEFORE)
    .correlate(FactRow)
    .scalar_subquery()
)


def _span_place_of_row(row: Row[Any]) -> SpanPlace | None:
    """Give the place of a row's fact in its document or sample; None for a fact without a document."""
    fact: FactRow = row.FactRow
    if fact.document_id is None:
        return None
    if fact.span_start is None:
        return SpanPlace.in_sample(row.external_id, fact.ordinal)
    first = fact.span_start - len(row.before)
    inside = [(max(start - first, 0), min(end - first, len(row.before))) for start, end in row.spans]
    before = blank_out(row.before, inside)
    return SpanPlace(row.external_id, fact.span_start, before, row.corpus, row.before)


# Other facts that say what facts that are about to be erased say.
#
# To find them every fact is read, which takes minutes among ten million. So they are looked for before the
# change log is locked, and once it is only among what was written meanwhile: edits do not wait for it.

READ_AT_ONCE = 2_000  # rows that may say it; with a common word, nearly all of a base may
_TEXTS = (FactVersionRow.value, FactRow.question, FactRow.answer)


@dataclass(frozen=True, slots=True)
class OthersSaying:
    """Facts not to be erased that have one of `texts`: by id, with the forms they share, read after change `seq`."""

    texts: Collection[str]
    facts: Mapping[int, Collection[str]]
    seq: int

    @classmethod
    def of(cls, session: Session, targets: Sequence[ErasureTarget]) -> Self:
        """Find the facts besides the targets that have one of the texts of the targets; it reads all facts."""
        seq, texts = audit.head_seq(session), strings_of(targets)  # the facts are read later than the seq
        return cls(texts, _facts_with_texts(session, targets, texts, true()), seq)

    def by_now(self, session: Session, targets: Sequence[ErasureTarget]) -> dict[int, Collection[str]]:
        """Give, by fact id, the texts that other facts share with the targets by now. The caller holds the log's lock.

        Facts written since the first reading are read again: those with a new version, and those that the log names, as
        a document that comes again gives its facts another answer. Where the targets were edited, every fact is read.
        """
        if not strings_of(targets) <= set(self.texts):
            return _facts_with_texts(session, targets, strings_of(targets), true())
        # In a statement of its own: within the other one, PostgreSQL plans for its first rows, and reads every text.
        opened = select(FactVersionRow.fact_id).where(FactVersionRow.from_seq > self.seq)
        edited = select(func.unnest(ChangeRow.fact_ids)).where(
            ChangeRow.seq > self.seq, ChangeRow.kind.not_in(audit.MAINTENANCE)
        )
        written = set(session.scalars(opened.union(edited)))
        kept = {fact_id: said for fact_id, said in self.facts.items() if fact_id not in written}
        return kept | _facts_with_texts(session, targets, self.texts, FactRow.id == func.any(list(written)))


def _facts_with_texts(
    session: Session, targets: Sequence[ErasureTarget], texts: Collection[str], condition: ColumnElement[bool]
) -> dict[int, Collection[str]]:
    """Find the facts besides the targets that `condition` (SQL) selects and that have a form of the texts, by id."""
    found: dict[int, Collection[str]] = {}
    if not targets:
        return found
    wanted = {form for text in texts for form in forms_of_text(text)}
    statement = (
        select(FactRow.id, *_TEXTS)
        .join(FactVersionRow, FactVersionRow.fact_id == FactRow.id)
        .where(FactRow.erased_seq.is_(None), FactRow.id != func.all([target.fact_id for target in targets]))
        .where(condition, or_(*(may_say(column, texts) for column in _TEXTS)))
    )
    for row in session.execute(statement.execution_options(yield_per=READ_AT_ONCE)):
        if said := {form for one in row[1:] if one for form in forms_of_text(one)} & wanted:
            found[row.id] = said.union(found.get(row.id, ()))
    return found


# Erased texts: keyed digests by which an erased text is recognised wherever something still says it.
#
# An erasure keeps, for each text of a fact (its values, its question, its answer), an HMAC of the words under the
# database's secret, one of the first word, and the number of words. So a text that is stored later can be checked for
# erased ones, and fsck can check what is stored. Only where a first word matches are the following words digested and
# compared, so a check costs little more than reading.
#
# An erased text always counts in a text that names its own fact. In other texts it counts where the erasure was to
# reach them (`everywhere`) and they were made before it: what people say later does not come from the fact.

UNDER_WAY = timedelta(hours=1)  # an erasure may commit this long after its time is taken


@dataclass(frozen=True, slots=True)
class TextOrigin:
    """The origin of a text that is searched: the facts it names, and when it was made (after change `seq`, or `at`).

    A text without either time may contain every erased text but those of the facts it names.
    """

    fact_ids: frozenset[int] = frozenset()
    seq: int | None = None
    at: datetime | None = None

    def forbids(self, erased: ErasedTextRow) -> bool:
        """Say whether a text of this origin must not contain this erased text."""
        if erased.fact_id in self.fact_ids:
            return True
        late = (self.seq is not None and erased.seq > self.seq) or (
            self.at is not None and erased.at > self.at - UNDER_WAY
        )
        return erased.everywhere and late

    def forbidden_condition(self) -> ColumnElement[bool]:
        """Build a condition (SQL) that selects the erased texts for which `forbids` is true."""
        late: list[Any] = []
        if self.seq is not None:
            late.append(ErasedTextRow.seq > self.seq)
        if self.at is not None:
            late.append(ErasedTextRow.at > self.at - UNDER_WAY)
        own = ErasedTextRow.fact_id == func.any(sorted(self.fact_ids))
        return or_(own, *(ErasedTextRow.everywhere & past for past in late))


@dataclass(frozen=True, slots=True)
class ErasedTexts:
    """Finds erased texts in a text by their digests."""

    _digests: Digests | None  # none is needed where nothing was erased
    _by_digest: dict[bytes, list[ErasedTextRow]]
    # By digest of a first word: the lengths, in words, of the texts that begin with it, longest first.
    _sizes: dict[bytes, list[int]]
    _first: dict[str, bytes] = field(default_factory=dict)

    @classmethod
    def read(cls, session: Session, fact_ids: Collection[int] | None = None) -> ErasedTexts:
        """Read the erased texts of these facts, or of all facts if `fact_ids` is None."""
        of_facts = None if fact_ids is None else ErasedTextRow.fact_id == func.any(list(fact_ids))
        return cls._read(session, of_facts)

    @classmethod
    def forbidden_in(cls, session: Session, origin: TextOrigin) -> ErasedTexts:
        """Read the erased texts that a text of this origin must not contain."""
        return cls._read(session, origin.forbidden_condition())

    @classmethod
    def _read(cls, session: Session, condition: ColumnElement[bool] | None) -> ErasedTexts:
        statement = select(ErasedTextRow)
        rows = list(session.scalars(statement if condition is None else statement.where(condition)))
        by_digest: dict[bytes, list[ErasedTextRow]] = {}
        sizes: dict[bytes, set[int]] = {}
        for row in rows:
            by_digest.setdefault(bytes(row.digest), []).append(row)
            sizes.setdefault(bytes(row.first_word), set()).add(row.num_words)
        longest_first = {first: sorted(found, reverse=True) for first, found in sizes.items()}
        return cls(Digests.of(session) if rows else None, by_digest, longest_first)

    def __bool__(self) -> bool:
        return bool(self._by_digest)

    @property
    def last(self) -> int:
        """The last change that erased one of these texts; 0 where there is none."""
        return max((erased.seq for same in self._by_digest.values() for erased in same), default=0)

    @property
    def last_seq_erased_everywhere(self) -> int:
        """The last change that erased one of these texts also where its fact is not named; 0 where there is none."""
        every = (erased for same in self._by_digest.values() for erased in same)
        return max((erased.seq for erased in every if erased.everywhere), default=0)

    def finder_for(self, said: TextOrigin, met: set[int] | None = None) -> ErasedTextFinder:
        """Give a finder of erased texts forbidden in texts of this origin; it adds the ids of their facts to `met`."""
        return ErasedTextFinder(self, said, set() if met is None else met)

    def spans(self, text: str, said: TextOrigin, met: set[int]) -> list[Span]:
        """Find the spans of erased texts in a text of this origin; they may overlap. Adds the ids of facts to `met`."""
        if self._digests is None:
            return []
        found = self._spans_in(self._digests, ComparedText.of(text), said, met)
        if (before := words_before(text)) is not None:  # as erasures by earlier releases digested it
            found += self._spans_in(self._digests, ComparedText(before, {}, {}), said, met)
            found.sort()
        return found

    def _spans_in(self, digests: Digests, text: ComparedText, said: TextOrigin, met: set[int]) -> list[Span]:
        found: list[Span] = []
        for at, word in enumerate(text.words):
            firsts = {self._digest_of_first(digests, first) for first, _ in text.steps(at)}
            sizes = {size for first in firsts for size in self._sizes.get(first, ())}
            for size in sorted(sizes, reverse=True):
                if end := self._end_of_erased(digests, text.read_words_from(at, size), said, met):
                    found.append((word.start, text.words[end - 1].end))
                    break
        return found

    def _end_of_erased(
        self, digests: Digests, readings: Iterable[Reading], said: TextOrigin, met: set[int]
    ) -> int:
        """Give the index of the word after the longest reading that is a forbidden erased text; 0 if none is."""
        last = 0
        for taken, end in readings:
            same = self._by_digest.get(digests.of_words(taken), ())
            if facts := [erased.fact_id for erased in same if said.forbids(erased)]:
                met.update(facts)
                last = max(last, end)
        return last

    def _digest_of_first(self, digests: Digests, word: str) -> bytes:
        if (known := self._first.get(word)) is None:
            known = self._first[word] = digests.of_first_word(word)
        return known


@dataclass(frozen=True, slots=True)
class ErasedTextFinder:
    """Finds the erased texts that texts of one origin must not contain; `met` collects the ids of their facts."""

    texts: ErasedTexts
    said: TextOrigin
    met: set[int]

    def spans(self, text: str) -> list[Span]:
        return self.texts.spans(text, self.said, self.met)


def keep_erased(
    session: Session, targets: Iterable[ErasureTarget], seq: int, standing: Collection[str]
) -> None:
    """Store the digests of all texts of the facts that change `seq` erases; called while those texts still exist.

    A text with a form in `standing` is still said elsewhere on purpose: it counts only in texts that name the fact.
    """
    digests = Digests.of(session)
    rows = []
    for target in targets:
        for said, everywhere in _everywhere_by_form(target.strings, standing).items():
            every = said.split(" ")
            rows.append(
                {
                    "fact_id": target.fact_id,
                    "digest": digests.of_words(every),
                    "first_word": digests.of_first_word(every[0]),
                    "num_words": len(every),
                    "seq": seq,
                    "everywhere": everywhere,
                }
            )
    if rows:
        session.execute(upsert(ErasedTextRow).on_conflict_do_nothing(), rows)


def _everywhere_by_form(strings: Iterable[str], standing: Collection[str]) -> dict[str, bool]:
    """Give, by form of these texts, whether the text counts everywhere: none of its forms is in `standing`."""
    found: dict[str, bool] = {}
    for every in map(forms_of_text, strings):
        found |= dict.fromkeys(filter(None, every), not any(said in standing for said in every))
    return found
