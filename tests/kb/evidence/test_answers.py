"""Answers as outputs: a quotation is traced to its document and to the facts in it, whole or in part."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from sqlalchemy import text

from colmlm.kb.answers.answering import Answering, parts_of_span
from colmlm.kb.answers.records import Answer, AnsweredQuestion
from colmlm.kb.answers.windows import read_stretches
from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, Parsed
from colmlm.kb.errors import InvalidValue
from colmlm.kb.evidence.attribution import StoredAnswers, output_of_answer
from colmlm.kb.evidence.records import NewOutput, OutputTrace, QuotedStretch
from colmlm.kb.facts.redaction import MARK
from colmlm.kb.lookup.questions import Questions
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.removal.selector import Selector
from colmlm.kb.service import KnowledgeBase
from tests.fakes import SayingReader, WordEncoder
from tests.kb.corpora import document, fact_id, ingest
from tests.kb.removal.test_erasure_race import erasing
from tests.refusals import raises_code

WHO = {"actor": "tester", "reason": "test"}
OPENED, RAN = "When did the canteen open?", "Who ran the canteen?"
CANTEEN = document(
    "canteen", "They opened the canteen in ", ("May 1987", OPENED), ", and ", ("Ann Lee", RAN), " ran it."
)
LONGER = "the canteen in May 1987, and Ann"


@pytest.fixture
def encoder() -> WordEncoder:
    return WordEncoder()


@pytest.fixture
def canteen(kb: KnowledgeBase, encoder: WordEncoder) -> KnowledgeBase:
    ingest(kb, CANTEEN)
    kb.keysets.rekey(encoder)
    return kb


def saying(kb: KnowledgeBase, said: str, *, keys: bool = True) -> Answering:
    return Answering(kb, Questions(kb, [WordEncoder()]) if keys else None, SayingReader(said))


def answered(kb: KnowledgeBase, said: str, question: str = OPENED, mode: str = "read") -> Answer:
    return StoredAnswers(kb, saying(kb, said)).answer(question, mode)


def made(kb: KnowledgeBase, said: str, question: str = OPENED) -> NewOutput:
    """An answer as it would be stored, and is not stored yet."""
    return output_of_answer(saying(kb, said).answer_in_mode(question, "read"), "read")


def traced(kb: KnowledgeBase, answer: Answer) -> OutputTrace:
    assert answer.generation_id is not None
    return kb.outputs.trace(answer.generation_id)


def test_an_answer_longer_than_its_facts_quotes_its_document(canteen: KnowledgeBase):
    found = answered(canteen, LONGER)
    trace = traced(canteen, found)
    assert (trace.prompt, trace.output, trace.mode, trace.seq) == (OPENED, LONGER, "read", found.seq)
    assert (trace.abstained, trace.uncited) == (False, False)
    assert trace.quotes == found.source and trace.quotes is not None
    assert CANTEEN.text[trace.quotes.start : trace.quotes.end] == LONGER
    opened, ran = trace.splices
    assert (opened.value, opened.part_start, opened.part_end) == ("May 1987", None, None)
    assert (ran.value, ran.part_start, ran.part_end) == ("Ann", 0, 3)
    assert opened.score == found.score and opened.is_current and ran.is_current
    assert (opened.fact_id, ran.fact_id) == (fact_id(canteen, "May 1987"), fact_id(canteen, "Ann Lee"))


def test_a_part_of_a_fact_is_traced_to_that_fact(canteen: KnowledgeBase):
    fact = fact_id(canteen, "May 1987")
    trace = traced(canteen, answered(canteen, "1987"))
    (splice,) = trace.splices
    assert (splice.value, splice.fact_id, splice.part_start, splice.part_end) == ("1987", fact, 4, 8)
    assert [use.generation_id for use in canteen.outputs.trace_fact(fact).uses] == [trace.generation_id]
    assert [one.since for one in canteen.outputs.impact(fact).outputs] == ["current"]
    assert [one.value for one in canteen.outputs.attributions(fact_id=fact)] == ["1987"]
    canteen.facts.edit(fact, value="June 1988", **WHO)
    (splice,) = canteen.outputs.trace(trace.generation_id).splices
    assert splice.live and not splice.is_current
    assert [one.since for one in canteen.outputs.impact(fact).outputs] == ["corrected"]
    used = canteen.outputs.impact_of_selection(Selector(fact_ids=(fact,)))
    assert (used.num_outputs, used.outputs[0].output) == (1, "1987")


def test_a_corrected_fact_is_quoted_where_the_first_value_stands(canteen: KnowledgeBase):
    canteen.facts.edit(fact_id(canteen, "May 1987"), value="the June of 1988", **WHO)
    for said in ("the canteen in the June of 1988, and Ann", "June of 1988, and", "in the June"):
        trace = traced(canteen, answered(canteen, said))
        assert trace.output == said and trace.quotes is not None
        assert "May 1987" in CANTEEN.text[trace.quotes.start : trace.quotes.end]
        assert trace.splices[0].version == 2 and trace.splices[0].is_current


def test_what_is_not_said_is_stored_with_its_question(canteen: KnowledgeBase):
    question = "Since when is it open?"
    found = StoredAnswers(canteen, saying(canteen, "the canteen")).answer(question)
    trace = traced(canteen, found)
    assert (trace.prompt, trace.output, trace.abstained, trace.quotes) == (question, "", True, None)
    assert [(one.outcome, one.score) for one in trace.splices] == [("no_match", found.score)]
    assert canteen.outputs.neighbours(trace.generation_id, 0), "by the question's query"
    assert trace.ranking == "reader"
    canteen.facts.delete([fact_id(canteen, "May 1987")], **WHO)
    withheld = answered(canteen, "May 1987")
    assert withheld.withheld
    assert [one.outcome for one in traced(canteen, withheld).splices] == ["abstained"]
    listed = canteen.outputs.find()
    assert [(one.mode, one.abstained, one.uncited, one.num_hits) for one in listed] == [
        ("read", True, False, 0)
    ] * 2


def test_an_answer_that_was_found_by_words_alone_has_no_checkpoint(canteen: KnowledgeBase):
    found = StoredAnswers(canteen, saying(canteen, LONGER, keys=False)).answer(OPENED)
    trace = traced(canteen, found)
    assert (trace.checkpoint_id, trace.output) == ("", LONGER)
    assert canteen.outputs.neighbours(trace.generation_id, 0) is None


def test_the_papers_mode_stores_the_value_of_a_fact(canteen: KnowledgeBase):
    fact = fact_id(canteen, "May 1987")
    trace = traced(canteen, answered(canteen, "", mode="paper"))
    assert (trace.output, trace.mode, trace.quotes, trace.uncited) == ("May 1987", "paper", None, False)
    canteen.facts.edit(fact, value="June 1988", **WHO)
    assert traced(canteen, answered(canteen, "", mode="paper")).output == "June 1988"
    canteen.facts.delete([fact], **WHO, abstain=True)
    trace = traced(canteen, answered(canteen, "", mode="paper"))
    assert (trace.output, [one.outcome for one in trace.splices]) == ("", ["abstained"])


def test_a_fact_without_a_document_is_said_without_its_question(canteen: KnowledgeBase):
    canteen.facts.add("Who cooks in the canteen?", "Bo Kim", **WHO)
    question = "Who cooks in the canteen?"
    assert answered(canteen, "canteen? Bo Kim", "Who is the cook in the canteen?").abstained
    trace = traced(canteen, answered(canteen, "Bo", question))
    assert (trace.output, trace.quotes, trace.splices[0].part_end) == ("Bo", None, 2)


def test_answers_are_kept_unless_the_settings_say_otherwise(canteen: KnowledgeBase):
    canteen.settings = replace(canteen.settings, keep_answers=False)
    found = answered(canteen, LONGER)
    assert (found.answer, found.generation_id, canteen.outputs.find()) == (LONGER, None, [])


def test_a_database_that_cannot_be_written_answers_and_stores_nothing(canteen: KnowledgeBase):
    with canteen.engine.begin() as connection:
        connection.execute(
            text(f"ALTER DATABASE {canteen.engine.url.database} SET default_transaction_read_only = on")
        )
    canteen.engine.dispose()
    found = answered(canteen, LONGER)
    assert (found.answer, found.generation_id, canteen.outputs.find()) == (LONGER, None, [])


def test_a_part_that_its_fact_does_not_have_is_refused(canteen: KnowledgeBase, subtests: pytest.Subtests):
    output = made(canteen, "1987")
    for damage in (
        {"part_start": 0},
        {"part_end": 9},
        {"part_end": None},
        {"part_start": None, "part_end": None},
    ):
        with subtests.test(damage=damage):
            with raises_code("InvalidSplice"):
                canteen.outputs.record(replace(output, splices=(replace(output.splices[0], **damage),)))
            assert canteen.outputs.find() == []


def test_a_quotation_that_its_document_does_not_say_is_refused(
    canteen: KnowledgeBase, subtests: pytest.Subtests
):
    for stretch, said in {
        (1, 0, 0): "is not a span",
        (1, 0, 33): "does not say the output",
        (1, 0, 32): "does not say the output",
        (1, 40, 72): "document 1 ends before character 72",
        (99, 0, 32): "there is no document 99",
    }.items():
        with subtests.test(stretch=stretch):
            with pytest.raises(InvalidValue, match=said):
                canteen.outputs.record(replace(made(canteen, LONGER), quotes=QuotedStretch(*stretch)))
            assert canteen.outputs.find() == []


def test_what_is_deleted_between_reading_and_storing_is_traced_as_that(canteen: KnowledgeBase):
    output = made(canteen, LONGER)
    deleted = canteen.facts.delete([fact_id(canteen, "May 1987")], **WHO)
    trace = canteen.outputs.trace(canteen.outputs.record(output))
    assert trace.seq < deleted.seq
    assert [(one.live, [edit.seq for edit in one.history]) for one in trace.splices] == [
        (False, [deleted.seq]),
        (True, []),
    ]


def test_what_is_erased_between_reading_and_storing_is_neither_stored_nor_said(canteen: KnowledgeBase):
    with erasing(canteen, fact_id(canteen, "May 1987")) as beside:
        answering = beside(lambda: answered(canteen, "the canteen in May 1987, and"))
    found = answering.result()
    assert isinstance(found, Answer)
    assert (found.answer, found.withheld, found.facts, found.nearest) == (None, True, (), ())
    trace = traced(canteen, found)
    assert trace.output == f"the canteen in {MARK * 8}, and"
    assert trace.redacted_seq == canteen.log.head_seq()
    assert _queries(canteen) == [None] and canteen.upkeep.fsck().ok


def test_erasing_a_fact_takes_the_part_that_was_said_and_leaves_the_other_facts(canteen: KnowledgeBase):
    parts = [traced(canteen, answered(canteen, said)).generation_id for said in ("1987", LONGER)]
    assert None not in _queries(canteen)
    Erasure(canteen).erase([fact_id(canteen, "Ann Lee")], **WHO)
    said = [canteen.outputs.trace(one).output for one in parts]
    assert said == ["1987", f"the canteen in May 1987, and {MARK * 3}"]
    queries = _queries(canteen)
    assert queries[0] is not None and queries[1:] == [None, None], "one question asked for both facts"
    Erasure(canteen).erase([fact_id(canteen, "May 1987")], **WHO)
    said = [canteen.outputs.trace(one).output for one in parts]
    assert said == [MARK * 4, f"the canteen in {MARK * 8}, and {MARK * 3}"]
    assert canteen.upkeep.fsck().ok


def _queries(kb: KnowledgeBase) -> list[bytes | None]:
    with kb.engine.connect() as connection:
        return list(connection.scalars(text("SELECT query FROM attribution ORDER BY generation_id, ordinal")))


SELLS = "Who sells in that trade?"
BEANS = document(
    "beans",
    "In the Lima trade, ",
    ("Bo Kim", SELLS),
    " sells. Home is ",
    ("Lima", "Where?"),
    ".",
)
ALSO = document("also", "The seat is ", ("Lima", "Where is the seat?"), ".")


@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize(("mentions", "left"), [("same-document", MARK * 4), ("none", "Lima")])
def test_what_is_redacted_in_the_document_is_redacted_in_what_quotes_it(
    kb: KnowledgeBase, is_stored: bool, mentions: str, left: str
):
    ingest(kb, BEANS, ALSO)  # another fact says the same, so the word alone is no trace of the erased one
    home, _ = (fact.fact_id for fact in kb.facts.find(text="Lima"))
    output = made(kb, "the Lima trade, Bo Kim sells", SELLS)
    if is_stored:
        generation_id = kb.outputs.record(output)
    Erasure(kb).erase([home], **WHO, mentions=mentions)
    if not is_stored:
        generation_id = kb.outputs.record(output)
    trace = kb.outputs.trace(generation_id)
    assert trace.output == f"the {left} trade, Bo Kim sells"
    assert trace.redacted_seq == (kb.log.head_seq() if left != "Lima" else None)
    assert kb.upkeep.fsck().ok


def test_quotations_that_say_what_their_document_says_no_more_are_found(kb: KnowledgeBase):
    ingest(kb, BEANS, ALSO)
    home, _ = (fact.fact_id for fact in kb.facts.find(text="Lima"))
    generation_id = kb.outputs.record(made(kb, "the Lima trade, Bo Kim sells", SELLS))
    Erasure(kb).erase([home], **WHO)
    with kb.engine.begin() as connection:  # as a program of before quotations would have left it
        connection.execute(text("UPDATE generation SET output = 'the Lima trade, Bo Kim sells'"))
    assert not kb.upkeep.fsck().ok
    Erasure(kb).erase([home], **WHO)
    assert MARK * 4 in kb.outputs.trace(generation_id).output and kb.upkeep.fsck().ok


def test_past_words_of_a_quotation_are_withheld(canteen: KnowledgeBase):
    part, longer = (traced(canteen, answered(canteen, said)).generation_id for said in ("1987", LONGER))
    shown = canteen.caller_view(past=False)
    assert [shown.trace_output(one).output for one in (part, longer)] == ["1987", LONGER]
    canteen.facts.delete([fact_id(canteen, "May 1987")], **WHO)
    trace = shown.trace_output(part)
    assert (trace.output, trace.splices[0].value, trace.splices[0].withheld) == (MARK * 4, MARK * 4, True)
    assert shown.trace_output(longer).output == f"the canteen in {MARK * 8}, and Ann"
    ingest(canteen, replace(CANTEEN, text=f"{CANTEEN.text} It closed."))
    assert shown.trace_output(longer).output == f"{MARK * 15}{MARK * 8}{MARK * 6}Ann", "the fact stands"
    assert [one.output for one in shown.generations()] == [shown.trace_output(longer).output, MARK * 4]
    assert canteen.outputs.trace(longer).output == LONGER, "nothing was changed"


def test_words_around_facts_in_every_position_are_the_documents(kb: KnowledgeBase):
    drawn = random.Random(7)
    said = "".join(drawn.choice("abcdefgh") for _ in range(60))
    ends = sorted(drawn.sample(range(len(said)), 16))
    spans = list(zip(ends[::2], ends[1::2], strict=True))
    facts = tuple(FactSpan(a, b, said[a:b], f"Which is {a} to {b}?") for a, b in spans)
    kb.corpora.ingest([Parsed(AnnotatedDocument("drawn", said, facts))], "drawn", **WHO)
    ids = [fact.fact_id for fact in kb.facts.find(limit=20)]
    for one in drawn.sample(ids, 3):
        kb.facts.edit(one, value="x" * drawn.randint(1, 12), **WHO)
    (found,) = kb.documents.find()
    for _ in range(60):
        start, end = sorted(drawn.sample(range(len(said) + 1), 2))
        with kb.sessions() as session:
            (window,) = read_stretches(session, [(found.document_id, start, end)])
        if not window.text:
            continue
        first, last = sorted(drawn.sample(range(len(window.text) + 1), 2))
        overlapped = window.facts_overlapping(first, last)
        if any(fact.version is None for fact in overlapped):
            continue
        answer = Answer(
            "Which?", window.text[first:last], 0.5, 0.5, tuple(fact.said_fact for fact in overlapped),
            window.source_of(first, last), False, (), kb.log.head_seq(),
        )  # fmt: skip
        asked = AnsweredQuestion(answer, None, parts_of_span(window, first, last))
        assert kb.outputs.record(output_of_answer(asked, "read"))
    assert len(kb.outputs.find(limit=60)) > 10
