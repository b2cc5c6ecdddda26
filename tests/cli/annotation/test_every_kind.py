"""A file of every kind that is read gives facts where they stand, and three changes in its folder are followed."""

from __future__ import annotations

from pathlib import Path

from colmlm.kb.corpus.raw.files import KINDS, kind_of
from tests.acceptance.every_kind import MAKERS, rehearse
from tests.cli.conftest import Annotators, Run


def test_every_kind_gives_facts_in_place_and_three_changes_are_followed(
    run: Run, light: Annotators, tmp_path: Path
) -> None:
    assert {kind_of(name) for name in MAKERS} == set(KINDS.values())
    done = rehearse(run, tmp_path / "folder")
    assert done["first"]["code"] == 0 and done["first"]["files"]["new"] == len(MAKERS)
    assert len(done["facts"]) == len(MAKERS) and all(done["facts"].values())
    assert (done["dry run"]["new"], done["dry run"]["changed"], done["dry run"]["gone"]) == (
        ["fountain.txt"], ["library.txt"], ["museum.html"],
    )  # fmt: skip
    assert done["dry run"]["documents"] == done["second"]["documents"] == {"new": 1, "changed": 1, "gone": 1}
    after = done["facts"] | {"fountain.txt": ["1999"], "library.txt": ["1977"]}
    del after["museum.html"]
    assert done["facts after"] == after
    assert done["again"]["files"] == {"new": 0, "changed": 0, "unchanged": len(MAKERS), "gone": 0}
