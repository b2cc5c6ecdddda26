"""Traces in the terms of W3C PROV: read back by the library for PROV, and as RDF, and compared."""

from __future__ import annotations

import json
from typing import Any

from prov.model import ProvDocument, ProvElement
from rdflib import RDF, Graph, Literal, Namespace, URIRef

from colmlm.kb.evidence.provenance import PROV, TERMS
from colmlm.kb.evidence.records import NewOutput, Splice
from colmlm.kb.principal import local_user
from colmlm.kb.service import KnowledgeBase
from tests.kb.corpora import CAPITAL, PERU, fact_id, ingest

P = Namespace(PROV)
T = Namespace(TERMS)


def spoken(kb: KnowledgeBase) -> tuple[int, int]:
    """Stores an output that says Peru's capital, and gives its id and the fact's."""
    ingest(kb, PERU)
    fact = fact_id(kb, "Lima")
    splices = (Splice(6, 10, "hit", fact, 1, 0.9), Splice(11, 11, "no_match", score=0.2))
    made = NewOutput(CAPITAL, "It is Lima.", "c0ffee", "auto", kb.log.head_seq(), splices)
    return kb.outputs.record(made), fact


def read(written: dict[str, Any]) -> ProvDocument:
    document = ProvDocument.deserialize(content=json.dumps(written), format="json")
    assert isinstance(document, ProvDocument)
    return document


def names(document: ProvDocument) -> dict[str, ProvElement]:
    """Gives the elements of a document by the name that this base has for them."""
    return {element.identifier.localpart: element for element in document.get_records(ProvElement)}  # type: ignore[union-attr]


def told(document: ProvDocument) -> str:
    """Gives a document in PROV's notation, without the escapes of colons in names."""
    return document.get_provn().replace("\\:", ":")


def graph(written: dict[str, Any]) -> Graph:
    found = Graph()
    found.parse(data=json.dumps(written), format="json-ld")
    return found


def test_an_output_comes_from_a_version_of_a_fact_and_that_from_a_document(kb: KnowledgeBase) -> None:
    output, fact = spoken(kb)
    document = read(kb.outputs.provenance(output, "prov-json"))
    found = names(document)
    splice, version = f"output:{output}:splice:0", f"fact:{fact}:version:1"
    expected = {
        f"output:{output}", f"output:{output}:prompt", splice, version, f"fact:{fact}", "document:1",
        f"decoding:{output}", "checkpoint:c0ffee", "change:1", "actor:tester", f"principal:local:{local_user()}",
    }  # fmt: skip
    assert set(found) == expected  # a lookup without a match comes from nothing
    said = told(document)
    assert f"wasGeneratedBy(base:output:{output}, base:decoding:{output}" in said
    assert f"wasDerivedFrom(base:{splice}, base:{version}" in said
    assert f"wasDerivedFrom(base:{version}, base:document:1" in said
    assert f"wasAssociatedWith(base:decoding:{output}, base:checkpoint:c0ffee" in said
    assert f"specializationOf(base:{version}, base:fact:{fact})" in said
    (value,) = found[splice].get_attribute("prov:value")
    assert value == "Lima"


def test_a_value_that_somebody_entered_is_a_revision_and_no_quotation(kb: KnowledgeBase) -> None:
    _, fact = spoken(kb)
    edited = kb.facts.edit(fact, "Cusco", actor="ann", reason="moved").seq
    made = NewOutput(CAPITAL, "It is Cusco.", "c0ffee", "auto", edited, (Splice(6, 11, "hit", fact, 2, 0.9),))
    output = kb.outputs.record(made)
    version, before = f"base:fact:{fact}:version:2", f"base:fact:{fact}:version:1"
    for written in (
        kb.outputs.provenance(output, "prov-json"),
        kb.outputs.provenance_of_fact(fact, "prov-json"),
    ):
        derived = [
            (one["prov:usedEntity"], one["prov:type"]["$"])
            for one in written["wasDerivedFrom"].values()
            if one["prov:generatedEntity"] == version
        ]
        assert derived == [(before, "prov:Revision")]
        said = told(read(written))
        assert f"wasGeneratedBy({version}, base:change:{edited}" in said
        assert f"wasAssociatedWith(base:change:{edited}, base:actor:ann" in said
        assert f"wasAssociatedWith(base:change:{edited}, base:principal:local:{local_user()}" in said
        assert "actedOnBehalfOf(base:actor:ann, base:actor:ann" not in said
    assert (None, P.wasRevisionOf, None) in graph(kb.outputs.provenance(output, "prov"))


def test_both_forms_say_the_same(kb: KnowledgeBase) -> None:
    output, _ = spoken(kb)
    document = read(kb.outputs.provenance(output, "prov-json"))
    found = graph(kb.outputs.provenance(output, "prov"))
    base = f"urn:colmlm:{kb.log.database_id()}:"
    for name, element in names(document).items():
        node = URIRef(base + name)
        kind = {"Entity": P.Entity, "Activity": P.Activity, "Agent": P.Agent}[type(element).__name__[4:]]
        assert (node, RDF.type, kind) in found
        for value in element.get_attribute("prov:value"):
            assert (node, P.value, Literal(value)) in found
    written = kb.outputs.provenance(output, "prov-json")
    kinds = [k for k in written if k not in ("prefix", "entity", "activity", "agent")]
    related = {
        (str(s).removeprefix(base), str(o).removeprefix(base))
        for s, p, o in found
        if isinstance(o, URIRef) and str(o).startswith(base)
    }
    listed = {
        tuple(
            str(end).removeprefix("base:")
            for name, end in relation.items()
            if name not in ("prov:time", "prov:type")
        )
        for kind in kinds
        for relation in written[kind].values()
    }
    assert related == listed
    assert read(json.loads(document.serialize(format="json"))) == document  # nothing is lost on the way


def test_an_edit_since_says_who_ended_what_was_spliced(kb: KnowledgeBase) -> None:
    output, fact = spoken(kb)
    gone = kb.facts.delete([fact], actor="ann b/c", reason="disputed").seq
    said = told(read(kb.outputs.provenance(output, "prov-json")))
    assert f"wasInvalidatedBy(base:fact:{fact}:version:1, base:change:{gone}" in said
    assert f"wasAssociatedWith(base:change:{gone}, base:actor:ann%20b%2Fc" in said
    found = graph(kb.outputs.provenance(output, "prov"))
    (change,) = found.subjects(RDF.type, T["Change-delete"])
    assert str(found.value(change, T.reason)) == "disputed"
    assert str(found.value(change, P.endedAtTime)) == kb.log.change(gone).at.isoformat()


def test_a_fact_is_told_by_its_versions_and_the_outputs_that_used_it(kb: KnowledgeBase) -> None:
    output, fact = spoken(kb)
    edited = kb.facts.edit(fact, "Cusco", actor="ann", reason="moved").seq
    document = read(kb.outputs.provenance_of_fact(fact, "prov-json"))
    said = told(document)
    assert f"wasGeneratedBy(base:fact:{fact}:version:2, base:change:{edited}" in said
    assert f"wasInvalidatedBy(base:fact:{fact}:version:1, base:change:{edited}" in said
    assert f"wasDerivedFrom(base:output:{output}, base:fact:{fact}:version:1" in said
    found = graph(kb.outputs.provenance_of_fact(fact, "prov"))
    assert {str(value) for value in found.objects(None, P.value)} == {"Lima", "Cusco"}


def test_a_context_is_within_the_document(kb: KnowledgeBase) -> None:
    output, _ = spoken(kb)
    context = kb.outputs.provenance(output, "prov")["@context"]
    assert isinstance(context, dict) and context["prov"] == PROV  # nothing has to be fetched to read it
