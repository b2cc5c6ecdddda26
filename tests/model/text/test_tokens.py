"""Tokens: no text can forge one of the three, and M of section 3.2 is exactly the paper's."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import BPE

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, parse_inline
from colmlm.model.text.markup import ASKER, CO_LMLM, REL_LMLM, Markup
from colmlm.model.text.tokens import END_OF_TEXT, EncodedText, FactTokenizer
from tests.strategies import documents, texts
from tests.tiny import TEXTS, bare_tokenizer, byte_tokenizer, merging_tokenizer

INSIDE, OUTSIDE = byte_tokenizer(space_inside=True), byte_tokenizer(space_inside=False)
MERGING = merging_tokenizer()
tokenizers = st.sampled_from([INSIDE, OUTSIDE, MERGING])


def special(tokenizer: FactTokenizer) -> set[int]:
    return {tokenizer.fact, tokenizer.fact_end, tokenizer.fact_q, tokenizer.end_of_text}


def mask_of_the_paper(tokenizer: FactTokenizer, ids: tuple[int, ...]) -> tuple[bool, ...]:
    """Gives M: strictly between the tags, with the closing one and without the opening one."""
    masked, inside = [], False
    for token in ids:
        masked.append(inside)
        if token == tokenizer.fact:
            inside = True
        elif token == tokenizer.fact_end:
            inside = False
    return tuple(masked)


def spans_in(tokenizer: FactTokenizer, encoded: EncodedText) -> list[str]:
    values = []
    for position in encoded.fact_positions:
        assert encoded.ids[position] == tokenizer.fact
        values.append(
            tokenizer.decode(
                list(encoded.ids[position + 1 : encoded.ids.index(tokenizer.fact_end, position)])
            )
        )
    return values


@given(tokenizers, texts | st.text())
def test_decoding_what_was_encoded_gives_the_text_back(tokenizer: FactTokenizer, text: str):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not special(tokenizer) & set(ids)


@pytest.mark.parametrize("literal", [*CO_LMLM.tokens, END_OF_TEXT])
def test_a_literal_tag_in_a_text_is_its_characters(either: FactTokenizer, literal: str):
    assert either.encode(literal) == [token for character in literal for token in either.encode(character)]
    assert either.prompt(f"a{literal}")[0] == either.end_of_text
    assert not special(either) & set(either.prompt(f"a{literal}")[1:])
    assert not special(either) & set(either.question(literal).ids[1:-1])


def values_with_their_space(tokenizer: FactTokenizer, document: AnnotatedDocument) -> list[str]:
    """Gives the text between the tags: the value, with the space before it if that goes inside."""
    values, at = [], 0
    for span in document.facts:
        before = document.text[at : span.start]
        values.append(f" {span.value}" if tokenizer.space_inside and before.endswith(" ") else span.value)
        at = span.end
    return values


SPACES = AnnotatedDocument(
    "a", "in  19, 5", (FactSpan(3, 6, " 19"), FactSpan(6, 7, ","), FactSpan(7, 9, " 5"))
)


@example(INSIDE, SPACES, False, True)
@example(MERGING, SPACES, False, True)
@example(OUTSIDE, SPACES, False, True)
@given(tokenizers, documents(), st.booleans(), st.booleans())
def test_a_document_is_its_text_with_tags_around_the_spans(
    tokenizer: FactTokenizer, document: AnnotatedDocument, with_title: bool, close: bool
):
    encoded = tokenizer.document(document, with_title=with_title, close=close)
    lead = f"{document.title}\n\n" if with_title and document.title else ""
    assert tokenizer.decode(list(encoded.ids)) == lead + document.text
    assert encoded.masked == mask_of_the_paper(tokenizer, encoded.ids)
    assert spans_in(tokenizer, encoded) == values_with_their_space(tokenizer, document)
    assert encoded.ids.count(tokenizer.fact) == len(document.facts) == len(encoded.fact_positions)
    assert encoded.ids.count(tokenizer.end_of_text) == 1 + close
    assert len(encoded.ids) == len(encoded.masked) == len(encoded)


def test_the_mask_takes_the_span_and_its_close_and_not_its_open(either: FactTokenizer):
    text, spans = parse_inline("in <FACT>19</FACT>.")
    encoded = either.spans("", text, spans)
    shown = [either.tokenizer.id_to_token(i) for i, m in zip(encoded.ids, encoded.masked, strict=True) if m]
    assert shown == (["Ġ", "1", "9", "</FACT>"] if either.space_inside else ["1", "9", "</FACT>"])
    assert not encoded.masked[encoded.fact_positions[0]]


def test_the_space_before_a_span_goes_where_the_setting_says():
    text, spans = parse_inline("in <FACT>1981</FACT> and <FACT>Lima</FACT>, (<FACT>x</FACT>)")
    for tokenizer, expected in (
        (INSIDE, "in<FACT> 1981</FACT> and<FACT> Lima</FACT>, (<FACT>x</FACT>)"),
        (OUTSIDE, "in <FACT>1981</FACT> and <FACT>Lima</FACT>, (<FACT>x</FACT>)"),
    ):
        encoded = tokenizer.spans("", text, spans)
        written = tokenizer.tokenizer.decode(list(encoded.ids), skip_special_tokens=False)
        assert written == f"{END_OF_TEXT}{expected}{END_OF_TEXT}"


def test_with_the_space_inside_the_text_keeps_the_base_models_own_tokens():
    text = TEXTS[0]
    spans = tuple(FactSpan(text.index(v), text.index(v) + len(v), v) for v in ("Lima", "1981"))
    encoded = MERGING.spans("", text, spans)
    assert [i for i in encoded.ids if i not in special(MERGING)] == MERGING.encode(text)
    outside = merging_tokenizer(space_inside=False)
    other = [i for i in outside.spans("", text, spans).ids if i not in special(outside)]
    assert other != outside.encode(text)


def test_only_one_of_two_spaces_moves_inside(either: FactTokenizer):
    text, spans = parse_inline("a  <FACT>b</FACT>")
    encoded = either.spans("", text, spans)
    assert either.decode(list(encoded.ids)) == "a  b"
    assert spans_in(either, encoded) == ([" b"] if either.space_inside else ["b"])


def test_a_span_at_the_very_start_follows_the_title_or_end_of_text(either: FactTokenizer):
    document = AnnotatedDocument("d", "Lima is big", (FactSpan(0, 4, "Lima"),), title="Peru")
    assert either.document(document, with_title=False).fact_positions == (1,)
    titled = either.document(document)
    assert either.decode(list(titled.ids[: titled.fact_positions[0]])) == "Peru\n\n"


def test_a_question_ends_in_its_marker_and_keeps_its_end_when_it_is_too_long(either: FactTokenizer):
    short = either.question("  Who? ")
    assert either.decode(list(short.ids)) == "Who?" and short.ids[-1] == either.fact_q
    long = either.question("x" * 500 + "Who?")
    assert len(long) == 128 and long.ids[0] == either.end_of_text and long.ids[-1] == either.fact_q
    assert either.decode(list(long.ids)).endswith("xxWho?")
    assert long.fact_positions == (127,) and all(long.masked)


@pytest.mark.parametrize("tokenizer", [INSIDE, MERGING], ids=["bytes", "merging"])
def test_a_saved_tokenizer_comes_back_and_still_reads_no_tag(tokenizer: FactTokenizer, tmp_path: Path):
    tokenizer.save(tmp_path / "tokenizer.json")
    again = FactTokenizer.load(tmp_path / "tokenizer.json")
    assert (again.fact, again.fact_end, again.fact_q) == (
        tokenizer.fact,
        tokenizer.fact_end,
        tokenizer.fact_q,
    )
    assert again.vocabulary_size == tokenizer.vocabulary_size
    assert again.encode("<FACT>x<|endoftext|>") == tokenizer.encode("<FACT>x<|endoftext|>")


def test_the_three_tokens_are_the_last_of_the_vocabulary():
    for tokenizer in (INSIDE, MERGING):
        last = tokenizer.vocabulary_size
        assert (tokenizer.fact, tokenizer.fact_end, tokenizer.fact_q) == (last - 3, last - 2, last - 1)


def test_a_tokenizer_without_end_of_text_is_refused():
    with pytest.raises(ValueError, match=r"no <\|endoftext\|> token"):
        FactTokenizer(Tokenizer(BPE(vocab={"a": 0}, merges=[])))


@pytest.mark.parametrize(
    "markup, question, query",
    [
        (ASKER, "What is its capital?", "<QUESTION>What is its capital?</QUESTION> Lima</FACT>"),
        (ASKER, "Two\nlines", "<QUESTION>Two\nlines</QUESTION> Lima</FACT>"),
        (
            REL_LMLM,
            "Peru\ncapital",
            "<|db_entity|>Peru<|db_relationship|>capital<|db_return|> Lima<|db_end|>",
        ),
    ],
)
def test_a_document_writes_its_queries_in_words(markup: Markup, question: str, query: str):
    tokenizer = FactTokenizer(bare_tokenizer(), markup=markup)
    document = AnnotatedDocument("peru", "It is Lima.", (FactSpan(6, 10, "Lima", question),))
    encoded = tokenizer.document(document, close=False)
    assert tokenizer.tokenizer.decode(list(encoded.ids[1:]), skip_special_tokens=False) == f"It is{query}."
    asked = encoded.ids[encoded.fact_positions[0] + 1 : encoded.ids.index(tokenizer.id_of(markup.asks))]
    assert tokenizer.query_in_words(asked) == question
    unmasked = [i for i, masked in zip(encoded.ids, encoded.masked, strict=True) if not masked]
    assert set(asked) <= set(unmasked) and tokenizer.fact_end not in unmasked


@given(st.lists(documents(), max_size=4), st.booleans())
def test_documents_encoded_at_once_are_what_each_is_alone(some: list[AnnotatedDocument], close: bool):
    for markup in (CO_LMLM, ASKER, REL_LMLM):
        tokenizer = FactTokenizer(bare_tokenizer(), markup=markup)
        together = tokenizer.documents(some, close=close)
        assert together == [tokenizer.document(one, close=close) for one in some]
