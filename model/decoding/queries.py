"""How a row gets its query, which is all in which the methods differ (section 4.6).

Co-LMLM asks with the state at the opening token. Where a method asks in words, the model writes them between two
tokens of its markup and an encoder makes the vector. Such words are neither output nor content.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from colmlm.model.decoding.rows import Row
from colmlm.model.lm.language_model import unit
from colmlm.model.text.tokens import FactTokenizer

MAX_QUERY_TOKENS = 64


class QueryEncoder(Protocol):
    """Makes vectors of queries in words, in the space of the keyset of `checkpoint_id`."""

    @property
    def checkpoint_id(self) -> str: ...

    def encode_questions(self, questions: Sequence[str]) -> NDArray[np.float32]:
        """[n, dim] unit rows."""
        ...


class Queries(Protocol):
    """`in_words`: the model writes a query before it is asked. `checkpoint_id`: whose keys are asked."""

    @property
    def in_words(self) -> bool: ...
    @property
    def checkpoint_id(self) -> str: ...

    def write(self, row: Row, token: int) -> bool:
        """Take the next token of a row's query; whether that ended it."""
        ...

    def vectors(self, rows: Sequence[Row], states_ND: Tensor) -> NDArray[np.float32]:
        """[n, dim] unit rows: the queries of these rows, whose states are those at their last token."""
        ...


@dataclass(frozen=True, slots=True)
class StateQueries:
    """The state at the opening token is the query."""

    checkpoint_id: str
    in_words: bool = False

    def write(self, row: Row, token: int) -> bool:
        raise AssertionError("nothing is written where the state is the query")

    def vectors(self, rows: Sequence[Row], states_ND: Tensor) -> NDArray[np.float32]:
        return unit(states_ND).cpu().numpy()


@dataclass(frozen=True, slots=True)
class WordQueries:
    """The model writes the query, up to the token that ends it; `ends` are the tokens that end a text.

    One that comes to no end (the text ends first, or it grows too long) or holds no word leaves the row's
    `words` empty: there is nothing to ask.
    """

    tokenizer: FactTokenizer
    encoder: QueryEncoder
    ends: Collection[int]
    in_words: bool = True

    @property
    def checkpoint_id(self) -> str:
        return self.encoder.checkpoint_id

    def write(self, row: Row, token: int) -> bool:
        if token == self.tokenizer.id_of(self.tokenizer.markup.asks):
            row.words = self.tokenizer.query_in_words(row.query).strip()
            return True
        row.query.append(token)
        row.pending = [token]
        return token in self.ends or len(row.query) >= MAX_QUERY_TOKENS

    def vectors(self, rows: Sequence[Row], states_ND: Tensor) -> NDArray[np.float32]:
        return self.encoder.encode_questions([row.words for row in rows])
