"""Questions: encodes questions and looks them up, also while another keyset is activated.

A query comes from one checkpoint, and only queries of the active keyset's checkpoint are answered. So `Questions` holds
several encoders and uses that of the active keyset. If another keyset was activated since, it encodes questions again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, Unpack

from colmlm.kb.errors import KeysetMismatch
from colmlm.kb.keys.keysets import STORED, Vectors
from colmlm.kb.keys.rekey import Encoder
from colmlm.kb.lookup.lookups import Lookups
from colmlm.kb.lookup.options import USUAL_FACTS, FactFilter, LookupOptions
from colmlm.kb.lookup.records import AskedQuery, Hit, Lookup, Ranking
from colmlm.kb.lookup.searchable import SearchableStore
from colmlm.kb.lookup.searcher import Searcher

T = TypeVar("T")

ATTEMPTS = 3  # a switch and its rollback may both happen between encoding and lookup


class Questions:
    """Asks questions of a knowledge base with the encoder of the active keyset. Threads may share it."""

    def __init__(
        self,
        kb: SearchableStore,
        encoders: Sequence[Encoder] | Callable[[], Mapping[str, Encoder]],
        keyset_id: int | None = None,
        await_encoder: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Take at least one encoder, or a function that gives the loaded ones by checkpoint id, the likeliest first.

        Encoders of keysets that are not active yet may be among them. With a `keyset_id` it asks in that keyset, active
        or not. `await_encoder` waits until the encoder of a checkpoint id is loaded, and says whether it is.
        """
        self.kb, self._await_encoder = kb, await_encoder
        self._encoders = encoders if callable(encoders) else partial(_by_checkpoint, encoders)
        self._in_keyset = None if keyset_id is None else kb.searcher.of_keyset(keyset_id)

    def ask(self, questions: Sequence[str], **options: Unpack[LookupOptions]) -> tuple[str, list[Lookup]]:
        """Give the checkpoint that encoded the questions, and a lookup for each; take the options of `Lookups.find`.

        Raises `KeysetMismatch` where no encoder is of the active checkpoint.
        """
        checkpoint_id, _, found = self._ask_encoded(questions, self._lookups.find, **options)
        return checkpoint_id, found

    def nearest_one(
        self, question: str, threshold: float | None, fact_filter: FactFilter = USUAL_FACTS
    ) -> tuple[AskedQuery, Lookup]:
        """Give the query of one question, and its lookup with k = 1 by score alone: no rule on contradictions applies.

        Raises what `ask` does.
        """
        asked = {"by_rule": False, "threshold": threshold, "fact_filter": fact_filter}
        return _only_one(*self._ask_encoded([question], self.kb.searcher.find, **asked))

    def nearest(
        self, question: str, k: int, fact_filter: FactFilter = USUAL_FACTS
    ) -> tuple[AskedQuery, Ranking]:
        """Give the query of a question, with the k live facts and the tombstone nearest to it.

        Raises what `ask` does.
        """
        return _only_one(*self._ask_encoded([question], self._lookups.nearest, k=k, fact_filter=fact_filter))

    def nearest_as_of(
        self, question: str, k: int, seq: int, fact_filter: FactFilter = USUAL_FACTS
    ) -> tuple[Hit, ...]:
        """List the k facts that were nearest to a question as of change `seq`, by the keys of that time."""
        asked = {"k": k, "threshold": -1.0, "fact_filter": fact_filter}
        _, _, (lookup,) = self._ask_encoded([question], self.kb.lookups.as_of(seq).find, **asked)
        return lookup.hits

    @property
    def _lookups(self) -> Lookups | Searcher:
        return self._in_keyset or self.kb.lookups

    def _ask_encoded(
        self, questions: Sequence[str], find: Callable[..., list[T]], **options: Any
    ) -> tuple[str, Vectors, list[T]]:
        encoders = self._encoders()
        in_use = self.kb.searcher.checkpoint_in_use or ""
        checkpoint_id = in_use if in_use in encoders else next(iter(encoders))
        for attempt in range(1, ATTEMPTS + 1):
            queries_BD = encoders[checkpoint_id].encode_questions(questions)
            try:
                return checkpoint_id, queries_BD, find(queries_BD, checkpoint_id=checkpoint_id, **options)
            except KeysetMismatch as refused:
                if attempt == ATTEMPTS:
                    raise
                self._await_encoder(refused.active)
                if refused.active not in (encoders := self._encoders()):
                    raise
                checkpoint_id = refused.active
        raise AssertionError("the last attempt answers or raises")


def _by_checkpoint(encoders: Sequence[Encoder]) -> Mapping[str, Encoder]:
    return {encoder.checkpoint.checkpoint_id: encoder for encoder in encoders}


def _only_one(checkpoint_id: str, queries_BD: Vectors, found: list[T]) -> tuple[AskedQuery, T]:
    (query_D,), (only,) = queries_BD, found
    return AskedQuery(checkpoint_id, query_D.astype(STORED).tobytes()), only
