"""`colmlm-lab evaluate updates`: gives facts other values, asks for them, and restores the former values."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from colmlm.cli.composition.keying import key_everything
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import Actor, CheckpointPath, DryRun, Threshold, examples, some_text
from colmlm.cli.output import counting, note
from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, Parsed
from colmlm.kb.errors import KeysetMismatch, NoActiveKeyset, NotFound, describe_misread
from colmlm.kb.facts.records import FactEdit, FactRecord
from colmlm.kb.service import KnowledgeBase
from colmlm.lab.bench.machine import print_report
from colmlm.lab.evaluate.kept import FromTheFirst, open_log
from colmlm.model.decoding.config import DecodeConfig
from colmlm.model.decoding.decoder import Decoder
from colmlm.model.evaluate.answers import Output, digest, exact_match, fold_text
from colmlm.model.evaluate.run_log import EvaluationFileError, RunLog, bootstrap, share_bounds

# Measures of value updates: a corrected fact is given wherever it is asked for, and no other answer changes.
#
# The records are CounterFact's: a prompt that an object completes, another object to put in its place, paraphrases of
# the prompt, and prompts of neighbours that the same object completes. *Efficacy* is the share of prompts that give
# the new object, *paraphrase* the same share of the paraphrases, *locality* the share of neighbours that are answered
# as before. A record's prompts depend on each other, so intervals are by bootstrap over records.


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One record: `prompt` is completed by `value`, and by `new_value` once that is updated."""

    prompt: str
    value: str
    new_value: str
    paraphrases: tuple[str, ...]
    neighbours: tuple[str, ...]

    @property
    def document(self) -> str:
        """Give the name of the document that holds its fact."""
        return _document_name(self.prompt, self.value)

    @property
    def prompts(self) -> tuple[str, ...]:
        return (self.prompt, *self.paraphrases, *self.neighbours)


@dataclass(frozen=True, slots=True)
class PromptAnswer:
    """The answer to a prompt: the value and fact that its first lookup found (None: no match), and the whole output."""

    output: str
    value: str | None
    fact_id: int | None

    @classmethod
    def of(cls, generated: Output) -> PromptAnswer:
        first = generated.splices[0] if generated.splices else None
        if first is None or first.outcome != "hit":
            return cls(generated.output, None, None)
        return cls(generated.output, generated.output[first.output_start : first.output_end], first.fact_id)

    def gives(self, value: str) -> bool:
        """Tell whether the answer is this value: what the lookup found or, without a match, the model's own words."""
        if self.value is None:
            return exact_match(self.output, [value])
        return fold_text(self.value) == fold_text(value)

    def is_as(self, other: PromptAnswer) -> bool:
        if self.value is None or other.value is None:
            return self.value is other.value and self.output == other.output
        return fold_text(self.value) == fold_text(other.value)


Answers = Mapping[str, PromptAnswer]  # by prompt


@dataclass(frozen=True, slots=True)
class Portion:
    """A share of `prompts`, with its 95 % interval by bootstrap over records."""

    share: float
    low: float
    high: float
    prompts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateFigures:
    """All figures. `found` is the share of prompts whose own fact was looked up before the update; None: no prompts.

    `old_value` is the share of updated prompts that still give the former value. Neighbours whose prompt is itself
    updated by another record are left out of locality. `undone` is the share of all prompts that are answered as before
    once the updates are undone.
    """

    found: Portion | None
    efficacy: Portion | None
    efficacy_where_found: Portion | None
    old_value: Portion | None
    paraphrase_found: Portion | None
    paraphrase: Portion | None
    paraphrase_where_found: Portion | None
    locality: Portion | None
    undone: Portion | None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def read_rewrites(path: Path) -> list[Rewrite]:
    """Read the records of a file in CounterFact's form. Raises `EvaluationFileError`."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise EvaluationFileError(f"{path.name} is no JSON ({error}); name CounterFact's file") from error
    if not isinstance(rows, list) or not rows:
        raise EvaluationFileError(f"{path.name} is no list of records; name a file in CounterFact's form")
    found = [_rewrite(f"{path.name}, record {number}", row) for number, row in enumerate(rows, start=1)]
    if len({one.document for one in found}) < len(found):
        raise EvaluationFileError(f"{path.name} updates a fact twice; leave one of its records out")
    return found


def _rewrite(where: str, row: Any) -> Rewrite:
    try:
        asked = row["requested_rewrite"]
        return Rewrite(
            _text(asked["prompt"].format(_text(asked["subject"]))),
            _text(asked["target_true"]["str"]),
            _text(asked["target_new"]["str"]),
            tuple(map(_text, row["paraphrase_prompts"])),
            tuple(map(_text, row["neighborhood_prompts"])),
        )
    except (TypeError, KeyError, AttributeError, IndexError, ValueError) as error:
        raise EvaluationFileError(
            f"{where} is no record of an update ({describe_misread(error)}); write it as CounterFact does"
        ) from error


def _text(found: Any) -> str:
    if not isinstance(found, str) or not found.strip():
        raise ValueError("a text is missing")
    return found.strip()


def documents(rewrites: Sequence[Rewrite]) -> list[AnnotatedDocument]:
    """Make a document for each statement: first those that are updated, then the neighbours' with their object.

    The updated ones come first and so are the older facts: if a neighbour of another record has the same prompt and
    another object, their keys are equal and the tie goes to the updated fact.
    """
    statements = [(one.prompt, one.value) for one in rewrites]
    statements += [(prompt, one.value) for one in rewrites for prompt in one.neighbours]
    return [_document(prompt, value) for prompt, value in dict.fromkeys(statements)]


def _document(prompt: str, value: str) -> AnnotatedDocument:
    start = len(prompt) + 1
    span = FactSpan(start, start + len(value), value)
    return AnnotatedDocument(_document_name(prompt, value), f"{prompt} {value}.", (span,))


def _document_name(prompt: str, value: str) -> str:
    return sha256(f"{prompt}\n{value}".encode()).hexdigest()[:16]


def prompts(rewrites: Sequence[Rewrite]) -> list[str]:
    """List every prompt once, since records share neighbours."""
    return list(dict.fromkeys(prompt for one in rewrites for prompt in one.prompts))


def measure(
    rewrites: Sequence[Rewrite],
    fact_ids: Mapping[str, int],
    before: Answers,
    after: Answers,
    undone: Answers,
    seed: int = 0,
) -> UpdateFigures:
    """Compute the figures from the answers before the updates, with them, and after they are undone.

    `fact_ids` are the updated facts by the document they belong to.
    """
    edited = {one.prompt for one in rewrites}

    def finds_fact(one: Rewrite, prompt: str) -> bool:
        return before[prompt].fact_id == fact_ids[one.document]

    def portion(asked: Callable[[Rewrite], Sequence[str]], holds: Callable[[Rewrite, str], bool]) -> Any:
        return _portion([[holds(one, prompt) for prompt in asked(one)] for one in rewrites], seed)

    def gives_new(one: Rewrite, prompt: str) -> bool:
        return after[prompt].gives(one.new_value)

    return UpdateFigures(
        found=portion(lambda one: [one.prompt], finds_fact),
        efficacy=portion(lambda one: [one.prompt], gives_new),
        efficacy_where_found=portion(lambda one: [p for p in [one.prompt] if finds_fact(one, p)], gives_new),
        old_value=portion(lambda one: [one.prompt], lambda one, prompt: after[prompt].gives(one.value)),
        paraphrase_found=portion(lambda one: one.paraphrases, finds_fact),
        paraphrase=portion(lambda one: one.paraphrases, gives_new),
        paraphrase_where_found=portion(
            lambda one: [p for p in one.paraphrases if finds_fact(one, p)], gives_new
        ),
        locality=portion(
            lambda one: [p for p in one.neighbours if p not in edited],
            lambda _, prompt: after[prompt].is_as(before[prompt]),
        ),
        undone=portion(lambda one: one.prompts, lambda _, prompt: undone[prompt].is_as(before[prompt])),
    )


def _portion(holds: Sequence[Sequence[bool]], seed: int) -> Portion | None:
    """Give the share over all prompts; the bootstrap resamples records."""
    kept = [one for one in holds if one]
    if not kept:
        return None
    right_N = np.array([sum(one) for one in kept], dtype=np.float64)
    asked_N = np.array([len(one) for one in kept], dtype=np.float64)

    def measure_share(draw: Callable[[int], NDArray[np.int64]]) -> dict[str, float]:
        rows = draw(len(kept))
        return {"share": float(right_N[rows].sum() / asked_N[rows].sum())}

    share = float(right_N.sum() / asked_N.sum())
    low, high = share_bounds(share, bootstrap(measure_share, seed=seed)["share"], len(kept))
    return Portion(round(share, 4), round(low, 4), round(high, 4), int(asked_N.sum()))


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
