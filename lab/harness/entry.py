"""`colmlm-lm-eval`: lm_eval's own command line with the model `colmlm` registered.

lm_eval takes third-party models only from its registry, and has no entry point by which a package could add one.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

import typer

from colmlm.cli.errors import FAULT, USAGE, explain
from colmlm.cli.output import note
from colmlm.kb import interpreter


def main() -> None:
    """Run lm_eval with the arguments of the command line."""
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


if __name__ == "__main__":
    main()
