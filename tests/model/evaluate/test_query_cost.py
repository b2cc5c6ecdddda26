"""Every method forms its queries at the same lookups, and they are the queries that its decoder would send."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan
from colmlm.model.decoding.rows import MAX_QUERY_TOKENS
from colmlm.model.evaluate.lookups import QueryMaker, measure_query_cost
from colmlm.model.lm.checkpoint import Checkpoint, base_checkpoint
from colmlm.model.lm.encoder import KeyEncoder
from colmlm.model.text.markup import ASKER, REL_LMLM, parse_calls
from tests.fakes import FakeEncoder
from tests.kb.corpora import PERU, document, numbered


class Words(FakeEncoder):
    """Records the texts that it encodes."""

    asked: list[str]

    def __init__(self) -> None:
        super().__init__()
        self.asked = []

    @property
    def checkpoint_id(self) -> str:
        return "words"

    def encode_questions(self, questions: Sequence[str]) -> np.ndarray:
        self.asked += questions
        return super().encode_questions(questions)


@pytest.fixture(scope="module")
def asker(base: Path) -> Checkpoint:
    return base_checkpoint(str(base), base, precision="fp32", markup=ASKER)


@pytest.fixture(scope="module")
def rel(base: Path) -> Checkpoint:
    return base_checkpoint(str(base), base, precision="fp32", markup=REL_LMLM)


def test_the_state_at_a_site_is_the_facts_key(checkpoint: Checkpoint):
    former = QueryMaker(checkpoint)
    (keys,) = KeyEncoder(checkpoint).encode_documents([PERU])
    formed = [former.make_query(site) for site in former.sites(PERU)]
    np.testing.assert_allclose(np.stack([f.vector for f in formed]), keys, atol=1e-4)
    assert all(f.tokens == 0 and f.encode == 0.0 and f.decode > 0 for f in formed)


def test_the_gold_query_is_written_word_for_word(asker: Checkpoint, rel: Checkpoint):
    words = Words()
    former = QueryMaker(asker, words, gold=True)
    formed = [former.make_query(site) for site in former.sites(PERU)]
    assert words.asked == [span.question for span in PERU.facts]
    assert [f.tokens for f in formed] == [len(span.question or "") for span in PERU.facts]

    text, spans = parse_calls("Ann is a [dblookup('Ann', 'Job') -> poet] poet.")
    calls, by_relation = AnnotatedDocument("ann", text, spans), Words()
    former = QueryMaker(rel, by_relation, gold=True)
    (formed_call,) = [former.make_query(site) for site in former.sites(calls)]
    assert by_relation.asked == ["Ann\nJob"] and formed_call.tokens == len("Ann") + 1 + len("Job")


def test_a_model_that_never_ends_its_query_is_stopped(asker: Checkpoint):
    words = Words()
    former = QueryMaker(asker, words)
    formed = former.make_query(former.sites(PERU)[0])
    assert formed.tokens <= MAX_QUERY_TOKENS and len(words.asked) == 1


def test_both_methods_are_timed_at_the_same_facts(checkpoint: Checkpoint, asker: Checkpoint):
    unasked = AnnotatedDocument("bare", "Lima is old. Cusco, too.", (FactSpan(0, 4, "Lima"),))
    mixed = document("mixed", "A ", ("b", "Q?"), " c.")
    state, words = QueryMaker(checkpoint), QueryMaker(asker, Words(), gold=True)
    assert state.sites(unasked) == words.sites(unasked) == []
    heard: list[int] = []
    cost = measure_query_cost(state, words, [unasked, mixed, PERU, *numbered(9)], sites=6, done=heard.append)
    assert (cost.sites, cost.query, heard[-1]) == (6, "gold", 6)
    assert cost.query_tokens_mean == pytest.approx(
        np.mean(
            [len(q) for q in ("Q?", *(s.question or "" for s in PERU.facts), "Question 0?", "Question 1?")]
        ),
        abs=0.01,
    )
    assert cost.total_ms >= cost.decode_ms > cost.state_ms > 0 and cost.vs_state > 1
    with pytest.raises(ValueError, match="no document"):
        measure_query_cost(state, words, [unasked], sites=3)


def test_a_fact_beyond_the_context_is_no_site(checkpoint: Checkpoint, asker: Checkpoint):
    long = document("long", "x" * 460, ("y", "Q?"), ".")
    near = document("near", "x" * 400, ("y", "Q?"), ".")
    assert QueryMaker(checkpoint).sites(long) == [] and len(QueryMaker(checkpoint).sites(near)) == 1


def test_an_encoder_goes_with_words_only(checkpoint: Checkpoint, asker: Checkpoint):
    with pytest.raises(ValueError, match="asks in words"):
        QueryMaker(checkpoint, Words())
    with pytest.raises(ValueError, match="asks in words"):
        QueryMaker(asker)
