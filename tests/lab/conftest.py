"""The laboratory's commands are run as those of the command line are."""

from tests.cli.conftest import annotated, atlas, checkpoint, home, keyed, run

__all__ = ["annotated", "atlas", "checkpoint", "home", "keyed", "run"]
