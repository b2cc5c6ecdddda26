from __future__ import annotations

from pathlib import Path

import pytest

from colmlm.kb.corpus.release import ENTRIES
from colmlm.kb.evidence.records import NewOutput, Splice
from colmlm.kb.service import KnowledgeBase
from colmlm.lab.bench.synthetic import make_release, synthetic_keys
from tests.cli.conftest import Run

NUM = 60
TAKE = ("corpus", "add", "--format", "colmlm-release", "--corpus", "wiki")
PLACE = "wiki, sample s0000000, fact 0 (of a release: no text, no offsets)"


@pytest.fixture
def release(tmp_path: Path) -> Path:
    make_release(tmp_path / "release", synthetic_keys(NUM, 8, seed=0), spec="Flat")
    return tmp_path / "release"


def test_a_release_is_looked_at_taken_and_known_again(run: Run, release: Path) -> None:
    looked = run(*TAKE, release, "--dry-run", "--json").json
    assert (looked["dry_run"], looked["entries"], looked["facts"], looked["keyset"]) == (True, NUM, 0, None)
    assert run("corpus", "list", "--json").json["corpora"] == []
    taken = run(*TAKE, release, "--json").json
    assert (taken["facts"], taken["samples"], taken["adopted"], taken["approximate"]) == (NUM, 3, NUM, True)
    assert (taken["keyset"]["state"], taken["keyset"]["num_keys"], taken["dim"]) == ("active", NUM, 8)
    again = run(*TAKE, release)
    assert again.code == 0 and f"Took 0 facts into 'wiki'; {NUM} were there already." in again.out


def test_places_are_shown_as_they_are_known(run: Run, release: Path, kb: KnowledgeBase) -> None:
    taken = run(*TAKE, release, "--json").json
    (fact,) = kb.facts.find(limit=1)
    assert PLACE in run("facts", "show", fact.fact_id).out and PLACE in run("facts", "list").out
    splice = Splice(0, len(fact.value), "hit", fact.fact_id, 1, 0.9)
    output = kb.outputs.record(NewOutput("p", fact.value, taken["checkpoint_id"], "forced", 1, (splice,)))
    assert PLACE in run("trace", "output", output).out and PLACE in run("trace", "fact", fact.fact_id).out
    assert "wiki,s0000000,,,,," in run("facts", "list", "--csv").out


def test_a_bad_release_and_a_checkpoint_of_another_width_are_refused(
    run: Run, release: Path, checkpoint: Path
) -> None:
    other = run(*TAKE, release, "--checkpoint", checkpoint)
    assert other.code == 2 and "its keys have 8 numbers" in other.err
    (release / ENTRIES).unlink()
    ran = run(*TAKE, release)
    assert ran.code == 2 and "has no entries.db" in ran.err and "Traceback" not in ran.err
    assert run("log", "list", "--json").json["changes"] == []
