"""Edits of many facts from a file, shown before they are done or refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from colmlm.cli.bases.protocol import Base
from colmlm.cli.errors import REFUSED
from colmlm.cli.output import note, print_json, print_table, say, shorten

if TYPE_CHECKING:
    from colmlm.api.nouns.corrections import BulkEdit, PlannedEdit
    from colmlm.kb.facts.records import Correcting


def edit_from(
    base: Base,
    file: Path,
    actor: str | None,
    reason: str | None,
    *,
    keyed: bool,
    anyway: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Edits the facts of a file in one change. Exits with 3, and does nothing, where a row cannot be used."""
    from colmlm.api.nouns.corrections import plan

    planned = plan(file.read_text(encoding="utf-8-sig"), base.facts.show_many)
    if planned.refused:
        _refuse(planned, file, dry_run, as_json)
    said = {"dry_run": dry_run, "edits": planned.edits, "unchanged": planned.unchanged, "refused": ()}
    if dry_run or not planned.edits:
        print_json({**said, "seq": None}) if as_json else _show(planned)
        return
    assert reason is not None
    how: Correcting = {"actor": base.actor(actor), "reason": reason, "anyway": anyway}
    done = base.facts.edit_many(planned.corrections, keyed=keyed, **how)
    if as_json:
        print_json(
            {**said, "seq": done.seq, "kind": done.kind, "fact_ids": done.fact_ids, "keyed": done.keyed}
        )
        return
    say(f"Change {done.seq}: {done.kind} of {len(planned.edits)} facts")
    if not done.keyed:
        note(
            "Facts whose question was edited have no key yet, so lookups do not find them. Run: colmlm rekey"
        )


def _refuse(planned: BulkEdit, file: Path, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json({"dry_run": dry_run, "edits": (), "unchanged": 0, "refused": planned.refused, "seq": None})
    for row in planned.refused:
        note(f"{file.name}, line {row.line}: {row.cause}")
    note("Nothing was edited. Put these rows right, or leave them out.")
    raise typer.Exit(REFUSED)


def _show(planned: BulkEdit) -> None:
    print_table(("line", "id", "value", "new value", "question", "new question"), map(_row, planned.edits))
    note(f"{len(planned.edits)} would be edited; {planned.unchanged} rows would change nothing.")


def _row(one: PlannedEdit) -> tuple[object, ...]:
    texts = (one.was_value, one.value, one.was_question, one.question)
    return one.line, one.fact_id, *(shorten(text) if text else "" for text in texts)
