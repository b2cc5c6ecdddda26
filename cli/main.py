"""The entry point of the console script `colmlm`."""

from __future__ import annotations

import os
import sys

from colmlm.cli.start import completion


def main() -> None:
    """Complete a name from the tables, or else import what runs commands, which takes a while, and run one."""
    offered = completion.offered("colmlm", os.environ)
    if offered is not None:
        sys.stdout.write(offered)
        return
    from colmlm.cli.start.app import app
    from colmlm.cli.start.root import start

    start(app, "colmlm")


if __name__ == "__main__":
    main()
