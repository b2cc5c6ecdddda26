"""Export: what an ingest takes back is the state the corpus was in, to the byte."""

from __future__ import annotations

import json
from pathlib import Path

from sqlalchemy import URL, text

from colmlm.kb.corpus.format import (
    AnnotatedDocument,
    FactSpan,
    Parsed,
    parse_record,
    read_annotated,
    to_record,
)
from colmlm.kb.corpus.parquet import read_parquet, write_parquet
from colmlm.kb.facts.records import ReviewVerdict, VerdictKind
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from tests.fakes import FakeEncoder
from tests.kb.corpora import CAPITAL, CHILE, HEIGHT, PERU, RIVER, fact_id, ingest, numbered, values
from tests.kb.facts.test_ingest import CHANGED
from tests.servers import clone

WHO = {"actor": "tester", "reason": "test"}


def judged(kb: KnowledgeBase, fact: int, verdict: VerdictKind) -> ReviewVerdict:
    now = kb.facts.show(fact)
    return ReviewVerdict(fact, verdict, now.version, now.review)


def written(kb: KnowledgeBase, path: Path) -> bytes:
    lines = (
        json.dumps(to_record(document)) + "\n" for document in kb.corpora.export("lands", live_only=False)
    )
    path.write_text("".join(lines))
    return path.read_bytes()


def edited(kb: KnowledgeBase) -> None:
    """A corpus with every state a fact can be in."""
    ingest(kb, PERU, CHILE, *numbered(6))
    ids = {value: fact_id(kb, value) for value in ("Lima", "Amazon", *(f"value {n}" for n in range(6)))}
    kb.facts.edit(ids["Lima"], "Cusco", **WHO)
    kb.facts.edit(ids["Lima"], "Puno", **WHO)
    kb.facts.delete([ids["value 0"], ids["value 2"]], **WHO)
    kb.facts.restore([ids["value 2"]], **WHO)
    kb.facts.edit(ids["value 1"], "corrected", **WHO)
    kb.facts.delete([ids["value 1"], ids["value 3"]], **WHO, abstain=True)
    kb.facts.edit(ids["value 4"], "corrected", **WHO)
    kb.facts.edit(ids["value 4"], "value 4", **WHO)
    for verdict in ("propose", "accept"):
        kb.review.settle([judged(kb, ids["value 5"], verdict)], **WHO)
    ingest(kb, CHANGED)


def test_an_export_ingests_to_the_same_state_and_exports_to_the_same_bytes(
    kb: KnowledgeBase, server: URL, encoder: FakeEncoder, tmp_path: Path
):
    edited(kb)
    exported = written(kb, tmp_path / "first.jsonl")
    records = {record["id"]: record for record in map(json.loads, exported.splitlines())}
    assert records["peru"]["facts"][0]["current"] == "Puno"
    assert (
        records["d1"]["facts"][0]["current"] == "corrected" and records["d1"]["facts"][0]["deleted"] is True
    )
    assert records["d4"] == to_record(numbered(5)[4])
    head = kb.log.head_seq()
    again = kb.corpora.ingest(read_annotated(tmp_path / "first.jsonl"), "lands", **WHO)
    assert (again.unchanged, again.still_deleted, again.seq, kb.log.head_seq()) == (8, 3, None, head)

    with clone(server) as url, KnowledgeBase.open(Settings(home=tmp_path / "o", database_url=url)) as other:
        report = other.corpora.ingest(read_annotated(tmp_path / "first.jsonl"), "lands", **WHO)
        assert (report.documents, report.facts, report.refusals) == (8, 10, ())
        assert written(other, tmp_path / "second.jsonl") == exported
        other.keysets.rekey(encoder)
        questions = [CAPITAL, RIVER, HEIGHT, *(f"Question {n}?" for n in range(6))]
        kb.keysets.rekey(encoder)
        expected = ["Puno", "Amazon", "6,768 m", None, None, "value 2", None, "value 4", "value 5"]
        assert values(other, encoder, questions) == values(kb, encoder, questions) == expected
        other.facts.restore([fact_id(other, "corrected"), fact_id(other, "value 0")], **WHO)
        assert [v.value for v in other.outputs.trace_fact(fact_id(other, "Puno")).versions] == [
            "Lima",
            "Puno",
        ]
        assert values(other, encoder, questions)[3:5] == [None, None], "it has no key until a rekey"
        other.keysets.rekey(encoder)
        assert values(other, encoder, questions)[3:5] == ["value 0", "corrected"] and other.upkeep.fsck().ok


def test_what_was_reviewed_arrives_as_it_was(kb: KnowledgeBase, server: URL, tmp_path: Path):
    kb.corpora.ingest([Parsed(document) for document in numbered(5)], "lands", generated=True, **WHO)
    facts = [fact_id(kb, f"value {n}") for n in range(5)]
    kb.review.settle([judged(kb, facts[0], "accept"), judged(kb, facts[1], "reject")], **WHO)
    kb.facts.delete([facts[2]], **WHO)
    exported = written(kb, tmp_path / "first.jsonl")
    said = [record["facts"][0] for record in map(json.loads, exported.splitlines())]
    assert [(one.get("review"), one.get("deleted")) for one in said] == [
        ("accepted", None), ("rejected", True), ("proposed", True), ("proposed", None), ("proposed", None)
    ]  # fmt: skip
    for parsed in (read_annotated, read_parquet):
        file = tmp_path / "first.jsonl"
        if parsed is read_parquet:
            file = tmp_path / "first.parquet"
            write_parquet(kb.corpora.export("lands", live_only=False), file)
        with (
            clone(server) as url,
            KnowledgeBase.open(Settings(home=tmp_path / "o", database_url=url)) as other,
        ):
            other.corpora.ingest(parsed(file), "lands", **WHO)
            arrived = other.facts.find(deleted=None)
            assert [fact.review for fact in arrived] == [
                "accepted", "rejected", "proposed", "proposed", "proposed"
            ]  # fmt: skip
            assert written(other, tmp_path / "second.jsonl") == exported
            assert (progress := other.review.progress()).proposed == 2
            assert (progress.accepted, progress.rejected) == (1, 1)
            other.facts.restore([arrived[1].fact_id], **WHO)
            assert other.facts.show(arrived[1].fact_id).review == "proposed", "it goes back to the inbox"
            assert other.upkeep.fsck().ok


def test_a_file_that_says_what_is_proposed_accepts_nothing_else_than_it_leaves_out(kb: KnowledgeBase):
    text = "One and two. It goes on."
    spans = (FactSpan(0, 3, "One"), FactSpan(8, 11, "two"))
    kb.corpora.ingest([Parsed(AnnotatedDocument("d", text, spans))], "lands", generated=True, **WHO)
    again = (FactSpan(0, 3, "One", review="proposed"), FactSpan(8, 11, "two"))
    ingest(kb, AnnotatedDocument("d", text + " More.", again))
    assert [fact.review for fact in kb.facts.find()] == ["proposed", "accepted"]


def test_a_review_that_is_none_is_refused():
    spans = [
        {"start": 0, "end": 3, "value": "One", "review": "perhaps"},
        {"start": 4, "end": 7, "value": "and", "review": "rejected", "deleted": False},
        {"start": 8, "end": 11, "value": "two", "review": "rejected"},
    ]
    parsed = parse_record({"id": "d", "text": "One and two.", "facts": spans}, "d")
    assert parsed.document is not None and len(parsed.refusals) == 2
    assert parsed.document.facts == (FactSpan(8, 11, "two", deleted=True, review="rejected"),)


def test_parquet_holds_the_same_as_json_lines(kb: KnowledgeBase, tmp_path: Path):
    edited(kb)
    exported = list(kb.corpora.export("lands", live_only=False))
    assert write_parquet(exported, tmp_path / "x.parquet") == 8
    assert [parsed.document for parsed in read_parquet(tmp_path / "x.parquet")] == exported
    assert kb.corpora.ingest(read_parquet(tmp_path / "x.parquet"), "lands", **WHO).unchanged == 8


def test_for_training_only_what_lives_and_stands_in_the_text_is_exported(kb: KnowledgeBase):
    edited(kb)
    exported = {document.external_id: document for document in kb.corpora.export("lands")}
    assert [span.value for span in exported["peru"].facts] == ["Amazon", "6,768 m"]
    assert exported["d0"].facts == exported["d1"].facts == () and exported["d2"] == numbered(3)[2]


def test_erased_facts_are_in_no_export(kb: KnowledgeBase):
    ingest(kb, PERU)
    with kb.sessions.begin() as session:
        session.execute(text("UPDATE fact SET erased_seq = 1 WHERE question = :q"), {"q": CAPITAL})
    for live_only in (True, False):
        (document,) = kb.corpora.export("lands", live_only=live_only)
        assert [span.value for span in document.facts] == ["Amazon", "6,768 m"]


def test_a_new_fact_of_a_changed_document_arrives_in_its_state(kb: KnowledgeBase):
    ingest(kb, AnnotatedDocument("d", "One and two.", (FactSpan(0, 3, "One"),)))
    spans = (FactSpan(0, 3, "One", current="Eins", deleted=True), FactSpan(8, 11, "two", current="zwei"))
    ingest(kb, AnnotatedDocument("d", "One and two.", spans))
    assert {fact.value for fact in kb.facts.find()} == {"One", "zwei"}, (
        "edits of what was there are not the file's business"
    )
