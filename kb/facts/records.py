"""The records that the verbs of facts, documents, corpora, comparisons and reviews take and give."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypedDict, get_args

from colmlm.kb.corpus.format import REVIEWS as REVIEWS
from colmlm.kb.corpus.format import Refusal
from colmlm.kb.corpus.format import Review as Review
from colmlm.kb.log.records import OnRecord

VerdictKind = Literal["accept", "reject", "propose"]
OUTCOMES: dict[VerdictKind, Review] = {"accept": "accepted", "reject": "rejected", "propose": "proposed"}


@dataclass(frozen=True, slots=True)
class ReviewVerdict:
    """A person's verdict on a fact, which counts where the fact still has the version and the review that it saw."""

    fact_id: int
    verdict: VerdictKind
    version: int
    review: Review = "proposed"

    def fits(self, version: int, review: Review, *, live: bool) -> bool:
        """Say whether a fact in this state is as it was judged, and does not have the verdict's review already."""
        return live and (version, review) == (self.version, self.review) and review != OUTCOMES[self.verdict]


@dataclass(frozen=True, slots=True)
class SettledBefore:
    """A fact whose verdict was not carried out, as it is now: change `seq`, by `actor`, had settled or edited it."""

    fact_id: int
    verdict: VerdictKind
    version: int
    review: Review
    live: bool
    seq: int
    actor: str | None


@dataclass(frozen=True, slots=True)
class ReviewResult:
    """The result of verdicts: their changes, the facts settled, and those that others had settled `before`."""

    seqs: tuple[int, ...]
    fact_ids: tuple[int, ...]
    before: tuple[SettledBefore, ...]


Mentioned = Literal["same-document", "all", "none"]  # where a fact's value is redacted besides its span
MENTIONED: tuple[Mentioned, ...] = get_args(Mentioned)
FACTS_LISTED = 50  # unless another `limit` is given
COUNTED = 10_000  # facts that a search counts
PLACE = 1 << 56  # a place in a ranked list is rank * PLACE + id, so that it is one number as every `after` is
RANKED = 2_000  # facts that a search by a text counts, ranks and gives
State = Literal["live", "deleted", "erased", "all"]
STATES: tuple[State, ...] = get_args(State)
FactSort = Literal["best", "id", "newest"]
FACT_SORTS: tuple[FactSort, ...] = get_args(FactSort)
Place = Literal["value", "question", "title", "text"]


class FactsSought(TypedDict, total=False):
    """The filters of a list of facts, all of which a fact must fit, and its page: at most `limit` past the id `after`.

    `text` is searched for literally, without wildcards, in value and question. `deleted` facts are listed where it is
    true, live ones where it is false or left out, both where it is None.
    """

    corpus: str | None
    document_id: int | None
    text: str | None
    deleted: bool | None
    after: int
    limit: int


class FactFilters(TypedDict, total=False):
    """The filters of a search for facts: a fact must fit every filter that is given.

    `state` is "live" where it is left out; "deleted" facts may be erased. `actor`, `kind`, `since` and `until` (not
    before, not after) describe one change of the log that added or edited the fact. Rejected facts are deleted ones.
    """

    corpus: str | None
    document_id: int | None
    state: State
    actor: str | None
    kind: str | None
    since: datetime | None
    until: datetime | None
    review: Review | None


class FactSearch(FactFilters, total=False):
    """The text and filters of a search for facts, the order, and the page to give.

    All words of `text` are in the value or all in the question, where words of three letters or more also match the
    beginnings of longer ones; or all are in the fact's sentence or its document's title, in any form. With `literally`,
    value or question contains the text as it is. The order "best" begins with values that equal the text, then values
    and then questions that contain it, then matches by words. Without a text, "best" is "id".

    `after` is the `next_after` of the page before.
    """

    text: str | None
    literally: bool
    sort: FactSort
    after: int
    limit: int


class Admitting(OnRecord, total=False):
    """Options of adding facts: with `allow_erased` also facts that were erased before."""

    allow_erased: bool


class Contradicting(Admitting, total=False):
    """Options of adding or moving a fact: with `anyway` also where another fact answers its question otherwise."""

    anyway: bool


class Editing(OnRecord, total=False):
    """Options of an edit: with `anyway` a fact may be edited to what another fact contradicts."""

    anyway: bool


class EditingOne(Editing, total=False):
    """Options of editing one fact: the new `question`, and the `version` that the fact must have, where given."""

    question: str | None
    version: int | None


class Addition(Contradicting, total=False):
    """Options of adding one fact: also the annotator's `answer`."""

    answer: str | None


class Proposing(Addition, total=False):
    """Options of adding one fact by question and value: a `proposed` fact is for somebody to accept or reject."""

    proposed: bool


class Moving(Contradicting, total=False):
    """Options of moving the span of a fact: its new `question`, and the `version` that it must have, where given."""

    question: str | None
    version: int | None


class MarkedAddition(Addition, total=False):
    """Options of adding a fact to a document: also the `question` that it answers."""

    question: str | None


class Marking(TypedDict, total=False):
    """A stretch of a document: its offsets; or its exact words, which must be there once; or both, which must agree."""

    start: int | None
    end: int | None
    text: str | None


class Ingesting(Admitting, total=False):
    """Options of an ingest: the number of documents in one change, `commit_every` (None: the default).

    A `dry_run` is rolled back.
    """

    commit_every: int | None
    dry_run: bool


class Mentioning(OnRecord, total=False):
    """Options of erasing facts: `mentions` says where else their values are redacted."""

    mentions: Mentioned


@dataclass(frozen=True, slots=True)
class FactDraft:
    """A fact to add, without a document; where `proposed`, nobody has accepted it yet."""

    question: str
    value: str
    answer: str | None = None
    proposed: bool = False


@dataclass(frozen=True, slots=True)
class FactEdit:
    """One edit of a batch: the new value and question of a fact, where None leaves either as it is.

    With a `version` it is refused if the fact has another version.
    """

    fact_id: int
    value: str | None = None
    question: str | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Edit:
    """The result of an edit: its change `seq` (pass it as `min_seq` to read the edit back) and the facts it changed.

    If not all are `keyed`, lookups find the others after the next fill. `also_said_by` are other facts with the same
    value, for the same question or in the same sentence.
    """

    seq: int
    kind: str
    fact_ids: tuple[int, ...]
    keyed: bool = True
    also_said_by: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SuppressedSpan:
    """A span that an ingest left out and redacted, since its fact was erased before."""

    document: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class IngestReport:
    """Record what an ingest inserted and what it refused. `seq` is the last of its changes, None where nothing changed.

    `still_deleted` counts facts of the file that had been deleted before and stay so.

    `suppressed` counts spans that were left out since they were erased before; `suppressed_at` says where they are.

    `contradictions` counts pairs of a new fact with one that answers the same question otherwise, and `duplicates` with
    one that says the same.
    """

    corpus: str
    documents: int
    facts: int
    unchanged: int
    replaced: int
    overlaps_resolved: int
    refusals: tuple[Refusal, ...]
    seq: int | None
    still_deleted: int = 0
    suppressed: int = 0
    suppressed_at: tuple[SuppressedSpan, ...] = ()
    contradictions: int = 0
    duplicates: int = 0


def address_of(uri: str | None) -> str | None:
    """Give an address, or None for a file's, whose path would show readers where this machine keeps it."""
    return None if uri is not None and uri.casefold().startswith("file:") else uri


@dataclass(frozen=True, slots=True)
class Source:
    """The document a fact was read from, and where in it: ``document.text[start:end]``.

    The path of a file on this machine is no address for a reader, so `uri` is None then.
    """

    document_id: int
    corpus: str
    external_id: str
    title: str | None
    uri: str | None
    licence: str | None
    revision: str | None
    start: int
    end: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "uri", address_of(self.uri))


@dataclass(frozen=True, slots=True)
class SamplePlace:
    """The place of a fact of a release: it is number `fact_idx` of a sample, whose text is not here.

    The sample is a document without a text, so there are no offsets.
    """

    document_id: int
    corpus: str
    sample_id: str
    fact_idx: int


@dataclass(frozen=True, slots=True)
class FactRecord:
    """A fact with its source and its value: the live one, the last one where it is deleted, marks where it is erased.

    A fact of a release has no source but a `sample`.

    With `withheld` a text of it is past and hidden from this reader: marks stand for the value, null for the others.
    `review_seq` is the change that last set its `review`; None where nobody had to review it. `version_seq` is the one
    that made its version.
    """

    fact_id: int
    value: str
    version: int
    question: str | None
    answer: str | None
    source: Source | None
    created_seq: int
    deleted_seq: int | None
    erased_seq: int | None = None
    withheld: bool = False
    review: Review = "accepted"
    review_seq: int | None = None
    sample: SamplePlace | None = None
    version_seq: int | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """A stretch of a text, by its offsets."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class FoundIn:
    """Record where a fact was found: a text of it, all of it or one sentence, with the offsets of the words there."""

    place: Place
    said: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class FactFound(FactRecord):
    """A fact that a search gave, and where what was sought is found; nowhere, where no text was sought."""

    found: tuple[FoundIn, ...] = ()


@dataclass(frozen=True, slots=True)
class FactPage:
    """A page of the facts that a search found, and the number of all in `total`.

    Counting stops at 10,000 facts. A search by a text counts and gives at most 2,000. `is_exact` is false if there are
    more. `next_after` is None on the last page.
    """

    facts: tuple[FactFound, ...]
    total: int
    is_exact: bool
    next_after: int | None


@dataclass(frozen=True, slots=True)
class CorpusStats:
    """The counts of a corpus. Where it is `accepted_only`, proposed facts do not answer."""

    corpus: str
    documents: int
    facts: int
    deleted: int
    characters: int
    proposed: int = 0
    accepted_only: bool = False


@dataclass(frozen=True, slots=True)
class DocumentRecord:
    """A document without its text. `replaced_seq` is the change that put a newer text in its place, or removed it.

    As in a `Source`, `uri` is None for the path of a file.
    """

    document_id: int
    corpus: str
    external_id: str
    title: str | None
    uri: str | None
    licence: str | None
    revision: str | None
    sha256: str
    characters: int
    live_facts: int
    ingested_at: datetime
    replaced_seq: int | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "uri", address_of(self.uri))


Kind = Literal["contradictions", "duplicates"]
Staleness = Literal["replaced", "corrected-before"]


class ComparedPart(TypedDict, total=False):
    """The part of a list to give: of one corpus, past the id `after`, at most `limit` entries."""

    corpus: str | None
    after: int
    limit: int


class PairsSought(ComparedPart, total=False):
    """The pairs to list: with `noted` those that somebody noted as both right, else the others."""

    noted: bool


@dataclass(frozen=True, slots=True)
class FactPair:
    """Two live facts that are compared, the older first. Of two that contradict, the fact `answering` answers.

    They are alike by the words of their questions, or where there is a `score`, by their sentences (1) or their keys;
    then none answers before the other. `noted_seq` is the change by which somebody said that both are right.
    """

    pair_id: int
    fact: FactRecord
    other: FactRecord
    score: float | None
    answering: int | None
    noted_seq: int | None


@dataclass(frozen=True, slots=True)
class PairPage:
    """A page of a list of pairs. Counting stops at 10,000; `is_exact` is false if there are more."""

    pairs: tuple[FactPair, ...]
    total: int
    is_exact: bool
    next_after: int | None


@dataclass(frozen=True, slots=True)
class StaleFact(FactRecord):
    """A live fact whose document has a newer text: it was restored after that came, or corrected before."""

    why: Staleness = "replaced"


@dataclass(frozen=True, slots=True)
class StalePage:
    """A page of the list of stale facts, counted as in a `PairPage`."""

    facts: tuple[StaleFact, ...]
    total: int
    is_exact: bool
    next_after: int | None


@dataclass(frozen=True, slots=True)
class AlsoSaid:
    """A fact, and the other live facts that say the same to the same question or in the same sentence."""

    fact_id: int
    by: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ComparedCounts:
    """Count how many contradictions, duplicates and stale facts there are; none is counted beyond 10,000."""

    contradictions: int
    duplicates: int
    stale: int


# Records of a person who is found in all that is stored.


@dataclass(frozen=True, slots=True)
class NamedStretch:
    """A stretch of a text that names the person, with what stands around it. `doubt` is None where it is sure."""

    part: int
    start: int
    end: int
    said: str
    before: str
    after: str
    doubt: str | None = None


@dataclass(frozen=True, slots=True)
class PersonPlace:
    """A place that names the person. `treatment` is "erase" (a whole fact), "blank" or "stay", with a `remedy`.

    `what` says it in words, `source` is the corpus and the document. `holds` keep it, so that an erasure is refused.
    `beside_sure` says that the same place, or the document of a fact, surely names the person, too.
    """

    place: str
    what: str
    treatment: str
    stretches: tuple[NamedStretch, ...]
    source: str = ""
    remedy: str = ""
    holds: tuple[int, ...] = ()
    beside_sure: bool = False


@dataclass(frozen=True, slots=True)
class PersonReport:
    """List what a base holds of a person as of change `seq`: places that are sure, that are not, and that stay.

    `num_unsure` counts all that are not sure, of which `unsure` has the first thousand. `left_out` are those
    that somebody decided to keep.
    """

    name: str
    also: tuple[str, ...]
    database: str
    seq: int
    at: str
    sure: tuple[PersonPlace, ...]
    unsure: tuple[PersonPlace, ...]
    num_unsure: int
    staying: tuple[PersonPlace, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PersonFindings:
    """A report on a person, and the signed plan to erase what is sure."""

    report: PersonReport
    plan: dict[str, Any]
