"""Records of stored outputs, their splices, and traces."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypedDict

from colmlm.kb.facts.records import FactRecord, Review, SamplePlace, Source
from colmlm.kb.log.records import ChangeRecord
from colmlm.kb.lookup.options import KEY
from colmlm.kb.principal import Principal
from colmlm.kb.removal.records import LineageFinding
from colmlm.kb.texts.asked import question_of_lookup


@dataclass(frozen=True, slots=True)
class Splice:
    """One lookup of the decoder: ``output[output_start:output_end] == value`` where `outcome` is "hit".

    `outcome` is "hit", "no_match" or "abstained"; for the latter two fact_id and version are None and the span is
    empty. `query` is the query vector as little-endian fp16 bytes. This is all that is stored of a splice; its value is
    in the output.

    A quotation may contain only ``value[part_start:part_end]``; both are None if it contains the whole value. The
    quoted document has these words from `quoted_start` to `quoted_end`.
    """

    output_start: int
    output_end: int
    outcome: str
    fact_id: int | None = None
    version: int | None = None
    score: float | None = None
    query: bytes | None = None
    part_start: int | None = None
    part_end: int | None = None
    quoted_start: int | None = None
    quoted_end: int | None = None

    def part_of_value(self, value: str) -> str:
        """Give the part of `value`, the fact's value, that is in the output; all of it if the splice names no part."""
        return value[self.part_start : self.part_end]


@dataclass(frozen=True, slots=True)
class QuotedStretch:
    """The stretch of a document that an output quotes, by offsets in code points."""

    document_id: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class NewOutput:
    """An output to store for auditors.

    If it `quotes`, the words between its splices are those of that stretch of a document. `ranking` is how its lookups
    found facts, without proposed ones if `accepted_only`, in the `corpora` named (none: in all).
    """

    prompt: str
    output: str
    checkpoint_id: str
    mode: str
    seq: int
    splices: tuple[Splice, ...]
    quotes: QuotedStretch | None = None
    ranking: str = KEY
    accepted_only: bool = False
    corpora: tuple[str, ...] = ()


def describe_change(change: ChangeRecord) -> str:
    """Describe a change in one line: its actor, its number and its reason."""
    return f"{change.actor}, change {change.seq}: {change.reason}"


@dataclass(frozen=True, slots=True)
class TracedSplice:
    """One spliced span of an output, with the fact that it came from, and the edits of that fact since.

    It has no query, which nobody reads, and says what became of the fact, which changes after the splice was stored.

    `withheld` says that the value is shown as marks (U+2588), since it is past and the caller may not read the past.
    `part_start` and `part_end` are given where `value` is only that part of the fact's. `review` is that of the fact
    now. `source` is where the fact stood in this version, and `sentence` what is said there. A fact of a release has no
    `source` but a `sample`. `key_predicted` says that the fact had a predicted key when it was found.

    `from_seq` is the change that made the version, `given_by` the one that gave it its value, which an earlier version
    may have had, and `current_seq` the one that gave the value of now. `document_says` is the text at the place of the
    fact, where its value is another: somebody entered it.
    """

    ordinal: int
    output_start: int
    output_end: int
    outcome: str
    value: str
    fact_id: int | None
    version: int | None
    score: float | None
    source: Source | None
    live: bool
    current_value: str | None
    history: tuple[ChangeRecord, ...] = ()
    erased: bool = False
    withheld: bool = False
    part_start: int | None = None
    part_end: int | None = None
    review: Review | None = None
    sample: SamplePlace | None = None
    key_predicted: bool = False
    from_seq: int | None = None
    given_by: ChangeRecord | None = None
    current_seq: int | None = None
    document_says: str | None = None
    sentence: str | None = None

    @property
    def is_current(self) -> bool:
        """Tell whether the fact's current value has the spliced text at the same place; False for a deleted fact."""
        return (
            self.current_value is not None
            and self.current_value[self.part_start : self.part_end] == self.value
        )

    @property
    def entry(self) -> str | None:
        """Describe who entered a value that its document does not say; None if the document says the value."""
        if self.document_says is None:
            return None
        by = (
            "somebody"
            if (made := self.given_by) is None
            else f"{made.actor}, change {made.seq} ({made.reason})"
        )
        return f'value entered by {by}; the document says "{self.document_says}"'

    @property
    def correction(self) -> str | None:
        """Describe the change that gave the fact its value; None if the splice is current or the fact is deleted."""
        if not self.live or self.is_current:
            return None
        return next((describe_change(one) for one in self.history if one.seq == self.current_seq), None)


@dataclass(frozen=True, slots=True)
class GenerationRecord:
    """A stored output in a list: `num_hits` of its `num_splices` lookups found a fact.

    It `abstained` where it says nothing, and is `uncited` where it says something and neither a fact nor a document
    stands behind any of it. `checkpoint_id` is empty where nothing was encoded.
    `ranking` is what its lookups found facts by: "key", "words" or "reader".
    So many people gave it a thumb `up` or `down`. `principal` is who was authenticated to ask for it; None where that
    was not kept, or is withheld.
    """

    generation_id: int
    prompt: str
    output: str
    checkpoint_id: str
    mode: str
    seq: int
    at: datetime
    num_splices: int
    num_hits: int
    abstained: bool = False
    uncited: bool = False
    ranking: str = KEY
    up: int = 0
    down: int = 0
    principal: Principal | None = None


Thumb = Literal["up", "down"]


@dataclass(frozen=True, slots=True)
class NewFeedback:
    """Feedback on an output, to store: a thumb, and optionally a comment and the value that would be right."""

    thumb: Thumb
    comment: str | None = None
    value: str | None = None


@dataclass(frozen=True, slots=True)
class Feedback:
    """The last feedback of `actor` on an output. Callers that may not read the past get the thumb alone."""

    generation_id: int
    thumb: str
    comment: str | None
    value: str | None
    actor: str
    on_behalf_of: str | None
    at: datetime


@dataclass(frozen=True, slots=True)
class OutputTrace:
    """A stored output with a trace of each of its splices. `redacted_seq` is the last erasure that redacted it.

    What stands outside its splices are the model's own words: it is `uncited` where that is all that it says, and
    `abstained` where it says nothing. Of an output that `quotes` they are the words of that stretch of a document.
    `checkpoint_id` is empty where nothing was encoded.
    `ranking` is what its lookups found facts by: "key", "words" or "reader".
    `accepted_only` says that it was asked for without proposed facts, and `corpora` of which ones (none: of all).
    `feedback` is what people said of it, and `miss_groups` are those that its misses are in. `principal` is who was
    authenticated to ask for it; None where that was not kept, or is withheld.
    """

    generation_id: int
    prompt: str
    output: str
    checkpoint_id: str
    mode: str
    seq: int
    at: datetime
    splices: tuple[TracedSplice, ...]
    redacted_seq: int | None = None
    abstained: bool = False
    uncited: bool = False
    quotes: Source | None = None
    ranking: str = KEY
    feedback: tuple[Feedback, ...] = ()
    miss_groups: tuple[int, ...] = ()
    accepted_only: bool = False
    corpora: tuple[str, ...] = ()
    principal: Principal | None = None

    @property
    def uncited_spans(self) -> tuple[tuple[int, int], ...]:
        """The spans of the output that are not blank and come from no fact; none if the output quotes a document."""
        hits = [splice for splice in self.splices if splice.outcome == "hit"]
        starts = [0, *(hit.output_end for hit in hits)]
        ends = [*(hit.output_start for hit in hits), len(self.output)]
        outside = () if self.quotes else zip(starts, ends, strict=True)
        return tuple((start, end) for start, end in outside if self.output[start:end].strip())

    @property
    def question(self) -> str:
        """The output's question: an answer's whole prompt, else the question or sentence that ends the prompt."""
        return question_of_lookup(self.mode, self.prompt, "", asks_reader=False)


@dataclass(frozen=True, slots=True)
class Version:
    """A value a fact has had, live from change `from_seq` until `to_seq` (None: still), with what it asked then.

    It stood in `document_id`, from `start` to `end`. `document_says` is the text there, where the value is another:
    somebody entered that, by change `given_seq`, which an earlier version may have come from.
    """

    version: int
    value: str
    from_seq: int
    to_seq: int | None
    question: str | None = None
    document_id: int | None = None
    start: int | None = None
    end: int | None = None
    given_seq: int | None = None
    document_says: str | None = None


@dataclass(frozen=True, slots=True)
class Use:
    """A stored output that spliced a fact."""

    generation_id: int
    version: int
    output_start: int
    output_end: int
    at: datetime


@dataclass(frozen=True, slots=True)
class FactTrace:
    """A fact, its source sentence, every version, every change and every stored output that used it.

    `lineage` says which weights were trained on its document.
    """

    fact: FactRecord
    context: str | None
    versions: tuple[Version, ...]
    history: tuple[ChangeRecord, ...]
    uses: tuple[Use, ...]
    lineage: tuple[LineageFinding, ...] = ()


@dataclass(frozen=True, slots=True)
class FactDifference:
    """A fact that differs between the two changes. `old` or `new` is None where the fact was not live.

    `seq` is the last change that made the difference, by `actor`.

    All texts are None where `is_redacted`: the fact was erased since. A fact that was mended in between, and back,
    differs in nothing that is shown.
    """

    fact_id: int
    kind: str
    corpus: str | None
    old: str | None
    new: str | None
    is_redacted: bool
    old_question: str | None = None
    new_question: str | None = None
    seq: int | None = None
    actor: str | None = None


DIFFERENCES_LISTED = 100  # unless another `limit` is given


class DiffOptions(TypedDict, total=False):
    """The options of a list of facts that differ between two changes.

    It has the facts of `corpus` (None: of all) with an id above `after`, at most `limit` of them.
    """

    corpus: str | None
    after: int
    limit: int


@dataclass(frozen=True, slots=True)
class Diff:
    """The facts that differ between changes `first` and `last`: their number by kind, and a page of them by id."""

    first: int
    last: int
    counts: dict[str, int]
    facts: tuple[FactDifference, ...]


@dataclass(frozen=True, slots=True)
class ImpactedOutput:
    """One splice of a fact: ``output[output_start:output_end]`` is version `version` of the fact, or a part of it.

    `since` is the state of what it says now: current, corrected (the fact says something else), deleted or erased.
    `entered` says that the value of that version is not what its document says there.
    """

    fact_id: int
    generation_id: int
    ordinal: int
    prompt: str
    output: str
    output_start: int
    output_end: int
    version: int
    seq: int
    at: datetime
    since: str
    entered: bool = False


@dataclass(frozen=True, slots=True)
class Impact:
    """A fact and its splices in stored outputs, oldest first."""

    fact_id: int
    is_live: bool
    erased_seq: int | None
    outputs: tuple[ImpactedOutput, ...]


@dataclass(frozen=True, slots=True)
class SelectedImpact:
    """The number of live facts that a selector chooses, the number of outputs that spliced one, and these splices."""

    num_facts: int
    num_outputs: int
    outputs: tuple[ImpactedOutput, ...]
