"""Crashlab finds nothing in a sound knowledge base, and finds every way in which one could be unsound."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import URL, text

from cli.crashlab.encoder import ENCODERS
from cli.crashlab.journal import Journal, read_journal
from cli.crashlab.judge import judge
from cli.crashlab.laboratory import Laboratory
from cli.crashlab.world import BUILDING, NO_KEYSET, Step, Text, World
from kb.corpus import Parsed
from kb.erasure import Erasure
from kb.service import KnowledgeBase
from tests.cli.conftest import Ran, invoke
from tests.conftest import clone

KILLS_THE_SERVER = 6  # a seed whose first round does


class SharedServer:
    """The server of all tests: others use it too."""

    can_be_killed = False

    def __init__(self, server: URL, stack: ExitStack) -> None:
        self.server, self.stack = server, stack

    def fresh(self) -> str:
        return self.stack.enter_context(clone(self.server))

    def kill(self) -> None:
        raise AssertionError

    def start(self) -> None:
        raise AssertionError


@contextmanager
def laboratory(server: URL, folder: Path, prelude: str = "") -> Iterator[Laboratory]:
    with ExitStack() as stack:
        shared = SharedServer(server, stack)
        yield stack.enter_context(Laboratory(shared, folder, seed=1, prelude=prelude))


def test_kills_at_seeded_instants_lose_nothing(server: URL, tmp_path: Path) -> None:
    with laboratory(server, tmp_path) as lab:
        *_, tally = lab.rounds(0, 4)
    assert tally.findings == []
    assert tally.rounds == 4 and tally.kills.total() >= 4 and tally.acknowledged > 10


@pytest.mark.parametrize(
    ("broken", "kind"),
    [
        ("deletes_are_acknowledged_and_rolled_back", "resurrected"),
        ("indexes_claim_changes_they_have_not_applied", "lost"),
    ],
)
def test_a_broken_knowledge_base_is_noticed(server: URL, tmp_path: Path, broken: str, kind: str) -> None:
    with laboratory(server, tmp_path, f"tests.cli.sabotage:{broken}") as lab:
        assert any(tally.count(kind) for tally in lab.rounds(0, 20))


PERU, CHILE = Text(0, (("Capital of Peru", "Lima"),)), Text(0, (("Capital of Chile", "Santiago"),))


@pytest.fixture
def opened(kb: KnowledgeBase) -> Iterator[KnowledgeBase]:
    """A base of three facts: one is live, one deleted, one of a document."""
    kb.insert("Live", "1", actor="test", reason="test")
    kb.delete(kb.insert("Dead", "2", actor="test", reason="test").fact_ids, actor="test", reason="test")
    kb.ingest([Parsed(PERU.document("peru"))], "lands", actor="test", reason="test")
    kb.rekey(ENCODERS[0])
    return kb


WORLD = (
    World()
    .after(Step("insert", ("Live",), "1"))
    .after(Step("insert", ("Dead",), "2"))
    .after(Step("delete", ("Dead",)))
    .after(Step("ingest", documents=(("peru", PERU),)))
    .after(Step("rekey"))
    .after(Step("activate"))
)


def kinds_found(opened: KnowledgeBase, *steps: Step, in_doubt: Step | None = None) -> set[str]:
    """What the judge says where a child claims that these steps were acknowledged to it."""
    head = opened.head_seq()
    verdict = judge(opened, WORLD, [Journal(acknowledged=steps, in_doubt=in_doubt)], head)
    return {finding.kind for finding in verdict.findings}


def test_the_judge_sees_what_was_acknowledged_and_does_not_hold(opened: KnowledgeBase) -> None:
    assert kinds_found(opened) == set()
    assert "lost" in kinds_found(opened, Step("insert", ("New",), "3"))
    assert "mismatched" in kinds_found(opened, Step("update", ("Live",), "9"))
    assert "resurrected" in kinds_found(opened, Step("delete", ("Live",)))
    assert "lost" in kinds_found(opened, Step("restore", ("Dead",)))
    assert "lost" in kinds_found(opened, Step("ingest", documents=(("chile", CHILE),)))
    assert "mismatched" in kinds_found(opened, Step("rekey", encoder=1))
    assert {"resurrected", "lost"} <= kinds_found(opened, Step("erase", ("Capital of Peru",)))


def test_the_judge_takes_a_step_in_doubt_as_done_or_not_but_not_by_half(opened: KnowledgeBase) -> None:
    assert kinds_found(opened, in_doubt=Step("delete", ("Live",))) == set()
    assert kinds_found(opened, in_doubt=Step("rekey", encoder=1)) == set()
    both = Step("ingest", documents=(("chile", CHILE), ("peru", replace(PERU, intro=1))))
    assert kinds_found(opened, in_doubt=both) == set()
    opened.ingest([Parsed(CHILE.document("chile"))], "lands", actor="test", reason="test")
    assert "mismatched" in kinds_found(opened, in_doubt=both)


def test_the_judge_sees_a_rekey_that_came_only_halfway(opened: KnowledgeBase) -> None:
    opened.create_keyset(ENCODERS[1].checkpoint)
    assert kinds_found(opened, in_doubt=Step("rekey", encoder=1)) == set()
    assert "mismatched" in kinds_found(opened)
    assert WORLD.keysets[1] == NO_KEYSET and WORLD.with_keyset(1, BUILDING).keysets[1] == BUILDING


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        ("DELETE FROM fact_key WHERE fact_id = 1", "lost"),
        ("UPDATE fact_version SET value = '8' WHERE fact_id = 1", "mismatched"),
        (
            "UPDATE fact_version SET to_seq = NULL WHERE fact_id = 2;"
            "UPDATE fact SET deleted_seq = NULL WHERE id = 2",
            "resurrected",
        ),
        (
            "ALTER TABLE change DISABLE TRIGGER USER; UPDATE change SET actor = 'another' WHERE seq = 1",
            "chain_breaks",
        ),
        ("UPDATE keyset SET state = 'ready'", "mismatched"),
    ],
)
def test_the_judge_sees_damage(opened: KnowledgeBase, damage: str, kind: str) -> None:
    with opened.engine.begin() as connection:
        connection.execute(text(damage))
    assert kind in kinds_found(opened)


@pytest.mark.parametrize(
    "left",
    [
        "UPDATE fact_version SET value = 'It was Lima.' WHERE fact_id = 3",
        "INSERT INTO generation (prompt, output, checkpoint_id, seq, mode) VALUES ('?', 'It is LIMA.', 'c', 1, 'auto')",
        "INSERT INTO job (kind, arguments, actor, state) VALUES ('fsck', '{\"a\": \"Lima\"}', 'a', 'queued')",
        "UPDATE keyset SET gate = '[\"Lima\"]'",
        "INSERT INTO suppression (digest, seq) VALUES ('Lima', 1)",
    ],
)
def test_the_judge_sees_what_an_erasure_left(opened: KnowledgeBase, left: str) -> None:
    erase = Step("erase", ("Capital of Peru",))
    Erasure(opened).erase([3], actor="test", reason="test")
    assert kinds_found(opened, in_doubt=erase) == set()
    with opened.engine.begin() as connection:
        connection.execute(text(left))
    assert "residue" in kinds_found(opened, in_doubt=erase)


def test_the_judge_sees_a_file_that_says_what_was_erased(opened: KnowledgeBase) -> None:
    file = opened.settings.home / "uploads" / "kept.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text("The capital of Chile is Santiago.")
    opened.ingest([Parsed(CHILE.document("chile"))], "lands", actor="test", reason="test")
    (chile,) = [fact.fact_id for fact in opened.facts(text="Santiago")]
    Erasure(opened).erase([chile], actor="test", reason="test")
    done = (Step("ingest", documents=(("chile", CHILE),)), Step("erase", ("Capital of Chile",)))
    verdict = judge(opened, WORLD, [Journal(acknowledged=done)], opened.head_seq())
    assert "residue" in {finding.kind for finding in verdict.findings}


def test_a_journal_that_was_cut_short_counts_whole_lines(tmp_path: Path) -> None:
    file, steps = tmp_path / "journal", [Step("snapshot"), Step("catch_up")]
    file.write_text('{"begin": 0}\n{"done": 0, "fact_ids": []}\n{"begin": 1}\n{"do')
    journal = read_journal(file, steps)
    assert journal.acknowledged == (steps[0],) and journal.in_doubt == steps[1]


def test_the_command_kills_its_own_database_and_prints_one_object() -> None:
    ran: Ran = invoke("crashlab", "--rounds", 1, "--seed", KILLS_THE_SERVER, "--json")
    assert ran.code == 0, ran
    report = ran.json
    assert report["rounds"] == report["server_kills"] == 1
    faults = ("lost", "resurrected", "mismatched", "residue", "chain_breaks", "errors")
    assert all(report[fault] == 0 for fault in faults)
    assert report["kill_points"]["the database server"] == 1
