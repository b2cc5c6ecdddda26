"""Writes accounts of provenance as PROV-JSON, and as JSON-LD in the terms of PROV-O with a context of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from colmlm.kb.evidence.provenance import Provenance, Relation, Thing

ProvForm = Literal["prov", "prov-json"]  # JSON-LD, or PROV-JSON
MEDIA_TYPES: Mapping[ProvForm, str] = MappingProxyType(
    {"prov": "application/ld+json", "prov-json": "application/provenance+json"}
)
PROV = "http://www.w3.org/ns/prov#"
TERMS = "urn:colmlm:terms:"
_XSD, _RDFS = "http://www.w3.org/2001/XMLSchema#", "http://www.w3.org/2000/01/rdf-schema#"


class _Form(NamedTuple):
    """How a relation is written: its name and two parameters in PROV-JSON, its property, and that of its time."""

    name: str
    subject: str
    object: str
    time: str | None = None


_RELATIONS = {
    "wasGeneratedBy": _Form("wasGeneratedBy", "entity", "activity", "generatedAtTime"),
    "wasInvalidatedBy": _Form("wasInvalidatedBy", "entity", "activity", "invalidatedAtTime"),
    "used": _Form("used", "activity", "entity"),
    "wasDerivedFrom": _Form("wasDerivedFrom", "generatedEntity", "usedEntity"),
    "wasQuotedFrom": _Form("wasDerivedFrom", "generatedEntity", "usedEntity"),
    "wasAssociatedWith": _Form("wasAssociatedWith", "activity", "agent"),
    "actedOnBehalfOf": _Form("actedOnBehalfOf", "delegate", "responsible"),
    "specializationOf": _Form("specializationOf", "specificEntity", "generalEntity"),
    "wasInfluencedBy": _Form("wasInfluencedBy", "influencee", "influencer"),
    "hadMember": _Form("hadMember", "collection", "entity"),
}
_SOFTWARE, _COLLECTION = "Checkpoint", "Output"  # kinds that PROV has a kind of its own for


def prov_json(account: Provenance) -> dict[str, Any]:
    """Writes an account as PROV-JSON (https://www.w3.org/submissions/prov-json/)."""
    written: dict[str, Any] = {"prefix": {"base": _base(account), "colmlm": TERMS}}
    for kind, things in _things(account):
        if things:
            written[kind] = {f"base:{thing.name}": _json_attributes(thing) for thing in things}
    for number, relation in enumerate(account.relations, 1):
        form = _RELATIONS[relation.kind]
        said: dict[str, Any] = {
            f"prov:{form.subject}": f"base:{relation.subject}",
            f"prov:{form.object}": f"base:{relation.object}",
        }
        if relation.at is not None:
            said["prov:time"] = relation.at.isoformat()
        if relation.kind == "wasQuotedFrom":
            said["prov:type"] = _qualified("prov:Quotation")
        written.setdefault(form.name, {})[f"_:r{number}"] = said
    return written


def _json_attributes(thing: Thing) -> dict[str, Any]:
    said: dict[str, Any] = {"prov:type": [_qualified(kind) for kind in _kinds(thing)]}
    for name, value in (("startTime", thing.start), ("endTime", thing.end)):
        if value is not None:
            said[f"prov:{name}"] = value.isoformat()
    return said | {_term(name, "prov:label"): value for name, value in thing.said.items()}


def _qualified(name: str) -> dict[str, str]:
    return {"$": name, "type": "prov:QUALIFIED_NAME"}


def prov_ld(account: Provenance) -> dict[str, Any]:
    """Writes an account as JSON-LD. Its context is within it, so that nothing has to be fetched to read it."""
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


def _link(node: dict[str, Any], relation: Relation) -> None:
    node.setdefault(f"prov:{relation.kind}", []).append({"@id": f"base:{relation.object}"})
    if relation.at is not None and (time := _RELATIONS[relation.kind].time) is not None:
        node[f"prov:{time}"] = _moment(relation.at)


def _moment(at: datetime) -> dict[str, str]:
    return {"@type": "xsd:dateTime", "@value": at.isoformat()}


def _things(account: Provenance) -> Iterator[tuple[str, list[Thing]]]:
    yield "entity", list(account.entities.values())
    yield "activity", list(account.activities.values())
    yield "agent", list(account.agents.values())


def _kinds(thing: Thing) -> list[str]:
    extra = {_SOFTWARE: ["prov:SoftwareAgent"], _COLLECTION: ["prov:Collection"]}
    return [f"colmlm:{thing.type}", *extra.get(thing.type, [])]


def _term(name: str, label: str) -> str:
    """Gives the term for what is said of a thing: those that PROV has no term for are this program's."""
    return {"label": label, "value": "prov:value"}.get(name, f"colmlm:{name}")


def _base(account: Provenance) -> str:
    return f"urn:colmlm:{account.database}:"


def written(account: Provenance, form: ProvForm) -> dict[str, Any]:
    """Writes an account in this form."""
    return prov_ld(account) if form == "prov" else prov_json(account)
