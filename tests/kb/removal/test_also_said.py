"""Other facts that say the same: found before the log is locked, and what comes meanwhile afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sqlalchemy import event

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.facts.suppression import OthersSaying
from colmlm.kb.removal.erase import Erasure, erase_facts, load_targets
from colmlm.kb.service import KnowledgeBase
from tests.kb.corpora import CAPITAL, PERU, document, fact_id, ingest, numbered

BY = {"actor": "tester", "reason": "request"}


def erased_after(kb: KnowledgeBase, fact: int, meanwhile: Callable[[], object]) -> tuple[int, ...]:
    """Erases a fact while something else is done after the other facts were read; gives what also says it."""
    with kb.sessions.begin() as session:
        seen = OthersSaying.of(session, load_targets(session, [fact])[0])
        meanwhile()
        return erase_facts(session, [fact], **BY, others=seen).also_said_by


def twin_of(value: str) -> AnnotatedDocument:
    return document("twin", "A second source has it that the capital is ", (value, CAPITAL), ".")


def test_a_fact_that_comes_to_say_the_same_meanwhile_is_found(kb: KnowledgeBase) -> None:
    ingest(kb, PERU)
    lima = fact_id(kb, "Lima")
    also = erased_after(kb, lima, lambda: ingest(kb, twin_of("Lima")))
    assert also == (fact_id(kb, "Lima"),) != (lima,)
    assert ingest(kb, PERU, twin_of("Lima")).suppressed == 1, (
        "what is said elsewhere on purpose may stay there"
    )
    assert kb.upkeep.fsck().ok


def test_what_a_fact_was_changed_to_say_meanwhile_is_found_among_all(kb: KnowledgeBase) -> None:
    ingest(kb, PERU, twin_of("Cuzco"))
    lima, cuzco = fact_id(kb, "Lima"), fact_id(kb, "Cuzco")
    assert erased_after(kb, lima, lambda: kb.facts.edit(lima, "Cuzco", **BY)) == (cuzco,)


def test_a_kept_fact_that_comes_to_say_the_same_without_a_new_version_is_found(kb: KnowledgeBase) -> None:
    before = document("incas", "The Incas ruled from ", ("Cuzco", "Where did the Incas rule from?"), ".")
    ingest(kb, PERU, before)
    lima, cuzco = fact_id(kb, "Lima"), fact_id(kb, "Cuzco")
    with kb.sessions.begin() as session:
        targets = load_targets(session, [lima])[0]
        seen = OthersSaying.of(session, targets)
        assert not seen.facts
        ingest(kb, replace(before, facts=(replace(before.facts[0], answer="Lima"),)))
        assert list(seen.by_now(session, targets)) == [cuzco] and kb.facts.show(cuzco).version == 1


def test_what_said_the_same_and_was_erased_meanwhile_is_left_out(kb: KnowledgeBase) -> None:
    ingest(kb, PERU)
    lima = fact_id(kb, "Lima")
    ingest(kb, twin_of("Lima"))
    (other,) = {fact.fact_id for fact in kb.facts.find(text="Lima")} - {lima}
    assert erased_after(kb, lima, lambda: Erasure(kb).erase([other], **BY)) == ()


def test_no_statement_reads_every_fact_while_the_log_is_locked(kb: KnowledgeBase) -> None:
    ingest(kb, PERU, *numbered(20))
    lima, said = fact_id(kb, "Lima"), list[str]()

    def hear(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "fact_version" in statement and " ~ " in statement:  # compares the words of what it reads
            said.append(statement)

    event.listen(kb.engine, "before_cursor_execute", hear)
    try:
        erased_after(kb, lima, lambda: said.append("the log is locked"))
    finally:
        event.remove(kb.engine, "before_cursor_execute", hear)
    looking, locked, renewing = said
    assert "ANY" not in looking.upper() and locked == "the log is locked"
    assert "fact.id = ANY" in renewing.replace("any(", "ANY(")
