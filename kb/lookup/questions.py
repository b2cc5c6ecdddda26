"""Questions: texts to lookups, across a switch of the active keyset.

A query is of one checkpoint, and only the active keyset's is answered. This keeps several encoders and asks
with the one that is active; where that changed in between, it encodes the questions again and asks once more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from colmlm.kb.errors import KeysetMismatch
from colmlm.kb.keys.rekey import Encoder
from colmlm.kb.lookup.records import Lookup
from colmlm.kb.lookup.searchable import SearchableStore

ATTEMPTS = 3  # a switch and its rollback may both fall between encoding and asking


class Questions:
    """Asks questions of a knowledge base with the encoder of whichever keyset is active. Safe to share."""

    def __init__(self, kb: SearchableStore, encoders: Sequence[Encoder]) -> None:
        """The encoders may be of keysets yet to be activated. At least one is needed."""
        self.kb = kb
        self._encoders: Mapping[str, Encoder] = {e.checkpoint.checkpoint_id: e for e in encoders}
        self._last = encoders[0].checkpoint.checkpoint_id

    def ask(self, questions: Sequence[str], **options: Any) -> tuple[str, list[Lookup]]:
        """The checkpoint that asked, and a lookup for each question; `options` are those of `Lookups.find`.

        Raises `KeysetMismatch` where no encoder is of the active checkpoint.
        """
        checkpoint_id = self._last
        for attempt in range(1, ATTEMPTS + 1):
            queries_BD = self._encoders[checkpoint_id].encode_questions(questions)
            try:
                return checkpoint_id, self.kb.lookups.find(queries_BD, checkpoint_id=checkpoint_id, **options)
            except KeysetMismatch as refused:
                if refused.active not in self._encoders or attempt == ATTEMPTS:
                    raise
                self._last = checkpoint_id = refused.active
        raise AssertionError("the last attempt answers or raises")
