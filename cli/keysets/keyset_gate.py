"""`colmlm keysets check`, `activate` and `rollback`: measure whether a keyset may answer, and switch to it and back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colmlm.cli.bases.anywhere import anywhere
from colmlm.cli.bases.protocol import Base
from colmlm.cli.errors import CHECK_FAILED
from colmlm.cli.options import Actor, AsJson, CheckpointPath, KeysetId, Reason, examples, finite, some_text
from colmlm.cli.output import note, print_json, print_table, say
from colmlm.kb.keys.records import MAX_EDITS
from colmlm.kb.switching.limits import GateLimits

if TYPE_CHECKING:
    from colmlm.kb.keys.records import KeysetRecord

CHECK_EXAMPLES = examples(
    "colmlm keysets check 2", "colmlm keysets check 2 --plot drift.png --max-question-loss 0.05 --json"
)
ACTIVATE_EXAMPLES = examples(
    "colmlm keysets activate 2", 'colmlm keysets activate 2 --force --reason "checked by hand"'
)
ROLLBACK_EXAMPLES = examples(
    "colmlm keysets rollback", 'colmlm keysets rollback --reason "wrong dates" --json'
)

_DEFAULTS = GateLimits()


@anywhere
def check(
    base: Base,
    keyset_id: KeysetId,
    sample: Annotated[
        int, typer.Option("--sample", min=1, max=100_000, help="How many questions, and prefixes, to encode.")
    ] = _DEFAULTS.sample,
    min_recall_at_1: Annotated[
        float, typer.Option(min=0, max=1, callback=finite, help="Of the index, against exact search.")
    ] = _DEFAULTS.min_recall_at_1,
    min_recall_at_10: Annotated[
        float, typer.Option(min=0, max=1, callback=finite, help="The same, of the ten nearest keys.")
    ] = _DEFAULTS.min_recall_at_10,
    max_facts_lost: Annotated[
        int, typer.Option(min=0, help="How many live facts may be without a key.")
    ] = _DEFAULTS.max_facts_lost,
    max_question_loss: Annotated[
        float,
        typer.Option(
            min=0, max=1, callback=finite, help="How far question recall and MRR may fall below the active's."
        ),
    ] = _DEFAULTS.max_question_loss,
    min_agreement: Annotated[
        float, typer.Option(min=0, max=1, callback=finite, help="With what stored outputs looked up.")
    ] = _DEFAULTS.min_agreement,
    min_recall_kept: Annotated[
        float,
        typer.Option(min=0, max=1, callback=finite, help="Of true keys' recall, by keys that are predicted."),
    ] = _DEFAULTS.min_recall_kept,
    questions: Annotated[
        str | None,
        typer.Option("--questions", callback=some_text, help="A set of kept questions to ask, too."),
    ] = None,
    min_right: Annotated[
        float | None,
        typer.Option(
            "--min-right", min=0, max=1, callback=finite, help="The least share of them to be right."
        ),
    ] = None,
    max_wrong: Annotated[
        float | None,
        typer.Option("--max-wrong", min=0, max=1, callback=finite, help="The most of them to be wrong."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", dir_okay=False, help="Write histograms of scores here, as PNG.")
    ] = None,
    checkpoint: CheckpointPath = None,
    active_checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--active-checkpoint",
            exists=True,
            file_okay=False,
            help="Where the active keyset's has moved to.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure a keyset before it answers, and store the report. The exit code is 1 where it fails.

    It loads the checkpoints of the keyset and of the active one from where they were registered. With --server a job
    there does it, and the command waits for that.
    """
    limits = GateLimits(
        sample=sample,
        min_recall_at_1=min_recall_at_1,
        min_recall_at_10=min_recall_at_10,
        max_facts_lost=max_facts_lost,
        max_question_loss=max_question_loss,
        min_agreement=min_agreement,
        min_recall_kept=min_recall_kept,
        questions=questions,
        min_right=min_right,
        max_wrong=max_wrong,
    )
    report = base.keysets.check(
        keyset_id, limits, plot=plot, checkpoint=checkpoint, active_checkpoint=active_checkpoint
    )
    print_json(report) if as_json else _show(report)
    if not report["passed"]:
        raise typer.Exit(CHECK_FAILED)


@anywhere
def activate(
    base: Base,
    keyset_id: KeysetId,
    force: Annotated[
        bool, typer.Option("--force", help="Without a gate that passed lately; this is recorded.")
    ] = False,
    max_edits: Annotated[
        int, typer.Option(min=0, help="How many edits of facts the gate may be behind.")
    ] = MAX_EDITS,
    questions: Annotated[
        str | None,
        typer.Option(
            "--questions", callback=some_text, help="A set of questions that its gate must have asked."
        ),
    ] = None,
    reason: Reason = "activate",
    actor: Actor = None,
    as_json: AsJson = False,
) -> None:
    """Make this keyset the one that answers, in every process. `colmlm keysets rollback` undoes it.

    It must have passed `colmlm keysets check`, unless no keyset is active.
    """
    keyset = base.keysets.activate(
        keyset_id,
        force=force,
        max_edits=max_edits,
        questions=questions,
        actor=base.actor(actor),
        reason=reason,
    )
    _switched(keyset, as_json)


@anywhere
def rollback(base: Base, reason: Reason = "rollback", actor: Actor = None, as_json: AsJson = False) -> None:
    """Activate again, at once, the keyset that was active before this one. A second rollback undoes the first."""
    keyset = base.keysets.rollback(actor=base.actor(actor), reason=reason)
    _switched(keyset, as_json)


def _switched(keyset: KeysetRecord, as_json: bool) -> None:
    print_json(keyset) if as_json else say(f"Keyset {keyset.keyset_id} ({keyset.checkpoint_name}) is active.")
    if keyset.num_unkeyed:
        note(
            f"{keyset.num_unkeyed} facts have no key in it and are not found. "
            f"Run: colmlm keysets rekey {keyset.keyset_id}"
        )


def _show(report: dict[str, Any]) -> None:
    print_table(("criterion", "", "figure", "limit", "note"), map(_row, report["criteria"]))
    what = f"Keyset {report['keyset_id']} at change {report['seq']}"
    active = report["active_keyset_id"]
    against = f" against keyset {active}" if active is not None else ""
    asked = f"{report['num_questions']} questions and {report['num_contexts']} prefixes of stored outputs"
    say(f"{what}{against}, with {asked}: {'passed' if report['passed'] else 'failed'}.")


def _row(criterion: dict[str, Any]) -> tuple[object, ...]:
    figure, limit = criterion["figure"], f"{criterion['limit']:.4g}"
    measured = "not measured" if figure is None else f"{figure:.4g}"
    return criterion["name"], "ok" if criterion["passed"] else "FAILED", measured, limit, criterion["note"]
