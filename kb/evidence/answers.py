"""Stores what is said to questions like what decoders say, so that it is traced, redacted and withheld like that."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Unpack

from colmlm.kb.answers.answering import Answering
from colmlm.kb.answers.reading import JudgedReader
from colmlm.kb.answers.records import Answer, AnsweredQuestion, AnswerOptions
from colmlm.kb.evidence import storing
from colmlm.kb.evidence.records import NewOutput, QuotedStretch, Splice
from colmlm.kb.log import audit
from colmlm.kb.lookup.options import KEY, READER
from colmlm.kb.store.contention import tried_again
from colmlm.kb.store.standby import is_read_only
from colmlm.kb.store.store import Store


@dataclass(frozen=True, slots=True)
class StoredAnswers:
    """Answers questions and stores each answer, also where nothing is said, unless the settings keep none.

    A database that cannot be written, by a role that only reads, answers too, and stores nothing. Threads may share it.
    """

    store: Store
    answering: Answering

    @property
    def reader(self) -> JudgedReader:
        return self.answering.reader

    def answer(self, question: str, mode: str = "read", **options: Unpack[AnswerOptions]) -> Answer:
        """Answers as `Answering.ask` does, or in the mode "paper" as `Answering.nearest_fact`.

        What was erased while it was read is neither stored nor said: the answer is withheld then. Raises `InvalidValue`
        for a question that cannot be stored.
        """
        audit.check_text("question", question)
        asked = self.answering.asked(question, mode, **options)
        if not self.store.settings.keep_answers:
            return asked.answer
        output = output_of(asked, mode, accepted_only=options.get("accepted_only", False))
        return self._stored(asked, output)

    @tried_again
    def _stored(self, asked: AnsweredQuestion, output: NewOutput) -> Answer:
        with self.store.sessions.begin() as session:
            if is_read_only(session):
                return asked.answer
            stored = storing.record(session, output).output
        said = asked.answer if stored.output == output.output else _withheld(asked.answer)
        return replace(said, generation_id=stored.id)


def _withheld(answer: Answer) -> Answer:
    return replace(answer, answer=None, facts=(), source=None, withheld=True, nearest=())


def output_of(asked: AnsweredQuestion, mode: str, *, accepted_only: bool = False) -> NewOutput:
    """Gives an answer as an output that quotes its document; one that says nothing as a lookup that found nothing."""
    answer, query = asked.answer, asked.query
    # In the mode "paper" it is the value of a fact, whatever its document says.
    source = answer.source if mode == "read" else None
    return NewOutput(
        prompt=answer.question,
        output=answer.answer or "",
        checkpoint_id=query.checkpoint_id if query else "",
        mode=mode,
        seq=answer.seq,
        splices=_splices(asked),
        ranking=READER if mode == "read" else KEY,
        accepted_only=accepted_only,
        quotes=QuotedStretch(source.document_id, source.start, source.end) if source else None,
    )


def _splices(asked: AnsweredQuestion) -> tuple[Splice, ...]:
    answer, query = asked.answer, asked.query.query if asked.query else None
    if answer.abstained:
        outcome = "abstained" if answer.withheld else "no_match"
        return (Splice(0, 0, outcome, score=answer.score, query=query),)
    values = {fact.fact_id: fact.value for fact in answer.facts}
    return tuple(
        Splice(
            output_start=part.start,
            output_end=part.end,
            outcome="hit",
            fact_id=part.fact_id,
            version=part.version,
            score=answer.score,
            query=query,
            part_start=None if is_whole else part.part_start,
            part_end=None if is_whole else part.part_end,
            quoted_start=part.quoted_start,
            quoted_end=part.quoted_end,
        )
        for part in asked.parts
        for is_whole in ((part.part_start, part.part_end) == (0, len(values[part.fact_id])),)
    )
