"""`colmlm rekey` and `colmlm keysets`: give facts keys of a checkpoint, and list, create, build and retire keysets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colmlm.cli.asking import require_somebody
from colmlm.cli.bases.anywhere import anywhere
from colmlm.cli.bases.protocol import Base
from colmlm.cli.bulk.place import Ray, RayWorkers
from colmlm.cli.composition.encoders import ByEncoder, chosen
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.errors import CHECK_FAILED
from colmlm.cli.keysets.calibration import CALIBRATE_EXAMPLES, THRESHOLD_EXAMPLES, calibrate, threshold
from colmlm.cli.options import (
    Actor,
    CheckpointPath,
    KeysetId,
    Reason,
    Yes,
    examples,
    finite,
    some_text,
    wants_json,
)
from colmlm.cli.output import note, print_json, print_table, progress, say
from colmlm.kb.keys.records import MAX_EDITS, RECALL
from colmlm.kb.switching.limits import GateLimits

if TYPE_CHECKING:
    from colmlm.kb.keys.records import GateStanding, IndexFit, KeysetRecord

    pass
    from colmlm.kb.keys.records import Adapting


# `colmlm keysets check`, `activate` and `rollback`: measure whether a keyset may answer, and switch to it and
# back.

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
    print_json(report) if wants_json() else _show_keyset_gate(report)
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
    _switched(keyset)


@anywhere
def rollback(base: Base, reason: Reason = "rollback", actor: Actor = None) -> None:
    """Activate again, at once, the keyset that was active before this one. A second rollback undoes the first."""
    keyset = base.keysets.rollback(actor=base.actor(actor), reason=reason)
    _switched(keyset)


def _switched(keyset: KeysetRecord) -> None:
    print_json(keyset) if wants_json() else say(
        f"Keyset {keyset.keyset_id} ({keyset.checkpoint_name}) is active."
    )
    if keyset.num_unkeyed:
        note(
            f"{keyset.num_unkeyed} facts have no key in it and are not found. "
            f"Run: colmlm keysets rekey {keyset.keyset_id}"
        )


def _show_keyset_gate(report: dict[str, Any]) -> None:
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


REKEY_EXAMPLES = examples(
    "colmlm rekey",
    "colmlm rekey --checkpoint runs/mine --corpus handbook",
    "colmlm rekey --encoder minilm",
    "colmlm rekey --kinds context,question",
    "colmlm rekey --adapt --checkpoint runs/mine --json",
    "colmlm rekey --ray auto",
    "colmlm rekey --ray 10.0.0.5:6379 --ray-workers 16",
)
Corpus = Annotated[str | None, typer.Option("--corpus", help="Only this corpus.")]


class Kinds(StrEnum):
    context = "context"
    both = "context,question"


KeyKinds = Annotated[
    Kinds | None,
    typer.Option(
        "--kinds",
        help="What facts of documents are keyed from: the text before them, or their question as well. "
        "Default: context. A keyset that has keys of questions goes on getting them.",
    ),
]

# The options of `--adapt`, by which a rekey predicts keys from another keyset's, and what is shown of it.


class MapMethod(StrEnum):
    auto = "auto"
    procrustes = "procrustes"
    ridge = "ridge"


Adapt = Annotated[
    bool,
    typer.Option(
        "--adapt", help="Key a sample of the facts, and predict the other keys from those of another keyset."
    ),
]
FromKeyset = Annotated[
    int | None,
    typer.Option("--from", min=1, help="With --adapt: the keyset to predict from. Default: the active one."),
]
Sample = Annotated[
    int | None,
    typer.Option(
        "--sample",
        min=10,
        max=1_000_000,
        help="With --adapt: how many facts to key. Default: 1 %, at least 250.",
    ),
]
Method = Annotated[
    MapMethod | None,
    typer.Option("--method", help="With --adapt: how the map is fitted. Default: auto, the better one."),
]

_COLUMNS = (
    "kind", "from", "to", "facts", "predicted", "sample", "method", "recall_at_1", "recall_at_1_true",
    "recall_at_1_old", "seconds", "seconds_true",
)  # fmt: skip


def adapting_by(
    adapt: bool, from_keyset: int | None, sample: int | None, method: MapMethod | None, **others: object
) -> Adapting:
    """Gives what the options say.

    Raises `BadParameter` for those that mean nothing without --adapt, and for the `others` with it.
    """
    how: Adapting = {}
    if from_keyset is not None:
        how["from_keyset_id"] = from_keyset
    if sample is not None:
        how["sample"] = sample
    if method is not None:
        how["method"] = str(method)
    if how and not adapt:
        raise typer.BadParameter("it needs --adapt.", param_hint="--from, --sample, --method")
    if adapt and (
        idle := [f"--{name.replace('_', '-')}" for name, given in others.items() if given is not None]
    ):
        what = (
            "with --adapt a sample is keyed here, and the kinds of key are those that the other keyset has."
        )
        raise typer.BadParameter(what, param_hint=", ".join(idle))
    return how


def show_adapted(made: dict[str, Any]) -> None:
    """Prints what was done for each kind of key, and says so where that is nothing."""
    if not any(pair["predicted"] for pair in made["pairs"]):
        keyset_id = made["keyset"]["keyset_id"]
        note(
            f"Nothing was predicted anew; keyset {keyset_id} has keys of all facts that the other keyset has keys of. "
            f"For another sample or method, drop them first: colmlm keysets retire {keyset_id}"
        )
    if wants_json():
        print_json(made)
        return
    print_table(
        _COLUMNS, [[_format_prediction(pair[column]) for column in _COLUMNS] for pair in made["pairs"]]
    )


def _format_prediction(value: object) -> object:
    return "not measured" if value is None else value


app = typer.Typer(
    help="Make, check, activate, calibrate and retire keysets.", epilog=examples("colmlm keysets list")
)
app.command("check", epilog=CHECK_EXAMPLES)(check)
app.command("activate", epilog=ACTIVATE_EXAMPLES)(activate)
app.command("rollback", epilog=ROLLBACK_EXAMPLES)(rollback)
app.command("calibrate", epilog=CALIBRATE_EXAMPLES)(calibrate)
app.command("threshold", epilog=THRESHOLD_EXAMPLES)(threshold)


def rekey(
    checkpoint: CheckpointPath = None,
    encoder: ByEncoder = None,
    corpus: Corpus = None,
    kinds: KeyKinds = None,
    adapt: Adapt = False,
    from_keyset: FromKeyset = None,
    sample: Sample = None,
    method: Method = None,
    ray: Ray = None,
    ray_workers: RayWorkers = None,
) -> None:
    """Give every live fact that has none a key of the checkpoint. If it was stopped, run it again to resume.

    The new keyset is calibrated at the end. It answers at once where no other is active, else once it is activated.
    Several such commands may run at once, on one machine or many; they share the work. With --adapt, keys are made of a
    sample alone and predicted for all others; the next rekey makes those true, the facts that are asked for first.
    With --ray, the processes of a cluster make them, or those of this machine's cores.
    """
    from colmlm.cli.composition import adapting
    from colmlm.cli.composition.keying import key_everything

    how = adapting_by(adapt, from_keyset, sample, method, kinds=kinds, ray=ray, ray_workers=ray_workers)
    with Runtime.from_environment(checkpoint=checkpoint) as runtime:
        runtime.use_ray(ray, ray_workers)
        runtime.open()
        made_by = chosen(runtime, encoder, checkpoint)
        if adapt:
            show_adapted(adapting.adapt(runtime.kb, made_by, runtime.telling, corpus, how))
            return
        of = kinds or Kinds.context
        keyset = key_everything(
            runtime, corpus=corpus, encoder=made_by, kinds=of, replace=True, named=checkpoint
        )
    print_json(keyset) if wants_json() else _show([keyset])


@app.command("list", epilog=examples("colmlm keysets list", "colmlm keysets list --json"))
@anywhere
def list_keysets(base: Base) -> None:
    """List the keysets: their checkpoints, which one is active, how many facts lack a key, and their gates."""
    found = base.keysets.listed()
    if wants_json():
        print_json({"keysets": [asdict(keyset) | {"gate": asdict(gate)} for keyset, gate in found]})
    else:
        _show([keyset for keyset, _ in found], [gate for _, gate in found])


@app.command(
    epilog=examples(
        "colmlm keysets create --checkpoint runs/mine --index-spec IVF1024,PQ32",
        "colmlm keysets create --index-spec milvus:facts",
    )
)
def create(
    checkpoint: CheckpointPath = None,
    encoder: ByEncoder = None,
    index_spec: Annotated[
        str | None,
        typer.Option(
            "--index-spec",
            help="A Faiss factory string, or milvus:COLLECTION. Default: by the number of facts.",
        ),
    ] = None,
) -> None:
    """Make an empty keyset of a checkpoint, or show the one it has. It is needed only to choose the index."""
    from colmlm.kb.lookup.in_process import require_spec

    with Runtime.from_environment(checkpoint=checkpoint) as runtime:
        runtime.open()
        made_by = chosen(runtime, encoder, checkpoint).checkpoint
        if index_spec is not None:
            require_spec(made_by.dim, index_spec)  # now, and not only at the build after the keying
        keyset = runtime.kb.keysets.show(runtime.kb.keysets.create(made_by, index_spec).keyset_id)
    print_json(keyset) if wants_json() else _show([keyset])


@app.command(
    "rekey",
    epilog=examples(
        "colmlm keysets rekey 2", "colmlm keysets rekey 2 --corpus handbook", "colmlm keysets rekey 2 --adapt"
    ),
)
@anywhere
def rekey_one(
    base: Base,
    keyset_id: KeysetId,
    checkpoint: CheckpointPath = None,
    corpus: Corpus = None,
    kinds: KeyKinds = None,
    adapt: Adapt = False,
    from_keyset: FromKeyset = None,
    sample: Sample = None,
    method: Method = None,
    ray: Ray = None,
    ray_workers: RayWorkers = None,
) -> None:
    """Make the keys that a keyset lacks, with its own checkpoint, from where that was registered.

    Keys that were predicted are made as well, and take their place. With --server a job there does it, and the command
    waits for that.
    """
    how = adapting_by(adapt, from_keyset, sample, method, kinds=kinds, ray=ray, ray_workers=ray_workers)
    base.use_ray(ray, ray_workers)
    if adapt:
        show_adapted(base.keysets.adapt(keyset_id, corpus=corpus, checkpoint=checkpoint, **how))
        return
    keyset = base.keysets.rekey(keyset_id, corpus=corpus, kinds=kinds or Kinds.context, checkpoint=checkpoint)
    print_json(keyset) if wants_json() else _show([keyset])


@app.command(epilog=examples("colmlm keysets build 2"))
def build(
    keyset_id: KeysetId,
    recall: Annotated[
        float,
        typer.Option(
            "--recall", min=0.5, max=1.0, help="The share of nearest keys that lookups are to find."
        ),
    ] = RECALL,
) -> None:
    """Rebuild a keyset's index, trained on all its keys, and write the snapshot that servers open."""
    with Runtime.from_environment() as runtime, progress("Keys indexed") as advance:
        built = runtime.kb.keysets.build(keyset_id, recall=recall, on_keys=advance)
    if wants_json():
        print_json(built)
    else:
        fit = _fitted(built.index_spec, built.fit)
        say(f"Keyset {keyset_id}: {built.num_keys} keys in {fit}, up to change {built.seq}.")


@app.command(epilog=examples("colmlm keysets retire 1 --dry-run", "colmlm keysets retire 1 --yes"))
@anywhere
def retire(
    base: Base,
    keyset_id: KeysetId,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be dropped and stop.")] = False,
    yes: Yes = False,
    reason: Reason = "retire",
    actor: Actor = None,
) -> None:
    """Drop a keyset's keys for good; only a rekey brings them back. The active one is refused."""
    require_somebody(yes or dry_run, "retire")
    keyset = base.keysets.retirable(keyset_id)
    if not (dry_run or yes):
        count = f"the {keyset.num_keys} keys of keyset {keyset_id} ({keyset.checkpoint_name})"
        typer.confirm(f"Drop {count} for good?", abort=True, err=True)
    if not dry_run:
        base.keysets.retire(keyset_id, actor=base.actor(actor), reason=reason)
    if wants_json():
        print_json({"keyset_id": keyset_id, "dry_run": dry_run, "num_keys": keyset.num_keys})
    else:
        say(f"{'Would drop' if dry_run else 'Dropped'} {keyset.num_keys} keys of keyset {keyset_id}.")


def _show(keysets: list[KeysetRecord], gates: Sequence[GateStanding | None] | None = None) -> None:
    columns = (
        "id", "checkpoint", "state", "keys", "predicted", "unkeyed", "threshold", "index", "applied change", "gate"
    )  # fmt: skip
    rows = [
        (k.keyset_id, k.checkpoint_name, k.state, k.num_keys, k.num_predicted, k.num_unkeyed,
         f"{k.threshold:.3f}{'' if k.calibrated else ' (not calibrated)'}", _fitted(k.index_spec, k.index_fit),
         k.applied_seq, gate)
        for k, gate in zip(keysets, [_format_gate(gate) for gate in gates or [None] * len(keysets)], strict=True)
    ]  # fmt: skip
    print_table(columns, rows)


def _fitted(spec: str, fit: IndexFit | None) -> str:
    """Gives the spec of an index, how many of its lists a search reads, and how many candidates a lookup scores."""
    if fit is None or not fit.lists:
        return spec
    recall = "" if fit.recall is None else f", recall {fit.recall:.3f}"
    scored = "" if fit.spare is None else f", {2 + fit.spare} candidates"
    return f"{fit.spec}, {fit.lists_read} of {fit.lists} lists{scored}{recall}"


def _format_gate(gate: GateStanding | None) -> str:
    if gate is None or not gate.checked:
        return ""
    said = "passed" if gate.passed else f"failed ({', '.join(gate.failed)})"
    return f"{said} at change {gate.seq}, {gate.edits_since} edits ago"
