"""`colmlm keysets`: makes, fills, checks, activates, lists and retires the keys of checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colmlm.cli.bases.anywhere import anywhere
from colmlm.cli.bases.local_base import Base
from colmlm.cli.composition.bulk.spreading import Ray, RayWorkers
from colmlm.cli.composition.encoders import EncoderName, SentenceKeys
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.errors import CHECK_FAILED
from colmlm.cli.keysets.calibration import THRESHOLD_EXAMPLES, threshold
from colmlm.cli.options import (
    MAX_BIGINT,
    Actor,
    CheckpointPath,
    DryRun,
    KeysetId,
    Reason,
    Yes,
    examples,
    no_nan,
    require_somebody,
    require_with,
    some_text,
    wants_json,
)
from colmlm.cli.output import count_of, note, print_json, print_table, progress, say
from colmlm.kb.errors import NoActiveKeyset
from colmlm.kb.keys.records import MAX_EDITS, GateLimits

if TYPE_CHECKING:
    from colmlm.kb.keys.records import Adapting, GateStanding, IndexFit, KeysetRecord
    from colmlm.kb.keys.rekey import Encoder


# `colmlm keysets check`, `activate` and `rollback`: measure whether a keyset may answer, and switch to it and back.

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
        float, typer.Option(min=0, max=1, callback=no_nan, help="Of the index, against exact search.")
    ] = _DEFAULTS.min_recall_at_1,
    min_recall_at_10: Annotated[
        float, typer.Option(min=0, max=1, callback=no_nan, help="The same, of the ten nearest keys.")
    ] = _DEFAULTS.min_recall_at_10,
    max_facts_lost: Annotated[
        int, typer.Option(min=0, help="How many live facts may be without a key.")
    ] = _DEFAULTS.max_facts_lost,
    max_question_loss: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            callback=no_nan,
            help="How far question recall, MRR and the share answered may fall below the active's.",
        ),
    ] = _DEFAULTS.max_question_loss,
    min_agreement: Annotated[
        float, typer.Option(min=0, max=1, callback=no_nan, help="With what stored outputs looked up.")
    ] = _DEFAULTS.min_agreement,
    min_recall_kept: Annotated[
        float,
        typer.Option(min=0, max=1, callback=no_nan, help="Of true keys' recall, by keys that are predicted."),
    ] = _DEFAULTS.min_recall_kept,
    questions: Annotated[
        str | None,
        typer.Option("--question-set", callback=some_text, help="A set of kept questions to ask, too."),
    ] = None,
    min_right: Annotated[
        float | None,
        typer.Option(
            "--min-right", min=0, max=1, callback=no_nan, help="The least share of them to be right."
        ),
    ] = None,
    max_wrong: Annotated[
        float | None,
        typer.Option("--max-wrong", min=0, max=1, callback=no_nan, help="The most of them to be wrong."),
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
    if wants_json():
        print_json(report)
    else:
        _show_keyset_gate(report)
        if any(one.state == "active" and one.keyset_id == keyset_id for one, _ in base.keysets.listed()):
            note(f"Keyset {keyset_id} is the active one already, so it was compared with no other.")
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
            "--question-set", callback=some_text, help="A set of questions that its gate must have asked."
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
    _print_active_keyset(keyset)


@anywhere
def rollback(base: Base, reason: Reason = "rollback", actor: Actor = None) -> None:
    """Activate again, at once, the keyset that was active before this one. A second rollback undoes the first."""
    keyset = base.keysets.rollback(actor=base.actor(actor), reason=reason)
    _print_active_keyset(keyset)


def _print_active_keyset(keyset: KeysetRecord) -> None:
    print_json(keyset) if wants_json() else say(
        f"Keyset {keyset.keyset_id} ({keyset.checkpoint_name}) is active."
    )
    if keyset.num_unkeyed:
        note(
            f"{count_of(keyset.num_unkeyed, 'fact', 'have')} no key in it and cannot be found. "
            f"Run: colmlm keysets fill {keyset.keyset_id}"
        )


def _show_keyset_gate(report: dict[str, Any]) -> None:
    print_table(("criterion", "", "figure", "limit", "note"), map(_row, report["criteria"]))
    what = f"Keyset {report['keyset_id']} at change {report['seq']}"
    active = report["active_keyset_id"]
    against = f" against keyset {active}" if active is not None else ""
    contexts = f"{count_of(report['num_contexts'], 'prefix')} of stored outputs"
    asked = f"{count_of(report['num_questions'], 'question')} and {contexts}"
    eased = (
        f" The log will name the eased limits: {', '.join(eased)}."
        if (eased := report.get("eased_limits"))
        else ""
    )
    say(f"{what}{against}, with {asked}: {'passed' if report['passed'] else 'failed'}.{eased}")


def _row(criterion: dict[str, Any]) -> tuple[object, ...]:
    figure, limit = criterion["figure"], f"{criterion['limit']:.4g}"
    measured = "not measured" if figure is None else f"{figure:.4g}"
    return criterion["name"], "ok" if criterion["passed"] else "FAILED", measured, limit, criterion["note"]


CREATE_EXAMPLES = examples(
    "colmlm keysets create --checkpoint runs/mine",
    "colmlm keysets create --checkpoint runs/mine --predict --json",
    "colmlm keysets create --encoder minilm",
    "colmlm keysets create --index-spec milvus:facts --empty",
    "colmlm keysets create --index-spec torch",
)
FILL_EXAMPLES = examples(
    "colmlm keysets fill",
    "colmlm keysets fill --checkpoint runs/mine --corpus handbook",
    "colmlm keysets fill --kinds context,question",
    "colmlm keysets fill 2 --predict --predict-from 1 --sample 2000",
    "colmlm keysets fill 2 --recall 0.98",
    "colmlm keysets fill --ray 10.0.0.5:6379 --ray-workers 16",
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

# The options of `--predict`, and what is shown of it.


class MapMethod(StrEnum):
    auto = "auto"
    procrustes = "procrustes"
    ridge = "ridge"


Predict = Annotated[
    bool,
    typer.Option(
        "--predict",
        help="Key a sample of the facts, and predict the other keys from those of another keyset.",
    ),
]
PredictFrom = Annotated[
    int | None,
    typer.Option(
        "--predict-from", min=1, help="With --predict: the keyset to predict from. Default: the active one."
    ),
]
Sample = Annotated[
    int | None,
    typer.Option(
        "--sample",
        min=10,
        max=1_000_000,
        help="With --predict: how many facts to key. Default: 1 %, at least 250.",
    ),
]
Method = Annotated[
    MapMethod | None,
    typer.Option("--method", help="With --predict: how the map is fitted. Default: auto, the better one."),
]
Recall = Annotated[
    float | None,
    typer.Option(
        "--recall",
        min=0.5,
        max=1.0,
        help="Then rebuild the index on all its keys, for lookups to find this share of the nearest.",
    ),
]

_COLUMNS = (
    "kind", "from", "to", "facts", "predicted", "sample", "method", "recall_at_1", "recall_at_1_true",
    "recall_at_1_old", "seconds", "seconds_true",
)  # fmt: skip


def predicting_by(
    predict: bool, from_keyset: int | None, sample: int | None, method: MapMethod | None, **others: object
) -> Adapting:
    """Convert the options of --predict to the arguments of `adapt`, which are an empty dict without --predict.

    Raises `BadParameter` if these options are given without --predict, or one of the `others` with it.
    """
    how: Adapting = {}
    if from_keyset is not None:
        how["from_keyset_id"] = from_keyset
    if sample is not None:
        how["sample"] = sample
    if method is not None:
        how["method"] = str(method)
    if not predict:
        require_with("--predict", predict_from=from_keyset, sample=sample, method=method)
    if predict and (
        idle := [f"--{name.replace('_', '-')}" for name, given in others.items() if given is not None]
    ):
        what = (
            "with --predict a sample is keyed here, and the kinds of key are those that the other keyset has."
        )
        raise typer.BadParameter(what, param_hint=", ".join(idle))
    return how


def _show_predicted(made: dict[str, Any]) -> None:
    """Print the figures of the predicted keys of each kind, and note if none was predicted."""
    if not any(pair["predicted"] for pair in made["pairs"]):
        keyset_id = made["keyset"]["keyset_id"]
        note(
            f"Nothing was predicted anew; keyset {keyset_id} has keys of all facts that the other keyset has keys of. "
            f"If you want another sample or method, drop these keys first: colmlm keysets retire {keyset_id}"
        )
    if wants_json():
        print_json(made)
        return
    print_table(_COLUMNS, [[_format_figure(pair[column]) for column in _COLUMNS] for pair in made["pairs"]])


def _format_figure(value: object) -> object:
    return "not measured" if value is None else value


app = typer.Typer(
    help="Make, fill, check, activate and retire keysets.", epilog=examples("colmlm keysets list")
)
app.command("check", epilog=CHECK_EXAMPLES)(check)
app.command("activate", epilog=ACTIVATE_EXAMPLES)(activate)
app.command("rollback", epilog=ROLLBACK_EXAMPLES)(rollback)
app.command("threshold", epilog=THRESHOLD_EXAMPLES)(threshold)


@app.command("list", epilog=examples("colmlm keysets list", "colmlm keysets list --json"))
@anywhere
def list_keysets(base: Base) -> None:
    """List the keysets: their checkpoints, which one is active, how many facts lack a key, and their gates."""
    found = base.keysets.listed()
    if wants_json():
        print_json({"keysets": [asdict(keyset) | {"gate": asdict(gate)} for keyset, gate in found]})
    else:
        _show([keyset for keyset, _ in found], [gate for _, gate in found])


ByEncoder = Annotated[
    EncoderName | None,
    typer.Option(
        "--encoder",
        help="Instead of a checkpoint: all-MiniLM-L6-v2 on the facts' questions, or on their sentences.",
    ),
]


@app.command("create", epilog=CREATE_EXAMPLES)
def create(
    checkpoint: CheckpointPath = None,
    encoder: ByEncoder = None,
    kinds: KeyKinds = None,
    predict: Predict = False,
    index_spec: Annotated[
        str | None,
        typer.Option(
            "--index-spec",
            help="A Faiss factory string, milvus:COLLECTION or torch. Default: by the number of facts.",
        ),
    ] = None,
    empty: Annotated[bool, typer.Option("--empty", help="Make no keys yet; `keysets fill` does.")] = False,
) -> None:
    """Make a keyset of a checkpoint, or take the one it has, and give every live fact a key in it.

    It is calibrated at the end, and answers at once where no other is active, else once it is activated.
    """
    from colmlm.kb.lookup.in_process import require_spec

    how = predicting_by(predict, None, None, None, kinds=kinds)
    with Runtime.from_environment(checkpoint=checkpoint) as runtime:
        runtime.open()
        made_by = _chosen_encoder(runtime, encoder, checkpoint)
        if index_spec is not None:
            require_spec(
                made_by.checkpoint.dim, index_spec
            )  # now, and not only at the build after the keying
        if empty or index_spec is not None:
            keyset = runtime.kb.keysets.show(
                runtime.kb.keysets.create(made_by.checkpoint, index_spec).keyset_id
            )
        if not empty:
            _fill_here(runtime, made_by, kinds, how if predict else None, named=checkpoint)
            return
    print_json(keyset) if wants_json() else _show([keyset])


def _chosen_encoder(runtime: Runtime, name: EncoderName | None, checkpoint: Path | None) -> Encoder:
    """Give the sentence encoder of this name, else that of the checkpoint. Raises `BadParameter` for both."""
    if name is None:
        return runtime.encoder
    if checkpoint is not None:
        raise typer.BadParameter("name an encoder or a checkpoint, not both.", param_hint="--encoder")
    return SentenceKeys.of_encoder(name)


@app.command("fill", epilog=FILL_EXAMPLES)
@anywhere
def fill(
    base: Base,
    keyset_id: Annotated[
        int | None,
        typer.Argument(metavar="[KEYSET_ID]", min=1, max=MAX_BIGINT, help="Default: the checkpoint's own."),
    ] = None,
    checkpoint: CheckpointPath = None,
    corpus: Corpus = None,
    kinds: KeyKinds = None,
    predict: Predict = False,
    predict_from: PredictFrom = None,
    sample: Sample = None,
    method: Method = None,
    recall: Recall = None,
    ray: Ray = None,
    ray_workers: RayWorkers = None,
) -> None:
    """Make the keys that a keyset lacks. If it was stopped, run it again to resume.

    Keys that were predicted are made as well, those of facts that are asked for first. A keyset that nobody calibrated
    is calibrated at the end. With --recall the index is fitted anew, without a model where no key is missing. Several
    such commands may run at once, on one machine or many; they share the work. With --ray, the processes of a cluster
    make the keys, or those of this machine's cores. With --server a job there fills the keyset, by default the active
    one, and the command waits for that.
    """
    how = predicting_by(predict, predict_from, sample, method, kinds=kinds, ray=ray, ray_workers=ray_workers)
    base.only_here(recall=recall)
    base.use_ray(ray, ray_workers)
    if keyset_id is None and base.server is not None:
        keyset_id = _active_keyset(base)
    if predict:
        made = base.keysets.adapt(keyset_id, corpus=corpus, checkpoint=checkpoint, **how)
        keyset_id = int(made["keyset"]["keyset_id"])
        if recall is None:
            _show_predicted(made)
    elif recall is None or keyset_id is None or _lacks_keys(base, keyset_id):
        of = kinds or Kinds.context
        keyset = base.keysets.rekey(keyset_id, corpus=corpus, kinds=of, checkpoint=checkpoint)
        keyset_id = keyset.keyset_id
        if recall is None:
            print_json(keyset) if wants_json() else _show([keyset])
    if recall is not None:
        _build_index(keyset_id, recall)


def _lacks_keys(base: Base, keyset_id: int) -> bool:
    """Tell whether a keyset lacks keys or has predicted ones, so that filling it needs a model."""
    found = base.keysets.show(keyset_id)
    return bool(found.num_unkeyed or found.num_predicted)


def _fill_here(
    runtime: Runtime,
    encoder: Encoder,
    kinds: Kinds | None,
    predicting: Adapting | None,
    *,
    named: Path | None,
) -> None:
    """Fill an encoder's keyset (with `predicting`, by predicted keys), and print it."""
    from colmlm.cli.composition.keying import adapt, key_everything

    if predicting is not None:
        _show_predicted(adapt(runtime.kb, encoder, runtime.telling, None, predicting))
        return
    keyset = key_everything(runtime, encoder=encoder, kinds=kinds or Kinds.context, replace=True, named=named)
    print_json(keyset) if wants_json() else _show([keyset])


def _active_keyset(base: Base) -> int:
    active = [keyset.keyset_id for keyset, _ in base.keysets.listed() if keyset.state == "active"]
    if not active:
        raise NoActiveKeyset
    return active[0]


def _build_index(keyset_id: int, recall: float) -> None:
    """Rebuild a keyset's index, trained on all its keys, and write the snapshot that servers open."""
    with Runtime.from_environment() as runtime, progress("Keys indexed") as advance:
        built = runtime.kb.keysets.build(keyset_id, recall=recall, on_keys=advance)
    if wants_json():
        print_json(built)
    else:
        fit = _describe_index(built.index_spec, built.fit)
        say(f"Keyset {keyset_id}: {count_of(built.num_keys, 'key')} in {fit}, up to change {built.seq}.")


@app.command(epilog=examples("colmlm keysets retire 1 --dry-run", "colmlm keysets retire 1 --yes"))
@anywhere
def retire(
    base: Base,
    keyset_id: KeysetId,
    dry_run: DryRun = False,
    yes: Yes = False,
    reason: Reason = "retire",
    actor: Actor = None,
) -> None:
    """Drop a keyset's keys for good; only a rekey brings them back. The active one is refused."""
    require_somebody(yes or dry_run, "retire")
    keyset = base.keysets.retirable(keyset_id)
    if not (dry_run or yes):
        count = f"{count_of(keyset.num_keys, 'key')} of keyset {keyset_id} ({keyset.checkpoint_name})"
        typer.confirm(f"Drop {count} for good?", abort=True, err=True)
    if not dry_run:
        base.keysets.retire(keyset_id, actor=base.actor(actor), reason=reason)
    if wants_json():
        print_json({"keyset_id": keyset_id, "dry_run": dry_run, "num_keys": keyset.num_keys})
    else:
        say(
            f"{'Would drop' if dry_run else 'Dropped'} {count_of(keyset.num_keys, 'key')} of keyset {keyset_id}."
            + (" This cannot be undone." if dry_run else "")
        )


def _show(keysets: list[KeysetRecord], gates: Sequence[GateStanding] = ()) -> None:
    columns = (
        "id", "checkpoint", "state", "keys", "predicted", "unkeyed", "threshold", "index", "applied change",
        *(["gate"] if gates else []),
    )  # fmt: skip
    rows = [
        (k.keyset_id, k.checkpoint_name, k.state, k.num_keys, k.num_predicted, k.num_unkeyed,
         f"{k.threshold:.3f}{'' if k.calibrated else ' (not calibrated)'}", _describe_index(k.index_spec, k.index_fit),
         k.applied_seq, *map(_format_gate, gates[row:row + 1]))
        for row, k in enumerate(keysets)
    ]  # fmt: skip
    print_table(columns, rows, "No keysets. Make one: colmlm keysets create")


def _describe_index(spec: str, fit: IndexFit | None) -> str:
    """Give the spec of an index, how many of its lists a search reads, and how many candidates a lookup scores."""
    if fit is None or not fit.lists:
        return spec
    recall = "" if fit.recall is None else f", recall {fit.recall:.3f}"
    scored = "" if fit.spare is None else f", {count_of(2 + fit.spare, 'candidate')}"
    return f"{fit.spec}, {fit.lists_read} of {count_of(fit.lists, 'list')}{scored}{recall}"


def _format_gate(gate: GateStanding) -> str:
    if not gate.checked:
        return ""
    said = "passed" if gate.passed else f"failed ({', '.join(gate.failed)})"
    return f"{said} at change {gate.seq}, {count_of(gate.edits_since or 0, 'edit')} ago"
