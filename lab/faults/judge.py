"""The judge: opens the base as the next process would, and compares it with the model.

Every outcome that the acknowledgements allow is a world, and the base must equal one of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from sqlalchemy import ARRAY, Connection, Select, Text, cast, column, func, select, table, text

from colmlm.kb.errors import KeysetMismatch
from colmlm.kb.keys.keysets import decode_keys
from colmlm.kb.removal.scan import LEAST, Matcher
from colmlm.kb.service import KnowledgeBase
from colmlm.lab.bench.synthetic import DIM, ENCODERS, HashEncoder
from colmlm.lab.faults.world import (
    ABSENT,
    ACTIVE,
    BUILDING,
    READY,
    KnownFact,
    StepJournal,
    WorkloadStep,
    World,
)

# The least cosine with the encoder's own key: half floats round, and a map is fitted.
TRUE, PREDICTED = 0.999, 0.95

Kind = Literal["lost", "resurrected", "mismatched", "residue", "chain_breaks", "errors"]

_FACTS = text("""
SELECT f.id, f.question, f.deleted_seq IS NULL AS live, v.value, t.fact_id IS NOT NULL AS abstain
FROM fact f
JOIN fact_version v ON v.fact_id = f.id
    AND v.version = (SELECT max(version) FROM fact_version WHERE fact_id = f.id)
LEFT JOIN tombstone t ON t.fact_id = f.id
WHERE f.erased_seq IS NULL
""")
_ERASED = text("SELECT id FROM fact WHERE erased_seq IS NOT NULL")
# Every column of every table that can hold a text, so that new columns are searched too.
_COLUMNS = text("""
SELECT c.table_name, c.column_name, c.data_type FROM information_schema.columns c
JOIN information_schema.tables t USING (table_schema, table_name)
WHERE c.table_schema = current_schema() AND t.table_type = 'BASE TABLE'
  AND c.data_type IN ('text', 'character varying', 'character', 'json', 'jsonb', 'bytea', 'ARRAY', 'USER-DEFINED',
                      'tsvector')
ORDER BY c.table_name, c.ordinal_position
""")
_KEYSETS = text("SELECT checkpoint_id, state FROM keyset ORDER BY id")
_KEYS = text(
    "SELECT fact_key.id, fact_id FROM fact_key JOIN keyset ON keyset.id = keyset_id AND state = 'active'"
)
_KEYS_OF_CHECKPOINT = text("""
SELECT k.id, f.question, k.key, EXISTS (
    SELECT FROM change c
    WHERE c.kind = 'key' AND c.payload -> 'predicted' IS NOT NULL AND CAST(c.payload ->> 'keyset' AS bigint) = s.id
      AND k.id BETWEEN CAST(c.payload -> 'keys' ->> 0 AS bigint) AND CAST(c.payload -> 'keys' ->> 1 AS bigint)
) AS predicted
FROM keyset s JOIN fact_key k ON k.keyset_id = s.id JOIN fact f ON f.id = k.fact_id
WHERE s.checkpoint_id = :checkpoint_id AND s.state <> 'retired' AND f.question IS NOT NULL
ORDER BY k.id
""")
_DOCUMENTS = text("SELECT external_id, text FROM document WHERE replaced_seq IS NULL")
_LOGGED = text("SELECT kind, count(*) AS n FROM change WHERE seq > :after AND kind <> 'key' GROUP BY kind")


@dataclass(frozen=True, slots=True)
class Violation:
    """A violated invariant."""

    kind: Kind
    what: str


@dataclass(frozen=True, slots=True)
class StoredState:
    """The content of the tables: facts by question, ids of erased facts, texts by external id, states of keysets."""

    facts: dict[str, KnownFact]
    erased: frozenset[int]
    documents: dict[str, str]
    keysets: tuple[str, str]
    logged: Counter[str]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The findings, and the world that the base turned out to equal."""

    findings: tuple[Violation, ...]
    world: World
    head: int


def judge(opened: KnowledgeBase, world: World, journals: Sequence[StepJournal], head: int) -> Verdict:
    """Compare the base with every world that the journals allow after `world`, whose last change was `head`."""
    with opened.engine.connect() as connection:
        seen = _see(connection, head)
    held = [(w, list(_compare(w, seen))) for w in outcomes(world, journals)]
    world, findings = min(held, key=lambda pair: len(pair[1]))
    ids = {question: fact.fact_id for question, fact in seen.facts.items()}
    world = world.with_stored(ids, seen.keysets)
    findings += [*_reported_failures(journals), *_miscounted_changes(seen, journals), *_inside(opened, world)]
    return Verdict(tuple(findings), world, opened.log.head_seq())


def judge_as(opened: KnowledgeBase, world: World) -> list[Violation]:
    """Find how a base that no child works on differs from the world that it should equal."""
    with opened.engine.connect() as connection:
        seen = _see(connection, opened.log.head_seq())
    ids = {question: fact.fact_id for question, fact in seen.facts.items()}
    return [*_compare(world, seen), *_inside(opened, world.with_stored(ids, seen.keysets))]


def _inside(opened: KnowledgeBase, world: World) -> Iterator[Violation]:
    """Find what fsck reports, residue of erased facts, and lookups that contradict the tables."""
    yield from fsck_faults(opened)
    yield from _residue(opened, world)
    yield from _keys(opened, world)
    if ACTIVE in world.keysets:
        yield from _answers(opened, world)
        yield from _index(opened, world)
        yield from _other_space(opened, world)


def outcomes(world: World, journals: Sequence[StepJournal]) -> list[World]:
    """Give every allowed world: with all acknowledged steps, and each step in doubt done or not done."""
    for journal in journals:
        for step in journal.acknowledged:
            world = world.apply(step)
    worlds = [world]
    for journal in journals:
        if journal.in_doubt is not None:
            worlds = [w for before in worlds for w in _done_or_not(before, journal.in_doubt)]
    if len(journals) > 1:  # a fact that one child keyed may have been edited by the other
        edited = {q for j in journals[1:] for s in (*j.acknowledged, j.in_doubt) if s for q in s.questions}
        worlds = [w.edited_meanwhile(edited) for w in worlds]
    return worlds


def _done_or_not(world: World, step: WorkloadStep) -> list[World]:
    if step.do not in ("rekey", "adapt", "make_true"):
        return [world, world.apply(step)]
    # These are many transactions: any number of keys may exist, and the keyset be absent, begun, or done.
    if step.do == "adapt":
        world = world.with_predicted(step.encoder, world.facts)
    states = {world.keysets[step.encoder], BUILDING, READY}
    if world.keysets[step.encoder] in (READY, ACTIVE):
        states = {world.keysets[step.encoder]}
    return [world.with_keyset(step.encoder, state) for state in sorted(states)]


def _see(connection: Connection, head: int) -> StoredState:
    facts = {
        row.question: KnownFact(row.value, live=row.live, abstain=row.abstain, fact_id=row.id)
        for row in connection.execute(_FACTS)
    }
    states = dict(tuple(row) for row in connection.execute(_KEYSETS))  # the newest of a checkpoint wins
    first, second = (states.get(e.checkpoint.checkpoint_id, ABSENT) for e in ENCODERS)
    return StoredState(
        facts=facts,
        erased=frozenset(connection.scalars(_ERASED)),
        documents=dict(tuple(row) for row in connection.execute(_DOCUMENTS)),
        keysets=(first, second),
        logged=Counter({row.kind: row.n for row in connection.execute(_LOGGED, {"after": head})}),
    )


def _compare(world: World, seen: StoredState) -> Iterator[Violation]:
    """Find how the tables differ from a world."""
    for question, fact in world.facts.items():
        if fact.erased:
            yield from _compare_erased(question, fact, seen)
        else:
            yield from _compare_fact(question, fact, seen.facts.get(question))
    for question in seen.facts.keys() - world.facts.keys():
        yield Violation("mismatched", f"{question!r}: nobody inserted it")
    erased = world.erased_questions
    texts = {d: t.without_values(erased).document(d).text for d, t in world.documents.items()}
    for external_id in sorted(d for d in texts | seen.documents if texts.get(d) != seen.documents.get(d)):
        yield Violation("mismatched", f"document {external_id} has another text, or one too many or too few")
    if world.keysets != seen.keysets:
        yield Violation("mismatched", f"keysets are {seen.keysets}, not {world.keysets}")


def _compare_fact(question: str, fact: KnownFact, found: KnownFact | None) -> Iterator[Violation]:
    if found is None:
        yield Violation("lost", f"{question!r}: the fact is gone")
    elif fact.fact_id not in (0, found.fact_id):
        yield Violation("mismatched", f"{question!r}: fact {found.fact_id}, was {fact.fact_id}")
    elif fact.live and not found.live:
        yield Violation("lost", f"{question!r}: deleted, and nobody deleted it")
    elif found.live and not fact.live:
        yield Violation("resurrected", f"{question!r}: live after its deletion was acknowledged")
    elif found.value != fact.value:
        yield Violation("mismatched", f"{question!r}: {found.value!r}, not {fact.value!r}")
    elif found.abstain != fact.abstain:
        yield Violation("mismatched", f"{question!r}: a tombstone or none, contrary to its deletion")


def _compare_erased(question: str, fact: KnownFact, seen: StoredState) -> Iterator[Violation]:
    if question in seen.facts:
        yield Violation("resurrected", f"{question!r}: there after its erasure was acknowledged")
    elif fact.fact_id and fact.fact_id not in seen.erased:
        yield Violation("lost", f"{question!r}: nothing says that it was erased")


def _reported_failures(journals: Sequence[StepJournal]) -> Iterator[Violation]:
    """Find what the children themselves reported in their journals."""
    shared = len(journals) > 1
    for journal in journals:
        if journal.failed:
            yield Violation(
                "errors", f"{journal.in_doubt.do if journal.in_doubt else 'start'}: {journal.failed}"
            )
        for wrong in journal.wrong:
            if wrong["answer"] is not None or not shared:  # the other child may have taken the key
                kind: Kind = "resurrected" if wrong["expected"] is None else "mismatched"
                yield Violation(
                    kind, f"a lookup of {wrong['wrong']!r} gave {wrong['answer']!r} before the kill"
                )


_LOGGED_AS = {"purge": "erase"}


def _miscounted_changes(seen: StoredState, journals: Sequence[StepJournal]) -> Iterator[Violation]:
    """Find fault unless the log has one change for each acknowledged edit, at most one for each in doubt, and no
    others.
    """
    least = Counter(_kind_of(step) for journal in journals for step in journal.acknowledged)
    most = least + Counter(_kind_of(journal.in_doubt) for journal in journals if journal.in_doubt)
    for kind in ("insert", "update", "delete", "forget", "restore", "ingest", "erase", "activate", "retire"):
        if not least[kind] <= seen.logged[kind] <= most[kind]:
            lost: Kind = "lost" if seen.logged[kind] < least[kind] else "mismatched"
            yield Violation(
                lost, f"{seen.logged[kind]} changes of kind {kind}, not {least[kind]} to {most[kind]}"
            )


def _kind_of(step: WorkloadStep) -> str:
    """Give the kind of change that a step appends to the log, if any."""
    return _LOGGED_AS.get(step.do, step.do)


def _residue(opened: KnowledgeBase, world: World) -> Iterator[Violation]:
    """Find every column of a table and every file of the home that still holds a value of an erased fact."""
    values = [v for fact in world.facts.values() if fact.erased for v in (fact.value, *fact.past)]
    if not values:
        return
    with opened.engine.connect() as connection:
        for named, holding, kind in connection.execute(_COLUMNS).all():
            for value in connection.scalars(_saying(named, holding, kind, values)):
                yield Violation("residue", f"{named}.{holding} says {value!r}, which was erased")
    values = [value for value in values if len(value.encode()) >= LEAST]
    matcher = Matcher([value.encode() for value in values])
    for file in sorted(path for path in opened.settings.home.rglob("*") if path.is_file()):
        for number in sorted(matcher.find_in_file(file)[0]):
            yield Violation("residue", f"the file {file.name} says {values[number]!r}, which was erased")


def _saying(named: str, holding: str, kind: str, values: list[str]) -> Select[Any]:
    """Select those of the values that a column contains, ignoring case."""
    holder = table(named, column(holding))
    held: Any = holder.c[holding]
    said = func.encode(held, "escape") if kind == "bytea" else cast(held, Text)
    erased: Any = func.unnest(cast(values, ARRAY(Text))).table_valued("value").render_derived(name="erased")
    says = func.strpos(func.lower(said), func.lower(erased.c.value)) > 0
    return select(erased.c.value).distinct().select_from(holder.join(erased, says))


def fsck_faults(opened: KnowledgeBase) -> Iterator[Violation]:
    """Find what `fsck` reports."""
    report = opened.upkeep.fsck()
    if not report.chain_ok:
        yield Violation("chain_breaks", f"the change log breaks at {report.chain_first_break}")
    elif not report.ok:
        yield Violation("mismatched", f"fsck: {report}")


def _keys(opened: KnowledgeBase, world: World) -> Iterator[Violation]:
    """Find keys that are neither what their encoder makes nor, where there may be such, predicted near it."""
    with opened.engine.connect() as connection:
        for encoder, predicted in zip(ENCODERS, world.predicted, strict=True):
            for what in _wrong_keys(connection, encoder, predicted):
                yield Violation("mismatched", what)


def _wrong_keys(connection: Connection, encoder: HashEncoder, predicted: Container[str]) -> Iterator[str]:
    """Describe keys that are not as they should be: true, or predicted for the facts that may have such."""
    rows = connection.execute(_KEYS_OF_CHECKPOINT, {"checkpoint_id": encoder.checkpoint.checkpoint_id}).all()
    keys_ND = decode_keys([row.key for row in rows], DIM)
    made_ND = encoder.encode_questions([row.question for row in rows])
    cosines = np.einsum("nd,nd->n", keys_ND, made_ND)
    for row, cosine in zip(rows, cosines.tolist(), strict=True):
        if row.predicted and row.question not in predicted:
            yield f"key {row.id} of {row.question!r} is still a predicted one"
        elif cosine < (PREDICTED if row.predicted else TRUE):
            yield f"key {row.id} of {row.question!r} has a cosine of {cosine:.3f} with what its encoder makes"


def _answers(opened: KnowledgeBase, world: World) -> Iterator[Violation]:
    """Look every question up in one call, and find wrong results. Facts without a key may be found or not."""
    questions, encoder = list(world.facts), ENCODERS[world.active]
    found = opened.lookups.find(
        encoder.encode_questions(questions), checkpoint_id=encoder.checkpoint.checkpoint_id, threshold=0.95
    )
    for question, lookup in zip(questions, found, strict=True):
        fact, keyed = world.facts[question], question in world.keyed[world.active]
        hit = lookup.hits[0] if lookup.hits else None
        if hit is None:
            if fact.live and keyed:
                yield Violation("lost", f"a lookup of {question!r} finds nothing")
        elif not fact.live:
            yield Violation("resurrected", f"a lookup of {question!r} finds {hit.value!r}")
        elif (hit.fact_id, hit.value) != (fact.fact_id, fact.value):
            yield Violation("mismatched", f"a lookup of {question!r} finds {hit.value!r}, not {fact.value!r}")
        if keyed and (lookup.abstained is not None) != fact.abstain:
            yield Violation("mismatched", f"a lookup of {question!r} abstains, or should")


def _index(opened: KnowledgeBase, world: World) -> Iterator[Violation]:
    """Find keys that the index holds wrongly or lacks: it must hold exactly those of the facts that are kept."""
    opened.lookups.catch_up()
    with opened.engine.connect() as connection:
        keys = {row.id: row.fact_id for row in connection.execute(_KEYS)}
    kept = {fact.fact_id for fact in world.facts.values() if fact.is_indexed}
    expected = np.array(sorted(i for i, fact_id in keys.items() if fact_id in kept), dtype=np.int64)
    present = opened.searcher.current().candidates.ids
    for key_id in np.setdiff1d(present, expected).tolist():
        yield Violation("resurrected", f"key {key_id} of fact {keys.get(key_id)} is in the index")
    for key_id in np.setdiff1d(expected, present).tolist():
        yield Violation("lost", f"key {key_id} of fact {keys[key_id]} is not in the index")


def _other_space(opened: KnowledgeBase, world: World) -> Iterator[Violation]:
    """Find fault unless queries of the encoder whose keyset is not active are refused."""
    other = ENCODERS[1 - world.active]
    try:
        opened.lookups.find(other.encode_questions(["?"]), checkpoint_id=other.checkpoint.checkpoint_id)
    except KeysetMismatch:
        return
    yield Violation("mismatched", "a query of the keyset that is not active was answered")
