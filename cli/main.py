"""The command `colmlm`: what its console script calls."""

from __future__ import annotations

import os
import sys

from colmlm.cli import completion


def main() -> None:
    """Complete a name from the tables, or run. What runs commands is imported only then: it takes a while."""
    offered = completion.offered("colmlm", os.environ)
    if offered is not None:
        sys.stdout.write(offered)
        return
    from colmlm.cli.app import app
    from colmlm.cli.root import start

    start(app, "colmlm")


if __name__ == "__main__":
    main()
