"""What an output's lookup had near it, asked again with the query it kept."""

from __future__ import annotations

import pytest

from colmlm.kb.errors import KeysetMismatch
from colmlm.kb.evidence.records import NewOutput, Splice
from colmlm.kb.service import KnowledgeBase
from tests.fakes import FakeEncoder, activated

QUESTIONS = ("Who wrote Emma?", "Who wrote Persuasion?")


def stored(kb: KnowledgeBase, encoder: FakeEncoder, query: bytes | None, ranking: str = "key") -> int:
    splice, of = Splice(0, 0, "no_match", score=0.1, query=query), encoder.checkpoint.checkpoint_id
    return kb.outputs.record(NewOutput("Who?", "", of, "auto", kb.log.head_seq(), (splice,), ranking=ranking))


def test_neighbours_are_those_of_the_query_that_was_kept(kb: KnowledgeBase, encoder: FakeEncoder) -> None:
    emma, persuasion = (
        kb.facts.add(question, "Jane Austen", actor="tester", reason="two facts").fact_ids[0]
        for question in QUESTIONS
    )
    kb.keysets.rekey(encoder)
    query = encoder.encode_questions([QUESTIONS[1]]).astype("<f2").tobytes()
    output = stored(kb, encoder, query)
    found = kb.outputs.neighbours(output, 0)
    assert found is not None
    assert [hit.fact_id for hit in found] == [persuasion, emma]  # also the one far below the threshold
    assert found[0].score == pytest.approx(1, abs=0.01) and found[1].score < 0.7
    kb.facts.delete([persuasion], actor="tester", reason="gone")
    assert [hit.fact_id for hit in kb.outputs.neighbours(output, 0) or []] == [emma]


def test_lookup_without_a_query_has_none(kb: KnowledgeBase, encoder: FakeEncoder) -> None:
    kb.facts.add(QUESTIONS[0], "Jane Austen", actor="tester", reason="a fact")
    kb.keysets.rekey(encoder)
    output = stored(kb, encoder, None)
    assert kb.outputs.neighbours(output, 0) is None
    assert kb.outputs.neighbours(output, 1) is None
    assert kb.outputs.neighbours(output + 1, 0) is None


@pytest.mark.parametrize("ranking", ["words", "reader"])
def test_lookup_of_any_ranking_has_those_of_its_query(
    kb: KnowledgeBase, encoder: FakeEncoder, ranking: str
) -> None:
    kb.facts.add(QUESTIONS[0], "Jane Austen", actor="tester", reason="a fact")
    kb.keysets.rekey(encoder)
    query = encoder.encode_questions([QUESTIONS[0]]).astype("<f2").tobytes()
    output = stored(kb, encoder, query, ranking)
    assert kb.outputs.neighbours(output, 0)
    assert kb.outputs.trace(output).ranking == kb.outputs.find()[0].ranking == ranking


def test_query_of_another_checkpoint_is_refused(kb: KnowledgeBase, encoder: FakeEncoder) -> None:
    kb.facts.add(QUESTIONS[0], "Jane Austen", actor="tester", reason="a fact")
    kb.keysets.rekey(encoder)
    output = stored(kb, encoder, encoder.encode_questions([QUESTIONS[0]]).astype("<f2").tobytes())
    activated(kb, kb.keysets.rekey(FakeEncoder(salt="newer")).keyset_id)
    with pytest.raises(KeysetMismatch):
        kb.outputs.neighbours(output, 0)
