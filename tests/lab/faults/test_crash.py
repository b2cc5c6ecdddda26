"""`crashlab` finds nothing in a sound knowledge base, and finds every way in which one could be unsound."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import URL, text

from colmlm.kb.backup.write import archive_tables
from colmlm.kb.corpus.format import Parsed
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store import database
from colmlm.lab.bench.synthetic import ENCODERS
from colmlm.lab.faults.judge import judge, outcomes
from colmlm.lab.faults.killpoints import (
    CLEARING,
    END,
    OUTSIDE,
    PHASES,
    REWRITING,
    name_of,
    name_of_database,
    points_of,
)
from colmlm.lab.faults.laboratory import Child, Laboratory
from colmlm.lab.faults.migration import NO_SCHEMA, Migration, migrate
from colmlm.lab.faults.plan import Blow
from colmlm.lab.faults.sources import Copy, back_up
from colmlm.lab.faults.target import CrashTarget
from colmlm.lab.faults.world import (
    ABSENT,
    BUILDING,
    StepJournal,
    Text,
    WorkloadStep,
    World,
    read_journal,
)
from tests.cli.conftest import Ran, invoke
from tests.lab.faults import sabotage
from tests.servers import TEMPLATE, clone

HEAD = database.head_revision()
KILLS_THE_SERVER = 26  # a seed whose first round does


class SharedServer:
    """The server of all tests: others use it too."""

    can_be_killed = False

    def __init__(self, server: URL, stack: ExitStack) -> None:
        self.server, self.stack = server, stack

    def make_database(self, *, migrated: bool = True) -> str:
        return self.stack.enter_context(clone(self.server, TEMPLATE if migrated else "template0"))

    def drop(self, url: str) -> None:
        """Nothing: what was cloned goes with the laboratory."""

    def kill(self) -> None:
        raise AssertionError

    def start(self) -> None:
        raise AssertionError


@contextmanager
def laboratory(server: URL, folder: Path, prelude: str = "", work: str = "edits") -> Iterator[Laboratory]:
    with ExitStack() as stack:
        shared = SharedServer(server, stack)
        made = Laboratory(shared, folder, seed=1, prelude=prelude, works={work: 1})
        yield stack.enter_context(made)


@pytest.mark.slow(reason="kills processes at chosen instants")
def test_kills_at_seeded_instants_lose_nothing(server: URL, tmp_path: Path) -> None:
    with laboratory(server, tmp_path) as lab:
        *_, tally = lab.rounds(0, 4)
    assert tally.findings == []
    assert tally.rounds == 4 and tally.kills.total() >= 4 and tally.acknowledged > 10


@pytest.mark.slow(reason="kills processes at chosen instants")
@pytest.mark.parametrize(
    ("work", "killed"),
    [
        ("copy", ("during a backup: ", "during a restore of a backup: ")),
        ("migration", ("during a migration: ",)),
        ("sync", ("during a sync of a folder: ",)),
        ("import", ("during an import of a release: ",)),
    ],
)
def test_kills_during_work_on_a_second_database_lose_nothing_of_it(
    server: URL, tmp_path: Path, work: str, killed: tuple[str, ...]
) -> None:
    with laboratory(server, tmp_path, work=work) as lab:
        *_, tally = lab.rounds(0, 6)
    assert tally.findings == []
    assert all(any(point.startswith(during) for point in tally.kills) for during in killed), tally.kills


@pytest.mark.slow(reason="kills processes at chosen instants")
@pytest.mark.parametrize(
    ("broken", "kinds"),
    [
        ("", set()),
        ("deletes_are_acknowledged_and_rolled_back", {"resurrected"}),
        ("indexes_claim_changes_they_have_not_applied", {"lost"}),
    ],
)
def test_a_broken_knowledge_base_is_noticed(
    server: URL, tmp_path: Path, broken: str, kinds: set[str]
) -> None:
    """The work is chosen, not drawn: an index is loaded, facts change, and the index is stored."""
    with laboratory(server, tmp_path, broken and f"tests.lab.faults.sabotage:{broken}") as lab:
        base = lab.fresh_base(0)
        one, two, *_ = (q for q, fact in base.world.facts.items() if fact.live)
        steps = [
            WorkloadStep("lookup", (one,), expected=(base.world.answer(one),)),
            WorkloadStep("insert", ("Subject new-1",), "value new-1"),
            WorkloadStep("update", (one,), "value new-2"),
            WorkloadStep("delete", (two,)),
            WorkloadStep("rekey"),
            WorkloadStep("snapshot"),
        ]
        lab.strike(0, base, [Child(steps, Blow(""), tmp_path / "journal")])
    found = {found.kind for _, found in lab.tally.findings}
    assert found >= kinds and bool(found) is bool(kinds), lab.tally.findings


class FaultyServer(SharedServer):
    """A server that fails once, at the second database that is asked for."""

    asked = 0

    def make_database(self, *, migrated: bool = True) -> str:
        self.asked += 1
        if self.asked == 2:
            raise RuntimeError("no such database")
        return super().make_database(migrated=migrated)


@pytest.mark.slow(reason="kills processes at chosen instants")
def test_an_error_of_the_laboratory_counts_and_the_run_goes_on(server: URL, tmp_path: Path) -> None:
    with ExitStack() as stack:
        shared = FaultyServer(server, stack)
        lab = stack.enter_context(Laboratory(shared, tmp_path, seed=1, works={"migration": 1}))
        *_, tally = lab.rounds(0, 3)
    ((number, finding),) = tally.findings
    assert (number, finding.kind) == (0, "errors") and "RuntimeError: no such database" in finding.what
    assert "Traceback" in finding.what
    assert tally.rounds == 3 and tally.kills.total() >= 1  # a migration may be over before its kill


def test_a_fact_whose_insert_was_in_doubt_is_not_among_those_with_a_predicted_key() -> None:
    predicted = WORLD.with_predicted(0, ["Live"])
    both = [StepJournal(), StepJournal(in_doubt=WorkloadStep("insert", ("New",), "3"))]
    undone, done = outcomes(predicted, both)
    assert undone.predicted[0] == {"Live"} and done.predicted[0] == {"Live", "New"}
    assert undone.apply(WorkloadStep("make_true")).predicted[0] == set()


@pytest.mark.slow(reason="kills processes at chosen instants")
def test_a_migration_is_prepared_from_a_log_whose_rows_lie_in_another_order(
    opened: KnowledgeBase, server: URL, tmp_path: Path
) -> None:
    """Rows move when vacuumed space is used again, and the log of the copy takes them in their order alone."""
    with opened.engine.begin() as connection:
        for statement in (
            "CREATE TEMPORARY TABLE moved AS SELECT * FROM change",
            "ALTER TABLE change DISABLE TRIGGER USER",
            "TRUNCATE change",
            "INSERT INTO change SELECT * FROM moved ORDER BY seq DESC",
            "ALTER TABLE change ENABLE TRIGGER USER",
        ):
            connection.execute(text(statement))
    with clone(server, "template0") as url:
        prepared = Migration(opened.settings, CrashTarget(url, str(tmp_path)), HEAD)
        assert list(prepared.judge(opened, WORLD, WORLD, StepJournal())) == []


@pytest.mark.slow(reason="kills processes at chosen instants")
@pytest.mark.parametrize(
    ("broken", "kinds"),
    [
        ("", set()),
        ("purges_claim_levels_and_rewrite_nothing", {"residue"}),
        ("purges_leave_a_setting", {"mismatched"}),
    ],
)
def test_a_broken_purge_is_noticed(server: URL, tmp_path: Path, broken: str, kinds: set[str]) -> None:
    with laboratory(server, tmp_path, broken and f"tests.lab.faults.sabotage:{broken}") as lab:
        base = lab.fresh_base(0)
        steps = [WorkloadStep("purge", tuple(sorted(base.world.facts)[:2]))]
        lab.strike(0, base, [Child(steps, Blow(""), tmp_path / "journal")])
    assert {found.kind for _, found in lab.tally.findings} == kinds, lab.tally.findings


@pytest.mark.slow(reason="kills processes at chosen instants")
@pytest.mark.parametrize("during", [REWRITING, CLEARING])
def test_a_killed_purge_is_completed_by_the_next_and_leaves_no_setting(
    server: URL, tmp_path: Path, during: str
) -> None:
    """The kill is placed, not drawn: in the midst of the rewriting, and where checkpoints keep no segment."""
    with laboratory(server, tmp_path) as lab:
        base = lab.fresh_base(0)
        steps = [WorkloadStep("purge", tuple(sorted(base.world.facts)[:2]))]
        blow = Blow(f"before a statement{during}", nth=9)
        lab.strike(0, base, [Child(steps, blow, tmp_path / "journal")])
    assert lab.tally.findings == []
    assert lab.tally.kills == {f"during a purge: before a statement{during}": 1}


@pytest.mark.slow(reason="kills processes at chosen instants")
def test_two_purges_at_once_both_hold(server: URL, tmp_path: Path) -> None:
    with laboratory(server, tmp_path) as lab:
        base = lab.fresh_base(0)
        names = sorted(base.world.facts)
        shares = ([name for name in names if name.endswith(str(share))] for share in (0, 1))
        children = [
            Child([WorkloadStep("purge", tuple(mine[:2]))], Blow(""), tmp_path / f"journal-{n}")
            for n, mine in enumerate(shares)
        ]
        lab.strike(0, base, children, "two")
    assert lab.tally.findings == []
    assert lab.tally.acknowledged == 2


@pytest.mark.slow(reason="kills processes at chosen instants")
@pytest.mark.parametrize(
    "broken, revision, blow",
    [
        ("", HEAD, Blow("after a statement", nth=21)),
        ("", HEAD, Blow("")),
        ("", NO_SCHEMA, Blow("after a statement", nth=13)),
        ("", NO_SCHEMA, Blow("")),
        ("migrations_commit_one_by_one", HEAD, Blow("after a statement", nth=15)),
        ("migrations_lose_keys", HEAD, Blow("")),
    ],
)
def test_a_broken_migration_is_noticed_at_the_instant_that_shows_it(
    server: URL, tmp_path: Path, broken: str, revision: str, blow: Blow
) -> None:
    """The kill is placed, not drawn: a migration is stopped in its midst, or it is let come to its end."""
    with laboratory(server, tmp_path, broken and f"tests.lab.faults.sabotage:{broken}") as lab:
        base = lab.fresh_base(0)
        steps = [WorkloadStep("migrate", value=revision)]
        lab.strike(0, base, [Child(steps, blow, tmp_path / "journal")])
    assert bool(lab.tally.findings) is bool(broken), lab.tally.findings
    assert lab.tally.kills.total() == bool(blow.point)


@pytest.mark.slow(reason="kills processes at chosen instants")
@pytest.mark.parametrize(
    ("broken", "blow", "kinds"),
    [
        ("", Blow("while rows are copied in", nth=len(archive_tables()) // 2), set()),
        (
            "restores_commit_table_by_table",
            Blow("while rows are copied in", nth=len(archive_tables()) // 2),
            {"lost"},
        ),
        ("", Blow(""), set()),
        ("restores_pass_over_the_newer_log", Blow(""), {"residue"}),
    ],
)
def test_a_broken_restore_of_a_backup_is_noticed_at_the_instant_that_shows_it(
    server: URL, tmp_path: Path, broken: str, blow: Blow, kinds: set[str]
) -> None:
    """The kill is placed, not drawn: halfway through the tables, where a restore is to have left nothing."""
    with laboratory(server, tmp_path, broken and f"tests.lab.faults.sabotage:{broken}") as lab:
        base = lab.fresh_base(0)
        steps = [
            WorkloadStep("back_up"),
            WorkloadStep("erase", (min(base.world.facts),)),
            WorkloadStep("restore_backup"),
        ]
        lab.strike(0, base, [Child(steps, replace(blow, at=2), tmp_path / "journal")])
    assert {found.kind for _, found in lab.tally.findings} >= kinds
    assert bool(lab.tally.findings) is bool(kinds)
    assert lab.tally.kills.total() == bool(blow.point)


@pytest.mark.slow(reason="kills processes at chosen instants")
@pytest.mark.parametrize(
    ("broken", "blow", "kinds"),
    [
        ("", Blow("while keys are predicted", nth=3), set()),
        ("", Blow("", at=0), set()),
        ("keys_are_predicted_by_a_map_of_other_facts", Blow("", at=0), {"mismatched"}),
        ("", Blow("after keys are made", at=2, nth=2), set()),
        ("predicted_keys_are_dropped_before_true_ones_are_made", Blow("after keys are made", at=2), {"lost"}),
        ("", Blow("", at=2), set()),
    ],
)
def test_broken_predictions_are_noticed_at_the_instant_that_shows_it(
    server: URL, tmp_path: Path, broken: str, blow: Blow, kinds: set[str]
) -> None:
    """The kill is placed, not drawn: while keys are predicted, and while true ones take their place."""
    steps = [WorkloadStep(do, encoder=1) for do in ("adapt", "activate", "make_true")][: blow.at + 1]
    with laboratory(server, tmp_path, broken and f"tests.lab.faults.sabotage:{broken}") as lab:
        struck = lab.strike(0, lab.fresh_base(0), [Child(steps, blow, tmp_path / "journal")])
        assert {found.kind for _, found in lab.tally.findings} >= kinds
        assert bool(lab.tally.findings) is bool(kinds), lab.tally.findings
        assert lab.tally.kills.total() == bool(blow.point)
        if not broken:  # what was cut off goes on, to true keys of all
            left = ("adapt", "activate", "make_true") if struck.world.active == 0 else ("make_true",)
            again = [WorkloadStep(do, encoder=1) for do in left]
            whole = lab.strike(1, struck, [Child(again, Blow(""), tmp_path / "again")])
            assert not lab.tally.findings and whole.world.predicted[1] == frozenset()


PERU, CHILE = Text(0, (("Capital of Peru", "Lima"),)), Text(0, (("Capital of Chile", "Santiago"),))


@pytest.fixture
def opened(kb: KnowledgeBase) -> Iterator[KnowledgeBase]:
    """A base of three facts: one is live, one deleted, one of a document."""
    kb.facts.add("Live", "1", actor="test", reason="test")
    kb.facts.delete(
        kb.facts.add("Dead", "2", actor="test", reason="test").fact_ids, actor="test", reason="test"
    )
    kb.corpora.ingest([Parsed(PERU.document("peru"))], "lands", actor="test", reason="test")
    kb.keysets.rekey(ENCODERS[0])
    return kb


WORLD = (
    World()
    .apply(WorkloadStep("insert", ("Live",), "1"))
    .apply(WorkloadStep("insert", ("Dead",), "2"))
    .apply(WorkloadStep("delete", ("Dead",)))
    .apply(WorkloadStep("ingest", documents=(("peru", PERU),)))
    .apply(WorkloadStep("rekey"))
    .apply(WorkloadStep("activate"))
)


def kinds_found(
    opened: KnowledgeBase, *steps: WorkloadStep, in_doubt: WorkloadStep | None = None
) -> set[str]:
    """What the judge says where a child claims that these steps were acknowledged to it."""
    head = opened.log.head_seq()
    verdict = judge(opened, WORLD, [StepJournal(acknowledged=steps, in_doubt=in_doubt)], head)
    return {finding.kind for finding in verdict.findings}


@pytest.mark.slow(reason="kills processes at chosen instants")
def test_the_judge_sees_what_was_acknowledged_and_does_not_hold(opened: KnowledgeBase) -> None:
    assert kinds_found(opened) == set()
    assert "lost" in kinds_found(opened, WorkloadStep("insert", ("New",), "3"))
    assert "mismatched" in kinds_found(opened, WorkloadStep("update", ("Live",), "9"))
    assert "resurrected" in kinds_found(opened, WorkloadStep("delete", ("Live",)))
    assert "lost" in kinds_found(opened, WorkloadStep("restore", ("Dead",)))
    assert "lost" in kinds_found(opened, WorkloadStep("ingest", documents=(("chile", CHILE),)))
    assert "mismatched" in kinds_found(opened, WorkloadStep("rekey", encoder=1))
    assert {"resurrected", "lost"} <= kinds_found(opened, WorkloadStep("erase", ("Capital of Peru",)))


@pytest.mark.slow(reason="kills processes at chosen instants")
def test_the_judge_takes_a_step_in_doubt_as_done_or_not_but_not_by_half(opened: KnowledgeBase) -> None:
    assert kinds_found(opened, in_doubt=WorkloadStep("delete", ("Live",))) == set()
    assert kinds_found(opened, in_doubt=WorkloadStep("rekey", encoder=1)) == set()
    both = WorkloadStep("ingest", documents=(("chile", CHILE), ("peru", replace(PERU, intro=1))))
    assert kinds_found(opened, in_doubt=both) == set()
    opened.corpora.ingest([Parsed(CHILE.document("chile"))], "lands", actor="test", reason="test")
    assert "mismatched" in kinds_found(opened, in_doubt=both)


def test_the_judge_sees_a_rekey_that_came_only_halfway(opened: KnowledgeBase) -> None:
    opened.keysets.create(ENCODERS[1].checkpoint)
    assert kinds_found(opened, in_doubt=WorkloadStep("rekey", encoder=1)) == set()
    assert "mismatched" in kinds_found(opened)
    assert WORLD.keysets[1] == ABSENT and WORLD.with_keyset(1, BUILDING).keysets[1] == BUILDING


@pytest.mark.slow(reason="kills processes at chosen instants")
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


@pytest.mark.slow(reason="kills processes at chosen instants")
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
    erase = WorkloadStep("erase", ("Capital of Peru",))
    Erasure(opened).erase([3], actor="test", reason="test")
    assert kinds_found(opened, in_doubt=erase) == set()
    with opened.engine.begin() as connection:
        connection.execute(text(left))
    assert "residue" in kinds_found(opened, in_doubt=erase)


@pytest.mark.slow(reason="kills processes at chosen instants")
def test_the_judge_sees_a_file_that_says_what_was_erased(opened: KnowledgeBase) -> None:
    file = opened.settings.home / "uploads" / "kept.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text("The capital of Chile is Santiago.")
    opened.corpora.ingest([Parsed(CHILE.document("chile"))], "lands", actor="test", reason="test")
    (chile,) = [fact.fact_id for fact in opened.facts.find(text="Santiago")]
    Erasure(opened).erase([chile], actor="test", reason="test")
    done = (
        WorkloadStep("ingest", documents=(("chile", CHILE),)),
        WorkloadStep("erase", ("Capital of Chile",)),
    )
    verdict = judge(opened, WORLD, [StepJournal(acknowledged=done)], opened.log.head_seq())
    assert "residue" in {finding.kind for finding in verdict.findings}


COPIED = (WorkloadStep("back_up"), WorkloadStep("restore_backup"))


@pytest.fixture
def target(server: URL, tmp_path: Path) -> Iterator[CrashTarget]:
    """An empty database and a folder, to restore into."""
    (tmp_path / "target").mkdir()
    with clone(server) as url:
        yield CrashTarget(url, str(tmp_path / "target"))


def kinds_found_in_copy(opened: KnowledgeBase, target: CrashTarget, *done: WorkloadStep) -> set[str]:
    """What the judge says of a copy where these steps were acknowledged."""
    return {found.kind for found in Copy(target).judge(opened, WORLD, WORLD, StepJournal(acknowledged=done))}


def test_the_judge_takes_an_empty_copy_for_a_restore_in_doubt_alone(
    opened: KnowledgeBase, target: CrashTarget
) -> None:
    back_up(opened, target)
    assert kinds_found_in_copy(opened, target, *COPIED) == {"lost"}


@pytest.mark.slow(reason="kills processes at chosen instants")
def test_the_judge_restores_an_empty_copy_and_looks_into_it(
    opened: KnowledgeBase, target: CrashTarget
) -> None:
    back_up(opened, target)
    assert kinds_found_in_copy(opened, target, COPIED[0]) == set()
    with KnowledgeBase.open(target.settings) as copy:
        copy.facts.delete([1], actor="test", reason="test")
    assert "lost" in kinds_found_in_copy(opened, target, *COPIED)


def test_the_judge_sees_a_backup_that_is_none_and_what_a_killed_writer_left(
    opened: KnowledgeBase, target: CrashTarget
) -> None:
    assert kinds_found_in_copy(opened, target) == set()
    target.backup.with_name(f".{target.backup.name}.{os.getpid()}0.tmp").touch()  # of nobody: cleared up
    assert kinds_found_in_copy(opened, target) == set()
    (target.path / "left").touch()
    assert kinds_found_in_copy(opened, target) == {"residue"}
    target.backup.write_bytes(target.backup.read_bytes()[:-1])
    assert "errors" in kinds_found_in_copy(opened, target)


@pytest.mark.slow(reason="kills processes at chosen instants")
@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        ("SELECT", None),
        ("DELETE FROM fact_key", "lost"),
        ("ALTER TABLE fact ADD COLUMN extra text", "mismatched"),
        ("DROP INDEX fact_key_fact_id_idx", "mismatched"),
        (
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'fact_later_idx'::regclass",
            "mismatched",
        ),
        ("UPDATE alembic_version SET version_num = '0003'", "errors"),
    ],
)
def test_the_judge_sees_a_migration_that_went_wrong(
    opened: KnowledgeBase, server: URL, tmp_path: Path, damage: str, kind: str | None
) -> None:
    with clone(server, "template0") as url:
        prepared = Migration(opened.settings, CrashTarget(url, str(tmp_path)), HEAD)
        migrate(prepared.target)
        engine = database.connect_database(prepared.target.settings)
        with engine.begin() as connection:
            connection.execute(text(damage))
        engine.dispose()
        found = {
            f.kind
            for f in prepared.judge(opened, WORLD, WORLD, StepJournal(in_doubt=WorkloadStep("migrate")))
        }
    assert kind in found if kind else found == set()


def test_a_journal_that_was_cut_short_counts_whole_lines(tmp_path: Path) -> None:
    file, steps = tmp_path / "journal", [WorkloadStep("snapshot"), WorkloadStep("catch_up")]
    file.write_text('{"begin": 0}\n{"done": 0, "fact_ids": []}\n{"begin": 1}\n{"do')
    journal = read_journal(file, steps)
    assert journal.acknowledged == (steps[0],) and journal.in_doubt == steps[1]


@pytest.mark.slow(reason="kills processes at chosen instants")
def test_the_command_kills_its_own_database_and_prints_one_object() -> None:
    ran: Ran = invoke("crashlab", "--rounds", 1, "--seed", KILLS_THE_SERVER, "--json")
    assert ran.code == 0, ran
    report = ran.json
    assert report["rounds"] == report["server_kills"] == 1
    faults = ("lost", "resurrected", "mismatched", "residue", "chain_breaks", "errors")
    assert all(report[fault] == 0 for fault in faults)
    assert sum(n for name, n in report["kill_points"].items() if name.startswith("database killed ")) == 1
    assert set(report["kill_points"]) <= names()


def names() -> set[str]:
    """Gives every name that a kill may count under."""
    points = {name_of(point, do) for do in PHASES for point, _ in points_of(do)}
    outside = {name_of(OUTSIDE, do) for do in PHASES}
    return points | outside | {END} | {name_of_database(do) for do in (*PHASES, None)}


def test_the_documentation_lists_every_kill_point() -> None:
    page = Path("lab/faults/README.md").read_text()
    assert {name for name in names() if f"`{name}`" not in page} == set()


def test_every_sabotage_replaces_what_is_there() -> None:
    replaced = [
        target
        for node in ast.walk(ast.parse(Path(sabotage.__file__).read_text()))
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute)
    ]
    assert len(replaced) >= 10
    for target in replaced:
        assert hasattr(eval(ast.unparse(target.value), vars(sabotage)), target.attr), ast.unparse(target)
