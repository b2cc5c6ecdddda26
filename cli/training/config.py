"""Makes a run's config from the command line: from a preset or the run to continue, then from the options given."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from colmlm.model.lm.config import CONFIG_FILE
from colmlm.model.training import presets
from colmlm.model.training.config import RANDOM, TrainConfig
from colmlm.model.training.settings import with_settings

Preset = Annotated[
    str | None,
    typer.Option("--preset", help=f"Default: small. One of {', '.join(presets.names())}."),
]
Method = Annotated[
    str | None, typer.Option("--method", help="co-lmlm, standard, asker or rel-lmlm. Default: the preset's.")
]


def chosen(
    out: Path | None,
    preset: str | None,
    method: str | None,
    settings: Sequence[str],
    *,
    init: str | None = None,
    steps: int | None = None,
    batch: int | None = None,
    micro: int | None = None,
    **changes: Any,
) -> TrainConfig:
    """Gives the config of a run: that of the run in `out` where there is one and no preset is named, else the preset's.

    Settings that are not possible are refused as a wrong command line.
    """
    try:
        config = presets.preset(preset) if preset else _of_run(out) or presets.small()
        if method is not None and method != config.method:
            config = presets.as_method(config, method)
        if init is not None:
            changes |= {"init": init}
            changes |= {} if init == RANDOM else {"architecture": None}
        if steps is not None:
            config = presets.shortened(config, steps)
        by_rows = config.batch_rows is not None
        changes |= {"batch_rows" if by_rows else "batch_documents": batch}
        changes |= {"micro_rows" if by_rows else "micro_documents": micro}
        asked = {
            name: value for name, value in changes.items() if value is not None or name == "architecture"
        }
        return with_settings(config, settings, **asked)
    except ValueError as error:
        raise typer.BadParameter(f"{error}.") from error


def _of_run(out: Path | None) -> TrainConfig | None:
    """Gives the config of a run to continue. A checkpoint that is no run is refused, as it would be overwritten."""
    from colmlm.model.training.state import STATE_FILE

    if out is None or not (out / CONFIG_FILE).is_file():
        return None
    if not (out / STATE_FILE).is_file():
        raise ValueError(
            f"{out} holds a checkpoint and no run to go on with; to train it further name it with --init, "
            "and another --out"
        )
    return TrainConfig.from_record(json.loads((out / CONFIG_FILE).read_text())["training"]["config"])
