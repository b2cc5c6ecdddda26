"""Ask again as of each change what was asked then: the answer is the same, whatever is edited afterwards."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from colmlm.kb.answers.answering import Answering
from colmlm.kb.errors import Conflict
from colmlm.kb.lookup.questions import Questions
from colmlm.kb.service import KnowledgeBase
from tests.fakes import NearReader, WordEncoder
from tests.kb.corpora import CAPITAL, CHILE, HEIGHT, PERU, RIVER, document, ingest

WHO: dict[str, Any] = {"actor": "machine", "reason": "test"}
TOWN = document("town", "The capital of Peru is ", ("Townsville", CAPITAL), ", as some say.")
LEAK = "Whom do I call about a leak?"
ASKED = (CAPITAL, RIVER, HEIGHT, "What is the capital of Chile?", LEAK)
STEPS = 12


@pytest.fixture
def answers(kb: KnowledgeBase) -> Answering:
    ingest(kb, PERU, CHILE)
    ingest(kb, TOWN, corpus="rumours")
    kb.facts.add(LEAK, "Miriam Okafor", **WHO)
    encoder = WordEncoder()
    kb.keysets.rekey(encoder)
    return Answering(kb, Questions(kb, [encoder]), NearReader())


def edits(kb: KnowledgeBase, chance: random.Random) -> list[Callable[[], object]]:
    """Give the edits that the facts allow now, each of a fact by chance. Facts may contradict each other."""
    name = f"Name {chance.randrange(99)}"
    found: list[Callable[[], object]] = [lambda: kb.facts.add(chance.choice(ASKED), name, anyway=True, **WHO)]
    if live := kb.facts.find(limit=1000):
        one = chance.choice(live).fact_id
        found += [
            lambda: kb.facts.delete([one], abstain=True, **WHO),
            lambda: kb.facts.delete([one], **WHO),
            lambda: kb.facts.edit(one, name, anyway=True, **WHO),
        ]
    if gone := kb.facts.find(deleted=True, limit=1000):
        other = chance.choice(gone).fact_id
        found += [lambda: kb.facts.restore([other], **WHO)] * 2
    return found


SLOW = pytest.mark.slow(reason="draws many histories")


@pytest.mark.parametrize("seed", [3, 8, *(pytest.param(seed, marks=SLOW) for seed in range(10, 20))])
def test_a_question_is_answered_as_of_a_change_as_it_was_then(
    answers: Answering, kb: KnowledgeBase, seed: int
) -> None:
    chance, told = random.Random(seed), {}
    for _ in range(STEPS):
        for question in ASKED:
            for corpora in ((), ("lands",)):
                found = answers.ask(question, corpora=corpora)
                told[question, corpora, found.seq] = (found.answer, found.abstained)
        try:
            chance.choice(edits(kb, chance))()
        except Conflict:
            continue
        kb.keysets.rekey(WordEncoder())
    for (question, corpora, seq), expected in told.items():
        past = answers.ask_as_of(question, seq, corpora=corpora)
        assert (past.answer, past.abstained) == expected, (question, corpora, seq)
