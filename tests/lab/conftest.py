"""Fixtures of the command line, with which the laboratory's commands are run too."""

from tests.cli.conftest import (
    annotated,
    atlas,
    atlas_template,
    checkpoint,
    home,
    keyed,
    keyed_template,
    light,
    own_judge,
    run,
    template,
)

__all__ = [
    "annotated",
    "atlas",
    "atlas_template",
    "checkpoint",
    "home",
    "keyed",
    "keyed_template",
    "light",
    "own_judge",
    "run",
    "template",
]
