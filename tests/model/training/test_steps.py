"""Steps are the same in every run, and their positions point at the markers."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan
from colmlm.model.text.tokens import FactTokenizer
from colmlm.model.training.config import QA_FORMS, TrainConfig
from colmlm.model.training.corpora import data_hash, tokenise
from colmlm.model.training.steps import Step, Steps, hold_out, question_answer
from tests.kb.corpora import PERU, document, numbered
from tests.tiny import byte_tokenizer

CONFIG = TrainConfig(batch_documents=4, block=2, max_length=64)


@pytest.fixture(scope="module")
def tokenizer() -> FactTokenizer:
    return byte_tokenizer()


def steps(
    tokenizer: FactTokenizer, documents: list[AnnotatedDocument] | None = None, **changes: object
) -> Steps:
    config = replace(CONFIG, **changes)
    return Steps([tokenise(documents or numbered(11), tokenizer, config)], tokenizer, config)


def test_step_n_is_the_same_however_one_gets_there(tokenizer: FactTokenizer):
    whole = list(islice(steps(tokenizer), 9))
    for start in (0, 1, 2, 5, 7):  # two steps an epoch
        assert list(islice(steps(tokenizer).starting_at(start), 9 - start)) == whole[start:]
    assert list(islice(steps(tokenizer, seed=18), 9)) != whole


def test_an_epoch_takes_each_document_at_most_once_and_epochs_differ(tokenizer: FactTokenizer):
    made = steps(tokenizer)
    taken = [[p.question for p in step.pairs] for step in islice(made, 4)]  # two steps an epoch
    first, second = taken[0] + taken[1], taken[2] + taken[3]
    assert len(set(first)) == len(first) == 8
    assert first != second
    assert made.epochs(1) == 0.5 and made.epochs(4) == 2


def test_fewer_documents_than_a_batch_make_one_step_of_them_all(tokenizer: FactTokenizer):
    made = steps(tokenizer, numbered(3))
    assert all(len(step.pairs) == 3 for step in islice(made, 4)) and made.epochs(4) == 4


def test_documents_without_a_question_carry_the_next_token_loss_alone(tokenizer: FactTokenizer):
    bare = AnnotatedDocument("bare", "It is Lima.", (FactSpan(6, 10, "Lima"),))
    none = AnnotatedDocument("none", "Nothing.")
    step = next(iter(steps(tokenizer, [bare, none, PERU], qa_fraction=0.0, max_length=512)))
    assert len(step.pairs) == sum(step.scored) == 3
    with pytest.raises(ValueError, match="no document has a fact with a question"):
        steps(tokenizer, [bare, none])


def check(step: Step, tokenizer: FactTokenizer) -> None:
    for pair in step.pairs:
        assert step.sequences[pair.fact_sequence].ids[pair.fact_position] == tokenizer.fact
        query = step.sequences[pair.query_sequence]
        is_qa = step.scored[pair.query_sequence]
        assert query.ids[pair.query_position] == (tokenizer.fact if is_qa else tokenizer.fact_q)
        assert pair.question in tokenizer.decode(list(query.ids))
    assert len(step.sequences) == len(step.scored)


@pytest.mark.parametrize("share, scored", [(0.0, 4), (1.0, 8)])
def test_bare_questions_carry_no_next_token_loss_and_question_answers_do(
    tokenizer: FactTokenizer, share: float, scored: int
):
    for step in islice(steps(tokenizer, qa_fraction=share), 6):
        check(step, tokenizer)
        assert sum(step.scored) == scored


@pytest.mark.parametrize("limit", range(4, 140, 9))
def test_a_long_document_comes_in_pieces_that_lose_nothing(tokenizer: FactTokenizer, limit: int):
    made = steps(tokenizer, [PERU], max_length=limit, title_fraction=0.0, qa_fraction=0.0, batch_documents=64)
    whole, step = tokenizer.document(PERU), next(iter(made))
    check(step, tokenizer)
    pieces = [s for s, is_scored in zip(step.sequences, step.scored, strict=True) if is_scored]
    assert len(pieces) == -(-len(whole) // limit) and max(map(len, pieces)) <= limit
    assert sorted(i for p in pieces for i in p.ids) == sorted(whole.ids)
    assert sum(sum(p.masked) for p in pieces) == sum(whole.masked)
    assert sorted(p.question for p in step.pairs) == sorted(s.question or "" for s in PERU.facts)


@pytest.mark.parametrize("form", QA_FORMS)
def test_a_question_answer_document_holds_the_value_as_its_fact(form: str):
    for question, value in (("Who {is} it?", "{value} %s"), ("Wer?", "é🏔️"), ("q", "<FACT>")):
        document = question_answer(question, value, form)
        (span,) = document.facts
        assert document.text[span.start : span.end] == value and document.text.endswith(value)
        assert question in document.text


@pytest.mark.parametrize("asking", ["questions", "many"])
def test_every_form_of_asking_ends_where_the_value_is_looked_up(tokenizer: FactTokenizer, asking: str):
    made = steps(tokenizer, [PERU], qa_fraction=1.0, asking=asking, batch_documents=64, max_length=512)
    for step in islice(made, 20):
        for pair in step.pairs:
            query = step.sequences[pair.query_sequence]
            assert query.ids[pair.query_position] == tokenizer.fact and step.scored[pair.query_sequence]
            assert not any(query.masked[: pair.query_position + 1])


def test_spans_are_paraphrased_in_their_share_wherever_there_is_an_answer(tokenizer: FactTokenizer):
    spans = [("Lima", "Where?"), ("1535", "When?")]
    texts = [document(f"d{n}", "Of ", spans[0], " in ", spans[1], " it is.") for n in range(60)]
    answers = [replace(d, facts=(replace(d.facts[0], answer="the city of Lima"), d.facts[1])) for d in texts]
    values = {}
    for fraction in (0.0, 0.5, 1.0):
        config = replace(CONFIG, paraphrase_fraction=fraction, max_length=512)
        corpus = tokenise(answers, tokenizer, config)
        (shard,) = corpus.shards
        said = [[tokenizer.decode(shard.value(n, 2 * n + i)).strip() for i in (0, 1)] for n in range(60)]
        assert {second for _, second in said} == {"1535"}
        values[fraction] = [first for first, _ in said]
        whole, facts = shard.encoded_piece(0, 0, int(shard.starts[1]))
        assert [whole.ids[p] for p in whole.fact_positions] == [tokenizer.fact] * len(facts)
        assert (
            tokenizer.decode([i for i, m in zip(whole.ids, whole.masked, strict=True) if not m])
            == "Of in it is."
        )
    assert set(values[0.0]) == {"Lima"} and set(values[1.0]) == {"the city of Lima"}
    assert 15 < values[0.5].count("Lima") < 45
    assert data_hash(answers) != data_hash(texts)


def test_the_decoders_query_position_follows_the_question_as_a_prompt_does(tokenizer: FactTokenizer):
    asked = tokenizer.document(question_answer("Who?", "Lima"))
    assert asked.ids[: asked.fact_positions[0]] == tuple(tokenizer.prompt("Question: Who?\nAnswer:"))


def test_what_is_held_out_is_not_trained_on():
    documents = numbered(20)
    kept, held = hold_out(documents, 6)
    assert len(held) == 6 and sorted(d.external_id for d in kept + held) == sorted(
        d.external_id for d in documents
    )
    assert [kept, held] == list(hold_out(documents, 6)) != list(hold_out(documents, 6, seed=6))
    assert kept == [d for d in documents if d in kept] and held == [d for d in documents if d in held]
    assert hold_out(documents, 0) == (documents, [])


def test_the_data_hash_knows_texts_spans_questions_and_order():
    one, two = numbered(2)
    moved = AnnotatedDocument(one.external_id, one.text, (FactSpan(0, 4, "Text", "Question 0?"),))
    asked = AnnotatedDocument(
        one.external_id, one.text, tuple(FactSpan(s.start, s.end, s.value, "Other?") for s in one.facts)
    )
    hashes = [data_hash(d) for d in ([one, two], [two, one], [one], [moved, two], [asked, two], [])]
    assert len(set(hashes)) == len(hashes)
    assert data_hash([one, two]) == data_hash(iter([one, two]))
