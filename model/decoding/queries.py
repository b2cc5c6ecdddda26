"""Ways in which a row gets its query, the only difference between the methods in decoding (section 4.6).

Co-LMLM uses the hidden state at the opening token. Where a method asks in words, the model writes them between two
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
from colmlm.model.lm.checkpoint import Checkpoint
from colmlm.model.lm.encoder import KeyEncoder
from colmlm.model.lm.language_model import unit
from colmlm.model.text.tokens import FactTokenizer

MAX_QUERY_TOKENS = 64


class QueryEncoder(Protocol):
    """An encoder of queries in words, in the key space of the keyset of `checkpoint_id`."""

    @property
    def checkpoint_id(self) -> str: ...

    def encode_questions(self, questions: Sequence[str]) -> NDArray[np.float32]:
        """Gives [n, dim] unit rows."""
        ...


class Queries(Protocol):
    """A way to make the queries of rows.

    `in_words` says whether the model writes a query first; `checkpoint_id` names the checkpoint whose keys are
    searched.
    """

    @property
    def in_words(self) -> bool: ...
    @property
    def checkpoint_id(self) -> str: ...

    def write(self, row: Row, token: int) -> bool:
        """Takes the next token of a row's query, and tells whether that ended the query."""
        ...

    def vectors(self, rows: Sequence[Row], states_ND: Tensor) -> NDArray[np.float32]:
        """Gives the queries of these rows as [n, dim] unit rows; `states_ND` are those at each row's last token."""
        ...

    def encode_questions(self, questions: Sequence[str]) -> NDArray[np.float32]:
        """Encode questions as they are asked without a decoder: [n, dim] unit rows."""
        ...


@dataclass(frozen=True, slots=True)
class StateQueries:
    """Uses the state at the opening token as the query."""

    checkpoint: Checkpoint
    in_words: bool = False

    @property
    def checkpoint_id(self) -> str:
        return self.checkpoint.checkpoint_id

    def write(self, row: Row, token: int) -> bool:
        raise AssertionError("nothing is written where the state is the query")

    def vectors(self, rows: Sequence[Row], states_ND: Tensor) -> NDArray[np.float32]:
        return unit(states_ND).cpu().numpy()

    def encode_questions(self, questions: Sequence[str]) -> NDArray[np.float32]:
        return KeyEncoder(self.checkpoint).encode_questions(questions)


@dataclass(frozen=True, slots=True)
class WordQueries:
    """Lets the model write the query, up to the token that ends it; `ends` are the tokens that end a text.

    A query without an end (the text ends first, or the query grows too long) or without a word leaves the row's `words`
    empty, and no lookup is made.
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
        return self.encode_questions([row.words for row in rows])

    def encode_questions(self, questions: Sequence[str]) -> NDArray[np.float32]:
        return self.encoder.encode_questions(questions)
