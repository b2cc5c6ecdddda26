"""`corpus sync`: a corpus follows a folder, also after an interruption, and nothing else of it is touched."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from colmlm.kb.jobs.kinds import Sync
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.service import KnowledgeBase
from tests.cli.conftest import Annotators, Run
from tests.gates import full_disk, gate, interrupted

INTO = ("--corpus", "town", "--json")


@pytest.fixture
def town(tmp_path: Path) -> Path:
    folder = tmp_path / "town"
    (folder / "old").mkdir(parents=True)
    (folder / "harbour.md").write_text("# Harbour\n\nThe harbour opened in 1834.\n")
    (folder / "museum.txt").write_text("The museum opened in 1902.")
    (folder / "old" / "light.txt").write_text("The lighthouse opened in 1870.")
    (folder / "halls.csv").write_text("id,text\na,Hall A opened in 1910.\nb,Hall B opened in 1920.\n")
    return folder


def values(kb: KnowledgeBase) -> set[str]:
    return {fact.value for fact in kb.facts.find(limit=100)}


def test_what_is_new_changed_and_gone_is_added_replaced_and_taken_out(
    run: Run, kb: KnowledgeBase, light: Annotators, town: Path, tmp_path: Path
) -> None:
    by_hand = tmp_path / "by-hand.txt"
    by_hand.write_text("The town hall opened in 1950.")
    assert run("corpus", "add", by_hand, *INTO).code == 0
    first = run("corpus", "sync", town, *INTO)
    assert first.code == 0 and first.json["files"] == {"new": 4, "changed": 0, "unchanged": 0, "gone": 0}
    assert (first.json["facts"], first.json["citable"]) == (5, True)
    head = kb.log.head_seq()
    with light.gone():
        same = run("corpus", "sync", town, *INTO).json
    assert same["files"] == {"new": 0, "changed": 0, "unchanged": 4, "gone": 0} and kb.log.head_seq() == head
    (town / "fountain.txt").write_text("The fountain opened in 1999.")
    (town / "museum.txt").write_text("The museum opened in 1904.")
    (town / "harbour.md").unlink()
    (town / "halls.csv").write_text("id,text\na,Hall A opened in 1910.\n")
    with light.gone():
        dry = run("corpus", "sync", town, *INTO, "--dry-run").json
    assert (dry["new"], dry["changed"], dry["gone"]) == (
        ["fountain.txt"],
        ["halls.csv", "museum.txt"],
        ["harbour.md"],
    )
    assert dry["documents"] == {"new": 1, "changed": 1, "gone": 2} and kb.log.head_seq() == head
    asking = run("corpus", "sync", town, *INTO)
    assert asking.code == 2 and "--yes" in asking.err and kb.log.head_seq() == head
    done = run("corpus", "sync", town, *INTO, "--yes", "--reason", "weekly").json
    assert done["documents"] == dry["documents"] and (done["facts"], done["deleted_facts"]) == (2, 2)
    assert values(kb) == {"1950", "1870", "1910", "1999", "1904"}
    (removal,) = kb.log.changes(done["removed_seq"] - 1, 1)
    assert (removal.kind, removal.reason, removal.num_facts) == ("delete", "weekly", 2)
    assert kb.upkeep.fsck().ok
    (town / "harbour.md").write_text("# Harbour\n\nThe harbour opened in 1834.\n")
    said = run("corpus", "sync", town, "--corpus", "town")
    assert said.code == 0 and "1 new" in said.out and "1834" in values(kb)


def test_a_sync_that_is_cut_off_is_finished_by_the_next(
    run: Run, kb: KnowledgeBase, light: Annotators, town: Path, database_url: str
) -> None:
    assert run("corpus", "sync", town, *INTO).code == 0
    (town / "fountain.txt").write_text("The fountain opened in 1999.")
    (town / "museum.txt").unlink()
    with full_disk(database_url, "INSERT ON change", "NEW.kind = 'delete'"):
        assert run("corpus", "sync", town, *INTO, "--yes").code == 9
    assert values(kb) == {"1834", "1902", "1870", "1910", "1920", "1999"}
    with gate(database_url, "DELETE ON synced_file") as noting, interrupted(noting):
        assert run("corpus", "sync", town, *INTO, "--yes").code == 130
    assert "1902" not in values(kb)
    with light.gone():
        done = run("corpus", "sync", town, *INTO, "--yes").json
    assert (done["facts"], done["removed_seq"]) == (0, None)
    assert values(kb) == {"1834", "1870", "1910", "1920", "1999"} and done["keyset"]["num_unkeyed"] == 0
    with light.gone():
        same = run("corpus", "sync", town, *INTO).json
    assert same["files"] == {"new": 0, "changed": 0, "unchanged": 4, "gone": 0}


def test_what_a_sync_that_was_cut_off_had_stored_goes_with_its_file(
    run: Run, kb: KnowledgeBase, light: Annotators, town: Path, database_url: str
) -> None:
    assert run("corpus", "sync", town, *INTO).code == 0
    (town / "fountain.txt").write_text("The fountain opened in 1999.")
    (town / "halls.csv").write_text("id,text\na,Hall A opened in 1910.\nc,Hall C opened in 1930.\n")
    with full_disk(database_url, "INSERT ON change", "NEW.kind = 'delete'"):
        assert run("corpus", "sync", town, *INTO, "--yes").code == 9
    assert values(kb) == {"1834", "1902", "1870", "1910", "1920", "1930", "1999"}
    (town / "fountain.txt").unlink()
    (town / "halls.csv").unlink()
    done = run("corpus", "sync", town, *INTO, "--yes").json
    assert done["gone"] == ["fountain.txt", "halls.csv"] and values(kb) == {"1834", "1902", "1870"}


def test_what_cannot_be_read_is_not_gone(run: Run, kb: KnowledgeBase, light: Annotators, town: Path) -> None:
    assert run("corpus", "sync", town, *INTO).code == 0
    (town / "museum.txt").write_bytes(bytes(range(256)))
    (town / "old" / "light.txt").rename(town.parent / "light.txt")
    (town / "old" / "light.txt").symlink_to(town.parent / "light.txt")
    (town / "halls.csv").write_text("id,text\na,Hall A opened in 1910.\nb\nc,Hall C opened in 1930.\n")
    (town / "map.png").touch()
    done = run("corpus", "sync", town, *INTO)
    assert (done.code, done.json["refused"], done.json["documents"]["gone"]) == (3, 3, 0)
    assert values(kb) == {"1834", "1902", "1870", "1910", "1920", "1930"}
    assert run("corpus", "sync", town, *INTO).json["files"]["changed"] == 2
    (town / "halls.csv").unlink()
    done = run("corpus", "sync", town, *INTO, "--yes", "--skip-unknown").json
    assert done["documents"]["gone"] == 3 and values(kb) == {"1834", "1902", "1870"}


def test_an_empty_folder_takes_out_nothing_unless_that_is_meant(
    run: Run, kb: KnowledgeBase, light: Annotators, town: Path
) -> None:
    assert run("corpus", "sync", town, *INTO).code == 0
    shutil.rmtree(town)
    town.mkdir()
    refused = run("corpus", "sync", town, *INTO, "--yes")
    assert refused.code == 4 and "Check the path" in refused.err and len(values(kb)) == 5
    assert run("corpus", "sync", town, *INTO, "--yes", "--allow-empty").json["documents"]["gone"] == 5
    assert values(kb) == set()


def test_a_corpus_follows_no_other_folder_unless_that_is_meant(
    run: Run, kb: KnowledgeBase, light: Annotators, town: Path, tmp_path: Path
) -> None:
    now, other = tmp_path / "now", tmp_path / "other"
    now.symlink_to(town)
    assert run("corpus", "sync", now, *INTO).code == 0
    other.mkdir()
    shutil.copy(town / "museum.txt", other)
    for asked in ((), ("--dry-run",)):
        refused = run("corpus", "sync", other, *INTO, "--yes", *asked)
        assert refused.code == 4 and f"follows {now}" in refused.err and "--move" in refused.err
    assert len(values(kb)) == 5
    assert run("corpus", "sync", town, *INTO).code == 0
    now.unlink()
    now.symlink_to(town.rename(tmp_path / "later"))
    assert run("corpus", "sync", now, *INTO, "--move").json["files"]["unchanged"] == 4
    now.unlink()
    now.symlink_to((tmp_path / "later").rename(tmp_path / "latest"))
    assert run("corpus", "sync", now, *INTO).json["files"]["unchanged"] == 4
    assert run("corpus", "sync", other, *INTO, "--yes", "--move").json["documents"]["gone"] == 4
    assert values(kb) == {"1902"} and run("corpus", "sync", other, *INTO).code == 0
    assert run("corpus", "sync", tmp_path / "latest", *INTO).code == 4


def test_a_document_that_moves_to_another_file_stays(
    run: Run, kb: KnowledgeBase, light: Annotators, town: Path
) -> None:
    assert run("corpus", "sync", town, *INTO).code == 0
    (town / "halls.csv").rename(town / "rooms.csv")
    moved = run("corpus", "sync", town, *INTO, "--yes").json
    assert (moved["new"], moved["gone"], moved["documents"]["gone"]) == (["rooms.csv"], ["halls.csv"], 0)
    with (town / "more.jsonl").open("w") as more:
        more.write(json.dumps({"id": "a", "text": "Another hall opened in 1960."}) + "\n")
    twice = run("corpus", "sync", town, *INTO)
    assert twice.code == 3 and "a second document" in twice.json["refusals"][0]["reason"]
    assert {"1910", "1920"} <= values(kb) and "1960" not in values(kb)


def test_a_job_syncs_with_a_folder_of_the_home_and_no_other(
    run: Run, kb: KnowledgeBase, light: Annotators, town: Path, home: Path
) -> None:
    (home / "folders").mkdir(parents=True)
    (home / "folders" / "handbook").symlink_to(town)
    jobs = Jobs(kb)
    first = jobs.submit(Sync(folder="handbook", corpus="town"), actor="ana").job_id
    missing = jobs.submit(Sync(folder="other", corpus="town"), actor="ana").job_id
    assert run("jobs", "start", "sync", "folder=../town", "corpus=town").code == 2
    assert run("worker", "--once").code == 0
    result = run("jobs", "list", first, "--wait", "--json").json["result"]
    assert (result["files"]["new"], result["facts"], result["citable"]) == (4, 5, True)
    assert "new" not in result and kb.log.changes()[0].actor == "ana"
    assert "no directory 'other'" in run("jobs", "list", missing, "--wait").out
    (town / "museum.txt").unlink()
    again = jobs.submit(Sync(folder="handbook", corpus="town"), actor="ana").job_id
    with light.gone():
        assert run("worker", "--once").code == 0
        assert run("corpus", "sync", town, *INTO).json["files"]["unchanged"] == 3
    assert run("jobs", "list", again, "--wait", "--json").json["result"]["documents"]["gone"] == 1
    assert "1902" not in values(kb)


def test_facts_of_a_synced_folder_are_verified_in_their_own_files(
    run: Run, kb: KnowledgeBase, light: Annotators, town: Path
) -> None:
    assert run("corpus", "sync", town, *INTO).code == 0
    facts = {fact.value: fact.fact_id for fact in kb.facts.find(limit=100)}

    def verified(value: str) -> tuple[int, str, str | None]:
        told = run("facts", "verify", facts[value], "--json")
        assert told.json["fact_id"] == facts[value]
        return told.code, told.json["outcome"], told.json["says"]

    for value in facts:
        assert verified(value) == (0, "still_says", value), value
    (town / "museum.txt").write_text("Notice. The museum opened in 1904.")
    (town / "harbour.md").unlink()
    (town / "halls.csv").write_text("id,text\na,Hall A opened in 1910.\n")
    assert verified("1902") == (1, "says_otherwise", "1904")
    assert verified("1834") == (1, "gone", None) == verified("1920") and verified("1910")[0] == 0
    place = run("facts", "verify", facts["1902"], "--json").json["place"]
    assert (place["start"], place["end"], place["uri"]) == (29, 33, (town / "museum.txt").as_uri())
    said = run("facts", "verify", facts["1902"])
    assert said.out.startswith("The source says something else: 1904: file://")
    (added,) = kb.facts.add("Who?", "Ann", actor="tester", reason="a test").fact_ids
    assert run("facts", "verify", added).code == 2
