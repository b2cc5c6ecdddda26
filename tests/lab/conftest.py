"""Fixtures of the command line, with which the laboratory's commands are run too."""

from tests.cli.conftest import annotated, atlas, checkpoint, home, keyed, light, own_judge, run

__all__ = ["annotated", "atlas", "checkpoint", "home", "keyed", "light", "own_judge", "run"]
