"""What an erasure does in the database: texts, keys, evidence, and what it leaves right."""

from __future__ import annotations

import numpy as np
import pytest
from sqlalchemy import text

from colmlm.kb.corpus.format import Parsed
from colmlm.kb.errors import FactNotFound
from colmlm.kb.evidence.records import NewOutput, Splice
from colmlm.kb.facts.redaction import MARK
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.service import KnowledgeBase
from tests.fakes import FakeEncoder
from tests.kb.corpora import CAPITAL, HEIGHT, PERU, RIVER, ask, best, document, fact_id, ingest, values
from tests.refusals import raises_code

BY = {"actor": "tester", "reason": "request"}


def erase(kb: KnowledgeBase, *fact_ids: int):
    return Erasure(kb).erase(fact_ids, **BY)


def everything_stored(kb: KnowledgeBase) -> str:
    """Every column of every table, as text."""
    listing = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"
    with kb.engine.connect() as connection:
        tables = connection.scalars(text(listing)).all()
        return "\n".join(
            str(row[0]) for t in tables for row in connection.execute(text(f"SELECT t::text FROM {t} t"))
        )


def speak(
    kb: KnowledgeBase, encoder: FakeEncoder, prompt: str, output: str, *spoken: tuple[int, int, str]
) -> int:
    """Store an output that splices (fact, version, value) where it says them first."""
    splices = tuple(Splice(output.index(v), output.index(v) + len(v), "hit", f, n, 0.9) for f, n, v in spoken)
    checkpoint = encoder.checkpoint.checkpoint_id
    return kb.outputs.record(NewOutput(prompt, output, checkpoint, "lookup", kb.log.head_seq(), splices))


def test_no_table_says_an_erased_fact_and_everything_else_stands(
    kb: KnowledgeBase, another_process: KnowledgeBase, encoder: FakeEncoder
) -> None:
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    another_process.lookups.catch_up()
    river = fact_id(kb, "Amazon")
    kb.facts.edit(river, "Ucayali", **BY)
    output = "The Ucayali rises in Peru, and Lima is its capital. Ucayali, Ucayalian."
    generation = speak(
        kb, encoder, f"{RIVER} The Ucayali?", output, (river, 2, "Ucayali"), (fact_id(kb, "Lima"), 1, "Lima")
    )
    (key_id,) = [h.key_id for lookup in ask(kb, encoder, RIVER) for h in lookup.hits]
    assert key_id in another_process.searcher.current().candidates.ids

    report = erase(kb, river)

    stored = everything_stored(kb)
    for gone in ("Amazon", RIVER, 'Ucayali"', " Ucayali ", "Ucayali,"):
        assert gone not in stored
    fact = kb.facts.show(river)
    assert (fact.value, fact.question, fact.answer) == (MARK * 7, None, None), (
        "entered: one more than is quoted"
    )
    assert fact.erased_seq == fact.deleted_seq == report.erased.seq == kb.log.head_seq()
    assert PERU.text.replace("Amazon", MARK * 6) == kb.documents.text(fact.source.document_id)

    traced = kb.outputs.trace(generation)
    assert traced.output == output.replace("Ucayali,", MARK * 7 + ",").replace(
        "The Ucayali", "The " + MARK * 7
    )
    assert (
        traced.prompt == f"{MARK * len(RIVER)} The {MARK * 7}?" and traced.redacted_seq == report.erased.seq
    )
    assert [(s.value, s.erased) for s in traced.splices] == [(MARK * 7, True), ("Lima", False)]
    assert [v.value for v in kb.outputs.trace_fact(river).versions] == [MARK * 6, MARK * 7]

    assert values(kb, encoder, [CAPITAL, RIVER, HEIGHT]) == ["Lima", None, "6,768 m"]
    another_process.lookups.catch_up()
    assert key_id not in another_process.searcher.current().candidates.ids
    fsck = kb.upkeep.fsck()
    assert fsck.ok and fsck.chain_ok, fsck


def test_the_change_names_ids_and_counts_only(kb: KnowledgeBase, encoder: FakeEncoder) -> None:
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    lima = fact_id(kb, "Lima")
    key_id = best(kb, encoder, CAPITAL).key_id
    document_id = kb.facts.show(lima).source.document_id
    report = erase(kb, lima)
    change = kb.log.changes()[-1]
    assert (change.kind, change.fact_ids, change.actor) == ("erase", (lima,), "tester")
    with kb.engine.connect() as connection:
        payload = connection.scalar(text("SELECT payload FROM change WHERE kind = 'erase'"))
    who = {name: payload.pop(name, None) for name in ("principal", "on_behalf_of")}
    assert who["on_behalf_of"] == "tester"
    (weights,) = payload.pop("lineage")
    assert (weights["checkpoint"], weights["documents"]) == ("fake", [])
    assert payload == {
        "documents": [document_id],
        "generations": [],
        "forget_runs": [],
        "jobs": [],
        "erasure_requests": [],
        "questions": [],
        "question_outcomes": [],
        "feedback": [],
        "digests": report.erased.num_digests,
        "dropped_keys": [key_id],
        "mentions": "same-document",
    }
    assert report.erased.num_digests == 5


def test_an_erasure_is_all_or_nothing_and_final(kb: KnowledgeBase) -> None:
    ingest(kb, PERU)
    lima, amazon = fact_id(kb, "Lima"), fact_id(kb, "Amazon")
    with pytest.raises(FactNotFound, match="999"):
        erase(kb, lima, 999)
    kb.facts.delete([lima], **BY, abstain=True)
    erase(kb, lima)
    for refused in (
        lambda: kb.facts.restore([lima], **BY),
        lambda: kb.facts.edit(lima, "Cusco", **BY),
        lambda: kb.facts.delete([lima], **BY),
    ):
        with raises_code("FactErased", match=str(lima)):
            refused()
    assert kb.facts.show(amazon).value == "Amazon"
    assert fsck_ok(kb)


def fsck_ok(kb: KnowledgeBase) -> bool:
    return kb.upkeep.fsck().ok


def test_a_preview_counts_and_changes_nothing(kb: KnowledgeBase, encoder: FakeEncoder) -> None:
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    before = everything_stored(kb)
    preview = Erasure(kb).preview([fact_id(kb, "Lima")])
    assert (preview.num_keys, len(preview.documents), preview.seq) == (1, 1, kb.log.head_seq() + 1)
    assert everything_stored(kb) == before


def test_a_fact_without_a_document_is_erased_and_does_not_come_back_unasked(kb: KnowledgeBase) -> None:
    (emma,) = kb.facts.add("Who wrote Emma?", "Jane Austen", **BY).fact_ids
    erase(kb, emma)
    assert (kb.facts.show(emma).value, kb.facts.show(emma).question) == (MARK, MARK)
    assert "Emma" not in everything_stored(kb) and "Austen" not in everything_stored(kb)
    with raises_code("FactSuppressed"):
        kb.facts.add("who  wrote Emma?", "JANE AUSTEN", **BY)
    kb.facts.add("Who wrote Emma?", "Harriet Smith", **BY)
    kb.facts.add("Who wrote Emma?", "Jane Austen", **BY, allow_erased=True, anyway=True)
    kb.facts.add("Who wrote Emma?", "Jane Austen", **BY, anyway=True)


def test_replaced_texts_of_the_document_are_redacted_too(kb: KnowledgeBase) -> None:
    longer = document("peru", "New words. ", *pieces_of_peru())
    ingest(kb, PERU)
    ingest(kb, longer)
    lima, amazon = fact_id(kb, "Lima"), fact_id(kb, "Amazon")
    erase(kb, lima)
    with kb.engine.connect() as connection:
        texts = connection.scalars(text("SELECT text FROM document ORDER BY id")).all()
    assert texts == [PERU.text.replace("Lima", MARK * 4), longer.text.replace("Lima", MARK * 4)]
    assert kb.facts.show(amazon).value == "Amazon" and fsck_ok(kb)


def pieces_of_peru() -> list[str | tuple[str, str]]:
    spans = {(s.start, s.end): (s.value, s.question or "") for s in PERU.facts}
    pieces: list[str | tuple[str, str]] = []
    reached = 0
    for (start, end), span in spans.items():
        pieces += [PERU.text[reached:start], span]
        reached = end
    return [*pieces, PERU.text[reached:]]


def test_ingesting_the_same_file_again_changes_nothing_in_whatever_order_its_facts_went(
    kb: KnowledgeBase,
) -> None:
    near = document(
        "near", "It is ", ("A1", "qa?"), " ", ("B2", "qb?"), " ", ("C3", "qc?"), " and ", ("D4", ""), "."
    )
    ingest(kb, near)
    for value in ("C3", "A1", "B2"):
        erase(kb, fact_id(kb, value))
        report = ingest(kb, near)
        assert (report.documents, report.unchanged) == (0, 1), value
    assert report.suppressed == 3
    assert [(s.document, near.text[s.start : s.end]) for s in report.suppressed_at] == [
        ("near", "A1"), ("near", "B2"), ("near", "C3")
    ]  # fmt: skip
    assert fact_id(kb, "D4")


def test_an_erased_fact_in_another_text_is_left_out_and_redacted_there(kb: KnowledgeBase) -> None:
    ingest(kb, PERU)
    erase(kb, fact_id(kb, "Lima"))
    other = document(
        "andes", "An atlas says: ", ("Lima", CAPITAL), " is where they meet, in ", ("May", "When?"), "."
    )
    report = ingest(kb, other)
    assert (report.facts, report.suppressed) == (1, 1)
    assert kb.documents.text(kb.facts.show(fact_id(kb, "May")).source.document_id) == other.text.replace(
        "Lima", MARK * 4
    )
    assert fsck_ok(kb)


def test_an_erased_fact_stays_out_of_later_editions_of_its_document_alone(kb: KnowledgeBase) -> None:
    """Its place and the characters before it are others there, and nobody asks for it."""
    before = document(
        "hall", "It opened in ", ("1902", ""), ", and there are ", ("9", ""), " or ", ("9", ""), "."
    )
    after = document(
        "hall",
        "The old hall of Lundvik, by the river, opened in ",
        ("1902", ""),
        ", and has by now ",
        ("9", ""),
        ".",
    )
    ingest(kb, before)
    (first, nine, _) = [fact.fact_id for fact in kb.facts.find()]
    erase(kb, first, nine)
    report = ingest(kb, after)
    assert [after.text[one.start : one.end] for one in report.suppressed_at] == ["1902"]
    (kept,) = kb.facts.find()
    assert kept.value == "9" and "1902" not in kb.documents.text(kept.source.document_id)
    elsewhere = document("mill", "The new mill over there, by the sea, opened in ", ("1902", ""), ".")
    assert ingest(kb, elsewhere).facts == 1
    assert kb.corpora.ingest([Parsed(after)], "other", **BY).facts == 2
    assert kb.corpora.ingest([Parsed(after)], "lands", **BY, allow_erased=True).suppressed == 0
    assert ingest(kb, after).unchanged == 1


def test_an_erased_fact_stays_out_of_other_documents_whatever_else_is_marked_there(kb: KnowledgeBase) -> None:
    """People and annotators mark other words before it: all, some, or none of them; and some may be erased by then."""

    for person, marks, again in (
        ("Boyle", "P", "GNP"), ("Lavoisier", "GNP", "P"), ("Davy", "GP", "NP"), ("Ramsay", "PY", "GNPY"),
        ("Priestley", "GNPY", "YP"),
    ):  # fmt: skip
        parts = {"G": "Gas of the air", "N": "new element", "P": person, "Y": f"17{len(person)}6"}

        def text_of(name: str, marks: str, parts: dict[str, str] = parts):
            order = ("G", " was shown to be a ", "N", " by ", "P", " in London in ", "Y", ".")
            return document(
                name,
                *((parts[one], "") if one in marks else parts.get(one, one) for one in order),
            )

        kb.corpora.ingest([Parsed(text_of(person, marks))], "first", **BY)
        erased = [fact for fact in kb.facts.find(corpus="first") if fact.value in (parts["P"], parts["Y"])]
        erase(kb, *(fact.fact_id for fact in erased))
        report = kb.corpora.ingest([Parsed(text_of(f"{person} again", again))], "second", **BY)
        assert report.suppressed == len(erased) == 1 + ("Y" in marks), person
        assert not kb.facts.find(text=parts["P"], corpus="second"), person


def test_allowing_what_was_erased_brings_it_back_as_a_new_fact_for_good(
    kb: KnowledgeBase, encoder: FakeEncoder
) -> None:
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    erased = fact_id(kb, "Lima")
    erase(kb, erased)
    report = kb.corpora.ingest([Parsed(PERU)], "lands", **BY, allow_erased=True)
    assert (report.replaced, report.facts, report.suppressed) == (1, 2, 0)  # and the one after it
    assert fact_id(kb, "Lima") != erased and kb.facts.show(erased).erased_seq
    with kb.engine.connect() as connection:
        assert (
            connection.scalar(
                text(
                    "SELECT payload->'allowed_erased' FROM change WHERE kind = 'ingest' ORDER BY seq DESC LIMIT 1"
                )
            )
            == 5
        )
    assert ingest(kb, PERU).unchanged == 1
    assert fsck_ok(kb)


def test_what_another_fact_says_as_well_is_named_and_survives_its_own_ingest(kb: KnowledgeBase) -> None:
    twin = document("twin", "A second source has it that the capital is ", ("Lima", CAPITAL), ".")
    ingest(kb, PERU, twin)
    of_peru, of_twin = [f.fact_id for f in kb.facts.find(text="Lima")]
    assert erase(kb, of_peru).erased.also_said_by == (of_twin,)
    report = ingest(kb, PERU, twin)
    assert (report.unchanged, report.suppressed) == (2, 1)
    assert kb.facts.show(of_twin).value == "Lima"


def test_forget_runs_quote_no_erased_fact(kb: KnowledgeBase) -> None:
    ingest(kb, PERU)
    lima = fact_id(kb, "Lima")
    with kb.engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO forget_run (state, policy, selector, fact_ids, plan, planned_seq, actor, reason) VALUES"
                " ('planned', 'abstain', '{\"text\": \"Lima\"}', :ids, CAST(:plan AS jsonb), 1, 'a', 'r')"
            ),
            {"ids": [lima], "plan": f'{{"facts": [{{"q": "{CAPITAL}", "n": 4}}], "other": "Limassol"}}'},
        )
    erase(kb, lima)
    with kb.engine.connect() as connection:
        selector, plan = connection.execute(text("SELECT selector, plan FROM forget_run")).one()
    assert selector == {"text": MARK * 4}
    assert plan == {"facts": [{"q": MARK * len(CAPITAL), "n": 4}], "other": "Limassol"}


def test_a_forget_run_ends_as_erased_once_all_of_it_is(kb: KnowledgeBase) -> None:
    ingest(kb, PERU)
    lima, amazon = fact_id(kb, "Lima"), fact_id(kb, "Amazon")
    states = text("SELECT state FROM forget_run ORDER BY id")
    with kb.engine.begin() as connection:
        for state in ("applied", "planned"):
            connection.execute(
                text(
                    "INSERT INTO forget_run (state, policy, selector, fact_ids, plan, planned_seq, actor, reason)"
                    " VALUES (:state, 'abstain', '{}', :ids, '{}', 1, 'a', 'r')"
                ),
                {"state": state, "ids": [lima, amazon]},
            )
    erase(kb, lima)
    with kb.engine.connect() as connection:
        assert connection.scalars(states).all() == ["applied", "planned"]
    erase(kb, amazon)
    with kb.engine.connect() as connection:
        assert connection.scalars(states).all() == ["erased", "planned"]


def test_level_two_takes_the_key_out_of_every_snapshot(kb: KnowledgeBase, encoder: FakeEncoder) -> None:
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    other = FakeEncoder(salt="2")
    kb.keysets.rekey(other)  # a keyset beside the active one, with a snapshot of its own
    lima = fact_id(kb, "Lima")
    with kb.engine.connect() as connection:
        keys = connection.scalars(text("SELECT key FROM fact_key WHERE fact_id = :f"), {"f": lima}).all()
    exact = [np.frombuffer(key, "<f2").astype("<f4").tobytes() for key in keys]

    def snapshots() -> bytes:
        return b"".join(
            file.read_bytes() for file in kb.settings.index_directory.rglob("*") if file.is_file()
        )

    assert len(exact) == 2 and all(key in snapshots() for key in exact)
    report = erase(kb, lima)
    assert not any(key in snapshots() for key in exact)
    assert report.level == 2
    assert [(level.state, bool(level.remedy)) for level in report.levels] == [
        ("reached", False), ("reached", False), ("left", True), ("left", True)
    ]  # fmt: skip
