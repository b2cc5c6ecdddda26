"""Fixing: what a form of the inbox gives a fact, its span, its question or both, which accepts it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from colmlm.api.console.forms import Form
from colmlm.api.ports import Ports
from colmlm.kb.errors import FactChanged
from colmlm.kb.facts.records import Edit, FactRecord, Marking
from colmlm.kb.facts.reviews import ReviewVerdict


@dataclass(frozen=True, slots=True)
class Fix:
    """What a person gives a fact, of which they saw this version, in its inbox."""

    version: int | None
    question: str | None
    span: Marking
    actor: str
    reason: str

    @classmethod
    def read(cls, form: Form, actor: str) -> Fix:
        """Raises `Mistakes` where a field is not valid."""
        version, question = form.integer("version"), form.optional("question", limit=2000)
        start, end, text = form.integer("start", low=0), form.integer("end"), form.optional("text")
        fix = cls(
            version,
            question,
            {"start": start, "end": end, "text": text},
            actor,
            form.text("reason", limit=1000),
        )
        form.check()
        return fix

    def mend(self, ports: Ports, fact: FactRecord) -> Edit:
        """Moves the span, then edits the question, as far as they differ; where neither does, accepts the fact.

        Raises `FactChanged` where somebody has settled or edited it since.
        """
        if fact.review != "proposed":
            raise FactChanged([fact.fact_id])  # somebody else was faster
        version, edit = self.version, None
        if self._is_elsewhere(fact):
            edit = ports.kb.facts.move(
                fact.fact_id, self.span, version=version, actor=self.actor, reason=self.reason
            )
            version = version and version + 1
        if self.question not in (None, fact.question):
            asked = ports.kb.facts.edit(
                fact.fact_id, question=self.question, version=version, actor=self.actor, reason=self.reason
            )
            return replace(asked, keyed=asked.keyed and (edit is None or edit.keyed))
        return edit or self._accept(ports, fact)

    def _accept(self, ports: Ports, fact: FactRecord) -> Edit:
        verdict = ReviewVerdict(fact.fact_id, "accept", self.version or fact.version)
        done = ports.kb.review.settle([verdict], actor=self.actor, reason=self.reason)
        if done.before:
            raise FactChanged([fact.fact_id])
        return Edit(done.seqs[0], "accept", done.fact_ids)

    def _is_elsewhere(self, fact: FactRecord) -> bool:
        """Says whether the span is another one than that of the fact; offsets count before words."""
        offsets = (self.span["start"], self.span["end"])
        if offsets == (None, None):
            return self.span["text"] not in (None, fact.value)
        return fact.source is None or offsets != (fact.source.start, fact.source.end)
