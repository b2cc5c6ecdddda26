"""The tokens that each method adds to a vocabulary, and how a lookup is written with them.

Co-LMLM asks with the hidden state at one token (section 3.1), LMLM-Asker with a question in words, and Rel-LMLM with an
entity and a relation in words (section 4.6, appendix A). A standard model never asks.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Markup:
    """The markup of a method, which writes a lookup as ``opens [query] asks value closes``.

    `tokens` are the last ones of the vocabulary, in this order. `asks` is None where the state at `opens` is the query
    itself. `parts` separates the parts of a query in words, which plain text has on separate lines. `key` ends a
    question whose state at that token is a key.
    """

    method: str
    tokens: tuple[str, ...] = ()
    opens: str | None = None
    asks: str | None = None
    closes: str | None = None
    parts: str | None = None
    key: str | None = None


FACT, FACT_END, FACT_Q = "<FACT>", "</FACT>", "<FACT-q>"


QUESTION, QUESTION_END = "<QUESTION>", "</QUESTION>"


ENTITY, RELATION, RETURN, END = "<|db_entity|>", "<|db_relationship|>", "<|db_return|>", "<|db_end|>"


CO_LMLM = Markup("co-lmlm", (FACT, FACT_END, FACT_Q), opens=FACT, closes=FACT_END, key=FACT_Q)


STANDARD = Markup("standard")


ASKER = Markup(
    "asker", (QUESTION, QUESTION_END, FACT_END), opens=QUESTION, asks=QUESTION_END, closes=FACT_END
)


REL_LMLM = Markup(
    "rel-lmlm", (ENTITY, RELATION, RETURN, END), opens=ENTITY, asks=RETURN, closes=END, parts=RELATION
)


MARKUPS = {markup.method: markup for markup in (CO_LMLM, STANDARD, ASKER, REL_LMLM)}
