"""`colmlm db sizing`: estimates the resources for a number of facts, before there is a machine for them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from colmlm.cli.options import examples, wants_json
from colmlm.cli.output import note, print_json, print_table, say

EXAMPLES = examples(
    "colmlm db sizing --facts 1000000",
    "colmlm db sizing --facts 2200000000 --dim 960 --code-bytes 96 --json",
)
MOST = 10**12


def sizing(
    facts: Annotated[int, typer.Option("--facts", min=1, max=MOST, help="How many facts.")],
    dim: Annotated[int, typer.Option("--dim", min=1, max=16_384, help="Width of a key.")] = 576,
    keys_per_fact: Annotated[
        int, typer.Option("--keys-per-fact", min=1, max=100, help="2 with question keys.")
    ] = 1,
    text_bytes: Annotated[
        int,
        typer.Option(
            "--text-bytes", min=0, max=10**6, help="A fact's share of its document, value and question."
        ),
    ] = 300,
    code_bytes: Annotated[
        int | None,
        typer.Option(
            "--code-bytes",
            min=1,
            max=16_384,
            help="Of a key in the index. Default: an eighth of dim, and 8, from width 256 on; else a quarter.",
        ),
    ] = None,
    keysets: Annotated[
        int, typer.Option("--keysets", min=1, max=10, help="Kept and open at once; 2 beside a retraining.")
    ] = 1,
) -> None:
    """Say what so many facts take: database, index, memory, disk, lookups a second.

    Fitted to one machine at a million facts and computed beyond that: an order of magnitude, not a promise.
    """
    from colmlm.cli.operating.estimates import Load, sizes

    load = Load(
        facts=facts,
        dim=dim,
        keys_per_fact=keys_per_fact,
        text_bytes=text_bytes,
        code_bytes=code_bytes,
        keysets=keysets,
    )
    found = sizes(load)
    if load.is_flat and code_bytes is not None:
        note(f"An index of {load.keys:,} keys is exact, without codes: --code-bytes changes nothing.")
    if wants_json():
        print_json({"load": asdict(load), "sizes": asdict(found)})
        return
    say(f"{facts:,} facts of width {dim}, {found.index_spec}")
    rows = [
        ("database", readable(found.database), "texts, facts, versions, keys, log"),
        ("index", readable(found.index_memory), "in the memory of every process that looks up"),
        ("index training", readable(found.index_training_memory), "in memory while one is built"),
        ("snapshots", readable(found.snapshots), "on disk, the old one and the new one"),
        ("disk", readable(found.disk), "with the write-ahead log and room for vacuum"),
        (
            "memory",
            readable(found.memory),
            "index and training; the database's cache and the model come on top",
        ),
        ("one lookup", f"{found.lookup_ms:,.2f} ms", f"of it {found.search_ms:,.2f} ms in the index"),
        ("lookups", f"{found.lookups_per_second_and_core:,.1f} /s", "a core, in batches of 64"),
    ]
    print_table(("what", "size", ""), rows)


def readable(size: float) -> str:
    """Write a number of bytes in units of 1,000."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:,.0f} {unit}" if size >= 100 or unit == "B" else f"{size:,.1f} {unit}"
        size /= 1000
    return f"{size:,.2f} TB"
