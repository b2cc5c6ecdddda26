"""What a hold keeps survives whatever would destroy it: verb by verb, at once, and beside the program."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from colmlm.kb.access.records import TokenRecord
from colmlm.kb.access.tokens import create_token, read_token
from colmlm.kb.errors import KBError
from colmlm.kb.facts.records import ReviewVerdict
from colmlm.kb.facts.redaction import MARK
from colmlm.kb.removal import erase
from colmlm.kb.removal.certificate import (
    check_here,
    check_offline,
    issue_certificate,
    issue_forget_certificate,
    trusted_keys,
)
from colmlm.kb.removal.erase import Erasure, ErasureRequests
from colmlm.kb.removal.forget import Forgetting
from colmlm.kb.removal.holds import Holds, Retention
from colmlm.kb.removal.records import HeldSelection
from colmlm.kb.removal.selector import Selector
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.tables import DocumentRow, FactPastRow, FactRow, FactVersionRow, HoldRow, TableRow
from tests.fakes import FakeEncoder
from tests.kb.corpora import CHILE, PERU, document, fact_id, ingest
from tests.refusals import raises_code

WHO = {"actor": "ann", "reason": "case 12"}
LATER = datetime.now(UTC) + timedelta(days=4000)
State = list[tuple[object, ...]]

# Everything that would destroy a text or its history. A verb that destroys and is not here fails a test below.
Verb = Callable[[KnowledgeBase, int], object]


def by_rule(action: str) -> Verb:
    def carry_out(kb: KnowledgeBase, _: int) -> object:
        terms = {"days": 30, "action": action, "counts_from": "seen"}
        Retention(kb).set_rule("lands", **terms, **WHO)
        assert Retention(kb).carry_out(now=LATER) == []
        return None

    return carry_out


def approve_request(kb: KnowledgeBase, fact: int) -> object:
    """The hold comes while the request waits."""
    ann, bob = tokens(kb)
    holds = Holds(kb)
    for hold in holds.all(standing=True):
        holds.release(hold.hold_id, **WHO)
    asked = ErasureRequests(kb).ask([fact], token=ann, **WHO)
    for hold in holds.all():
        holds.place(fact_ids=hold.fact_ids, document_ids=hold.document_ids, corpora=hold.corpora, **WHO)
    return ErasureRequests(kb).approve(asked.erasure_request_id, token=bob)


VERBS: dict[str, Verb] = {
    "Erasure.erase": lambda kb, fact: Erasure(kb).erase([fact], **WHO),
    "Erasure.preview": lambda kb, fact: Erasure(kb).preview([fact]),
    "Erasure.complete": lambda kb, _: Erasure(kb).complete(**WHO),
    "ErasureRequests.ask": lambda kb, fact: ErasureRequests(kb).ask([fact], token=tokens(kb)[0], **WHO),
    "ErasureRequests.approve": approve_request,
    "Retention.carry_out (delete)": by_rule("delete"),
    "Retention.carry_out (erase)": by_rule("erase"),
    "Corpora.delete": lambda kb, _: kb.corpora.delete("lands", **WHO),
    "Corpora.delete (document)": lambda kb, _: kb.corpora.delete("lands", ["peru"], **WHO),
    "Repair.run": lambda kb, _: kb.upkeep.repair(),
}
PASSES_OVER = {
    "Erasure.complete",
    "Retention.carry_out (delete)",
    "Retention.carry_out (erase)",
    "Repair.run",
}


def undo_last(kb: KnowledgeBase) -> object:
    return kb.facts.undo(kb.log.head_seq(), **WHO)


def reject(kb: KnowledgeBase, fact: int) -> object:
    shown = kb.facts.show(fact)
    return kb.review.settle([ReviewVerdict(fact, "reject", shown.version, shown.review)], **WHO)


def forget(kb: KnowledgeBase, fact: int) -> object:
    kb.keysets.rekey(FakeEncoder())
    run = Forgetting(kb).plan(Selector(fact_ids=(fact,)), **WHO).run_id
    return Forgetting(kb).apply(run, **WHO)


# Verbs that only hide, each with what brings all of it back: nothing is lost.
HIDING: dict[str, tuple[Verb, Callable[[KnowledgeBase], object]]] = {
    "Facts.delete": (lambda kb, fact: kb.facts.delete([fact], **WHO), undo_last),
    "Facts.delete (abstain)": (lambda kb, fact: kb.facts.delete([fact], abstain=True, **WHO), undo_last),
    "Corpora.remove": (lambda kb, _: kb.corpora.remove("lands", ["peru"], **WHO), undo_last),
    "FactReview.settle": (reject, undo_last),
    "Forgetting.apply": (forget, lambda kb: Forgetting(kb).restore(1, **WHO)),
}

# Statements of somebody at the database, or of a release that knows no holds.
STATEMENTS = {
    "document": ("UPDATE document SET text = 'x'", "UPDATE document SET title = 'x'", "DELETE FROM document"),
    "fact": ("UPDATE fact SET erased_seq = 1", "DELETE FROM fact", "TRUNCATE fact CASCADE"),
    "fact_version": ("UPDATE fact_version SET value = 'x'", "DELETE FROM fact_version"),
    "fact_past": ("UPDATE fact_past SET question = 'x'", "DELETE FROM fact_past"),
    "hold": ("DELETE FROM hold", "TRUNCATE hold"),
}
KINDS = ("fact", "its neighbour", "document", "corpus")


def tokens(kb: KnowledgeBase) -> tuple[TokenRecord, TokenRecord]:
    with Session(kb.engine) as session, session.begin():
        for name in ("t-ann", "t-bob"):
            create_token(session, name, "admin")
        return read_token(session, "t-ann"), read_token(session, "t-bob")


@pytest.fixture
def lands(kb: KnowledgeBase) -> Iterator[KnowledgeBase]:
    """A corpus of one document, whose facts have a past."""
    ingest(kb, PERU)
    kb.facts.edit(fact_id(kb, "6,768 m"), "6,768 metres", question="How high is it?", **WHO)
    yield kb


def selection(kb: KnowledgeBase, kind: str) -> HeldSelection:
    """Names what a hold of this kind keeps, so that the fact "Lima" is held."""
    (peru,) = kb.documents.find(corpus="lands")
    chosen: dict[str, HeldSelection] = {
        "fact": {"fact_ids": [fact_id(kb, "Lima")], **WHO},
        "its neighbour": {"fact_ids": [fact_id(kb, "Amazon")], **WHO},
        "document": {"document_ids": [peru.document_id], **WHO},
        "corpus": {"corpora": ["lands"], **WHO},
    }
    return chosen[kind]


def contents(kb: KnowledgeBase) -> State:
    """Gives every text and all of its history as the database has it."""
    found: State = []
    with kb.engine.connect() as connection:
        for row in (DocumentRow, FactVersionRow, FactPastRow):
            table = row.__table__
            columns = [c for c in table.c if c.name not in ("replaced_seq", "to_seq")]
            found += [tuple(one) for one in connection.execute(table.select().with_only_columns(*columns))]
        states = FactRow.__table__.select().with_only_columns(
            FactRow.id, FactRow.question, FactRow.erased_seq
        )
        found += [tuple(one) for one in connection.execute(states)]
    return sorted(found, key=repr)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", VERBS)
def test_what_is_held_survives_every_verb_that_destroys_and_goes_once_it_is_released(
    lands: KnowledgeBase, verb: str, kind: str
) -> None:
    lima = fact_id(lands, "Lima")
    hold = Holds(lands).place(**selection(lands, kind))
    before, live = contents(lands), lands.facts.find(limit=100)

    if verb in PASSES_OVER:
        VERBS[verb](lands, lima)
    else:
        with raises_code("HoldStands", match="colmlm hold release"):
            VERBS[verb](lands, lima)

    assert contents(lands) == before and lands.facts.find(limit=100) == live
    for one in Holds(lands).all(standing=True):
        Holds(lands).release(one.hold_id, **WHO)
    assert Holds(lands).all(fact_id=lima) == [] and Holds(lands).read(hold.hold_id).state == "released"
    report = Erasure(lands).erase([lima], **WHO)
    assert report.erased is not None and lands.facts.show(lima).erased_seq == report.erased.seq


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", HIDING)
def test_what_is_only_hidden_loses_nothing_and_comes_back(lands: KnowledgeBase, verb: str, kind: str) -> None:
    lima = fact_id(lands, "Lima")
    Holds(lands).place(**selection(lands, kind))
    before, live = contents(lands), {fact.value for fact in lands.facts.find(limit=100)}
    hide, bring_back = HIDING[verb]
    hide(lands, lima)
    assert contents(lands) == before, "a deletion ends a version, and keeps its value"
    assert {fact.value for fact in lands.facts.find(limit=100)} != live
    bring_back(lands)
    assert {fact.value for fact in lands.facts.find(limit=100)} == live


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("table", STATEMENTS)
def test_the_database_keeps_what_is_held_from_whoever_asks_nobody(
    lands: KnowledgeBase, table: str, kind: str
) -> None:
    hold = Holds(lands).place(**selection(lands, kind))
    before = contents(lands)
    for statement in STATEMENTS[table]:
        if table == "fact_past" and kind == "fact":
            continue  # the fact that has a past is another one of the document, asked for below
        with (
            pytest.raises(IntegrityError, match=f"hold {hold.hold_id} keeps"),
            lands.engine.begin() as connection,
        ):
            connection.execute(text(statement))
    assert contents(lands) == before


def test_every_verb_and_table_that_can_destroy_has_a_row_in_the_matrix() -> None:
    """Whoever calls `erase_facts` or `remove_documents`, and each table whose text an erasure redacts, is named."""
    destroying = {
        name
        for kind in (Erasure, ErasureRequests, Retention)
        for name in (f"{kind.__name__}.{verb}" for verb in vars(kind))
        if any(
            called in _names_called(getattr(kind, name.partition(".")[2]))
            for called in (
                "erase_facts",
                "remove_documents",
                "_erase",
                "_approve",
                "_carry_out",
                "require_unheld",
            )
        )
        and not name.partition(".")[2].startswith("_")
    }
    assert destroying == {
        "Erasure.erase", "Erasure.preview", "Erasure.complete",
        "ErasureRequests.ask", "ErasureRequests.approve", "Retention.carry_out",
    }  # fmt: skip
    assert destroying <= {verb.partition(" ")[0] for verb in VERBS}
    with_texts = {"document", "fact", "fact_version", "fact_past", HoldRow.__tablename__}
    assert set(STATEMENTS) == with_texts <= set(TableRow.metadata.tables)


def _names_called(verb: object) -> set[str]:
    code = getattr(getattr(verb, "__wrapped__", verb), "__code__", None)
    names = set() if code is None else set(code.co_names)
    nested = (one for one in (code.co_consts if code is not None else ()) if hasattr(one, "co_names"))
    return names.union(*(set(one.co_names) for one in nested))


def test_a_hold_on_a_document_keeps_its_former_editions_and_facts_that_stood_there(kb: KnowledgeBase) -> None:
    ingest(kb, PERU)
    (peru,) = kb.documents.find()
    lima = fact_id(kb, "Lima")
    Holds(kb).place(document_ids=[peru.document_id], **WHO)
    ingest(kb, document("peru", "The capital is ", ("Cusco", "Which city?"), "."))
    (now,) = kb.documents.find()
    assert [one.hold_id for one in Holds(kb).all(document_id=now.document_id)] == [1]
    assert [one.hold_id for one in Holds(kb).all(document_id=peru.document_id)] == [1]
    for fact in (lima, fact_id(kb, "Cusco")):
        with raises_code("HoldStands"):
            Erasure(kb).erase([fact], **WHO)


def signed_part(certificate: str) -> bytes:
    return base64.b64decode(json.loads(certificate)["payload"])


def test_a_held_document_that_mentions_an_erased_fact_stays_and_the_certificate_says_so(
    kb: KnowledgeBase,
) -> None:
    ingest(
        kb,
        PERU,
        document("travel", "They went to Lima and back."),
        document("letter", "From Lima with love."),
    )
    letter = next(one for one in kb.documents.find() if one.external_id == "letter").document_id
    hold = Holds(kb).place(document_ids=[letter], **WHO)
    erased = Erasure(kb).erase([fact_id(kb, "Lima")], mentions="all", **WHO).erased
    assert erased is not None and erased.held_documents == (letter,)
    texts = {one.external_id: kb.documents.text(one.document_id) for one in kb.documents.find()}
    assert (
        texts["letter"] == "From Lima with love." and texts["travel"] == f"They went to {MARK * 4} and back."
    )
    (change,) = kb.log.changes(after=erased.seq - 1, limit=1)
    with kb.engine.connect() as connection:
        said = connection.scalar(
            text("SELECT payload -> 'held' FROM change WHERE seq = :s"), {"s": change.seq}
        )
    assert said == {"documents": [letter], "holds": [hold.hold_id]}
    certificate = issue_certificate(kb, change.seq)
    assert b"held: not erased" in signed_part(certificate)
    checked = check_here(kb, certificate.encode())
    assert checked.ok and checked.held_part is not None
    assert (checked.held_part.documents, checked.held_part.holds) == ((letter,), (hold.hold_id,))
    assert (
        check_offline(certificate.encode(), trusted_keys([checked.signed_by or ""])).held_part
        == checked.held_part
    )


def test_the_certificate_of_forgetting_names_what_is_held(kb: KnowledgeBase, encoder: FakeEncoder) -> None:
    ingest(kb, PERU, CHILE)
    kb.keysets.rekey(encoder)
    hold = Holds(kb).place(fact_ids=[fact_id(kb, "Santiago")], **WHO)
    forgetting = Forgetting(kb, encoder)
    ids = (fact_id(kb, "Lima"), fact_id(kb, "Santiago"))
    run = forgetting.plan(Selector(fact_ids=ids), **WHO).run_id
    forgetting.apply(run, **WHO)
    forgetting.verify(run)
    certificate = issue_forget_certificate(kb, run).encode()
    checked = check_here(kb, certificate)
    assert (
        checked.ok
        and b"held: not erased" in signed_part(certificate.decode())
        and checked.held_part is not None
    )
    assert (checked.held_part.facts, checked.held_part.holds) == ((ids[1],), (hold.hold_id,))
    forgetting.restore(run, **WHO)
    assert kb.facts.show(ids[1]).value == "Santiago"


def test_of_a_hold_and_an_erasure_at_once_each_comes_wholly_before_or_after_the_other(
    kb: KnowledgeBase,
) -> None:
    """Where the hold was first nothing is lost; where the erasure was, the hold is refused for the fact."""
    rounds = 20
    ingest(kb, *(document(f"d{n}", "It says ", (f"value {n}", f"Question {n}?"), ".") for n in range(rounds)))
    outcomes = []
    with ThreadPoolExecutor(2) as threads:
        for n in range(rounds):
            fact, together = fact_id(kb, f"value {n}"), threading.Barrier(2)

            def attempt(verb: Callable[[], object], together: threading.Barrier = together) -> str:
                together.wait()
                try:
                    verb()
                except KBError as error:
                    return error.code
                return "done"

            holding = threads.submit(attempt, lambda fact=fact: Holds(kb).place(fact_ids=[fact], **WHO))
            erasing = threads.submit(
                attempt, lambda fact=fact: Erasure(kb)._erase([fact], "ann", "r", "same-document")
            )
            outcomes.append((holding.result(), erasing.result()))
            shown = kb.facts.show(fact)
            assert (shown.erased_seq is None) == (outcomes[-1] == ("done", "HoldStands"))
            assert shown.erased_seq is not None or shown.value == f"value {n}"
    assert set(outcomes) <= {("done", "HoldStands"), ("FactErased", "done")}
    assert kb.log.verify().ok and kb.upkeep.fsck().ok


def test_an_erasure_that_waits_for_a_hold_to_be_placed_is_refused(kb: KnowledgeBase) -> None:
    ingest(kb, PERU)
    lima = fact_id(kb, "Lima")
    with kb.sessions() as session:
        erase.erase_facts(session, [lima], "ann", "not committed yet")
        with ThreadPoolExecutor(1) as threads:
            placing = threads.submit(Holds(kb).place, fact_ids=[lima], **WHO)
            session.rollback()
            assert placing.result().state == "standing"
    with raises_code("HoldStands"):
        Erasure(kb).erase([lima], **WHO)


def test_holds_stand_in_the_log_with_who_and_why(lands: KnowledgeBase) -> None:
    hold = Holds(lands).place(**selection(lands, "fact"))
    done = Holds(lands).release(hold.hold_id, actor="bob", reason="case closed")
    placed, released = lands.log.changes(after=hold.seq - 1)
    assert (placed.kind, placed.actor, placed.reason) == ("place-hold", "ann", "case 12")
    assert placed.fact_ids == released.fact_ids == (fact_id(lands, "Lima"),)
    assert (released.kind, released.reason, released.seq) == (
        "release-hold",
        "case closed",
        done.released_seq,
    )
    with raises_code("HoldState", match="released already"):
        Holds(lands).release(hold.hold_id, **WHO)
    with raises_code("HoldNotFound"):
        Holds(lands).release(99, **WHO)
    for wrong, code in (
        ({"fact_ids": [99]}, "FactNotFound"),
        ({"document_ids": [99]}, "DocumentNotFound"),
        ({"corpora": ["no"]}, "CorpusNotFound"),
        ({}, "InvalidValue"),
    ):
        with raises_code(code):
            Holds(lands).place(**wrong, **WHO)
    with raises_code("InvalidValue"):
        Holds(lands).place(corpora=["lands"], actor="ann", reason=" ")


@pytest.mark.parametrize("needed", ["release", "both"])
def test_where_two_people_are_needed_one_alone_neither_places_nor_releases(
    lands: KnowledgeBase, needed: str
) -> None:
    (ann, bob), lima, chosen = tokens(lands), fact_id(lands, "Lima"), selection(lands, "fact")
    lands.settings = replace(lands.settings, hold_needs_two=needed)
    holds = Holds(lands)
    if needed == "both":
        with raises_code("SecondPersonNeeded"):
            holds.place(**chosen)
        asked = holds.place(**chosen, token=ann)
        assert (asked.state, asked.asked_by, holds.all(fact_id=lima)) == ("asked", "t-ann", [])
        with raises_code("SamePerson"):
            holds.approve(asked.hold_id, token=ann)
        hold = holds.approve(asked.hold_id, token=bob)
        (change,) = lands.log.changes(after=hold.seq - 1)
        assert (change.actor, change.principal) == ("t-bob", bob.principal)
        assert "asked with the token t-ann, approved with the token t-bob" in change.reason
        other = holds.place(**chosen, token=ann)
        assert holds.withdraw(other.hold_id, token=bob).state == "withdrawn"
    else:
        hold = holds.place(**chosen)
    with raises_code("SecondPersonNeeded"):
        holds.release(hold.hold_id, **WHO)
    asked = holds.release(hold.hold_id, **WHO, token=ann)
    assert (asked.state, asked.release_asked_by) == ("release-asked", "t-ann")
    with raises_code("HoldStands"):
        Erasure(lands).erase([lima], **WHO)
    with raises_code("SamePerson"):
        holds.release(hold.hold_id, **WHO, token=ann)
    assert holds.withdraw(hold.hold_id, token=ann).state == "standing"
    holds.release(hold.hold_id, **WHO, token=bob)
    done = holds.release(hold.hold_id, **WHO, token=ann)
    assert (done.state, done.release_asked_by, done.release_approved_by) == ("released", "t-bob", "t-ann")
    assert holds.all(standing=True) == []


def test_what_waits_for_a_second_person_can_be_taken_back_once_none_is_needed(lands: KnowledgeBase) -> None:
    (ann, _), holds = tokens(lands), Holds(lands)
    lands.settings = replace(lands.settings, hold_needs_two="both")
    asked = holds.place(**selection(lands, "fact"), token=ann)
    with raises_code("SecondPersonNeeded"):
        holds.withdraw(asked.hold_id)
    lands.settings = replace(lands.settings, hold_needs_two="no")
    with raises_code("HoldState"):
        holds.approve(asked.hold_id)
    assert holds.withdraw(asked.hold_id).state == "withdrawn"
    with raises_code("HoldState"):
        holds.withdraw(asked.hold_id)
