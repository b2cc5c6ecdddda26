"""A person among namesakes: found in every kind of place, erased by the plan, and in no place afterwards."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from colmlm.kb.access.tokens import create_token
from colmlm.kb.errors import KBError, SignatureRefused
from colmlm.kb.evidence.records import NewFeedback, NewOutput, Splice
from colmlm.kb.facts.records import PersonFindings
from colmlm.kb.facts.redaction import MARK
from colmlm.kb.log.signing import sign_bytes
from colmlm.kb.principal import acting_as, current_origin
from colmlm.kb.removal.certificate import check_here, issue_certificate
from colmlm.kb.removal.erase import Erasure, ErasureRequests
from colmlm.kb.removal.holds import Holds
from colmlm.kb.removal.persons import find_person, read_plan
from colmlm.kb.removal.traces import Trace
from colmlm.kb.service import KnowledgeBase
from tests.kb.corpora import document, ingest

BY: dict[str, Any] = {"actor": "tester", "reason": "test"}
SPELLINGS = (
    "Maria Keller",
    "Keller, Maria",
    "MARIA KELLER",
    "Maria L. Keller",
    "Maria Luise Keller",
    "María Keller",
    "Maria\n  Keller",
    "maria.keller@example.org",
    "Dr. Maria Keller’s",
    "Mia Keller",
)
NAMESAKES = (
    "Maria Keller-Brandt",
    "Anna Maria Keller",
    "Keller Street",
    "Mark Keller",
    "Mark Keller, Maria Schmidt",
    "Anna-Maria Keller",
    "Maria Kellermann",
    "Maria Brandt",
)
# In columns that no verb of the base fills by itself here, words are written by statements: (table, column, type).
_WRITTEN = (
    "UPDATE document SET title = :said WHERE external_id = 'title'",
    "UPDATE document SET uri = 'https://example.org/' || replace(:said, chr(10), ' ') WHERE external_id = 'uri'",
    "UPDATE document SET licence = :said WHERE external_id = 'licence'",
    "UPDATE document SET revision = '2026-01-31 ' || :said WHERE external_id = 'revision'",
    "INSERT INTO question_set (name, actor) VALUES ('Questions on ' || :said, 'ann')",
    "INSERT INTO question (set_id, text, expected, fact_ids) VALUES (1, 'Where is ' || :said || '?', '{Lima}', '{}')",
    "INSERT INTO question (set_id, text, expected, fact_ids) VALUES (1, 'Who?', ARRAY['Bob', :said], '{}')",
    "INSERT INTO question_run (set_id, how, threshold, first_seq, seq, num_asked, num_right, num_wrong, num_abstained,"
    " num_skipped, actor, seconds) VALUES (1, 'read', 0.5, 1, 1, 1, 1, 0, 0, 0, 'run by ' || :said, 1)",
    "INSERT INTO question_outcome (run_id, question_id, question, expected, value, fact_ids, score, outcome, seq)"
    " VALUES (1, 1, 'Where is ' || :said || '?', '{}', NULL, '{}', 0.9, 'right', 1)",
    "INSERT INTO question_outcome (run_id, question_id, question, expected, value, fact_ids, score, outcome, seq)"
    " VALUES (1, 1, 'Who?', '{}', :said, '{}', 0.9, 'right', 1)",
    "INSERT INTO question_outcome (run_id, question_id, question, expected, value, fact_ids, score, outcome, seq)"
    " VALUES (1, 1, 'Who?', ARRAY[:said], NULL, '{}', 0.9, 'right', 1)",
    "INSERT INTO job (kind, arguments, actor, state, finished_at)"
    " VALUES ('ingest', jsonb_build_object('reason', 'for ' || :said), 'ann', 'succeeded', now())",
    "INSERT INTO job (kind, arguments, actor, state, message, finished_at)"
    " VALUES ('ingest', '{}', 'ann', 'succeeded', 'Reading the letter of ' || :said, now())",
    "INSERT INTO job (kind, arguments, actor, state, result, finished_at)"
    " VALUES ('ingest', '{}', 'ann', 'succeeded', jsonb_build_object('added', jsonb_build_array(:said)), now())",
    "INSERT INTO job (kind, arguments, actor, state, error, finished_at)"
    " VALUES ('ingest', '{}', 'ann', 'failed', jsonb_build_object('detail', 'no file of ' || :said), now())",
    "INSERT INTO forget_run (state, policy, selector, fact_ids, plan, planned_seq, actor, reason)"
    " VALUES ('planned', 'abstain', jsonb_build_object('text', :said), '{}', '{}', 3, 'ann', 'test')",
    "INSERT INTO forget_run (state, policy, selector, fact_ids, plan, planned_seq, actor, reason)"
    " VALUES ('planned', 'abstain', '{}', '{}', '{}', 3, 'ann', 'asked by ' || :said)",
    "INSERT INTO forget_run (state, policy, selector, fact_ids, plan, planned_seq, actor, reason, on_behalf_of)"
    " VALUES ('planned', 'abstain', '{}', '{}', '{}', 3, 'ann', 'test', :said)",
    "INSERT INTO erasure_request (state, fact_ids, actor, reason, asked_by)"
    " VALUES ('withdrawn', '{1}', 'ann', 'as ' || :said || ' wants', 1)",
    "INSERT INTO denial (request_id, actor, method, path, status, cause, num_unrecorded)"
    " VALUES ('r', :said, 'GET', '/', 403, 'RightMissing', 0)",
)


@dataclass
class Planted:
    """The statements that read a planted text, with the spelling in each, as counted by place."""

    places: dict[str, str]

    def add(self, where: str, spelling: str) -> None:
        self.places[where] = spelling


def row_id(kb: KnowledgeBase, table: str, column: str = "id") -> int:
    with kb.engine.connect() as connection:
        return int(connection.scalar(text(f"SELECT max({column}) FROM {table}")) or 0)


def plant(kb: KnowledgeBase) -> Planted:
    """Names the person in 44 places, in ten spellings by turns."""
    planted, said = Planted({}), cycle(SPELLINGS)
    for spelling in SPELLINGS:  # in the texts of documents
        ingest(
            kb,
            document(
                f"text-{len(planted.places)}",
                f"We met early. Then {spelling} came. ",
                ("Rain", "What fell?"),
                " fell.",
            ),
        )
        planted.add(f"SELECT text FROM document WHERE id = {row_id(kb, 'document')}", spelling)
    for name in ("title", "uri", "licence", "revision"):
        ingest(kb, document(name, f"A text of the {name} ", ("Snow", f"What is in {name}?"), " here."))
    for n in range(3):  # facts: value, question, answer
        spelling = next(said)
        value, question = (
            (spelling, f"Who won prize {n}?") if n == 0 else (f"in Lima {n}", f"Where is {spelling} now?")
        )
        added = kb.facts.add(question, value, **BY, **({"answer": f"It is {spelling}."} if n == 2 else {}))
        planted.add(
            "SELECT concat(f.question, f.answer, v.value) FROM fact f JOIN fact_version v ON v.fact_id = f.id"
            f" WHERE f.id = {added.fact_ids[0]}",
            spelling,
        )
    spelling = next(said)
    old = kb.facts.add("Who wrote it?", spelling, **BY).fact_ids[0]
    kb.facts.edit(old, "Somebody else", **BY)
    planted.add(f"SELECT string_agg(value, ' ') FROM fact_version WHERE fact_id = {old}", spelling)
    spelling = next(said)
    ingest(kb, document("span", "The prize went to ", (spelling, "To whom went it?"), " in May."))
    planted.add(f"SELECT text FROM document WHERE id = {row_id(kb, 'document')}", spelling)
    for prompt, output, mode in (
        ("Where is {}?", "In Lima.", "read"),
        ("Who is there?", "I think {}.", "auto"),
        ("Where was {}?", "", "read"),
    ):
        spelling = next(said)
        miss = (Splice(0, 0, "no_match", score=0.1),) if not output else ()
        kb.outputs.record(
            NewOutput(
                prompt.format(spelling),
                output.format(spelling),
                "" if mode == "read" else "fake",
                mode,
                kb.log.head_seq(),
                miss,
            )
        )
        planted.add(
            f"SELECT prompt || output FROM generation WHERE id = {row_id(kb, 'generation')}", spelling
        )
    kb.misses.group()
    spelling = next(said)
    stored = kb.outputs.record(NewOutput("Who?", "Ann.", "", "read", kb.log.head_seq(), ()))
    kb.outputs.give_feedback(
        stored, NewFeedback("down", f"No, it was {spelling}, I think", spelling), actor="ann"
    )
    feedback = row_id(kb, "feedback")
    planted.add(f"SELECT comment FROM feedback WHERE id = {feedback}", spelling)
    planted.add(f"SELECT value FROM feedback WHERE id = {feedback}", spelling)
    spelling = "Maria Keller"
    kb.facts.add("What rose?", "The sun", actor="tester", reason=f"asked by {spelling} in a letter")
    planted.add(f"SELECT reason FROM change WHERE seq = {kb.log.head_seq()}", spelling)
    with acting_as(current_origin().principal, spelling):
        kb.facts.add("What set?", "The moon", **BY)
    planted.add(f"SELECT payload::text FROM change WHERE seq = {kb.log.head_seq()}", spelling)
    held = Holds(kb).place(fact_ids=[old + 2], actor="tester", reason=f"a case of {spelling}")
    Holds(kb).release(held.hold_id, actor="tester", reason=f"{spelling} lost the case")
    planted.add(f"SELECT reason FROM hold WHERE id = {held.hold_id}", spelling)
    planted.add(f"SELECT release_reason FROM hold WHERE id = {held.hold_id}", spelling)
    with kb.engine.begin() as connection:
        connection.execute(
            text("INSERT INTO api_key (name, key_hash, role) VALUES ('ann', '\\x00', 'reader')")
        )
        for statement in _WRITTEN:
            spelling = next(said)
            connection.execute(text(statement.replace(":said", "CAST(:said AS text)")), {"said": spelling})
            words = statement.split()
            table, column = words[1 if words[0] == "UPDATE" else 2], words[3] if words[0] == "UPDATE" else ""
            if column:
                where = f"SELECT {column} FROM document WHERE external_id = '{column}'"
            else:
                last = connection.scalar(text(f"SELECT max(id) FROM {table}"))
                where = f"SELECT {table}::text FROM {table} WHERE id = {last}"
            planted.add(where, spelling)
    return planted


def read(kb: KnowledgeBase, statement: str) -> str:
    with kb.engine.connect() as connection:
        return str(connection.scalar(text(statement)) or "")


def plant_namesakes(kb: KnowledgeBase) -> dict[str, str]:
    """Names others, and gives what stands there by statement."""
    planted = Planted({})
    for n, name in enumerate(NAMESAKES):
        ingest(
            kb,
            document(f"other-{n}", f"Then I saw {name} in {n}. ", ("Hail", f"What fell in {n}?"), " fell."),
        )
        planted.add(f"SELECT text FROM document WHERE id = {row_id(kb, 'document')}", name)
        fact = kb.facts.add(f"Who came in year {n}?", name, **BY).fact_ids[0]
        planted.add(f"SELECT value FROM fact_version WHERE fact_id = {fact}", name)
        kb.outputs.record(NewOutput(f"Did you see {name}?", "Yes.", "", "read", kb.log.head_seq(), ()))
        planted.add(f"SELECT prompt FROM generation WHERE id = {row_id(kb, 'generation')}", name)
    return {where: read(kb, where) for where in planted.places}


def words_of(spelling: str) -> list[str]:
    """The words of a spelling that none of its places may say any more."""
    names = ("Maria", "María", "MARIA", "maria", "Mia", "Keller", "KELLER", "keller")
    return [word for word in names if word in spelling]


def find(kb: KnowledgeBase, **more: Any) -> PersonFindings:
    return find_person(kb, "Maria Keller", also=["Mia Keller"], **more)


def still_said(kb: KnowledgeBase, planted: Planted) -> list[str]:
    """The places that say a word of their spelling."""
    values = {where: read(kb, where) for where in planted.places}
    return [at for at, value in values.items() if any(w in value for w in words_of(planted.places[at]))]


def columns_saying(kb: KnowledgeBase, words: str) -> set[tuple[str, str]]:
    """Every column of every table in which some row says the words, whatever its type."""
    columns = text(
        "SELECT c.table_name, c.column_name FROM information_schema.columns c"
        " JOIN information_schema.tables t USING (table_schema, table_name)"
        " WHERE table_schema = 'public' AND t.table_type = 'BASE TABLE'"
    )
    found = set()
    with kb.engine.connect() as connection:
        for table, column in connection.execute(columns).all():
            said = text(f'SELECT count(*) FROM "{table}" WHERE "{column}"::text ~* :words')
            if connection.scalar(said, {"words": words}):
                found.add((table, column))
    return found


def test_a_person_is_found_and_erased_among_namesakes(kb: KnowledgeBase) -> None:
    planted, others = plant(kb), plant_namesakes(kb)
    assert len(planted.places) == 44 and len(still_said(kb, planted)) == len(planted.places)
    found = find(kb)
    plan = read_plan(kb, found.plan)
    assert "keller" not in json.dumps(found.plan).casefold()
    assert not any(one.doubt for place in found.report.sure for one in place.stretches)

    report = Erasure(kb).erase(plan.fact_ids, actor="tester", reason="request of Maria Keller", plan=plan)

    assert report.erased is not None and report.erased.seq is not None
    assert still_said(kb, planted) == []
    assert [where for where, value in others.items() if read(kb, where) != value] == []
    # Whatever column still has both names belongs to a namesake: "Keller-Brandt", "Anna Maria", "Mark Keller, Maria".
    namesake = {"document", "fact_version", "generation", "sentence"}
    assert {table for table, _ in columns_saying(kb, "mar[ií]a\\W+(l\\S*\\s+)?keller(?!mann)")} <= namesake
    assert columns_saying(kb, "keller,\\s+mar[ií]a(?! schmidt)|mia\\s+keller|maria.keller@") == set()
    again = find(kb).report
    assert again.sure == () and len(again.unsure) >= 3 * 4
    fsck = kb.upkeep.fsck()
    assert fsck.chain_ok and not fsck.quoting, fsck
    change = kb.log.change(report.erased.seq)
    assert "Keller" not in change.reason and change.reason.startswith("request of ")
    assert sum(report.erased.places.values()) == len(plan.places)
    certificate = issue_certificate(kb, report.erased.seq)
    checked = check_here(kb, certificate.encode())
    assert checked.ok and checked.num_places == len(plan.places), checked.problems
    assert "keller" not in certificate.casefold()


def test_what_is_not_sure_is_apart_with_its_cause(kb: KnowledgeBase) -> None:
    for n, said in enumerate(
        (
            "M. Keller wrote.",
            "Then Keller spoke.",
            "Maria spoke.",
            "Marie Keller spoke.",
            "Anna Maria Keller.",
            "Mark Keller.",
        )
    ):
        ingest(kb, document(f"d{n}", f"{said} ", ("Rain", f"What fell in {n}?"), " fell."))
    report = find(kb).report
    doubts = {
        place.source: place.stretches[0].doubt for place in report.unsure if place.place.startswith("doc")
    }
    assert report.sure == ()
    assert list(doubts.values()) == ["initials", "surname", "first-name", "spelling", "longer"]
    assert list(doubts) == [f"lands/d{n}" for n in range(5)]
    (place,) = [one.place for one in report.unsure if one.source == "lands/d1"]
    taken = find(kb, decide={place: "erase"})
    assert [one.place for one in taken.report.sure] == [place]
    assert taken.plan["places"] and find(kb, decide={place: "keep"}).report.left_out == (place,)
    with pytest.raises(KBError, match="does not name the person"):
        find(kb, decide={"document.text/999": "erase"})


def test_a_fact_in_a_name_goes_with_it_and_one_in_the_same_sentence_is_for_somebody_to_decide(
    kb: KnowledgeBase,
) -> None:
    ingest(
        kb,
        document(
            "bio",
            "Maria ",
            ("Keller", "What is her name?"),
            " was born in ",
            ("Lima", "Where was she born?"),
            ".",
        ),
    )
    name, town = (f"fact/{kb.facts.find(text=value)[0].fact_id}" for value in ("Keller", "Lima"))
    report = find(kb).report
    assert {place.place for place in report.sure} == {"document.text/1", name}
    assert [(one.place, one.stretches[0].doubt) for one in report.unsure] == [(town, "sentence")]
    with pytest.raises(KBError, match="Keep the document, too"):
        find(kb, decide={name: "keep"})
    assert find(kb, decide={name: "keep", "document.text/1": "keep"}).report.sure == ()
    plan = read_plan(kb, find(kb, decide={town: "erase"}).plan)
    Erasure(kb).erase(plan.fact_ids, **BY, plan=plan)
    assert kb.facts.find() == [] and "Lima" not in read(kb, "SELECT text FROM document")
    assert kb.upkeep.fsck().ok


def test_a_place_that_is_left_out_stays_and_a_plan_is_refused_once_a_place_was_edited(
    kb: KnowledgeBase,
) -> None:
    facts = [kb.facts.add(f"Who won prize {n}?", "Maria Keller", **BY).fact_ids[0] for n in range(2)]
    plan = read_plan(kb, find(kb, decide={f"fact/{facts[1]}": "keep"}).plan)
    assert plan.fact_ids == (facts[0],)
    kb.facts.edit(facts[0], "Maria L. Keller", **BY)
    head = kb.log.head_seq()
    with pytest.raises(KBError, match="out of date"):
        Erasure(kb).erase(plan.fact_ids, **BY, plan=plan)
    assert kb.log.head_seq() == head and kb.facts.show(facts[0]).value == "Maria L. Keller"


def test_a_plan_that_was_altered_or_is_of_another_base_is_refused(kb: KnowledgeBase) -> None:
    kb.facts.add("Who won?", "Maria Keller", **BY)
    plan = find(kb).plan
    with pytest.raises(SignatureRefused):
        read_plan(kb, {**plan, "facts": []})
    with pytest.raises(SignatureRefused, match="not by this base"):
        read_plan(
            kb, sign_bytes(Ed25519PrivateKey.generate(), {n: v for n, v in plan.items() if n != "signature"})
        )


def test_a_held_document_is_named_and_keeps_the_plan_from_being_carried_out(kb: KnowledgeBase) -> None:
    ingest(kb, document("letter", "Maria Keller wrote. ", ("Rain", "What fell?"), " fell."))
    (fact,) = kb.facts.find(limit=1)
    hold = Holds(kb).place(fact_ids=[fact.fact_id], **BY)
    found = find(kb)
    assert [place.holds for place in found.report.sure] == [(hold.hold_id,)]
    plan = read_plan(kb, found.plan)
    with pytest.raises(KBError, match="hold"):
        Erasure(kb).erase(plan.fact_ids, **BY, plan=plan)
    Holds(kb).release(hold.hold_id, **BY)
    report = Erasure(kb).erase(plan.fact_ids, **BY, plan=plan)
    assert report.erased is not None and report.erased.places == {"document.text": 1}
    assert read(kb, "SELECT text FROM document").startswith(MARK * 12 + " wrote.")


def test_the_log_takes_marks_alone_and_tells_which_entries_were_blanked(kb: KnowledgeBase) -> None:
    kb.facts.add("What rose?", "The sun", actor="tester", reason="asked by Maria Keller")
    seq = kb.log.head_seq()
    plan = read_plan(kb, find(kb).plan)
    assert (
        Erasure(kb).preview(plan.fact_ids, plan=plan).places == {"change.reason": 1}
        and kb.log.head_seq() == seq
    )
    report = Erasure(kb).erase(plan.fact_ids, **BY, plan=plan)
    assert report.erased is not None and report.erased.seq == seq + 1
    assert kb.log.change(seq).reason == f"asked by {MARK * 12}"
    seal = kb.log.change(seq + 2)
    assert (seal.kind, kb.log.verify().breaks, [one.seq for one in kb.log.verify().sealed]) == (
        "seal",
        (),
        [seq],
    )
    with pytest.raises(DBAPIError, match="append-only"), kb.engine.begin() as connection:
        connection.execute(text(f"UPDATE change SET reason = 'asked by somebody else' WHERE seq = {seq}"))


def test_by_two_tokens_the_second_one_carries_the_plan_out(kb: KnowledgeBase) -> None:
    kb.facts.add("Who won?", "Maria Keller", **BY)
    kb.facts.add("What rose?", "The sun", actor="tester", reason="asked by Maria Keller")
    plan = read_plan(kb, find(kb).plan)
    requests = ErasureRequests(kb)
    with kb.sessions.begin() as session:
        secrets = [create_token(session, name, "admin") for name in ("one", "two")]
    one, two = map(requests.token_of, secrets)
    asked = requests.ask(plan.fact_ids, token=one, actor="tester", reason="for Maria Keller", plan=plan)
    assert asked.num_places == 1 and "Keller" not in asked.reason
    done, report = requests.approve(asked.erasure_request_id, token=two)
    assert (
        done.state == "approved"
        and report.erased is not None
        and report.erased.places == {"change.reason": 1}
    )
    assert columns_saying(kb, "keller") == set()


@pytest.mark.slow(reason="starts a PostgreSQL of its own and rewrites its tables")
def test_no_file_names_the_person_any_more(own_kb: KnowledgeBase) -> None:
    kb = own_kb
    planted, others = plant(kb), plant_namesakes(kb)
    plan = read_plan(kb, find(kb).plan)
    erasure = Erasure(kb)
    traces = erasure.traces(plan.fact_ids, plan=plan)
    before = erasure.residue(traces)
    report = erasure.erase(plan.fact_ids, **BY, plan=plan, now=True)
    after = erasure.residue(traces)
    assert before.num_found >= len(planted.places) and before.found["heap"] and before.found["wal"]
    assert (report.level, after.num_found, after.found) == (4, 0, dict.fromkeys(after.found, 0)), after.files
    clear = [
        said for said in SPELLINGS if said not in ("Maria Keller", "Keller, Maria")
    ]  # as namesakes have them
    whole = erasure.residue([Trace(0, "text", said.encode()) for said in clear])
    assert whole.num_found == 0, whole.files
    assert [where for where, value in others.items() if read(kb, where) != value] == []
