"""Encodes the questions of several threads by one call of the model, which costs little more than one alone."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from colmlm.kb.keys.records import CheckpointInfo
from colmlm.kb.keys.rekey import Encoder

if TYPE_CHECKING:
    from colmlm.kb.corpus.format import AnnotatedDocument

MOST = 32  # questions of several threads in one call, so that none waits for long


@dataclass(slots=True, eq=False)
class _Asked:
    """What one thread asked, and what came of it: rows [n, d], or the error that refuses it."""

    questions: Sequence[str]
    rows: NDArray[np.float32] | Exception | None = None


class GatheringEncoder:
    """Encodes as `encoder` does; a `kb.keys.rekey.Encoder`. What is asked while a call is under way is the next call.

    So a thread that asks alone waits for nobody. The last bits of a row depend on the questions beside it.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._waiting: list[_Asked] = []
        self._changing, self._turn = threading.Lock(), threading.Lock()

    @property
    def checkpoint(self) -> CheckpointInfo:
        return self._encoder.checkpoint

    def encode_documents(self, documents: Sequence[AnnotatedDocument]) -> list[NDArray[np.float32]]:
        return self._encoder.encode_documents(documents)

    def encode_contexts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self._encoder.encode_contexts(texts)

    def encode_questions(self, questions: Sequence[str]) -> NDArray[np.float32]:
        mine = _Asked(questions)
        with self._changing:
            self._waiting.append(mine)
        with self._turn:  # whoever has the turn encodes for all that wait
            while mine.rows is None:
                self._encode(self._taken())
        if isinstance(mine.rows, Exception):
            raise mine.rows
        return mine.rows

    def _taken(self) -> list[_Asked]:
        """Take those who have waited longest: the first, and as many more as make no more than `MOST` questions."""
        with self._changing:
            count, num_questions = 1, len(self._waiting[0].questions)
            for asked in self._waiting[1:]:
                num_questions += len(asked.questions)
                if num_questions > MOST:
                    break
                count += 1
            taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken

    def _encode(self, taken: Sequence[_Asked]) -> None:
        try:
            rows = self._encoder.encode_questions([q for asked in taken for q in asked.questions])
        except Exception as error:  # noqa: BLE001 - it is raised in the thread of whoever asked
            if len(taken) == 1:
                taken[0].rows = error
                return
            for asked in taken:  # one of them spoils no other
                self._encode([asked])
            return
        ends = np.cumsum([len(asked.questions) for asked in taken]).tolist()
        for asked, end in zip(taken, ends, strict=True):
            asked.rows = rows[end - len(asked.questions) : end]
