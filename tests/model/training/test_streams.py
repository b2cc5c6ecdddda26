"""The order of the data: all of it is read, in the same order in every run, cut fairly into steps."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colmlm.model.training.config import TrainConfig
from colmlm.model.training.corpora import (
    Corpus,
    Pieces,
    PieceStream,
    Quota,
    apportion,
    epoch_order,
    merge_corpora,
    tokenise,
)
from colmlm.model.training.steps import Steps
from tests.kb.corpora import document, numbered
from tests.tiny import byte_tokenizer

TOKENIZER = byte_tokenizer()
CONFIG = TrainConfig(batch_documents=4, block=1, max_length=32, title_fraction=0.0)


def corpus(count: int, name: str = "d") -> Corpus:
    """Makes documents of very different lengths, with one question each."""
    texts = [
        document(f"{name}{n}", f"{name} {n} says " + "so " * (n * n % 40), (f"v{n}", f"{name} {n}?"), ".")
        for n in range(count)
    ]
    return tokenise(texts, TOKENIZER, CONFIG)


@given(st.integers(1, 60), st.integers(1, 9), st.text(max_size=3))
def test_an_order_has_every_number_once_in_blocks_of_neighbours(count: int, block: int, tag: str):
    order = epoch_order(count, block, tag).tolist()
    assert sorted(order) == list(range(count))
    assert sum(b != a + 1 for a, b in pairwise(order)) <= count // block + 1


def test_orders_are_these_and_stay_these():
    assert epoch_order(12, 3, "17/main/0/0").tolist() == ORDER
    assert epoch_order(12, 3, "17/main/0/1").tolist() != ORDER


ORDER = [0, 1, 2, 6, 7, 8, 3, 4, 5, 9, 10, 11]


@given(st.lists(st.integers(1, 90), min_size=1, max_size=9), st.integers(4, 40))
def test_pieces_cover_every_document_and_none_is_too_long(words: list[int], limit: int):
    texts = [document(f"d{n}", "a" * length) for n, length in enumerate(words)]
    half = len(texts) // 2
    both = [tokenise(part, TOKENIZER, CONFIG) for part in (texts[:half], texts[half:])]
    whole = merge_corpora(both)
    pieces = Pieces(whole, limit)
    places = [pieces.place(n) for n in range(len(pieces))]
    assert pieces.lengths().tolist() == [p.end - p.start for p in places]
    assert all(0 < p.end - p.start <= limit for p in places)
    covered = {(p.shard, p.document, t) for p in places for t in range(p.start, p.end)}
    assert len(covered) == sum(p.end - p.start for p in places) == whole.num_tokens


@pytest.mark.parametrize(
    "quota", [Quota(documents=5), Quota(tokens=64), Quota(tokens=32), Quota(tokens=10**6)]
)
def test_an_epochs_steps_are_all_full_and_take_no_document_twice(quota: Quota):
    pieces = Pieces(corpus(40), 32)
    stream = PieceStream(pieces, quota, block=2, tag="t")
    lengths = pieces.lengths()
    for epoch in range(3):
        steps = [stream.numbers(epoch * stream.per_epoch + n) for n in range(stream.per_epoch)]
        taken = np.concatenate(steps).tolist()
        assert len(set(taken)) == len(taken) and all(len(step) for step in steps)
        if quota.tokens is not None:
            assert len(taken) == len(pieces)  # nothing is left over
            assert all(lengths[step].sum() <= quota.tokens + 32 for step in steps)
        else:
            assert {len(step) for step in steps} == {5} and len(taken) > len(pieces) - 5


def test_steps_can_be_asked_for_in_any_order():
    made = [PieceStream(Pieces(corpus(40), 32), Quota(tokens=100), block=2, tag="t") for _ in range(2)]
    forward = [made[0].numbers(n).tolist() for n in range(30)]
    assert [made[1].numbers(n).tolist() for n in reversed(range(30))] == forward[::-1]


@given(st.integers(8, 200), st.lists(st.floats(0.5, 10), min_size=1, max_size=4))
def test_a_batch_is_shared_out_by_weight(count: int, weights: list[float]):
    if count * min(weights) / sum(weights) < 1:
        return
    shares = apportion(count, weights)
    assert sum(shares) == count
    assert all(abs(s - count * w / sum(weights)) < 1 for s, w in zip(shares, weights, strict=True))


def test_a_corpus_without_weight_gets_nothing_and_too_small_a_batch_is_refused():
    assert apportion(8, [1, 0]) == [8, 0] and apportion(7, [1, 1]) == [4, 3]
    with pytest.raises(ValueError, match="too small"):
        apportion(4, [1, 100])


def counted(steps: Steps, number: int) -> dict[int, int]:
    drawn = steps.draw_documents(number)
    return {corpus: sum(d.corpus == corpus for d in drawn) for corpus in {d.corpus for d in drawn}}


def test_the_cooldown_draws_from_two_corpora_in_equal_parts():
    config = TrainConfig(
        batch_documents=4, steps=10, cooldown_steps=4, mix=(1.0, 0.0), cooldown_mix=(1.0, 1.0), max_length=512
    )
    steps = Steps([corpus(20, "fine"), corpus(20, "wiki")], TOKENIZER, config)
    assert [counted(steps, n) for n in range(10)] == [{0: 4}] * 6 + [{0: 2, 1: 2}] * 4
    asked = [p.question.split()[0] for p in steps.build(steps.draw_documents(7)).pairs]
    assert sorted(asked) == ["fine", "fine", "wiki", "wiki"]


def test_a_mix_by_rows_shares_out_tokens_and_not_documents():
    long = tokenise([document(f"l{n}", "long " * 60, ("v", f"l{n}?")) for n in range(30)], TOKENIZER, CONFIG)
    short = tokenise(numbered(400), TOKENIZER, CONFIG)
    config = TrainConfig(batch_rows=4, max_length=512, mix=(1.0, 1.0), steps=5, qa_fraction=0.0)
    steps = Steps([long, short], TOKENIZER, config)
    for number in range(5):
        drawn = steps.draw_documents(number)
        tokens = [sum(d.place.end - d.place.start for d in drawn if d.corpus == c) for c in (0, 1)]
        assert all(512 <= t <= 1024 + 512 for t in tokens)
        assert counted(steps, number)[1] > 5 * counted(steps, number)[0]


def test_a_mix_of_other_corpora_than_are_there_is_refused():
    with pytest.raises(ValueError, match="weighs 2 corpora, and there are 1"):
        Steps([corpus(9)], TOKENIZER, TrainConfig(mix=(1.0, 1.0)))


def test_a_part_of_a_step_is_built_as_it_is_in_the_whole():
    steps = Steps([corpus(20)], TOKENIZER, TrainConfig(batch_documents=8, max_length=512))
    drawn = steps.draw_documents(3)
    whole, parts = steps.build(drawn), [steps.build(drawn[:3]), steps.build(drawn[3:])]
    assert whole.sequences == parts[0].sequences + parts[1].sequences
    assert whole.scored == parts[0].scored + parts[1].scored


def test_a_forward_takes_its_share_of_a_batch_counted_in_rows():
    by_rows = TrainConfig(batch_rows=8, micro_rows=2, max_length=512)
    counted_in = [
        (by_rows, 100, 25),
        (by_rows, 3, 1),
        (replace(by_rows, micro_rows=None), 100, None),
        (TrainConfig(batch_documents=8, micro_documents=3), 8, 3),
        (TrainConfig(batch_documents=8), 8, None),
    ]
    for config, count, most in counted_in:
        assert Steps([corpus(20)], TOKENIZER, config).most_per_forward(count) == most
