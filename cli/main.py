"""The command `colmlm`: what its console script calls."""

from __future__ import annotations

import gc
import os
import sys

from colmlm.cli import completion

# So many new objects are let pass before garbage is looked for. Imports make many objects and no garbage: to look at
# Python's own number of them, 700, took an eighth of a command's start.
_OBJECTS = 50_000


def main() -> None:
    """Complete a name from the tables, or run. What runs commands is imported only then: it takes a while."""
    offered = completion.offered("colmlm", os.environ)
    if offered is not None:
        sys.stdout.write(offered)
        return
    gc.set_threshold(_OBJECTS)
    from colmlm.cli.app import app
    from colmlm.cli.root import start

    start(app, "colmlm")


if __name__ == "__main__":
    main()
