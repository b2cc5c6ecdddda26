"""`colmlm keysets threshold`: shows, measures or sets the score below which a lookup is no match."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from colmlm.cli.bases.anywhere import anywhere
from colmlm.cli.bases.local_base import Base
from colmlm.cli.composition.keying import DEFAULT_SAMPLE
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import MAX_BIGINT, CheckpointPath, examples, no_nan, require_with, wants_json
from colmlm.cli.output import print_json, say
from colmlm.kb.errors import refusals

if TYPE_CHECKING:
    from colmlm.kb.keys.records import KeysetHead
    from colmlm.kb.keys.rekey import Encoder

THRESHOLD_EXAMPLES = examples(
    "colmlm keysets threshold 2",
    "colmlm keysets threshold 2 --set 0.62",
    "colmlm keysets threshold --calibrate --false-accept-rate 0.05 --dry-run --json",
)

Sample = Annotated[
    int | None,
    typer.Option(
        "--sample", min=2, max=100_000, help=f"How many questions to try. Default: {DEFAULT_SAMPLE}."
    ),
]
FalseAcceptRate = Annotated[
    float | None,
    typer.Option(
        "--false-accept-rate",
        min=0,
        max=1,
        callback=no_nan,
        help="Share of questions without an answer that may be answered. Default: the best balance of both errors.",
    ),
]


def _calibrate(
    base: Base,
    keyset_id: int | None,
    false_accept_rate: float | None,
    sample: int,
    checkpoint: Path | None,
    *,
    dry_run: bool,
) -> None:
    """Choose the score below which a lookup is no match, from the facts' own questions.

    Each question is looked up twice: among all facts, and as if every fact of its value were deleted.
    """
    from colmlm.cli.composition.keying import describe_calibration, measure

    base.only_here(calibrate=True)
    with Runtime.from_environment(checkpoint=checkpoint) as runtime:
        runtime.open()
        keyset, encoder = _keyset_of(runtime, keyset_id, checkpoint)
        measured = measure(runtime.kb, encoder, keyset, false_accept_rate, sample, runtime.telling)
        if not dry_run:
            runtime.kb.keysets.calibrate(keyset.keyset_id, measured)
    if wants_json():
        print_json({"keyset_id": keyset.keyset_id, "dry_run": dry_run, **asdict(measured)})
    else:
        say(describe_calibration(measured))


def _keyset_of(runtime: Runtime, keyset_id: int | None, named: Path | None) -> tuple[KeysetHead, Encoder]:
    """Give the keyset to calibrate, and the encoder that made its keys, which encodes the questions.

    The encoder is loaded from `named`, else from its registered path. Raises `KeysetMismatch` if another is there.
    """
    from colmlm.cli.composition.keying import encoder_of

    wanted = runtime.kb.keysets.in_use()
    if keyset_id is None:
        checkpoint_id = runtime.encoder.checkpoint.checkpoint_id
        found = next((k for k in wanted if k.checkpoint_id == checkpoint_id), None)
        return found or runtime.kb.keysets.create(runtime.encoder.checkpoint), runtime.encoder
    found = next((k for k in wanted if k.keyset_id == keyset_id), None)
    if found is None:
        raise refusals.keyset_not_found(keyset_id)
    return found, encoder_of(runtime, keyset_id, named)


@anywhere
def threshold(
    base: Base,
    keyset_id: Annotated[
        int | None,
        typer.Argument(
            metavar="[KEYSET_ID]",
            min=1,
            max=MAX_BIGINT,
            help="To calibrate, by default the checkpoint's own.",
        ),
    ] = None,
    value: Annotated[
        float | None,
        typer.Option("--set", min=-1, max=1, callback=no_nan, help="The new one. Default: say what it is."),
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Choose it from the facts' own questions.")
    ] = False,
    false_accept_rate: FalseAcceptRate = None,
    sample: Sample = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --calibrate: measure, and leave the threshold as it is.")
    ] = False,
    checkpoint: CheckpointPath = None,
) -> None:
    """Show, set or calibrate a keyset's threshold. It applies from the next lookup, in every process."""
    if calibrate:
        if value is not None:
            raise typer.BadParameter("--calibrate chooses it; give one of them.", param_hint="--set")
        _calibrate(base, keyset_id, false_accept_rate, sample or DEFAULT_SAMPLE, checkpoint, dry_run=dry_run)
        return
    require_with(
        "--calibrate",
        false_accept_rate=false_accept_rate,
        sample=sample,
        dry_run=dry_run,
        checkpoint=checkpoint,
    )
    if keyset_id is None:
        raise typer.BadParameter("name it; see `colmlm keysets list`.", param_hint="KEYSET_ID")
    if value is not None:
        base.keysets.set_threshold(keyset_id, value)
    found = base.keysets.show(keyset_id)
    if wants_json():
        print_json({"keyset_id": keyset_id, "threshold": found.threshold, "calibrated": found.calibrated})
    else:
        say(f"Threshold {found.threshold:.3f}{'' if found.calibrated else ', not calibrated'}.")
