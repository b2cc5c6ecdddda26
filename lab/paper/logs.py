"""Declares the steps that read TOFU logs: the published ones, and those already in the folder."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from colmlm.lab.paper.declared import PaperStep, Places

_PUBLISHED = {
    "phi_full": ("phi-1.5, all of TOFU", "phi_retain90"),
    "phi_retain90": ("phi-1.5, never saw forget10", None),
    "phi_retain95": ("phi-1.5, never saw forget05", None),
}
REFERENCES = {"masked": "retain", "spoken": "retain", "none": "standard-retain"}  # by the reading of a log


def golden(places: Places) -> list[PaperStep]:
    """Declares the published models' logs. Only the formulas of these figures are this program's."""
    folder = places.data / "tofu" / "golden"
    return [
        PaperStep(
            name=f"tofu-published-{name.removeprefix('phi_')}",
            section="tofu",
            label=f"{label} (published)",
            data="TOFU's published log of a phi-1.5 model (1.3B)"
            + (", beside that of forget10's retain model" if retained else ""),
            shows=f"TOFU's metrics of a published model: {label}",
            argv=_tofu_log(folder / f"{name}.json.gz", folder / f"{retained}.json.gz" if retained else None),
            needs=(folder,),
        )
        for name, (label, retained) in _PUBLISHED.items()
    ]


def logs_found(places: Places, measured: Collection[str]) -> list[PaperStep]:
    """Declares a step for each log `tofu/FORGET/MODEL/READING.json`.

    The model called `retain` is the others' reference.

    Logs that a step in `measured` writes are left out.
    """
    steps = []
    for file in sorted((places.out / "tofu").glob("*/*/*.json")):
        if file.stem not in REFERENCES:
            continue
        model, forget = file.parent.name, file.parent.parent.name
        if f"tofu-{forget}-{model}" in measured:
            continue
        reference = file.parent.parent / REFERENCES[file.stem] / file.name
        retained = reference if reference.is_file() and reference != file else None
        steps.append(
            PaperStep(
                name=f"tofu-log-{forget}-{model}-{file.stem}",
                section="tofu",
                label=f"{forget}, {model}, {file.stem}",
                data=f"TOFU {forget}, a log found in the folder",
                shows=f"TOFU's metrics of {model} on {forget}, read as {file.stem}",
                argv=_tofu_log(file, retained),
            )
        )
    return steps


def _tofu_log(log: Path, retained: Path | None) -> tuple[str, ...]:
    beside = ("--retain", str(retained)) if retained else ()
    return ("evaluate", "tofu-log", str(log), *beside)
