"""Perplexity equals a plain reference that reads every prefix anew."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan
from colmlm.model.evaluate.perplexity import (
    Find,
    TextTally,
    dynamic_readings,
    dynamic_tallies,
    plain_tallies,
    static_tally,
)
from colmlm.model.lm.checkpoint import Checkpoint, load
from tests.tiny import tiny_checkpoint

TEXT = "Peru is a country. The capital of Peru is Lima, and its great lake is Titicaca."
SPANS = ("Lima", "Titicaca")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    path = tiny_checkpoint(tmp_path_factory.mktemp("perplexity"))
    return load(path, path, precision="fp32")


def document(text: str = TEXT, values: tuple[str, ...] = SPANS) -> AnnotatedDocument:
    spans = tuple(FactSpan(text.index(v), text.index(v) + len(v), v, None, v) for v in values)
    return AnnotatedDocument("peru", text, spans, title="Peru")


def finding(*values: str | None) -> Find:
    """A knowledge base that gives these values, one per lookup."""
    left: Iterator[str | None] = iter(values)
    return lambda query: next(left)


def loss_after(checkpoint: Checkpoint, before: list[int], token: int, *, banned: bool = False) -> float:
    """Computes the loss of one token after a text with transformers, without a cache."""
    with torch.no_grad():
        logits_V = checkpoint.lm.causal(torch.tensor([before])).logits[0, -1].double()
    if banned:
        logits_V[checkpoint.tokenizer.added] = -math.inf
    return -float(torch.log_softmax(logits_V, dim=-1)[token])


def loss_of(
    checkpoint: Checkpoint,
    said: list[tuple[list[int], bool]],
    *,
    banned_at: tuple[int, ...] = (),
    always: bool = False,
) -> float:
    """Sums the loss of the stretches that count, each token after all before it; the text's first token has none."""
    before, total = [checkpoint.tokenizer.end_of_text], 0.0
    for number, (ids, counts) in enumerate(said):
        for place, token in enumerate(ids):
            banned = always or (number in banned_at and place == 0)
            total += loss_after(checkpoint, before, token, banned=banned) if counts else 0.0
            before = [*before, token]
    return total


@pytest.fixture
def pieces(checkpoint: Checkpoint) -> dict[str, list[int]]:
    """Gives the document's stretches as ids; the space before a value belongs to it."""
    encode, tokenizer = checkpoint.tokenizer.encode, checkpoint.tokenizer
    return {
        "first": encode("Peru\n\nPeru is a country. The capital of Peru is"),
        "lima": encode(" Lima"),
        "second": encode(", and its great lake is"),
        "titicaca": encode(" Titicaca"),
        "last": [*encode("."), tokenizer.end_of_text],
        "open": [tokenizer.fact],
        "close": [tokenizer.fact_end],
    }


def given(pieces: dict[str, list[int]], first: list[int], second: list[int]) -> list[tuple[list[int], bool]]:
    """Lists the stretches of the text with these values spliced, each with whether its loss counts."""
    return [
        (pieces["first"], True), (pieces["open"], False), (first, False), (pieces["close"], False),
        (pieces["second"], True), (pieces["open"], False), (second, False), (pieces["close"], False),
        (pieces["last"], True),
    ]  # fmt: skip


def test_static_scores_what_is_outside_of_lookups_after_the_own_spans(checkpoint: Checkpoint, pieces) -> None:
    found = static_tally(checkpoint, document())
    said = given(pieces, pieces["lima"], pieces["titicaca"])
    assert found.loss == pytest.approx(loss_of(checkpoint, said), abs=1e-3)
    assert found.tokens == len(pieces["first"] + pieces["second"] + pieces["last"])
    assert found.text_tokens == found.tokens + len(pieces["lima"] + pieces["titicaca"])
    opened = [(ids, ids == pieces["open"]) for ids, _ in said]
    assert found.opening_loss == pytest.approx(loss_of(checkpoint, opened), abs=1e-3)


def test_static_gives_the_annotators_paraphrase_where_there_is_one(checkpoint: Checkpoint, pieces) -> None:
    source = document()
    lima, titicaca = source.facts
    source = replace(source, facts=(replace(lima, answer="the city of Lima"), replace(titicaca, answer=None)))
    found = static_tally(checkpoint, source)
    said = given(pieces, checkpoint.tokenizer.encode(" the city of Lima"), pieces["titicaca"])
    assert found.loss == pytest.approx(loss_of(checkpoint, said), abs=1e-3)
    assert (found.lookups, found.matched, found.right) == (2, 1, 0)
    own = static_tally(checkpoint, source, own_spans=True)
    said = given(pieces, pieces["lima"], pieces["titicaca"])
    assert own.loss == pytest.approx(loss_of(checkpoint, said), abs=1e-3)
    assert abs(own.loss - found.loss) > 1e-3
    assert (own.tokens, own.text_tokens) == (found.tokens, found.text_tokens)


def test_the_part_of_the_loss_that_markup_takes_is_told_apart(checkpoint: Checkpoint, pieces) -> None:
    said = given(pieces, pieces["lima"], pieces["titicaca"])
    without = loss_of(checkpoint, said, always=True)
    for found in (
        static_tally(checkpoint, document()),
        dynamic_tallies(checkpoint, document(), [finding(*SPANS)])[0],
    ):
        assert found.loss - found.markup_loss == pytest.approx(without, abs=1e-3) and found.markup_loss > 0.01
    assert plain_tallies(checkpoint, checkpoint.tokenizer, document())[0].markup_loss == 0


def test_dynamic_with_the_right_spans_is_static(checkpoint: Checkpoint) -> None:
    (found,), expected = (
        dynamic_tallies(checkpoint, document(), [finding(*SPANS)]),
        static_tally(checkpoint, document()),
    )
    assert (found.lookups, found.matched, found.right) == (2, 2, 2)
    assert found.loss == pytest.approx(expected.loss, abs=1e-3)
    assert found.opening_loss == pytest.approx(expected.opening_loss, abs=1e-3)
    assert found.tokens == expected.tokens


def test_dynamic_goes_on_from_what_was_found_though_it_is_wrong(checkpoint: Checkpoint, pieces) -> None:
    (found,) = dynamic_tallies(checkpoint, document(), [finding("Cusco, I think", "Titicaca")])
    said = given(pieces, checkpoint.tokenizer.encode(" Cusco, I think"), pieces["titicaca"])
    assert found.loss == pytest.approx(loss_of(checkpoint, said), abs=1e-3)
    assert (found.matched, found.right) == (2, 1)


def test_without_a_match_the_lookup_is_taken_back_and_the_span_is_said(
    checkpoint: Checkpoint, pieces
) -> None:
    (found,) = dynamic_tallies(checkpoint, document(), [finding(None, "Titicaca")])
    said = [
        (pieces["first"], True), (pieces["lima"], True), (pieces["second"], True), (pieces["open"], False),
        (pieces["titicaca"], False), (pieces["close"], False), (pieces["last"], True),
    ]  # fmt: skip
    assert found.loss == pytest.approx(loss_of(checkpoint, said, banned_at=(1,)), abs=1e-3)
    assert found.tokens == len(pieces["first"] + pieces["lima"] + pieces["second"] + pieces["last"])
    assert (found.lookups, found.matched) == (2, 1)


def test_each_query_is_the_state_at_its_opening(checkpoint: Checkpoint, pieces) -> None:
    asked = []
    dynamic_tallies(checkpoint, document(), [lambda query: asked.append(query) or None])
    head = [checkpoint.tokenizer.end_of_text, *pieces["first"]]
    for query, before in zip(asked, (head, [*head, *pieces["lima"], *pieces["second"]]), strict=True):
        with torch.no_grad():
            state_D = checkpoint.lm.causal.model(
                torch.tensor([[*before, *pieces["open"]]])
            ).last_hidden_state[0, -1]
        assert query == pytest.approx((state_D / state_D.norm()).numpy(), abs=1e-4)


def test_a_model_without_lookups_is_scored_over_all_tokens_and_over_the_same(
    checkpoint: Checkpoint, pieces
) -> None:
    every, same = plain_tallies(checkpoint, checkpoint.tokenizer, document())
    order = ("first", "lima", "second", "titicaca", "last")
    assert every.loss == pytest.approx(
        loss_of(checkpoint, [(pieces[n], True) for n in order], always=True), abs=1e-3
    )
    outside = [(pieces[n], n in ("first", "second", "last")) for n in order]
    assert same.loss == pytest.approx(loss_of(checkpoint, outside, always=True), abs=1e-3)
    assert same.tokens == static_tally(checkpoint, document()).tokens < every.tokens == every.text_tokens


def test_readings_side_by_side_are_those_of_each_alone(checkpoint: Checkpoint) -> None:
    values = [
        SPANS,
        ("Cusco, I think", "Titicaca"),
        (None, "Titicaca"),
        (None, None),
        ("Lima", "a very long lake"),
    ]
    alone = [dynamic_tallies(checkpoint, document(), [finding(*some)])[0] for some in values]
    together = dynamic_tallies(checkpoint, document(), [finding(*some) for some in values])
    for one, other in zip(together, alone, strict=True):
        assert (one.tokens, one.matched, one.right) == (other.tokens, other.matched, other.right)
        assert one.loss == pytest.approx(other.loss, abs=1e-4)
        assert one.opening_loss == pytest.approx(other.opening_loss, abs=1e-4)


def test_documents_side_by_side_are_read_as_each_alone(checkpoint: Checkpoint) -> None:
    """Give answers of several lengths, with as many lookups or none."""
    others = [replace(document(), text=f"{document().text} It is old."), replace(document(), facts=())]
    several = [document(), *others]
    together = dynamic_readings(checkpoint, several, [lambda query: "Lima", lambda query: None])
    for one, found in zip(several, together, strict=True):
        alone = [
            dynamic_tallies(checkpoint, one, [lambda query, value=value: value])[0]
            for value in ("Lima", None)
        ]
        for here, there in zip(found, alone, strict=True):
            assert (here.tokens, here.matched, here.right) == (there.tokens, there.matched, there.right)
            assert here.loss == pytest.approx(there.loss, abs=1e-4)
    assert together[0][0].matched == 2 and together[2][0].matched == 0


@pytest.mark.parametrize(
    "measure", [static_tally, lambda c, d, **o: dynamic_tallies(c, d, [lambda query: None], **o)[0]]
)
def test_a_long_text_is_cut_and_no_lookup_with_it(
    checkpoint: Checkpoint, measure: Callable[..., TextTally]
) -> None:
    whole = measure(checkpoint, document())
    room = len(checkpoint.tokenizer.document(document()).ids)
    cut = [measure(checkpoint, document(), max_tokens=n) for n in (room, room - 2, room - 8, room - 14, 2)]
    assert cut[0] == whole
    assert [one.lookups for one in cut] == [2, 2, 1, 1, 0]
    assert [one.tokens for one in cut] == sorted((one.tokens for one in cut), reverse=True)
    assert cut[-1].tokens == 1


def test_texts_without_facts_and_lookups_beside_each_other_are_read(checkpoint: Checkpoint) -> None:
    none = static_tally(checkpoint, document(values=()))
    assert none.lookups == 0 and none.opening_loss == 0 and none.tokens == none.text_tokens
    joined = document("Lima Peru", ("Lima", "Peru"))
    assert dynamic_tallies(checkpoint, joined, [finding("Lima", "Peru")])[0].loss == pytest.approx(
        static_tally(checkpoint, joined).loss, abs=1e-3
    )
    assert dynamic_tallies(checkpoint, joined, [finding(None, None)])[0].matched == 0
