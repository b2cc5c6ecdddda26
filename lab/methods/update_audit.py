"""Updates values of facts, asks for them, and restores them: the method of `colmlm evaluate updates`.

Every prompt is asked in three phases: before the updates, after all of them, and after they are undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import typer

from colmlm.cli.composition.keying import key_everything
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.output import note
from colmlm.kb.corpus.format import Parsed
from colmlm.kb.errors import CorpusNotFound, KeysetMismatch, NoActiveKeyset
from colmlm.kb.facts.records import Correction, FactRecord
from colmlm.kb.service import KnowledgeBase
from colmlm.model.decoding.config import DecodeConfig
from colmlm.model.decoding.decoder import Decoder
from colmlm.model.evaluate.run_log import RunLog
from colmlm.model.evaluate.updates import Answers, PromptAnswer, Rewrite, documents, prompts

REASON = "colmlm evaluate updates"
PHASES = ("before", "after", "undone")
OnDone = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class StandingDocuments:
    """The state of the documents: how many must be ingested, and the updated facts by their document."""

    missing: int
    facts: Mapping[str, FactRecord]

    @classmethod
    def of(cls, kb: KnowledgeBase, corpus: str, rewrites: Sequence[Rewrite]) -> StandingDocuments:
        there = {fact.source.external_id: fact for fact in _facts(kb, corpus) if fact.source is not None}
        missing = [one for one in documents(rewrites) if one.external_id not in there]
        return cls(
            len(missing),
            {one.document: there[one.document] for one in rewrites if one.document in there},
        )


@dataclass(frozen=True, slots=True)
class UpdateAudit:
    """Updates the facts of records in a corpus, and asks a decoder for them with a lookup forced."""

    kb: KnowledgeBase
    decoder: Decoder
    config: DecodeConfig
    rewrites: Sequence[Rewrite]
    facts: Mapping[str, FactRecord]
    actor: str

    @classmethod
    def prepare(
        cls,
        runtime: Runtime,
        corpus: str,
        rewrites: Sequence[Rewrite],
        config: DecodeConfig,
        *,
        actor: str,
        reason: str,
    ) -> UpdateAudit:
        """Ingests and keys missing documents, and restores values that a killed run has left updated."""
        kb, checkpoint = runtime.kb, runtime.checkpoint
        _require_keyset(kb, checkpoint.checkpoint_id)
        standing = StandingDocuments.of(kb, corpus, rewrites)
        if standing.missing:
            parsed = [Parsed(one) for one in documents(rewrites)]
            kb.corpora.ingest(parsed, corpus, actor=actor, reason=reason)
            standing = StandingDocuments.of(kb, corpus, rewrites)
        key_everything(runtime, corpus=corpus)
        audit = cls(kb, Decoder(checkpoint, kb.lookups), config, rewrites, standing.facts, actor)
        audit._require_whole(corpus, standing.missing)
        if left := audit.set_back():
            note(f"{left} values that a run had left updated are set back.")
        audit._require_true()
        return audit

    def run(self, log: RunLog, batch: int, done: OnDone) -> list[Answers]:
        """Collects the answers of each phase. Prompts whose answers the log has are not asked again."""
        self._ask("before", log, batch, done)
        if self._left("after", log):
            with self._updated():
                self._ask("after", log, batch, done)
        else:
            done(len(prompts(self.rewrites)))
        self._ask("undone", log, batch, done)
        return [
            {one: PromptAnswer(**log.rows[f"{phase}: {one}"]) for one in prompts(self.rewrites)}
            for phase in PHASES
        ]

    def _left(self, phase: str, log: RunLog) -> list[str]:
        return [one for one in prompts(self.rewrites) if f"{phase}: {one}" not in log.rows]

    def _ask(self, phase: str, log: RunLog, batch: int, done: OnDone) -> None:
        left = self._left(phase, log)
        done(len(prompts(self.rewrites)) - len(left))
        for start in range(0, len(left), batch):
            some = left[start : start + batch]
            made = self.decoder.generate(some, self.config)
            log.add({f"{phase}: {p}": asdict(PromptAnswer.of(g)) for p, g in zip(some, made, strict=True)})
            done(len(some))

    @contextmanager
    def _updated(self) -> Iterator[None]:
        values = [Correction(self.facts[one.document].fact_id, one.new_value) for one in self.rewrites]
        try:
            self.kb.facts.edit_many(values, actor=self.actor, reason=REASON, anyway=True)
            yield
        finally:
            self.set_back()

    def set_back(self) -> int:
        """Restores the former value of each fact that has its record's new one, in one change, and gives their number.

        A value that somebody else has set meanwhile stays.
        """
        values = [
            Correction(fact.fact_id, one.value)
            for one, fact in self._now()
            if fact.value == one.new_value != one.value
        ]
        if values:
            self.kb.facts.edit_many(values, actor=self.actor, reason=f"{REASON}: undone", anyway=True)
        return len(values)

    def is_restored(self) -> bool:
        return all(fact.value == one.value for one, fact in self._now())

    def _now(self) -> Iterator[tuple[Rewrite, FactRecord]]:
        for one in self.rewrites:
            yield one, self.kb.facts.show(self.facts[one.document].fact_id)

    def _require_whole(self, corpus: str, missing: int) -> None:
        if missing or len(self.facts) < len(self.rewrites):
            raise typer.BadParameter(f"facts of {corpus} were deleted; name another.", param_hint="--corpus")

    def _require_true(self) -> None:
        for one, fact in self._now():
            if fact.value != one.value:
                raise typer.BadParameter(
                    f"fact {fact.fact_id} has a value of neither kind; name another.", param_hint="--corpus"
                )


def _require_keyset(kb: KnowledgeBase, checkpoint_id: str) -> None:
    """Refuses, before anything is ingested, to run with a decoder that could not look it up."""
    try:
        active = kb.keysets.active()
    except NoActiveKeyset:
        return
    if active.checkpoint_id != checkpoint_id:
        raise KeysetMismatch(checkpoint_id, active.checkpoint_id)


def _facts(kb: KnowledgeBase, corpus: str) -> Iterator[FactRecord]:
    try:
        yield from kb.facts.every(corpus)
    except CorpusNotFound:  # the ingest creates it
        return
