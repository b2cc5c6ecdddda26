"""Changes as CloudEvents, as the SDK of that standard reads and checks them."""

from __future__ import annotations

import msgspec
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from colmlm.kb.log.records import EVENT, cloud_event
from colmlm.kb.service import KnowledgeBase
from tests.kb.corpora import PERU, ingest


def read(kb: KnowledgeBase, seq: int) -> CloudEvent:
    """Gives a change as the SDK reads it, which refuses what is no CloudEvent."""
    written = msgspec.json.encode(cloud_event(kb.log.change(seq), kb.log.database_id()))
    event = JSONFormat().read(CloudEvent, written)
    assert isinstance(event, CloudEvent)
    return event


def test_a_change_is_an_event_of_this_base_with_its_number_as_its_id(kb: KnowledgeBase) -> None:
    made = kb.facts.add("Question?", "value", actor="ann", reason="asked for")
    event, change = read(kb, made.seq), kb.log.change(made.seq)
    assert event.get_id() == str(made.seq) and event.get_source() == f"urn:colmlm:{kb.log.database_id()}"
    assert event.get_type() == "org.colmlm.change.insert" and event.get_time() == change.at
    assert (
        event.get_subject() == f"fact/{made.fact_ids[0]}"
        and event.get_extension("sequence") == f"{made.seq:020d}"
    )
    data = event.get_data()
    assert isinstance(data, dict)
    assert (data["seq"], data["actor"], data["hash"]) == (made.seq, "ann", change.hash)
    assert "value" not in msgspec.json.encode(data).decode()  # the fact's text


def test_a_change_of_several_facts_has_no_subject(kb: KnowledgeBase) -> None:
    ingest(kb, PERU)
    facts = [fact.fact_id for fact in kb.facts.find()]
    assert read(kb, kb.log.head_seq()).get_subject() is None
    assert read(kb, kb.facts.delete(facts, actor="ann", reason="all").seq).get_subject() is None


def test_events_have_ids_of_their_own_whose_text_orders_them(kb: KnowledgeBase) -> None:
    for n in range(11):
        kb.facts.add(f"Question {n}?", "value", actor="ann", reason="add")
    events = [read(kb, change.seq) for change in kb.log.changes()]
    sequences = [str(event.get_extension("sequence")) for event in events]
    assert sequences == sorted(sequences) and len({event.get_id() for event in events}) == 11
    assert EVENT == "application/cloudevents+json"
