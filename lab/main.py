"""The command `colmlm-lab`, which measures the program and repeats the paper's experiments."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import typer

from colmlm.cli.errors import FAULT, USAGE, explain
from colmlm.cli.options import Json, ProgramOptions, examples, wants_json
from colmlm.cli.output import note, print_json, say
from colmlm.cli.start.commands import Lazy
from colmlm.cli.start.root import Debug, Root, start
from colmlm.kb import interpreter

LABORATORY: Mapping[str, Lazy] = MappingProxyType(
    {
        "bench": Lazy("colmlm.lab.bench.command:app", "Measure this program on this machine."),
        "evaluate": Lazy(
            "colmlm.lab.evaluate.command:app",
            "Measure a checkpoint: recall of its keys, answers, and unlearning.",
        ),
        "unlearn": Lazy(
            "colmlm.lab.evaluate.tofu:unlearn",
            "Train a checkpoint until it no longer says some answers",
            examples="UNLEARN_EXAMPLES",
        ),
        "plot": Lazy(
            "colmlm.lab.main:plot", "Draw a run's losses, rate, gradient norm and speed against its steps."
        ),
        "crashlab": Lazy(
            "colmlm.lab.faults.laboratory:crashlab",
            "Prove that a kill loses nothing: kill working processes and the database, and check every invariant.",
            examples="EXAMPLES",
        ),
        "faults": Lazy(
            "colmlm.lab.faults.laboratory:app",
            "Kill what works on a base, and check that nothing was lost.",
        ),
    }
)


class LaboratoryRoot(Root):
    """The command group at the root of `colmlm-lab`."""

    lazy = LABORATORY


app = typer.Typer(
    cls=LaboratoryRoot,
    name="colmlm-lab",
    help="Measure colmlm: its speed, its answers, and what it keeps when it is killed.",
    epilog=examples("colmlm-lab bench store --facts 20000", "colmlm-lab crashlab --rounds 20"),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def root(context: typer.Context, debug: Debug = False, as_json: Json = False) -> None:
    """Measure the program on knowledge bases of its own; yours is left alone."""
    context.obj = ProgramOptions(as_json)


def plot(
    run: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="The run's directory.")],
    output: Annotated[Path | None, typer.Option("--output", help="A PNG file. Default: in the run.")] = None,
) -> None:
    """Draw a run's losses, rate, gradient norm and speed against its steps."""
    from colmlm.model.training.logs import LOSS_FILE, PLOT_FILE, draw_plot

    target = output or run / PLOT_FILE
    draw_plot(run / LOSS_FILE, target)
    print_json({"plot": str(target)}) if wants_json() else say(str(target))


def lm_eval() -> None:
    """Run lm_eval's own command line with the model `colmlm` registered, as the entry point of `colmlm-lm-eval`.

    lm_eval takes third-party models only from its registry, and has no entry point by which a package could add one.
    """
    interpreter.shut_out_current_directory()
    if find_spec("lm_eval") is None:
        note("lm_eval is not installed; it comes with: pip install 'colmlm[harness]'")
        sys.exit(USAGE)
    from lm_eval.__main__ import cli_evaluate

    from colmlm.lab.harness import model  # noqa: F401  # registers it

    try:
        cli_evaluate()
    except typer.BadParameter as error:
        note(error.format_message())
        sys.exit(USAGE)
    except Exception as error:  # an error with a known cause becomes one line; any other is raised
        failure = explain(error)
        if failure.exit_code == FAULT:
            raise
        note(failure.line)
        sys.exit(failure.exit_code)


def main() -> None:
    """Run `colmlm-lab`, as the console script's entry point."""
    start(app, "colmlm-lab")


if __name__ == "__main__":
    main()
