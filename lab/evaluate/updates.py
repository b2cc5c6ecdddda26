"""`colmlm-lab evaluate updates`: gives facts other values, asks for them, and restores the former values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from colmlm.cli.composition.keying import key_everything
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import Actor, CheckpointPath, DryRun, Threshold, examples, some_text
from colmlm.cli.output import counting, note
from colmlm.kb.corpus.format import Parsed
from colmlm.kb.errors import KeysetMismatch, NoActiveKeyset, NotFound
from colmlm.kb.facts.records import FactEdit, FactRecord
from colmlm.kb.service import KnowledgeBase
from colmlm.lab.bench.machine import print_report
from colmlm.lab.evaluate.kept import FromTheFirst, open_log
from colmlm.model.decoding.config import DecodeConfig
from colmlm.model.decoding.decoder import Decoder
from colmlm.model.evaluate.answers import (
    Answers,
    PromptAnswer,
    Rewrite,
    digest,
    documents,
    measure,
    prompts,
    read_rewrites,
)
from colmlm.model.evaluate.run_log import EvaluationFileError, RunLog

# Updates values of facts, asks for them, and restores them: the method of `colmlm-lab evaluate updates`.
#
# Every prompt is asked in three phases: before the updates, after all of them, and after they are undone.

REASON = "colmlm-lab evaluate updates"
PHASES = ("before", "after", "undone")
OnDone = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class StandingDocuments:
    """Count how many rewritten documents are not ingested yet, and the updated fact of each one that is."""

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
        """Ingest and key missing documents, and restore values that a killed run has left updated."""
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
        """Collect the answers of each phase. Prompts whose answers the log has are not asked again."""
        self._ask("before", log, batch, done)
        if self._unasked_prompts("after", log):
            with self._apply_rewrites():
                self._ask("after", log, batch, done)
        else:
            done(len(prompts(self.rewrites)))
        self._ask("undone", log, batch, done)
        return [
            {one: PromptAnswer(**log.rows[f"{phase}: {one}"]) for one in prompts(self.rewrites)}
            for phase in PHASES
        ]

    def _unasked_prompts(self, phase: str, log: RunLog) -> list[str]:
        return [one for one in prompts(self.rewrites) if f"{phase}: {one}" not in log.rows]

    def _ask(self, phase: str, log: RunLog, batch: int, done: OnDone) -> None:
        left = self._unasked_prompts(phase, log)
        done(len(prompts(self.rewrites)) - len(left))
        for start in range(0, len(left), batch):
            some = left[start : start + batch]
            made = self.decoder.generate(some, self.config)
            log.add({f"{phase}: {p}": asdict(PromptAnswer.of(g)) for p, g in zip(some, made, strict=True)})
            done(len(some))

    @contextmanager
    def _apply_rewrites(self) -> Iterator[None]:
        values = [FactEdit(self.facts[one.document].fact_id, one.new_value) for one in self.rewrites]
        try:
            self.kb.facts.edit_many(values, actor=self.actor, reason=REASON, anyway=True)
            yield
        finally:
            self.set_back()

    def set_back(self) -> int:
        """Restore the former value of each fact that has its record's new one, in one change, and give their number.

        A value that somebody else has set meanwhile stays.
        """
        values = [
            FactEdit(fact.fact_id, one.value)
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
    """Refuse, before anything is ingested, to run with a decoder that could not look it up."""
    try:
        active = kb.keysets.active()
    except NoActiveKeyset:
        return
    if active.checkpoint_id != checkpoint_id:
        raise KeysetMismatch(checkpoint_id, active.checkpoint_id)


def _facts(kb: KnowledgeBase, corpus: str) -> Iterator[FactRecord]:
    try:
        yield from kb.facts.every(corpus)
    except NotFound:  # the ingest creates it
        return


EXAMPLES = examples(
    "colmlm-lab evaluate updates --records counterfact.json --limit 50 --dry-run",
    "colmlm-lab evaluate updates --records counterfact.json --out updates.jsonl --json",
)


def updates(
    records: Annotated[
        Path,
        typer.Option("--records", exists=True, dir_okay=False, help="Records in CounterFact's form (JSON)."),
    ],
    corpus: Annotated[
        str, typer.Option("--corpus", callback=some_text, help="Where their statements are, or go.")
    ] = "counterfact",
    limit: FromTheFirst = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", dir_okay=False, help="Keep each answer here, and go on from there."),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=1, help="Of what the model says itself, without a match.")
    ] = 8,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Prompts answered together.")] = 16,
    threshold: Threshold = None,
    seed: Annotated[int, typer.Option("--seed", help="Draws the intervals.")] = 0,
    checkpoint: CheckpointPath = None,
    actor: Actor = None,
    reason: Annotated[
        str, typer.Option("--reason", callback=some_text, help="Why the statements are ingested.")
    ] = REASON,
    dry_run: DryRun = False,
) -> None:
    """Give facts other values and ask for them: is the new one told, also to other wordings, and nothing else changed?

    Each record's prompt with its object becomes a fact, and so do its neighbours'; they are ingested into the corpus
    and keyed, and stay there. Then all records are updated together, every prompt is asked with a lookup forced,
    and the former values are set back. Meanwhile everybody gets the new values: use a knowledge base of your own.
    """
    rewrites = _read(records, limit)
    with Runtime.from_environment(checkpoint=checkpoint) as runtime:
        runtime.open()
        if dry_run:
            _preview(StandingDocuments.of(runtime.kb, corpus, rewrites), corpus, rewrites)
            return
        config = DecodeConfig(
            mode="forced", max_tokens=max_tokens, repetition_penalty=1.0, threshold=threshold, until_hit=True
        )
        audit = UpdateAudit.prepare(
            runtime, corpus, rewrites, config, actor=runtime.actor(actor), reason=reason
        )
        run = {
            "checkpoint_id": runtime.checkpoint.checkpoint_id,
            "corpus": corpus,
            "records_sha256": digest(records),
            "records": len(rewrites),
            "live_facts": sum(one.facts for one in runtime.kb.corpora.all()),
            "max_tokens": max_tokens,
            "threshold": threshold,
        }
        log = open_log(out, run)
        asked = prompts(rewrites)
        with counting("Asking", len(PHASES) * len(asked)) as done:
            before, after, undone = audit.run(log, batch, done)
        fact_ids = {document: fact.fact_id for document, fact in audit.facts.items()}
        report: dict[str, Any] = {
            "checkpoint": runtime.checkpoint.config.name,
            "seed": seed,
            **run,
            "prompts": len(asked),
            **measure(rewrites, fact_ids, before, after, undone, seed).as_json(),
            "is_restored": audit.is_restored() and all(undone[p].is_as(before[p]) for p in asked),
        }
    print_report(report)
    if not report["is_restored"]:
        note("warning: not every answer is as it was; did somebody else edit meanwhile?")


def _read(records: Path, limit: int | None) -> list[Rewrite]:
    try:
        return read_rewrites(records)[:limit]
    except EvaluationFileError as error:
        raise typer.BadParameter(f"{error}.", param_hint="--records") from error


def _preview(standing: StandingDocuments, corpus: str, rewrites: list[Rewrite]) -> None:
    statements = len(documents(rewrites))
    print_report(
        {
            "dry_run": True,
            "corpus": corpus,
            "records": len(rewrites),
            "documents": statements,
            "to_ingest": standing.missing,
            "fact_ids": sorted(fact.fact_id for fact in standing.facts.values()),
            "prompts": len(prompts(rewrites)),
        }
    )
