"""`colmlm demo`: shows that an edit of the knowledge base is an edit of what the model says."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.errors import CHECK_FAILED
from colmlm.cli.options import examples, wants_json
from colmlm.cli.output import count_of, print_json, print_table, progress, say, shorten
from colmlm.kb.evidence.generation import GenerationRequest
from colmlm.kb.lookup.options import KEY

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from colmlm.kb.evidence.records import OutputTrace, TracedSplice
    from colmlm.kb.facts.records import FactRecord
    from colmlm.kb.lookup.records import Lookup
    from colmlm.kb.service import KnowledgeBase

    Vectors = NDArray[np.float32]

EXAMPLES = examples("colmlm demo", "colmlm demo --facts 5 --mode forced", "colmlm demo --json > demo.json")


class DemoMode(StrEnum):
    auto = "auto"
    forced = "forced"


def demo(
    facts: Annotated[
        int, typer.Option("--facts", min=1, max=10_000, help="How many facts to show it on.")
    ] = 20,
    mode: Annotated[
        DemoMode, typer.Option("--mode", help="Let the model decide when to look up, or look up at once.")
    ] = DemoMode.auto,
    corpus: Annotated[str, typer.Option("--corpus", help="Whose facts.")] = "demo",
) -> None:
    """Ask for facts, delete them, ask again, restore them, ask a third time. Run `colmlm up` first.

    The knowledge base is left as it was before. Facts that the model does not find to begin with are counted and
    skipped. The exit code is 0 where the first run passes and no lookup of any run returned a deleted fact.
    """
    with Runtime.from_environment() as runtime:
        runtime.kb.facts.find(corpus=corpus, limit=1)  # raises for an unknown corpus before a model is loaded
        demonstration = Demonstration(runtime, corpus, mode)
        runs = _run(demonstration, facts)
    report = _report(demonstration, runs)
    print_json(report) if wants_json() else _show(report, runs)
    if not runs or not runs[0].has_passed or any(run.leaked for run in runs):
        raise typer.Exit(CHECK_FAILED)


def _run(demonstration: Demonstration, wanted: int) -> list[DemoRun]:
    runs: list[DemoRun] = []
    with progress("Deleting and restoring facts") as advance:
        advance(0, wanted)
        for run in demonstration.runs(wanted):
            if run is not None:
                runs.append(run)
            advance(len(runs), wanted)
    return runs


def _report(demonstration: Demonstration, runs: list[DemoRun]) -> dict[str, Any]:
    """Give the fields of the first run, then all runs and the counts, for JSON."""
    nothing = dict.fromkeys(("prompt", "before", "deleted_seq", "after", "restored"))
    shown = [{**asdict(run), "passed": run.has_passed} for run in runs]
    first = (
        {name: value for name, value in shown[0].items() if name not in ("passed", "reasons")}
        if shown
        else nothing
    )
    return {
        **first,
        "leaked": runs[0].leaked if runs else False,
        "mode": str(demonstration.mode),
        "checkpoint_id": demonstration.checkpoint_id,
        "passed": sum(run.has_passed for run in runs),
        "total": len(runs),
        "tried": demonstration.tried,
        "not_found_before": demonstration.not_found_before,
        "leaks": sum(run.leaked for run in runs),
        "parametric_runs": sum(run.parametric for run in runs),
        "runs": shown,
    }


def _show(report: dict[str, Any], runs: list[DemoRun]) -> None:
    if not runs:
        say(
            f"None of {count_of(report['tried'], 'fact')} was found by the model, so there is nothing to show."
        )
        return
    first = runs[0]
    say(first.prompt)
    say(f"  before:   {first.before.output.strip()}")
    say(
        f"            fact {first.before.fact_id}, {first.before.document}[{first.before.start}:{first.before.end}]"
    )
    say(f"  deleted:  {len(first.deleted)} statement(s) of it, change {first.deleted_seq}")
    say(f"  after:    {_describe_after(first)}")
    say(f"  restored: {first.restored.output.strip()}")
    say()
    print_table(("fact", "question", "before", "after", "passed"), map(_row, runs))
    for run in runs:
        for reason in run.reasons:
            say(f"fact {run.fact_id}: {reason}")
    say(
        f"{report['passed']} of {report['total']} passed; leaks {report['leaks']}; said from the model's own weights "
        f"{report['parametric_runs']}; not found to begin with {report['not_found_before']} of {report['tried']}"
    )


def _describe_after(run: DemoRun) -> str:
    """Give the output after the deletion, marked as uncited if no fact was spliced or the value is from the weights."""
    said = run.after.output.strip()
    if run.parametric:
        return f"{said} (uncited, from its weights)"
    return said if run.after.fact_id is not None else f"{said} (uncited)"


def _row(run: DemoRun) -> tuple[object, ...]:
    return (
        run.fact_id, shorten(run.question, 50), shorten(run.before.output, 30), shorten(_describe_after(run), 60),
        "yes" if run.has_passed else "NO",
    )  # fmt: skip


STATEMENTS_SOUGHT = 50
LEAKS_SOUGHT = 10
TRIES_PER_RUN = 10
ANY_SCORE = -1.0  # a threshold that every score reaches
REASON = "colmlm demo"


@dataclass(frozen=True, slots=True)
class DemoAnswer:
    """An output, with the first fact spliced into it: the text of `document` holds `value` at [start, end)."""

    output: str
    fact_id: int | None = None
    value: str | None = None
    score: float | None = None
    document: str | None = None
    document_id: int | None = None
    start: int | None = None
    end: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRun:
    """One run of the demo, on one fact. `deleted` has the ids of all facts that say the same, deleted together.

    `leaked`: a lookup after that still returned one of them. `parametric`: the output says the value outside of all
    splices, so it comes from the model's weights, which no deletion changes. `restated`: a live fact of the same
    value, which was not recognised as a statement of this one, was spliced instead.
    """

    fact_id: int
    question: str
    value: str
    prompt: str
    before: DemoAnswer
    deleted: tuple[int, ...]
    deleted_seq: int
    after: DemoAnswer
    restored: DemoAnswer
    leaked: bool
    parametric: bool
    restated: bool
    reasons: tuple[str, ...]

    @property
    def has_passed(self) -> bool:
        return not self.reasons


@dataclass(slots=True)
class Recorder:
    """A lookup that keeps the decoder's queries, so that they can be looked up again."""

    kb: KnowledgeBase
    queries: list[Vectors] = field(default_factory=list)

    def find(self, queries_BD: Vectors, **asked: Any) -> list[Lookup]:
        self.queries.append(queries_BD)
        return self.kb.lookups.find(queries_BD, **asked)


class Demonstration:
    """The demo on one corpus. `tried` counts the facts so far, `not_found_before` those that the model did not find."""

    def __init__(self, runtime: Runtime, corpus: str, mode: str) -> None:
        from colmlm.cli.composition.generator import LocalOutputs, StoringGenerator

        self.runtime, self.kb, self.mode = runtime, runtime.kb, mode
        self.facts = spread_by_document([fact for fact in self.kb.facts.every(corpus) if fact.question])
        keyset = self.kb.keysets.active()
        self.checkpoint_id = runtime.encoder.checkpoint.checkpoint_id
        fact_ids, keys_ND = self.kb.keysets.keys(keyset.keyset_id)
        self.keys = dict(zip(fact_ids.tolist(), keys_ND, strict=True))
        self.recorder = Recorder(self.kb)
        self.generator = StoringGenerator(
            runtime.checkpoint, LocalOutputs(self.kb), self.recorder, ranking=KEY
        )
        self.tried = self.not_found_before = 0

    def runs(self, wanted: int) -> Iterator[DemoRun | None]:
        """Yield up to `wanted` runs, each once it is done, and None for every fact that the model did not find."""
        found = 0
        for fact in self.facts[: wanted * TRIES_PER_RUN]:
            if found == wanted:
                return
            self.tried += 1
            run = self._run(fact)
            found += run is not None
            self.not_found_before += run is None
            yield run

    def _run(self, fact: FactRecord) -> DemoRun | None:
        import numpy as np

        assert fact.question is not None
        prompt = f"Question: {fact.question}\nAnswer:"
        self.recorder.queries.clear()
        question_key = self.runtime.encoder.encode_questions([fact.question])
        statements = self._statements(fact, question_key)
        request = GenerationRequest(
            prompt=prompt, mode=self.mode, max_tokens=24, stop=("\n",), on_miss="continue"
        )
        before = self._ask(request)
        if before.fact_id not in statements or not self._is_right_source(before):
            return None
        own_keys = [self.keys[fact_id][None] for fact_id in statements if fact_id in self.keys]
        seq_before = self.kb.log.head_seq()
        try:
            deleted = self.kb.facts.delete(statements, actor=self.runtime.settings.actor, reason=REASON)
            trace = self.generator.generate(replace(request, min_seq=deleted.seq))
            queries_BD = np.concatenate([question_key, *own_keys, *self.recorder.queries])
            returned = self._still_returned(queries_BD, set(statements), deleted.seq)
        finally:
            restored_seq = self._restore(statements, seq_before)
        restored = self._ask(replace(request, min_seq=restored_seq))
        cited = {s.fact_id for s in trace.splices if s.fact_id is not None}
        leaked = bool(returned or cited & set(statements))
        return DemoRun(
            fact_id=fact.fact_id,
            question=fact.question,
            value=fact.value,
            prompt=prompt,
            before=before,
            deleted=tuple(statements),
            deleted_seq=deleted.seq,
            after=self._demo_answer(trace),
            restored=restored,
            leaked=leaked,
            parametric=says_unaided(trace, fact.value),
            restated=any(is_same_value(s.value, fact.value) for s in _hits(trace)),
            reasons=_reasons(before, restored, cited & set(statements), returned),
        )

    def _statements(self, fact: FactRecord, question_key: Vectors) -> list[int]:
        """Find the ids of the fact and of live facts that say the same: with its question, or near it with its value.

        A fact is near if a lookup of the question returns it. Facts of the same value further away are other
        facts: two things may have happened in one year.
        """
        (near,) = self.kb.lookups.find(question_key, checkpoint_id=self.checkpoint_id, k=STATEMENTS_SOUGHT)
        found = {fact.fact_id} | {hit.fact_id for hit in near.hits if is_same_value(hit.value, fact.value)}
        asked_alike = self.kb.facts.find(text=fact.question, limit=1000)
        return sorted(found | {other.fact_id for other in asked_alike if other.question == fact.question})

    def _ask(self, request: GenerationRequest) -> DemoAnswer:
        return self._demo_answer(self.generator.generate(request))

    def _demo_answer(self, trace: OutputTrace) -> DemoAnswer:
        first = next(iter(_hits(trace)), None)
        if first is None:
            return DemoAnswer(trace.output)
        said = DemoAnswer(trace.output, first.fact_id, first.value, first.score)
        if (source := first.source) is None:
            return said
        return replace(
            said,
            document=source.external_id,
            document_id=source.document_id,
            start=source.start,
            end=source.end,
        )

    def _is_right_source(self, said: DemoAnswer) -> bool:
        if said.document_id is None:
            return False
        return self.kb.documents.text(said.document_id)[said.start : said.end] == said.value

    def _still_returned(self, queries_BD: Vectors, deleted: set[int], seq: int) -> set[int]:
        found = self.kb.lookups.find(
            queries_BD, checkpoint_id=self.checkpoint_id, k=LEAKS_SOUGHT, threshold=ANY_SCORE, min_seq=seq
        )
        return {hit.fact_id for one in found for hit in one.hits} & deleted

    def _restore(self, statements: Sequence[int], seq_before: int) -> int:
        """Restore those of the facts that were deleted after change `seq_before`; give the `seq` of the last change."""
        records = self.kb.facts.show_many(statements)
        gone = [record.fact_id for record in records if (record.deleted_seq or 0) > seq_before]
        if not gone:
            return self.kb.log.head_seq()
        return self.kb.facts.restore(gone, actor=self.runtime.settings.actor, reason=REASON).seq


def _reasons(
    before: DemoAnswer, restored: DemoAnswer, cited: set[int], returned: set[int]
) -> tuple[str, ...]:
    """Give the reasons why a run did not pass; none if it did."""
    reasons = []
    if cited:
        reasons.append(f"the output after the deletion cites deleted facts: {sorted(cited)}")
    if returned:
        reasons.append(f"lookups after the deletion return deleted facts: {sorted(returned)}")
    if (restored.output, restored.fact_id) != (before.output, before.fact_id):
        reasons.append("the output after the restore is not the one before the deletion")
    return tuple(reasons)


def _hits(trace: OutputTrace) -> list[TracedSplice]:
    return [splice for splice in trace.splices if splice.outcome == "hit"]


def is_same_value(value: str, other: str) -> bool:
    from colmlm.kb.keys.calibration import normalise_value

    return normalise_value(value) == normalise_value(other)


def says_unaided(trace: OutputTrace, value: str) -> bool:
    """Tell whether the output says the value outside of all its splices."""
    said = list(trace.output)
    for splice in _hits(trace):
        said[splice.output_start : splice.output_end] = "\0" * (splice.output_end - splice.output_start)
    return value.casefold() in "".join(said).casefold()


def spread_by_document(facts: Sequence[FactRecord]) -> list[FactRecord]:
    """Order the facts so that one of every document comes before a second of any.

    Documents are ordered by a hash of their names, since a corpus is often ordered by subjects.
    """
    documents: defaultdict[str, list[FactRecord]] = defaultdict(list)
    for fact in facts:
        documents[fact.source.external_id if fact.source else ""].append(fact)
    ordered = [documents[name] for name in sorted(documents, key=_digest)]
    rounds: Iterator[tuple[Any, ...]] = zip_longest(*ordered)
    return [fact for one_of_each in rounds for fact in one_of_each if fact is not None]


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()
