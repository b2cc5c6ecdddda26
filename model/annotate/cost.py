"""The estimated cost of a seed annotation, given before the first request is sent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.model.annotate.chunks import CHUNK_TOKENS, chunks, rough_tokens
from colmlm.model.annotate.seed import system_prompt

# A reply has the chunk's own tokens and, with a fact for every 25 of them, some 32 for each tag with its two texts.
GROWTH = 2.3


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimated cost, with one request per chunk; repairs and failed attempts come on top. Tokens are rough."""

    documents: int
    characters: int
    chunks: int
    tokens_in: int
    tokens_out: int

    def price(self, per_million_in: float, per_million_out: float) -> float:
        """Gives the price, in the currency of the two prices per million tokens."""
        return (self.tokens_in * per_million_in + self.tokens_out * per_million_out) / 1_000_000


def estimate(documents: Iterable[AnnotatedDocument], *, chunk_tokens: int = CHUNK_TOKENS) -> Estimate:
    """Estimates the cost. Every request repeats the conversation so far, so a long document costs most."""
    num_documents = characters = num_chunks = tokens_in = tokens_out = 0
    for document in documents:
        num_documents += 1
        characters += len(document.text)
        conversation = rough_tokens(system_prompt(document.title))
        for start, end in chunks(document.text, chunk_tokens):
            asked = rough_tokens(document.text[start:end])
            answered = round(asked * GROWTH)
            num_chunks += 1
            tokens_in += conversation + asked
            tokens_out += answered
            conversation += asked + answered
    return Estimate(num_documents, characters, num_chunks, tokens_in, tokens_out)
