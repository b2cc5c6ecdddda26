"""Answers from some corpora: what stands in others is as if it were not there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from colmlm.kb.answers.answering import Answering
from colmlm.kb.answers.records import Answer
from colmlm.kb.evidence.attribution import StoredAnswers
from colmlm.kb.lookup.questions import Questions
from colmlm.kb.lookup.searchable import MOST_CANDIDATES
from colmlm.kb.service import KnowledgeBase
from tests.fakes import NearReader, SayingReader, WordEncoder
from tests.kb.corpora import CAPITAL, CHILE, PERU, document, fact_id, ingest
from tests.places import ROOT
from tests.refusals import raises_code

WHO = {"actor": "tester", "reason": "test"}
OTHERS = 400  # documents that say as much of what is asked, in as many words
LANDS = {"corpora": ["lands"]}


@dataclass(frozen=True)
class LikeWords:
    """Encodes a text by its words, as a sentence encoder does by its meaning."""

    encoder: int = 1

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return WordEncoder().encode_questions(texts)


@pytest.fixture
def encoder() -> WordEncoder:
    return WordEncoder()


@pytest.fixture
def crowded(kb: KnowledgeBase, encoder: WordEncoder) -> KnowledgeBase:
    ingest(kb, *(document(f"d{n}", "The capital of Peru is ", (f"Town{n}", CAPITAL), ".") for n in range(OTHERS)),
           corpus="rumours")  # fmt: skip
    ingest(kb, PERU, CHILE)
    kb.keysets.rekey(encoder)
    return kb


@pytest.fixture
def answers(crowded: KnowledgeBase, encoder: WordEncoder) -> Answering:
    return Answering(crowded, Questions(crowded, [encoder]), NearReader())


def corpora_of(found: Answer) -> set[str]:
    sources = [found.source, *(passage.source for passage in found.nearest)]
    return {source.corpus for source in sources if source is not None}


def test_a_small_corpus_answers_beside_a_large_one_that_is_nearer(
    answers: Answering, crowded: KnowledgeBase, subtests: pytest.Subtests
) -> None:
    assert corpora_of(answers.ask(CAPITAL)) == {"rumours"}
    head = crowded.log.head_seq()
    alone = Answering(crowded, None, NearReader())
    for name, found in (
        ("read", answers.ask(CAPITAL, **LANDS)),
        ("by words", alone.ask(CAPITAL, **LANDS)),
        ("by words and vectors", replace(alone, sentences=LikeWords()).ask(CAPITAL, **LANDS)),
        ("by all", replace(answers, sentences=LikeWords()).ask(CAPITAL, **LANDS)),
        ("paper", answers.nearest_fact(CAPITAL, threshold=-1.0, **LANDS)),
        ("past", answers.ask_as_of(CAPITAL, head, **LANDS)),
    ):
        with subtests.test(name):
            assert found.answer == "Lima" and corpora_of(found) == {"lands"}
    both = answers.ask(CAPITAL, corpora=["lands", "rumours"])
    assert both.answer == answers.ask(CAPITAL).answer


def test_a_large_corpus_is_searched_for_more_where_others_come_first(
    answers: Answering, crowded: KnowledgeBase
) -> None:
    ingest(crowded, document("long", " ".join(f"Line {n} was noted." for n in range(MOST_CANDIDATES + 1))))
    assert answers.ask(CAPITAL, **LANDS).answer == "Lima"
    assert Answering(answers.kb, None, NearReader()).ask(CAPITAL, **LANDS).answer == "Lima"


def test_nothing_of_other_corpora_is_shown_where_nothing_answers(answers: Answering) -> None:
    found = answers.ask(CAPITAL, threshold=1.0, nearest=10, **LANDS)
    assert found.abstained and found.nearest and corpora_of(found) == {"lands"}
    unheard = answers.ask("Which town is Town7?", **LANDS)
    assert unheard.abstained and "Town" not in "".join(passage.text for passage in unheard.nearest)


def test_a_deleted_fact_of_another_corpus_withholds_nothing(
    answers: Answering, crowded: KnowledgeBase
) -> None:
    crowded.facts.delete([fact_id(crowded, f"Town{n}") for n in range(OTHERS)], abstain=True, **WHO)
    deleted = crowded.log.head_seq()
    assert answers.ask(CAPITAL, corpora=["rumours"]).withheld
    assert answers.ask(CAPITAL, **LANDS).answer == "Lima"
    assert answers.nearest_fact(CAPITAL, threshold=-1.0, **LANDS).answer == "Lima"
    crowded.facts.delete([fact_id(crowded, "Lima")], abstain=True, **WHO)
    assert answers.ask(CAPITAL, **LANDS).withheld
    assert answers.nearest_fact(CAPITAL, threshold=0.5, **LANDS).withheld
    assert answers.ask_as_of(CAPITAL, deleted, **LANDS).answer == "Lima"


def test_a_forgotten_question_is_answered_by_no_live_fact_of_another_corpus(kb: KnowledgeBase) -> None:
    ingest(kb, PERU, CHILE)
    ingest(kb, document("town", "The capital of Peru is ", ("Townsville", CAPITAL), "."), corpus="rumours")
    sure_of_another = Answering(kb, None, SayingReader("Santiago"))
    kb.facts.delete([fact_id(kb, "Lima")], abstain=True, **WHO)
    assert not sure_of_another.ask(CAPITAL).withheld
    found = sure_of_another.ask(CAPITAL, **LANDS)
    assert found.answer is None and found.withheld


def test_a_fact_without_a_document_is_in_no_corpus(answers: Answering, crowded: KnowledgeBase) -> None:
    crowded.facts.add("Which port serves Lima?", "Callao", **WHO)
    assert answers.ask("Which port serves Lima?").answer == "Callao"
    assert answers.ask("Which port serves Lima?", **LANDS).answer != "Callao"


@pytest.mark.parametrize("mode", ["read", "paper"])
def test_an_unknown_corpus_is_refused(answers: Answering, crowded: KnowledgeBase, mode: str) -> None:
    with raises_code("CorpusNotFound", match="'land'"):
        answers.answer_in_mode(CAPITAL, mode, corpora=["lands", "land"])
    with raises_code("CorpusNotFound"):
        answers.ask_as_of(CAPITAL, crowded.log.head_seq(), corpora=["land\x00s"])


def test_an_answer_of_some_corpora_is_stored_and_traced_like_any(
    answers: Answering, crowded: KnowledgeBase
) -> None:
    found = StoredAnswers(crowded, answers).answer(CAPITAL, **LANDS)
    assert found.generation_id is not None
    trace = crowded.outputs.trace(found.generation_id)
    assert (trace.output, trace.quotes) == ("Lima", found.source)
    assert [splice.fact_id for splice in trace.splices] == [fact_id(crowded, "Lima")]


# Each statement that decides takes the conditions of `kb.lookup.options`, so a filter that they gain holds everywhere.
# These only choose what is compared, and another statement decides afterwards, or they take no filter of a caller.
NARROWING = {"kb/lookup/searchable.py", "kb/lookup/in_process.py", "kb/answers/candidates.py"}
OWN_QUESTIONS = {"kb/answers/calibration.py"}


def test_no_statement_that_decides_writes_the_filter_of_corpora_again() -> None:
    written = {
        str(file.relative_to(ROOT))
        for folder in ("answers", "lookup")
        for file in (ROOT / "kb" / folder).rglob("*.py")
        if re.search(r"corpus = ANY\b", file.read_text(encoding="utf-8"))
    }
    assert written == {"kb/lookup/options.py"} | NARROWING | OWN_QUESTIONS
