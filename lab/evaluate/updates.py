"""`colmlm evaluate updates`: gives facts other values, asks for them, and restores the former values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import Actor, AsJson, CheckpointPath, DryRun, Threshold, examples, some_text
from colmlm.cli.output import counting, note, print_json, print_table, say
from colmlm.lab.evaluate.kept import open_log
from colmlm.lab.methods.update_audit import PHASES, REASON, StandingDocuments, UpdateAudit
from colmlm.model.decoding.config import DecodeConfig
from colmlm.model.evaluate.question_sets import digest
from colmlm.model.evaluate.updates import Rewrite, RewriteError, documents, measure, prompts, read_rewrites

EXAMPLES = examples(
    "colmlm evaluate updates --records counterfact.json --limit 50 --dry-run",
    "colmlm evaluate updates --records counterfact.json --out updates.jsonl --json",
)


def updates(
    records: Annotated[
        Path,
        typer.Option("--records", exists=True, dir_okay=False, help="Records in CounterFact's form (JSON)."),
    ],
    corpus: Annotated[
        str, typer.Option("--corpus", callback=some_text, help="Where their statements are, or go.")
    ] = "counterfact",
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="How many records, from the first. Default: all.")
    ] = None,
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
    json_wanted: AsJson = False,
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
            _preview(StandingDocuments.of(runtime.kb, corpus, rewrites), corpus, rewrites, json_wanted)
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
    print_json(report) if json_wanted else _show(report)
    if not report["is_restored"]:
        note("warning: not every answer is as it was; did somebody else edit meanwhile?")


def _read(records: Path, limit: int | None) -> list[Rewrite]:
    try:
        return read_rewrites(records)[:limit]
    except RewriteError as error:
        raise typer.BadParameter(f"{error}.", param_hint="--records") from error


def _preview(standing: StandingDocuments, corpus: str, rewrites: list[Rewrite], json_wanted: bool) -> None:
    statements = len(documents(rewrites))
    if json_wanted:
        print_json(
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
        return
    say(f"{standing.missing} of {statements} documents would be ingested into {corpus} and keyed.")
    say(f"{len(rewrites)} facts would have another value while {len(prompts(rewrites))} prompts are asked.")


def _show(report: dict[str, Any]) -> None:
    names = {
        "found": "fact looked up before",
        "efficacy": "new value given",
        "efficacy_where_found": "of those looked up",
        "old_value": "old value given still",
        "paraphrase_found": "paraphrase: fact looked up before",
        "paraphrase": "paraphrase: new value given",
        "paraphrase_where_found": "of those looked up",
        "locality": "neighbours answered as before",
        "undone": "as before when undone",
    }
    rows = [
        (label, f"{one['share']:.3f}", f"{one['low']:.3f} to {one['high']:.3f}", one["prompts"])
        for name, label in names.items()
        if (one := report[name])
    ]
    print_table(("of the prompts", "share", "95 % interval", "prompts"), rows)
    note(f"{report['checkpoint']}: {report['records']} records, {report['live_facts']} live facts")
