"""The command line of every Python process that this program starts, and the environment they start in.

By default `python -m` and `python -c` search the current directory first for modules: a folder `cli` there, or a
file `typing.py`, would run in place of the program's, with its rights. `-P` keeps that directory off the path.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).absolute().parents[2]  # the directory from which the program is imported


def command(*words: object) -> list[str]:
    """Give the command line of this interpreter with these words, such as "-m", "colmlm.cli", "worker"."""
    return [sys.executable, "-P", *map(str, words)]


def restart_command() -> list[str]:
    """Give the command line that starts this process once more."""
    return command(*sys.orig_argv[1:])


def shut_out_current_directory() -> None:
    """Keep Python processes started from here from importing modules of the current directory.

    To be called first. A program that is not installed finds its packages where this process did.
    """
    os.environ["PYTHONSAFEPATH"] = "1"
    # An empty entry, as in `PYTHONPATH=$PYTHONPATH:/mine`, stands for the current directory.
    entries = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if Path(sysconfig.get_path("purelib")).resolve() != ROOT and str(ROOT) not in entries:
        entries.append(str(ROOT))
    if entries:
        os.environ["PYTHONPATH"] = os.pathsep.join(entries)
