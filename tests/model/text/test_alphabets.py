"""Tokenizers of every kind that the families have: texts and offsets come back, and each token has its bytes."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers import decoders as decode
from tokenizers.models import BPE

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan
from colmlm.model.text.tokens import FactTokenizer, TokenizerUnfit
from tests.strategies import documents, texts
from tests.tiny import TEXTS
from tests.tiny_families import TOKENIZERS

KINDS = {name: FactTokenizer(make()) for name, make in TOKENIZERS.items()}
BEGINS = {"Llama 3": "<|begin_of_text|>", "Qwen": "<|endoftext|>", "Gemma": "<bos>"}
ENDS = {"Llama 3": "<|end_of_text|>", "Qwen": "<|endoftext|>", "Gemma": "<eos>"}
kinds = st.sampled_from(sorted(KINDS))
MARK = "\u2581"


def read(kind: str, text: str) -> str:
    """Gives a text as a tokenizer of this kind reads it."""
    text = unicodedata.normalize("NFC", text) if kind == "Qwen" else text
    return text.replace(MARK, " ") if kind == "Gemma" else text


@pytest.mark.parametrize("kind", KINDS)
def test_it_begins_and_ends_texts_with_the_familys_own_tokens(kind: str):
    tokenizer = KINDS[kind]
    assert (tokenizer.begin, tokenizer.end_of_text) == (
        tokenizer.id_of(BEGINS[kind]),
        tokenizer.id_of(ENDS[kind]),
    )
    ids = tokenizer.document(AnnotatedDocument("d", "It is Lima.", ())).ids
    assert (ids[0], ids[-1]) == (tokenizer.begin, tokenizer.end_of_text)
    assert tokenizer.question("Who?").ids[0] == tokenizer.context("It is", 9).ids[0] == tokenizer.begin
    assert tokenizer.prompt([tokenizer.begin, 7]) == tokenizer.prompt([7]) == [tokenizer.begin, 7]


@given(kinds, texts | st.text())
def test_decoding_what_was_encoded_gives_the_text_back(kind: str, text: str):
    tokenizer = KINDS[kind]
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == read(kind, text)
    assert not tokenizer.special & set(ids)


@given(kinds, texts | st.text())
@example("Gemma", "naïve 🏔️\0 <s>")
@example("Qwen", "<tool_call>\0 é")
def test_the_bytes_of_tokens_are_those_of_the_text(kind: str, text: str):
    tokenizer = KINDS[kind]
    ids = tokenizer.encode(text)
    assert b"".join(map(tokenizer.bytes_of, ids)) == read(kind, text).encode()
    assert ("\0" in text) == bool(set(ids) & set(tokenizer.unsayable))


@given(kinds, documents(), st.booleans())
def test_a_document_is_its_text_with_tags_around_the_spans(
    kind: str, document: AnnotatedDocument, close: bool
):
    tokenizer = KINDS[kind]
    encoded = tokenizer.document(document, with_title=False, close=close)
    assert tokenizer.decode(list(encoded.ids)).replace(" ", "") == read(kind, document.text).replace(" ", "")
    at = 0
    for span, position in zip(document.facts, encoded.fact_positions, strict=True):
        end = encoded.ids.index(tokenizer.fact_end, position)
        has_space = document.text[at : span.start].endswith(" ")
        inside = tokenizer.decode(list(encoded.ids[position + 1 : end]))
        assert encoded.ids[position] == tokenizer.fact
        assert inside == read(kind, f" {span.value}" if has_space else span.value)
        at = span.end


@pytest.mark.parametrize("kind", KINDS)
def test_with_the_space_inside_the_text_keeps_the_base_models_own_tokens(kind: str):
    tokenizer, text = KINDS[kind], TEXTS[0]
    spans = tuple(FactSpan(text.index(v), text.index(v) + len(v), v) for v in ("Peru", "Lima", "1981"))
    encoded = tokenizer.spans("", text, spans)
    ids = [i for i in encoded.ids if i not in tokenizer.special]
    assert tokenizer.decode(ids) == text
    if kind != "Gemma":  # whose words are not cut before they are merged
        assert ids == tokenizer.encode(text)


def test_a_tokenizer_that_drops_the_space_at_the_beginning_is_refused(tmp_path: Path):
    """As those of Llama 2 do: they put a space before each text, and take it away again."""
    vocabulary = {character: i for i, character in enumerate(["<s>", "</s>", MARK, "a", "b"])}
    tokenizer = Tokenizer(BPE(vocabulary, []))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decode.Metaspace(prepend_scheme="always")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(TokenizerUnfit, match=r"tokenizer.json: .*adds or drops spaces"):
        FactTokenizer.load(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerUnfit, match=r"tokenizer.json cannot be read"):
        FactTokenizer.load(tmp_path / "tokenizer.json")
