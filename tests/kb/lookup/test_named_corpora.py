"""Lookups in named corpora find what a lookup in all of them finds there, whatever is edited."""

from __future__ import annotations

import random

import numpy as np
import pytest

from colmlm.kb.lookup.index import IdBits, KeyIndex
from colmlm.kb.lookup.specs import paper_spec
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.service import KnowledgeBase
from tests.fakes import FakeEncoder, unit_vector
from tests.kb.corpora import ingest, numbered
from tests.refusals import raises_code

WHO = {"actor": "tester", "reason": "test"}
FACTS, EDITS = 60, 24


@pytest.fixture(params=[None, "torch"], ids=["Faiss", "torch"])
def shelves(kb: KnowledgeBase, encoder: FakeEncoder, request: pytest.FixtureRequest) -> KnowledgeBase:
    for corpus in ("red", "green", "blue"):
        ingest(kb, *numbered(FACTS), corpus=corpus)
    kb.facts.add("Of no document?", "nothing", **WHO)
    kb.keysets.create(encoder.checkpoint, request.param)
    kb.keysets.rekey(encoder)
    return kb


def nearest(kb: KnowledgeBase, encoder: FakeEncoder, query: str, *corpora: str) -> list[int]:
    """Give the three nearest facts of the corpora, by a lookup in these."""
    asked = unit_vector(query, encoder.dim)[None]
    (found,) = kb.lookups.find(
        asked, checkpoint_id=encoder.checkpoint.checkpoint_id, k=3, threshold=-1, corpora=corpora
    )
    return [hit.fact_id for hit in found.hits]


def nearest_of_all(kb: KnowledgeBase, encoder: FakeEncoder, query: str, *corpora: str) -> list[int]:
    """Give the same by a lookup of every fact."""
    asked = unit_vector(query, encoder.dim)[None]
    (found,) = kb.lookups.find(asked, checkpoint_id=encoder.checkpoint.checkpoint_id, k=1000, threshold=-1)
    facts = kb.facts.show_many([hit.fact_id for hit in found.hits])
    return [fact.fact_id for fact in facts if fact.source and fact.source.corpus in corpora][:3]


@pytest.mark.parametrize("most_apart", [10_000, 0], ids=["an index of their own", "bits of their ids"])
def test_edits_hold_in_every_choice_of_corpora(
    shelves: KnowledgeBase, encoder: FakeEncoder, most_apart: int
) -> None:
    replica = shelves.searcher.current()
    replica.most_apart = most_apart
    drawn = random.Random(7)
    live = [fact.fact_id for fact in shelves.facts.find(limit=1000)]
    deleted: list[int] = []
    for n in range(EDITS):
        match drawn.randrange(5):
            case 0 | 1:
                live.remove(gone := drawn.choice(live))
                shelves.facts.delete([gone], **WHO)
                deleted.append(gone)
            case 2 if deleted:
                deleted.remove(back := drawn.choice(deleted))
                shelves.facts.restore([back], **WHO)
                live.append(back)
            case 3:
                live.remove(gone := drawn.choice(live))
                Erasure(shelves).erase([gone], **WHO)
            case _:
                ingest(shelves, *numbered(FACTS + n + 1)[-1:], corpus=drawn.choice(["red", "green"]))
                shelves.keysets.rekey(encoder)
                live = [fact.fact_id for fact in shelves.facts.find(limit=1000)]
        for corpora in (("red",), ("green", "blue")):
            asked = f"query {n} of {corpora}"
            found = nearest(shelves, encoder, asked, *corpora)
            assert found == nearest_of_all(shelves, encoder, asked, *corpora), (n, corpora)
            assert len(found) == 3
    assert shelves.searcher.current() is replica


def test_a_name_that_no_corpus_has_is_refused(shelves: KnowledgeBase, encoder: FakeEncoder) -> None:
    with raises_code("CorpusNotFound", match="rde"):
        nearest(shelves, encoder, "anything", "red", "rde")
    ingest(shelves, *numbered(1), corpus="rde")
    assert len(nearest(shelves, encoder, "anything", "red", "rde")) == 3


def test_an_index_with_lists_finds_only_keys_whose_bits_are_set() -> None:
    dim, number = 16, 3_000
    keys = np.stack([unit_vector(f"key {n}", dim) for n in range(number)])
    ids = np.arange(number, dtype=np.int64) * 3 + 5
    index = KeyIndex(dim, paper_spec(number, dim))
    index.add(ids, keys)
    index.lists_read = index.lists
    some = ids[::7]
    bits = IdBits(some[:-1])
    bits.put(some[-1:])
    _, found = index.search(keys[:50], 10, bits)
    assert set(found.ravel().tolist()) <= set(some.tolist())
    own = index.search(keys[::7][-20:], 1, bits)[1].ravel()
    assert (own == some[-20:]).mean() > 0.8 and some[-1] in own
