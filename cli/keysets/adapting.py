"""The options of `--adapt`, by which a rekey predicts keys from another keyset's, and what is shown of it."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colmlm.cli.output import note, print_json, print_table

if TYPE_CHECKING:
    from colmlm.kb.keys.records import Adapting


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


def show_adapted(made: dict[str, Any], as_json: bool) -> None:
    """Prints what was done for each kind of key, and says so where that is nothing."""
    if not any(pair["predicted"] for pair in made["pairs"]):
        keyset_id = made["keyset"]["keyset_id"]
        note(
            f"Nothing was predicted anew; keyset {keyset_id} has keys of all facts that the other keyset has keys of. "
            f"For another sample or method, drop them first: colmlm keysets retire {keyset_id}"
        )
    if as_json:
        print_json(made)
        return
    print_table(_COLUMNS, [[_said(pair[column]) for column in _COLUMNS] for pair in made["pairs"]])


def _said(value: object) -> object:
    return "not measured" if value is None else value
