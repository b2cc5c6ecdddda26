"""Hypothesis strategies: texts with difficult characters, and annotated documents made of them."""

from __future__ import annotations

from hypothesis import strategies as st

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan
from colmlm.kb.texts.characters import is_blank

HOSTILE = (
    "<FACT>", "</FACT>", "<FACT-q>", '<FACT q="a" a="b">', "<|endoftext|>", "<|im_end|>", "<FACT", "FACT>",
    "\r\n", "\n", " ", "  ", "\t", "🏔️", "👩‍👩‍👧", "\u00e9", "e\u0301", "שלום",
    "\u202eابج\u202c", "東京", "\u200b", "\ufeff", "\ufffd",
    "'s", '"', "&quot;", "1981", "Lima", ".", "\x7f", "\u2028",
)  # fmt: skip

characters = st.characters(exclude_categories=["Cs"], exclude_characters="\x00")
pieces = st.one_of(st.sampled_from(HOSTILE), st.text(characters, max_size=6))
texts = st.lists(pieces, max_size=12).map("".join)
names = st.text(characters, min_size=1, max_size=8)
filled = names.filter(lambda name: not is_blank(name))


@st.composite
def documents(draw: st.DrawFn) -> AnnotatedDocument:
    """Draws a document with valid spans: sorted, without overlap, verbatim, not blank."""
    text, spans = "", []
    for plain, value in draw(
        st.lists(st.tuples(texts, st.none() | texts.filter(lambda text: not is_blank(text))), max_size=5)
    ):
        text += plain
        if value is not None:
            question, answer = draw(st.none() | filled), draw(st.none() | filled)
            spans.append(FactSpan(len(text), len(text) + len(value), value, question, answer))
            text += value
    if is_blank(text):
        text, spans = "some text", []
    about = {name: draw(st.none() | names) for name in ("title", "uri", "licence", "revision")}
    return AnnotatedDocument(draw(filled), text, tuple(spans), **about)
