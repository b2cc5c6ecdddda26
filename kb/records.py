"""The plain data that crosses the knowledge base's edges: what verbs take and what they give.

Frozen dataclasses of builtins and datetimes, so that the CLI and the API can print them as they are
(`dataclasses.asdict`). No ORM object leaves a session.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from colmlm.kb.corpus.format import Refusal
from colmlm.kb.principal import Principal


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """Who makes keys: `checkpoint_id` is a digest of the weights and the tokenizer; `dim` the width of a key."""

    checkpoint_id: str
    name: str
    dim: int
    path: str | None = None
    tokenizer_hash: str | None = None
    trained_on: str | None = None


@dataclass(frozen=True, slots=True)
class KeysetHead:
    """What opening a keyset's index takes. Unlike a `KeysetRecord` it counts no keys, which takes seconds."""

    keyset_id: int
    checkpoint_id: str
    dim: int
    index_spec: str


@dataclass(frozen=True, slots=True)
class KeysetRecord:
    """All keys one checkpoint made. `state` is building, ready, active or retired."""

    keyset_id: int
    checkpoint_id: str
    checkpoint_name: str
    dim: int
    index_spec: str
    threshold: float
    calibrated: bool
    state: str
    num_keys: int
    num_unkeyed: int
    applied_seq: int


@dataclass(frozen=True, slots=True)
class FactDraft:
    """A fact to add that no document says."""

    question: str
    value: str
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class Edit:
    """What an edit did: its change `seq` (pass it as `min_seq` to read it back) and the facts it touched.

    Where not all are `keyed`, lookups find the others after the next rekey.
    """

    seq: int
    kind: str
    fact_ids: tuple[int, ...]
    keyed: bool = True


@dataclass(frozen=True, slots=True)
class Suppressed:
    """A span that an ingest left out and redacted, since it says what was erased."""

    document: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class IngestReport:
    """What an ingest took and what it refused. `seq` is the last of its changes, None where nothing changed.

    `still_deleted` are facts that the file names, and that were deleted before and stay so.

    `suppressed` spans were erased before and were left out; `suppressed_at` says where they are.
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
    suppressed_at: tuple[Suppressed, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """The document a fact was read from, and where in it: ``document.text[start:end]``."""

    document_id: int
    corpus: str
    external_id: str
    title: str | None
    uri: str | None
    licence: str | None
    revision: str | None
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class FactRecord:
    """A fact as it stands: its live value (the last one where it is deleted, a mark where it is erased), its source.

    `withheld` says that a text of it is past and kept from who asks: marks stand for the value, null for the others.
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


@dataclass(frozen=True, slots=True)
class Hit:
    """One answer of a lookup: a live fact and its exact inner product with the query."""

    fact_id: int
    version: int
    value: str
    score: float
    key_id: int


@dataclass(frozen=True, slots=True)
class Lookup:
    """What one query gave: `hits` best first, all at or above `threshold`; empty is *no match*.

    `runner_up` is the best score of any live fact, also below the threshold (None in an empty base);
    `seq` is the last change the index had applied. `abstained` is the forgotten fact that the query
    points at, where it was forgotten with the policy "abstain": then there are no hits.
    """

    hits: tuple[Hit, ...]
    runner_up: float | None
    threshold: float
    seq: int
    abstained: int | None = None


@dataclass(frozen=True, slots=True)
class AsOfLookup(Lookup):
    """What a query would have found as of change `seq`.

    `redacted` facts were live then and are erased now; `unkeyed` ones were live then without a key that is still there:
    they were not keyed yet, or lost it since, as a later ingest changed the text before them. Any of these may be
    missing from the hits; all else is as it was.
    """

    redacted: int = 0
    unkeyed: int = 0


@dataclass(frozen=True, slots=True)
class Splice:
    """One lookup of the decoder: ``output[output_start:output_end] == value`` where `outcome` is "hit".

    `outcome` is "hit", "no_match" or "abstained"; for the latter two fact_id and version are None and the span is
    empty. `query` is what was asked, as little-endian fp16 bytes.
    """

    output_start: int
    output_end: int
    outcome: str
    fact_id: int | None = None
    version: int | None = None
    score: float | None = None
    query: bytes | None = None


@dataclass(frozen=True, slots=True)
class NewGeneration:
    """An output to store for auditors."""

    prompt: str
    output: str
    checkpoint_id: str
    mode: str
    seq: int
    splices: tuple[Splice, ...]


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """One entry of the change log; it holds no fact text.

    `principal` is who was authenticated, and `on_behalf_of` whom they said to act for. `request_id` is of the API's
    request that asked for it, `client_request_id` what the caller named that. All of them are None in changes from
    before they were kept.
    """

    seq: int
    kind: str
    fact_ids: tuple[int, ...]
    num_facts: int
    actor: str
    reason: str
    at: datetime
    prev_hash: str
    hash: str
    request_id: str | None = None
    client_request_id: str | None = None
    principal: Principal | None = None
    on_behalf_of: str | None = None


@dataclass(frozen=True, slots=True)
class TracedSplice:
    """One spliced span of an output: what was said, on what evidence, and what became of it since.

    `withheld` says that marks stand for the value, as it is past and kept from who asks.
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


@dataclass(frozen=True, slots=True)
class GenerationRecord:
    """A stored output in a list: `num_hits` of its `num_splices` lookups found a fact."""

    generation_id: int
    prompt: str
    output: str
    checkpoint_id: str
    mode: str
    seq: int
    at: datetime
    num_splices: int
    num_hits: int


@dataclass(frozen=True, slots=True)
class OutputTrace:
    """Everything an auditor asks of a stored output."""

    generation_id: int
    prompt: str
    output: str
    checkpoint_id: str
    mode: str
    seq: int
    at: datetime
    splices: tuple[TracedSplice, ...]
    redacted_seq: int | None = None


@dataclass(frozen=True, slots=True)
class Version:
    """A value a fact has had, live from change `from_seq` until `to_seq` (None: still)."""

    version: int
    value: str
    from_seq: int
    to_seq: int | None


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
    """A fact, its source sentence, every version, every change and every stored output that used it."""

    fact: FactRecord
    context: str | None
    versions: tuple[Version, ...]
    history: tuple[ChangeRecord, ...]
    uses: tuple[Use, ...]


@dataclass(frozen=True, slots=True)
class CorpusStats:
    corpus: str
    documents: int
    facts: int
    deleted: int
    characters: int


@dataclass(frozen=True, slots=True)
class FsckReport:
    """Sets compared, not counts: `ok` only where nothing is missing, left over or broken.

    `chain_breaks` are changes of the log that do not fit, and `chain_sealed` those that were acknowledged: they leave
    `chain_ok` and `ok` as they are.

    `mendable` is what a repair clears up though no answer depends on it: snapshots that are refused, files left
    over, keysets that were keyed to the end and not finished. `quoting` is what still says an erased fact.
    """

    ok: bool
    live_facts: int
    live_keys: int
    index_ids: int
    keys_missing_from_index: tuple[int, ...]
    index_ids_without_live_key: tuple[int, ...]
    unkeyed_facts: int
    non_verbatim_facts: tuple[int, ...]
    changes_checked: int
    chain_ok: bool
    chain_first_break: int | None
    chain_breaks: tuple[int, ...] = field(default=())
    chain_sealed: tuple[int, ...] = field(default=())
    problems: tuple[str, ...] = field(default=())
    mendable: tuple[str, ...] = field(default=())
    quoting: tuple[str, ...] = field(default=())
