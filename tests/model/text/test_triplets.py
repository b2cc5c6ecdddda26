"""Rel-LMLM's texts: calls become spans, malformed ones are refused, and each method trains on what it should."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, InlineError, check_spans
from colmlm.model.text.markup import ASKER, MARKUPS, REL_LMLM, STANDARD, parse_calls, read_triplets
from colmlm.model.text.tokens import EncodedText, FactTokenizer
from tests.kb.corpora import PERU
from tests.places import SHARED_DATA
from tests.tiny import bare_tokenizer

SHARED = SHARED_DATA / "rel_lmlm"


def call(entity: str, relation: str, value: str) -> str:
    return f"[dblookup('{entity}', '{relation}') -> {value}]"


MARKED = (
    f"Ann was born in {call('Ann', 'Birth Year', '1951')} 1951, a {call('Ann', 'Job', 'poet [M17]')} poet."
)


def test_a_call_becomes_a_span_that_asks_by_entity_and_relation():
    text, spans = parse_calls(MARKED)
    assert text == "Ann was born in 1951 1951, a poet [M17] poet."
    assert [(s.value, s.question) for s in spans] == [
        ("1951", "Ann\nBirth Year"),
        ("poet [M17]", "Ann\nJob"),
    ]
    assert check_spans("ann", text, spans) == (spans, ())


def test_names_may_hold_quotes_and_commas():
    odd = call("King's Cross, London", "Owner's Name", "Network Rail")
    text, spans = parse_calls(f"x {odd} y")
    assert spans[0].question == "King's Cross, London\nOwner's Name" and text == "x Network Rail y"


@pytest.mark.parametrize(
    "marked, offset",
    [
        ("a [dblookup('Ann', 'Job')] -> poet] poet", 2),
        ("a [dblookup('Ann') -> poet] poet", 2),
        ("ab [dblookup('Ann', 'Job') -> poet", 3),
        ("ab [dblookup('Ann', 'Job') -> po\net] x", 3),
        ("[dblookup('Ann', 'Job') -> ] x", 0),
        ("[dblookup(' ', 'Job') -> poet] x", 0),
        (f"[dblookup('Ann', 'Job')] x {call('Ann', 'Job', 'poet')}", 0),
        (f"[dblookup('Ann', 'Job') -> {call('Ann', 'Job', 'poet')}] y", 0),
    ],
)
def test_a_call_that_cannot_be_read_is_an_error_at_its_place(marked: str, offset: int):
    with pytest.raises(InlineError) as refused:
        parse_calls(marked)
    assert refused.value.offset == offset


def test_a_file_gives_its_sound_documents_and_refuses_the_others(tmp_path: Path):
    file = tmp_path / "calls.json"
    examples = [{"annotated_text": MARKED}, {"annotated_text": "x [dblookup('a'"}, {"text": "y"}, 7]
    file.write_text(json.dumps({"examples": examples, "metadata": {}}))
    first, *others = read_triplets(file)
    assert first.document is not None and len(first.document.facts) == 2 and not first.refusals
    assert [(p.document, p.refusals[0].document, p.refusals[0].offset) for p in others] == [
        (None, "calls.json:1", 2),
        (None, "calls.json:2", 0),
        (None, "calls.json:3", 0),
    ]


@pytest.mark.parametrize("text", ["[", "[1, 2]", '{"examples": 3}'])
def test_another_file_is_one_refusal(tmp_path: Path, text: str):
    file = tmp_path / "other.json"
    file.write_text(text)
    (parsed,) = read_triplets(file)
    assert parsed.document is None and len(parsed.refusals) == 1


@pytest.mark.shared_data
@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data are not beside the project")
def test_nearly_every_document_of_the_shared_files_is_read():
    parsed = [p for file in sorted(SHARED.glob("*.json")) for p in read_triplets(file)]
    documents = [p.document for p in parsed if p.document is not None]
    refused = [refusal for p in parsed for refusal in p.refusals]
    assert len(parsed) == 1820 and len(documents) >= 1815 and len(refused) == 1820 - len(documents)
    assert sum(len(d.facts) for d in documents) > 13_000
    assert all(check_spans(d.external_id, d.text, d.facts)[1] == () for d in documents)


def said(tokenizer: FactTokenizer, encoded: EncodedText) -> tuple[str, str]:
    """The whole sequence with its tags, and of it what carries no loss."""
    masked = [token for token, is_masked in zip(encoded.ids, encoded.masked, strict=True) if is_masked]
    return tuple(
        str(tokenizer.tokenizer.decode(list(ids), skip_special_tokens=False)) for ids in (encoded.ids, masked)
    )  # type: ignore[return-value]


def sequence(method: str, document: AnnotatedDocument) -> tuple[str, str]:
    tokenizer = FactTokenizer(bare_tokenizer(), markup=MARKUPS[method])
    return said(tokenizer, tokenizer.document(document))


def test_rel_lmlm_learns_its_query_and_the_text_but_not_the_value():
    text, spans = parse_calls(MARKED)
    whole, unlearnt = sequence(REL_LMLM.method, AnnotatedDocument("ann", text, spans[:1]))
    assert whole == (
        "<|endoftext|>Ann was born in<|db_entity|>Ann<|db_relationship|>Birth Year<|db_return|> 1951<|db_end|>"
        " 1951, a poet [M17] poet.<|endoftext|>"
    )
    assert unlearnt == " 1951<|db_end|>"


def test_asker_learns_the_question_and_not_the_value():
    bare = FactSpan(0, 4, "Peru")
    document = AnnotatedDocument("peru", PERU.text, (bare, *PERU.facts[:1]))
    whole, unlearnt = sequence(ASKER.method, document)
    assert whole.startswith(
        "<|endoftext|>Peru lies in South America. Its capital is<QUESTION>What is the capital of Peru?</QUESTION>"
        " Lima</FACT>. In its mountains"
    )
    assert unlearnt == " Lima</FACT>"


def test_standard_learns_the_same_text_without_a_tag():
    assert sequence(STANDARD.method, PERU) == (f"<|endoftext|>{PERU.text}<|endoftext|>", "")
