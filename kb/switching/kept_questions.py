"""Asks a set of kept questions in a keyset that is to be measured, as the base would with that keyset active."""

from __future__ import annotations

from collections.abc import Callable

from colmlm.kb.answers.answering import Answering
from colmlm.kb.answers.reading import JudgedReader
from colmlm.kb.errors import InvalidValue
from colmlm.kb.keys.rekey import Encoder
from colmlm.kb.lookup.questions import Questions
from colmlm.kb.lookup.searchable import SearchableStore
from colmlm.kb.questions.asking import AskedSet, ask_set
from colmlm.kb.questions.hearing import ByAnswers
from colmlm.kb.switching.limits import GateLimits


def asked_in(
    kb: SearchableStore,
    keyset_id: int,
    encoder: Encoder,
    limits: GateLimits,
    reader: Callable[[], JudgedReader] | None,
    on_asked: Callable[[int, int], None],
) -> AskedSet:
    """Asks the set that the limits name. Raises `QuestionSetNotFound`, and `InvalidValue` where they limit nothing."""
    if limits.questions is None or (limits.min_right is None and limits.max_wrong is None):
        raise InvalidValue(
            "gate", "name the least share right of its questions, or the most wrong, with their set"
        )
    if reader is None:
        raise InvalidValue("gate", "its questions are to be read, and nothing here reads them")
    answering = Answering(kb, Questions(kb, [encoder], keyset_id), reader())
    return ask_set(
        kb, limits.questions, ByAnswers(answering), lambda done, total: on_asked(done, total or done)
    )
