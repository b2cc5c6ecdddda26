"""Traces in the terms of W3C PROV: who and what a stored output, or a fact, came from.

Entities are outputs, prompts, splices, facts, their versions, and documents; activities are decoding and the changes of
the log; agents are actors and checkpoints. `kb.evidence.provenance` writes such an account down.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

from colmlm.kb.evidence.records import FactTrace, OutputTrace, TracedSplice
from colmlm.kb.facts.records import Source
from colmlm.kb.log.records import ChangeRecord

ENDING = ("delete", "forget", "erase", "reject", "ingest")  # changes after which a fact may be no longer live


@dataclass(frozen=True, slots=True)
class ProvElement:
    """An entity, activity or agent of PROV: its name, its type in this program, and its attributes (`said`)."""

    name: str
    type: str
    said: dict[str, Any]
    start: datetime | None = None
    end: datetime | None = None


@dataclass(frozen=True, slots=True)
class ProvRelation:
    """A relation of PROV, such as "wasGeneratedBy", between two elements, perhaps with a time."""

    kind: str
    subject: str
    object: str
    at: datetime | None = None


@dataclass(slots=True)
class Provenance:
    """A PROV account that is being made: its elements by name, and their relations; `database` is the base's id."""

    database: str
    entities: dict[str, ProvElement] = field(default_factory=dict)
    activities: dict[str, ProvElement] = field(default_factory=dict)
    agents: dict[str, ProvElement] = field(default_factory=dict)
    relations: dict[ProvRelation, None] = field(default_factory=dict)  # in order, each once

    def entity(self, name: str, kind: str, **said: Any) -> str:
        self.entities.setdefault(name, ProvElement(name, kind, _drop_none(said)))
        return name

    def activity(self, name: str, kind: str, at: datetime, **said: Any) -> str:
        self.activities.setdefault(name, ProvElement(name, kind, _drop_none(said), at, at))
        return name

    def agent(self, name: str, kind: str, **said: Any) -> str:
        self.agents.setdefault(name, ProvElement(name, kind, _drop_none(said)))
        return name

    def relate(self, kind: str, subject: str, object: str, at: datetime | None = None) -> None:
        self.relations[ProvRelation(kind, subject, object, at)] = None


def output_account(trace: OutputTrace, database: str) -> Provenance:
    """Give the PROV account of a stored output: decoded from a prompt, with facts of documents spliced in."""
    found = Provenance(database)
    name, decoding = f"output:{trace.generation_id}", f"decoding:{trace.generation_id}"
    found.entity(name, "Output", value=trace.output, mode=trace.mode, ranking=trace.ranking, seq=trace.seq)
    found.activity(decoding, "Decoding", trace.at)
    found.relate("used", decoding, found.entity(f"{name}:prompt", "Prompt", value=trace.prompt))
    found.relate("wasGeneratedBy", name, decoding, trace.at)
    if trace.checkpoint_id:
        checkpoint = found.agent(f"checkpoint:{quote(trace.checkpoint_id, safe='')}", "Checkpoint")
        found.relate("wasAssociatedWith", decoding, checkpoint)
    if trace.quotes is not None:
        is_quotation = not any(splice.document_says for splice in trace.splices)
        how = "wasQuotedFrom" if is_quotation else "wasDerivedFrom"
        found.relate(how, name, _document(found, trace.quotes))
    for splice in trace.splices:
        if splice.outcome == "hit":
            _splice(found, name, decoding, splice)
    return found


def _splice(found: Provenance, output: str, decoding: str, splice: TracedSplice) -> None:
    name, fact = f"{output}:splice:{splice.ordinal}", f"fact:{splice.fact_id}"
    version = f"{fact}:version:{splice.version}"
    found.entity(
        name,
        "Splice",
        value=splice.value,
        start=splice.output_start,
        end=splice.output_end,
        score=splice.score,
    )
    is_whole = splice.part_start is None
    found.entity(fact, "Fact", live=splice.live)
    found.entity(version, "FactVersion", value=splice.value if is_whole else None)
    found.relate("hadMember", output, name)
    found.relate("wasQuotedFrom", name, version)
    found.relate("used", decoding, version)
    found.relate("specializationOf", version, fact)
    if splice.document_says is not None:
        _revise(found, fact, splice.version or 1)
    elif splice.source is not None:
        found.relate("wasQuotedFrom", version, _document(found, splice.source))
    if (given := splice.given_by) is not None:
        (change,) = _changes(found, version, [given]).values()
        if given.seq == splice.from_seq:
            found.relate("wasGeneratedBy", version, change, given.at)
    changes = _changes(found, fact, splice.history)
    endings = [change for change in splice.history if change.kind in ENDING]
    if not splice.live and endings:
        found.relate("wasInvalidatedBy", version, changes[endings[-1].seq], endings[-1].at)


def _revise(found: Provenance, fact: str, version: int) -> None:
    """Relate a version whose value somebody entered to the version before it, if there is one."""
    if version > 1:
        before = found.entity(f"{fact}:version:{version - 1}", "FactVersion")
        found.relate("specializationOf", before, fact)
        found.relate("wasRevisionOf", f"{fact}:version:{version}", before)


def fact_account(trace: FactTrace, database: str) -> Provenance:
    """Give the PROV account of a fact: its versions, the changes that made them, and the outputs that used it."""
    found, name = Provenance(database), f"fact:{trace.fact.fact_id}"
    found.entity(name, "Fact", question=trace.fact.question, live=trace.fact.deleted_seq is None)
    changes = _changes(found, name, trace.history)
    at = {change.seq: change.at for change in trace.history}
    document = None if trace.fact.source is None else _document(found, trace.fact.source)
    for version in trace.versions:
        this = found.entity(f"{name}:version:{version.version}", "FactVersion", value=version.value)
        found.relate("specializationOf", this, name)
        if version.from_seq in changes:
            found.relate("wasGeneratedBy", this, changes[version.from_seq], at[version.from_seq])
        if version.to_seq in changes:
            found.relate("wasInvalidatedBy", this, changes[version.to_seq], at[version.to_seq])
        if version.document_says is not None:
            _revise(found, name, version.version)
        elif version.document_id is not None:
            said = f"document:{version.document_id}"
            found.relate("wasQuotedFrom", this, said if said == document else found.entity(said, "Document"))
    for use in trace.uses:
        output = found.entity(f"output:{use.generation_id}", "Output")
        found.relate("wasDerivedFrom", output, f"{name}:version:{use.version}")
    return found


def _changes(found: Provenance, changed: str, history: Iterable[ChangeRecord]) -> dict[int, str]:
    """Add the changes of a fact or version, their actors and principals; give the elements' names by change number."""
    names = {}
    for change in history:
        name = found.activity(
            f"change:{change.seq}", f"Change-{change.kind}", change.at, reason=change.reason, hash=change.hash
        )
        actor = _actor(found, change.actor)
        found.relate("wasAssociatedWith", name, actor)
        if change.on_behalf_of not in (None, change.actor):
            found.relate("actedOnBehalfOf", actor, _actor(found, change.on_behalf_of))
        if change.principal is not None:
            principal = f"principal:{change.principal.kind}:{quote(change.principal.name, safe='')}"
            found.agent(principal, "Principal", label=str(change.principal))
            found.relate("wasAssociatedWith", name, principal)
        found.relate("wasInfluencedBy", changed, name)
        names[change.seq] = name
    return names


def _actor(found: Provenance, name: str) -> str:
    return found.agent(f"actor:{quote(name, safe='')}", "Actor", label=name)


def _document(found: Provenance, source: Source) -> str:
    return found.entity(
        f"document:{source.document_id}",
        "Document",
        label=source.title,
        corpus=source.corpus,
        external_id=source.external_id,
        uri=source.uri,
        licence=source.licence,
        revision=source.revision,
    )


def _drop_none(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}


# Writes accounts of provenance as PROV-JSON, and as JSON-LD in the terms of PROV-O with a context of its own.

ProvForm = Literal["prov", "prov-json"]  # JSON-LD, or PROV-JSON
MEDIA_TYPES: Mapping[ProvForm, str] = MappingProxyType(
    {"prov": "application/ld+json", "prov-json": "application/provenance+json"}
)
PROV = "http://www.w3.org/ns/prov#"
TERMS = "urn:colmlm:terms:"
_XSD, _RDFS = "http://www.w3.org/2001/XMLSchema#", "http://www.w3.org/2000/01/rdf-schema#"


class _RelationForm(NamedTuple):
    """The form of a relation: its name and its two ends in PROV-JSON, and the PROV-O property of its time."""

    name: str
    subject: str
    object: str
    time: str | None = None


_RELATIONS = {
    "wasGeneratedBy": _RelationForm("wasGeneratedBy", "entity", "activity", "generatedAtTime"),
    "wasInvalidatedBy": _RelationForm("wasInvalidatedBy", "entity", "activity", "invalidatedAtTime"),
    "used": _RelationForm("used", "activity", "entity"),
    "wasDerivedFrom": _RelationForm("wasDerivedFrom", "generatedEntity", "usedEntity"),
    "wasQuotedFrom": _RelationForm("wasDerivedFrom", "generatedEntity", "usedEntity"),
    "wasRevisionOf": _RelationForm("wasDerivedFrom", "generatedEntity", "usedEntity"),
    "wasAssociatedWith": _RelationForm("wasAssociatedWith", "activity", "agent"),
    "actedOnBehalfOf": _RelationForm("actedOnBehalfOf", "delegate", "responsible"),
    "specializationOf": _RelationForm("specializationOf", "specificEntity", "generalEntity"),
    "wasInfluencedBy": _RelationForm("wasInfluencedBy", "influencee", "influencer"),
    "hadMember": _RelationForm("hadMember", "collection", "entity"),
}
_TYPES = {"wasQuotedFrom": "prov:Quotation", "wasRevisionOf": "prov:Revision"}
_SOFTWARE, _COLLECTION = "Checkpoint", "Output"  # kinds that PROV has a kind of its own for


def prov_json(account: Provenance) -> dict[str, Any]:
    """Write a PROV account as PROV-JSON (https://www.w3.org/submissions/prov-json/)."""
    write_prov: dict[str, Any] = {"prefix": {"base": _base(account), "colmlm": TERMS}}
    for kind, things in _things(account):
        if things:
            write_prov[kind] = {f"base:{thing.name}": _json_attributes(thing) for thing in things}
    for number, relation in enumerate(account.relations, 1):
        form = _RELATIONS[relation.kind]
        said: dict[str, Any] = {
            f"prov:{form.subject}": f"base:{relation.subject}",
            f"prov:{form.object}": f"base:{relation.object}",
        }
        if relation.at is not None:
            said["prov:time"] = relation.at.isoformat()
        if relation.kind in _TYPES:
            said["prov:type"] = _qualified_name(_TYPES[relation.kind])
        write_prov.setdefault(form.name, {})[f"_:r{number}"] = said
    return write_prov


def _json_attributes(thing: ProvElement) -> dict[str, Any]:
    said: dict[str, Any] = {"prov:type": [_qualified_name(kind) for kind in _kinds(thing)]}
    for name, value in (("startTime", thing.start), ("endTime", thing.end)):
        if value is not None:
            said[f"prov:{name}"] = value.isoformat()
    return said | {_term(name, "prov:label"): value for name, value in thing.said.items()}


def _qualified_name(name: str) -> dict[str, str]:
    return {"$": name, "type": "prov:QUALIFIED_NAME"}


def prov_ld(account: Provenance) -> dict[str, Any]:
    """Write a PROV account as JSON-LD, with its context within it, so that a reader need not fetch one."""
    nodes: dict[str, dict[str, Any]] = {}
    for kind, things in _things(account):
        for thing in things:
            nodes[thing.name] = {
                "@id": f"base:{thing.name}",
                "@type": [f"prov:{kind.capitalize()}", *_kinds(thing)],
            }
            nodes[thing.name] |= {_term(name, "rdfs:label"): value for name, value in thing.said.items()}
            for name, at in (("startedAtTime", thing.start), ("endedAtTime", thing.end)):
                if at is not None:
                    nodes[thing.name][f"prov:{name}"] = _moment(at)
    for relation in account.relations:
        _link(nodes[relation.subject], relation)
    context = {"prov": PROV, "xsd": _XSD, "rdfs": _RDFS, "colmlm": TERMS, "base": _base(account)}
    return {"@context": context, "@graph": list(nodes.values())}


def _link(node: dict[str, Any], relation: ProvRelation) -> None:
    node.setdefault(f"prov:{relation.kind}", []).append({"@id": f"base:{relation.object}"})
    if relation.at is not None and (time := _RELATIONS[relation.kind].time) is not None:
        node[f"prov:{time}"] = _moment(relation.at)


def _moment(at: datetime) -> dict[str, str]:
    return {"@type": "xsd:dateTime", "@value": at.isoformat()}


def _things(account: Provenance) -> Iterator[tuple[str, list[ProvElement]]]:
    yield "entity", list(account.entities.values())
    yield "activity", list(account.activities.values())
    yield "agent", list(account.agents.values())


def _kinds(thing: ProvElement) -> list[str]:
    extra = {_SOFTWARE: ["prov:SoftwareAgent"], _COLLECTION: ["prov:Collection"]}
    return [f"colmlm:{thing.type}", *extra.get(thing.type, [])]


def _term(name: str, label: str) -> str:
    """Give the term of an attribute: `label` for a label, PROV's own for a value, else one of this program."""
    return {"label": label, "value": "prov:value"}.get(name, f"colmlm:{name}")


def _base(account: Provenance) -> str:
    return f"urn:colmlm:{account.database}:"


def write_prov(account: Provenance, form: ProvForm) -> dict[str, Any]:
    """Write a PROV account as JSON-LD (`form` "prov") or as PROV-JSON."""
    return prov_ld(account) if form == "prov" else prov_json(account)
