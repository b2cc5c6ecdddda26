"""`colmlm rekey` and `colmlm keysets`: give facts keys of a checkpoint, and say which keys answer."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from cli.options import MAX_BIGINT, AsJson, CheckpointPath, examples, finite
from cli.output import note, print_json, print_table, progress, say
from cli.runtime import ModelEncoder, Runtime
from kb.calibration import Calibration
from kb.calibration import calibrate as choose_threshold
from kb.errors import InvalidValue, KeysetMismatch, KeysetNotFound
from kb.records import KeysetRecord

REKEY_EXAMPLES = examples("colmlm rekey", "colmlm rekey --checkpoint runs/mine --corpus handbook")
DEFAULT_SAMPLE = 300

app = typer.Typer(help="List, activate and calibrate keysets.", epilog=examples("colmlm keysets list"))

KeysetId = Annotated[
    int, typer.Argument(metavar="KEYSET_ID", min=1, max=MAX_BIGINT, help="See `colmlm keysets list`.")
]
Sample = Annotated[
    int, typer.Option("--sample", min=2, max=100_000, help="How many questions to measure with.")
]
FalseAcceptRate = Annotated[
    float | None,
    typer.Option(
        "--false-accept-rate",
        min=0,
        max=1,
        callback=finite,
        help="Share of questions without an answer that may be answered. Default: the best balance of both errors.",
    ),
]


def rekey(
    checkpoint: CheckpointPath = None,
    corpus: Annotated[str | None, typer.Option("--corpus", help="Only this corpus.")] = None,
    as_json: AsJson = False,
) -> None:
    """Give every live fact without a key one of the checkpoint's. Stop it and start it again to resume.

    The new keyset is calibrated at the end. It answers at once where no other is active, else once it is activated.
    """
    with Runtime.from_environment(checkpoint=checkpoint) as runtime:
        runtime.open()
        keyset = key_everything(runtime, corpus=corpus)
    print_json(keyset) if as_json else _show([keyset])


def key_everything(runtime: Runtime, *, corpus: str | None = None) -> KeysetRecord:
    """Key what is unkeyed, and calibrate a keyset that has not been."""
    with progress("Keying facts") as advance:
        keyset = runtime.kb.rekey(runtime.encoder, corpus=corpus, on_facts=advance)
    if keyset.state == "ready":
        note(f"Another keyset is active. To let this one answer: colmlm keysets activate {keyset.keyset_id}")
    if keyset.calibrated or keyset.num_unkeyed or keyset.num_keys < 2:
        return keyset
    try:
        measured = measure(runtime, keyset, None, DEFAULT_SAMPLE)
    except InvalidValue as error:  # a base without questions is keyed all the same
        note(f"Not calibrated. {error}")
        return keyset
    note(describe_calibration(measured))
    return runtime.kb.set_threshold(keyset.keyset_id, measured.threshold)


@app.command("list", epilog=examples("colmlm keysets list", "colmlm keysets list --json"))
def list_keysets(as_json: AsJson = False) -> None:
    """List the keysets: which checkpoint made them, which one is active, what is still to be keyed."""
    with Runtime.from_environment() as runtime:
        keysets = runtime.kb.keysets()
    print_json({"keysets": keysets}) if as_json else _show(keysets)


@app.command(epilog=examples("colmlm keysets activate 2"))
def activate(keyset_id: KeysetId, as_json: AsJson = False) -> None:
    """Let this keyset answer from now on, in every process. Activating the old one again undoes it."""
    with Runtime.from_environment() as runtime:
        keyset = runtime.kb.activate(keyset_id)
    print_json(keyset) if as_json else say(f"Keyset {keyset.keyset_id} ({keyset.checkpoint_name}) is active.")


@app.command(
    epilog=examples(
        "colmlm keysets calibrate", "colmlm keysets calibrate --false-accept-rate 0.05 --dry-run --json"
    )
)
def calibrate(
    keyset_id: Annotated[
        int | None, typer.Argument(metavar="[KEYSET_ID]", min=1, help="Default: the checkpoint's own.")
    ] = None,
    false_accept_rate: FalseAcceptRate = None,
    sample: Sample = DEFAULT_SAMPLE,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Measure, and leave the threshold as it is.")
    ] = False,
    checkpoint: CheckpointPath = None,
    as_json: AsJson = False,
) -> None:
    """Choose the score below which a lookup is no match, from the facts' own questions.

    Each question is looked up with its fact present, and as if every fact of its value were deleted.
    """
    with Runtime.from_environment(checkpoint=checkpoint) as runtime:
        runtime.open()
        keyset = _keyset_of(runtime, keyset_id)
        measured = measure(runtime, keyset, false_accept_rate, sample)
        if not dry_run:
            runtime.kb.set_threshold(keyset.keyset_id, measured.threshold)
    if as_json:
        print_json({"keyset_id": keyset.keyset_id, "dry_run": dry_run, **asdict(measured)})
    else:
        say(describe_calibration(measured))


def _keyset_of(runtime: Runtime, keyset_id: int | None) -> KeysetRecord:
    """The keyset to calibrate; questions can only be encoded by the checkpoint that made its keys."""
    checkpoint_id = runtime.encoder.checkpoint.checkpoint_id
    wanted = [k for k in runtime.kb.keysets() if k.state != "retired"]
    if keyset_id is None:
        found = next((k for k in wanted if k.checkpoint_id == checkpoint_id), None)
        return found or runtime.kb.create_keyset(runtime.encoder.checkpoint)
    found = next((k for k in wanted if k.keyset_id == keyset_id), None)
    if found is None:
        raise KeysetNotFound(keyset_id)
    if found.checkpoint_id != checkpoint_id:
        raise KeysetMismatch(checkpoint_id, found.checkpoint_id)
    return found


def measure(
    runtime: Runtime, keyset: KeysetRecord, false_accept_rate: float | None, sample: int
) -> Calibration:
    """Calibrate on up to `sample` questions, evenly over the facts. Raises `InvalidValue` for want of them."""
    fact_ids, keys_ND = runtime.kb.keys(keyset.keyset_id)
    values, questions = _facts_by_id(runtime)
    asked = [int(fact_id) for fact_id in fact_ids if questions.get(int(fact_id))]
    asked = asked[:: max(1, -(-len(asked) // sample))]
    queries_BD = _encode(runtime.encoder, [questions[fact_id] for fact_id in asked])
    return choose_threshold(
        queries_BD,
        asked,
        keys_ND,
        fact_ids.tolist(),
        values,
        false_accept_rate=false_accept_rate,
    )


def _encode(encoder: ModelEncoder, questions: list[str], batch: int = 32) -> NDArray[np.float32]:
    pieces = [encoder.encode_questions([])]
    with progress("Calibrating") as advance:
        for start in range(0, len(questions), batch):
            pieces.append(encoder.encode_questions(questions[start : start + batch]))
            advance(min(start + batch, len(questions)), len(questions))
    return np.concatenate(pieces)


def _facts_by_id(runtime: Runtime) -> tuple[dict[int, str], dict[int, str]]:
    """Values and questions of every live fact."""
    values: dict[int, str] = {}
    questions: dict[int, str] = {}
    after = 0
    while page := runtime.kb.facts(after=after, limit=5000):
        for fact in page:
            values[fact.fact_id] = fact.value
            questions[fact.fact_id] = fact.question or ""
        after = page[-1].fact_id
    return values, questions


def describe_calibration(measured: Calibration) -> str:
    """The threshold and both error rates, in a sentence."""
    return (
        f"Threshold {measured.threshold:.3f}: of {measured.num_questions} questions it refuses "
        f"{measured.false_reject_rate:.1%} whose fact is there and accepts "
        f"{measured.false_accept_rate:.1%} whose is not."
    )


def _show(keysets: list[KeysetRecord]) -> None:
    columns = ("id", "checkpoint", "state", "keys", "unkeyed", "threshold", "index", "applied change")
    rows = [
        (k.keyset_id, k.checkpoint_name, k.state, k.num_keys, k.num_unkeyed,
         f"{k.threshold:.3f}{'' if k.calibrated else ' (not calibrated)'}", k.index_spec, k.applied_seq)
        for k in keysets
    ]  # fmt: skip
    print_table(columns, rows)
