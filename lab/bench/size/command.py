"""`colmlm-lab bench size`: takes a base of any size through its life, measures each stage, resumes where it stopped."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from colmlm.cli.operating.estimates import Load, database_bytes, sizes
from colmlm.cli.operating.sizing import readable
from colmlm.cli.options import examples, wants_json
from colmlm.cli.output import note, print_json, print_table
from colmlm.kb import interpreter
from colmlm.kb.errors import InvalidValue
from colmlm.lab.bench.machine import machine
from colmlm.lab.bench.size.stages import STAGES, SizedBase

SIZE_EXAMPLES = examples(
    "colmlm-lab bench size --facts 100000",
    "colmlm-lab bench size --facts 1000000 --dim 64 --base big --json > size.json",
    "colmlm-lab bench size --facts 1000000 --dim 64 --base big --again fsck --without purge",
)
TEXT_BYTES = 96  # of a synthetic fact
_SHOWN = (
    "recall_at_1",
    "p50_ms",
    "p99_ms",
    "batched_per_s",
    "ok",
    "level",
    "deleted_but_found",
    "lists_read",
)


def size(
    facts: Annotated[int, typer.Option("--facts", min=2000, help="How many facts.")] = 100_000,
    dim: Annotated[int, typer.Option("--dim", min=4, max=16_384, help="Width of a key.")] = 576,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of keys and queries.")] = 0,
    base: Annotated[
        Path | None,
        typer.Option(
            "--base",
            file_okay=False,
            help="Keep the base here, and go on with what is not measured yet. Default: a temporary one.",
        ),
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option("--without", help="Leave this stage out; may be repeated.")
    ] = None,
    again: Annotated[
        list[str] | None,
        typer.Option("--again", help="Measure this stage again on a kept base; may be repeated."),
    ] = None,
) -> None:
    """Measure ingest, keys, index, lookups, edits, erasure, snapshot, restart, fsck and backup at a size.

    Each stage is a process of its own: its time, the most memory that it and PostgreSQL held, and the bytes on disk.
    Keys and facts are made as they are needed, so memory does not grow with their number. `purge`, which is last,
    rewrites every table and wants room for the largest once more.
    """
    for name in (*(without or ()), *(again or ())):
        if name not in STAGES:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(STAGES)}.", param_hint="stage")
    if base is not None:
        base.mkdir(parents=True, exist_ok=True)
        base.chmod(0o755)  # the server may run as another user
        found = _measured(SizedBase(base.absolute(), facts, dim, seed), without or (), again or ())
    else:
        with tempfile.TemporaryDirectory(prefix="colmlm-bench-") as folder:
            Path(folder).chmod(0o755)
            found = _measured(SizedBase(Path(folder), facts, dim, seed), without or (), ())
    print_json(found) if wants_json() else _show(found)


def _measured(sized: SizedBase, without: Collection[str], again: Collection[str]) -> dict[str, Any]:
    kept = KeptStages(sized.directory)
    kept.begin(sized)
    if not (sized.directory / "nearest.npy").exists():
        sized.make_queries()
    for name in again:
        kept.forget(name)
    for name in STAGES:
        if name in without or kept.has(name):
            continue
        note(f"stage {name}")
        command = interpreter.command(
            "-m", "colmlm.lab.bench.size.process", sized.directory, sized.facts, sized.dim, sized.seed, name
        )
        ran = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        kept.keep(name, json.loads(ran.stdout))
    return {
        "facts": sized.facts,
        "dim": sized.dim,
        "seed": sized.seed,
        "stages": {name: kept.read(name) for name in STAGES if kept.has(name)},
        "machine": machine(),
    }


@dataclass(frozen=True, slots=True)
class KeptStages:
    """What a kept base has measured of itself: a file for each stage."""

    directory: Path

    def begin(self, sized: SizedBase) -> None:
        """Notes what is measured here. Raises `InvalidValue` where it was another base, or where there is no room."""
        file, wanted = (
            self.directory / "size.json",
            {"facts": sized.facts, "dim": sized.dim, "seed": sized.seed},
        )
        if file.exists():
            if (found := json.loads(file.read_text())) != wanted:
                raise InvalidValue("base", f"{self.directory} holds {found}; name another directory")
            return
        _require_room(sized)
        file.write_text(json.dumps(wanted))

    def has(self, stage: str) -> bool:
        return self._file(stage).exists()

    def read(self, stage: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._file(stage).read_text())
        return found

    def keep(self, stage: str, figures: dict[str, Any]) -> None:
        self._file(stage).write_text(json.dumps(figures))

    def forget(self, stage: str) -> None:
        self._file(stage).unlink(missing_ok=True)

    def _file(self, stage: str) -> Path:
        return self.directory / f"stage-{stage}.json"


def _require_room(sized: SizedBase) -> None:
    """Raises `InvalidValue` where the disk has no room for the base and its backup, which is up to half of that."""
    load = Load(facts=sized.facts, dim=sized.dim, text_bytes=TEXT_BYTES)
    wanted, free = sizes(load).disk + database_bytes(load) // 2, shutil.disk_usage(sized.directory).free
    if wanted > free:
        raise InvalidValue(
            "base",
            f"{sized.facts:,} facts of width {sized.dim} want {readable(wanted)} of disk, {readable(free)} are free",
        )


def _show(found: dict[str, Any]) -> None:
    columns = ("stage", "seconds", "processor", "server's", "memory", "server's", "disk", "")
    print_table(columns, [_row(name, figures) for name, figures in found["stages"].items()])


def _row(name: str, figures: dict[str, Any]) -> tuple[str, ...]:
    rest = ", ".join(f"{n} {figures[n]:.4g}" for n in _SHOWN if figures.get(n) is not None)
    return (
        name,
        *(f"{figures[f'{part}seconds']:.1f}" for part in ("", "cpu_", "server_cpu_")),
        *(readable(figures[f"peak_{part}bytes"]) for part in ("", "server_", "disk_")),
        rest,
    )
