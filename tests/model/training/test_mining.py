"""Hard negatives: documents that the model confuses come into one step, deterministically, and none is lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from numpy.typing import NDArray

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.model.text.tokens import EncodedText
from colmlm.model.training.config import TrainConfig
from colmlm.model.training.corpora import tokenise
from colmlm.model.training.steps import Step, Steps
from tests.kb.corpora import document
from tests.tiny import byte_tokenizer

TOKENIZER = byte_tokenizer()
CONFIG = TrainConfig(
    batch_documents=4, block=1, max_length=128, qa_fraction=0.0, hard_negatives=3, mine_every=6, steps=60
)
TOPICS = 6


def topical(count: int) -> list[AnnotatedDocument]:
    """Makes documents of a few topics, far apart in the corpus; all of one topic are confused with each other."""
    return [
        document(f"d{n}", f"{n} on topic{n % TOPICS} says ", (f"v{n}", f"{n} topic{n % TOPICS}?"))
        for n in range(count)
    ]


def by_topic(sequences: Sequence[EncodedText]) -> list[NDArray[np.float32]]:
    """Makes keys that depend on the topic of a text and on almost nothing else."""
    keys = []
    for sequence in sequences:
        text = TOKENIZER.decode(sequence.ids)
        row = np.full(TOPICS, 0.01 * (len(text) % 3), dtype=np.float32)
        row[int(text[text.index("topic") + 5])] = 1.0
        keys.append(np.tile(row / np.linalg.norm(row), (len(sequence.fact_positions), 1)))
    return keys


def steps(documents: list[AnnotatedDocument] | None = None, config: TrainConfig = CONFIG) -> Steps:
    made = [tokenise(documents or topical(24), TOKENIZER, config)]
    return Steps(made, TOKENIZER, config, keys=by_topic)


def topics(step: Step) -> list[str]:
    return [pair.question.split()[1] for pair in step.pairs]


def test_confusable_documents_share_a_step():
    plain = list(islice(steps(config=replace(CONFIG, hard_negatives=0)), 6))
    mined = list(islice(steps(), 6))
    assert sum(len(set(topics(step))) for step in plain) > 15
    assert all(len(set(topics(step))) == 1 and len(step.pairs) == 4 for step in mined)


def test_mining_loses_nothing_and_takes_nothing_twice():
    for window in (1, 2, 5, 6):
        made = steps(topical(26), replace(CONFIG, mine_every=window, hard_negatives=2))
        plain = steps(topical(26), replace(CONFIG, hard_negatives=0))
        for start in (0, 6, 12):  # six steps an epoch
            taken, expected = (
                sorted(
                    p.question for n in range(start, start + 6) for p in s.build(s.draw_documents(n)).pairs
                )
                for s in (made, plain)
            )
            assert taken == expected and len(set(taken)) == 24


def test_documents_that_ask_the_same_question_are_no_negatives():
    same = [document(f"d{n}", f"{n} topic0 ", (f"v{n}", "x topic0?")) for n in range(12)]
    mined = list(islice(steps(same + topical(12)), 6))
    plain = list(islice(steps(same + topical(12), replace(CONFIG, hard_negatives=0)), 6))
    assert sorted(topics(s) for s in mined) != sorted(topics(s) for s in plain)
    only = list(islice(steps(same), 3))
    assert only == list(islice(steps(same, replace(CONFIG, hard_negatives=0)), 3))


def test_where_nothing_is_asked_nothing_is_moved():
    bare = [AnnotatedDocument(f"b{n}", f"Nothing is asked of {n}.") for n in range(60)]
    some = steps([*bare, *topical(1)], replace(CONFIG, mine_every=1))
    plain = steps([*bare, *topical(1)], replace(CONFIG, hard_negatives=0))
    assert list(islice(some, 9)) == list(islice(plain, 9))


def test_a_resumed_run_keeps_what_an_earlier_model_chose():
    made = steps()
    whole = list(islice(made, 18))
    cut = steps()
    before = list(islice(cut, 8))
    state = json.loads(json.dumps(cut.state()))

    def changed(sequences: Sequence[EncodedText]) -> list[NDArray[np.float32]]:
        raise AssertionError("the window that was begun is not composed again")

    again = Steps([tokenise(topical(24), TOKENIZER, CONFIG)], TOKENIZER, CONFIG, keys=changed)
    again.restore(state)
    assert before + list(islice(again.starting_at(8), 4)) == whole[:12]
    with pytest.raises(AssertionError, match="not composed again"):
        again.draw_documents(12)


def test_without_hard_negatives_there_is_no_state_and_with_them_keys_are_needed():
    plain = steps(config=replace(CONFIG, hard_negatives=0))
    next(iter(plain))
    assert plain.state() == {}
    with pytest.raises(ValueError, match="the model's own keys"):
        Steps([tokenise(topical(24), TOKENIZER, CONFIG)], TOKENIZER, CONFIG)
