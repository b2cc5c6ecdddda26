"""Fixing: what a form of the inbox gives a fact, its span, its question or both, which accepts it."""

from __future__ import annotations

from dataclasses import dataclass

from colmlm.api.console.forms import Form
from colmlm.api.ports import Ports
from colmlm.kb.errors import FactChanged
from colmlm.kb.facts.records import Contradicting, Edit, FactRecord, Marking
from colmlm.kb.facts.reviews import ReviewVerdict


@dataclass(frozen=True, slots=True)
class Fix:
    """What a person gives a fact, of which they saw this version, in its inbox."""

    version: int | None
    question: str | None
    span: Marking
    how: Contradicting

    @classmethod
    def read(cls, form: Form, actor: str) -> Fix:
        """Raises `Mistakes` where a field is not valid."""
        version, question = form.integer("version"), form.optional("question", limit=2000)
        start, end, text = form.integer("start", low=0), form.integer("end"), form.optional("text")
        how: Contradicting = {
            "actor": actor,
            "reason": form.text("reason", limit=1000),
            "allow_erased": form.flag("allow_erased"),
            "anyway": form.flag("anyway"),
        }
        form.check()
        return cls(version, question, {"start": start, "end": end, "text": text}, how)

    def mend(self, ports: Ports, fact: FactRecord) -> Edit:
        """Gives the fact span and question in one change, as far as they differ; where neither does, accepts it.

        Raises `FactChanged` where somebody has settled or edited it since.
        """
        if fact.review != "proposed":
            raise FactChanged([fact.fact_id])  # somebody else was faster
        question = None if self.question == fact.question else self.question
        if self._is_elsewhere(fact):
            return ports.kb.facts.move(
                fact.fact_id, self.span, question=question, version=self.version, **self.how
            )
        if question is None:
            return self._accept(ports, fact)
        return ports.kb.facts.edit(
            fact.fact_id,
            question=question,
            version=self.version,
            actor=self.how["actor"],
            reason=self.how["reason"],
            anyway=self.how["anyway"],
        )

    def _accept(self, ports: Ports, fact: FactRecord) -> Edit:
        verdict = ReviewVerdict(fact.fact_id, "accept", self.version or fact.version)
        done = ports.kb.review.settle([verdict], actor=self.how["actor"], reason=self.how["reason"])
        if done.before:
            raise FactChanged([fact.fact_id])
        return Edit(done.seqs[0], "accept", done.fact_ids)

    def _is_elsewhere(self, fact: FactRecord) -> bool:
        """Says whether the span is another one than that of the fact; offsets count before words."""
        offsets = (self.span["start"], self.span["end"])
        if offsets == (None, None):
            return self.span["text"] not in (None, fact.value)
        return fact.source is None or offsets != (fact.source.start, fact.source.end)
