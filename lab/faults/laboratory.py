"""Runs rounds: in each, children work on a base and are killed, and the judge examines the base."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import IO, Annotated, Any, Self

import psutil
import typer
from sqlalchemy import Engine, text

from colmlm.cli.options import examples
from colmlm.cli.output import note, progress
from colmlm.kb import interpreter
from colmlm.kb.corpus.format import Parsed
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.removal.scan import LEAST, Matcher
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store import database
from colmlm.kb.store.settings import Settings
from colmlm.lab.bench.synthetic import ENCODERS
from colmlm.lab.faults import processes, served
from colmlm.lab.faults.child import FAILED, INDEX_SPECS, STOPPED
from colmlm.lab.faults.harness import Figures, scenario_command, show_figures
from colmlm.lab.faults.judge import Verdict, Violation, judge
from colmlm.lab.faults.killpoints import OUTSIDE, name_of, name_of_database
from colmlm.lab.faults.migration import NO_SCHEMA, Migration
from colmlm.lab.faults.plan import Blow, Planner, draw_blow
from colmlm.lab.faults.sources import Copy, CrashSource, FollowedFolder, ImportedRelease
from colmlm.lab.faults.target import CORPUS, PATIENCE, WHO, CrashTarget, FolderServer, is_quiet
from colmlm.lab.faults.world import StepJournal, WorkloadStep, World, has_begun, read_journal

ROUNDS_OF_A_BASE = 50
DOCUMENTS, INSERTED = 80, 20  # in a fresh base; documents have 1 to 4 facts
# The kinds of rounds, each with its weight in per cent.
WORKS = {"edits": 78, "copy": 6, "migration": 4, "purge": 6, "sync": 3, "import": 3}
ALONE = ("point", "outside")  # the kinds of kills of a child that has the database for itself
BLOWS = {"point": 64, "outside": 12, "server": 10, "two": 14}


@dataclass(slots=True)
class RoundTally:
    """The totals of the rounds so far. `acknowledged` and `in_doubt` count steps."""

    rounds: int = 0
    acknowledged: int = 0
    in_doubt: int = 0
    server_kills: int = 0
    two_children: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    findings: list[tuple[int, Violation]] = field(default_factory=list)

    def count(self, kind: str) -> int:
        return sum(finding.kind == kind for _, finding in self.findings)


@dataclass(frozen=True, slots=True)
class BaseUnderTest:
    """A knowledge base under test, and the world that it should equal."""

    settings: Settings
    world: World
    head: int

    @property
    def url(self) -> str:
        return str(self.settings.database_url)


@dataclass(frozen=True, slots=True)
class Child:
    """One child's part in a round: its steps, its kill (with an empty `point` it does not kill itself), its journal."""

    steps: list[WorkloadStep]
    blow: Blow
    journal: Path


Second = Copy | Migration | CrashSource  # the use of a round's second database, with its own judge


class Laboratory:
    """Runs rounds on bases of its own, in `folder` and on `server`.

    A round depends only on `seed`, its number and its base.
    """

    def __init__(
        self,
        server: FolderServer,
        folder: Path,
        seed: int,
        *,
        prelude: str = "",
        works: Mapping[str, int] = MappingProxyType(WORKS),
    ) -> None:
        """Make a laboratory. Each child calls `prelude` ("module:function") first, by which tests inject faults.

        `works` gives the kinds of rounds and their weights.
        """
        self.server, self.folder, self.seed, self.prelude = server, folder, seed, prelude
        self.works = works
        self.tally = RoundTally()

    def __enter__(self) -> Self:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._nursery = subprocess.Popen(
            interpreter.command("-m", "colmlm.lab.faults.child"),
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        with self._nursery as nursery, suppress(BrokenPipeError):
            _pipe(nursery.stdin).close()

    def _start_again(self) -> None:
        """End the nursery with its children, whatever they do, and start another one."""
        nursery = psutil.Process(self._nursery.pid)
        for process in (*nursery.children(recursive=True), nursery):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.__exit__()
        self.__enter__()

    def rounds(self, first: int, last: int) -> Iterator[RoundTally]:
        """Run these rounds, from the first round on the base that round `first` works on.

        A base with findings is given up, so that one fault counts in one round only.
        """
        base: BaseUnderTest | None = None
        for number in range(first - first % ROUNDS_OF_A_BASE, last):
            found = len(self.tally.findings)
            try:
                if base is None or number % ROUNDS_OF_A_BASE == 0:
                    base = self.fresh_base(number)
                base = self._run_round(number, base)
            except Exception:  # noqa: BLE001 # an error of the laboratory is a finding, and the run goes on
                what = f"the laboratory itself: {traceback.format_exc()}"
                self.tally.findings.append((number, Violation("errors", what)))
                self._start_again()
            if len(self.tally.findings) > found:
                base = None
            self.tally.rounds += 1
            yield self.tally

    def _run_round(self, number: int, base: BaseUnderTest) -> BaseUnderTest:
        random = Random(f"{self.seed}/{number}")
        work, kind = (random.choices([*drawn], [*drawn.values()])[0] for drawn in (self.works, BLOWS))
        if kind == "server" and not self.server.can_be_killed:
            kind = "outside"
        if kind == "two" and work not in ("edits", "purge"):  # a second child has no second database
            kind = "point"
        return self.strike(number, base, self._children(random, number, base.world, kind, work), kind)

    def strike(
        self, number: int, base: BaseUnderTest, children: list[Child], kind: str = "point"
    ) -> BaseUnderTest:
        """Start these children, kill as `kind` (of `BLOWS`) says, judge the base, and give it with its new world."""
        with self._second(number, base, children[0].steps[-1]) as second:
            codes = self._run(base, children, kind, second)
            journals = [read_journal(child.journal, child.steps) for child in children]
            self._tally_round(number, kind, journals, codes)
            verdict = self._judge(base, journals, second, is_alone=kind in ALONE)
        self.tally.findings += [(number, finding) for finding in verdict.findings]
        return replace(base, world=verdict.world, head=verdict.head)

    @contextmanager
    def _second(self, number: int, base: BaseUnderTest, last: WorkloadStep) -> Iterator[Second | None]:
        """Yield the second database that the last step of a plan needs, or None."""
        if last.do not in ("restore_backup", "migrate", "sync", "import_release"):
            yield None
            return
        url = self.server.make_database(migrated=last.do != "migrate")
        target = CrashTarget(url, str(self.folder / f"target-{number}"))
        target.path.mkdir()
        try:
            yield _second_of(base, target, last)
        finally:
            self.server.drop(url)
            shutil.rmtree(target.path)

    def _children(self, random: Random, number: int, world: World, kind: str, work: str) -> list[Child]:
        shares = (0, 1) if kind == "two" else (None,)
        children = []
        for n, share in enumerate(shares):
            steps = _plan(Planner(random, f"{number}.{n}", share=share), world, work, number)
            blow = draw_blow(random, steps, within=kind not in ("outside", "server"))
            children.append(Child(steps, blow, self.folder / f"round-{number}-{n}.jsonl"))
        if kind == "two":  # one of the two is killed, the other works to the end
            spared = random.randrange(2)
            children[spared] = replace(children[spared], blow=Blow(""))
        return children

    def _run(self, base: BaseUnderTest, children: list[Child], kind: str, second: Second | None) -> list[int]:
        """Start the children, kills, and give the exit code of each."""
        target = asdict(second.target) if second else None
        pids = [
            self._order({"start": {**self._start_order(base, child), "target": target}}) for child in children
        ]
        if kind in ("outside", "server"):
            _await_step(children[0])
            if kind == "server":
                self.server.kill()
                self.tally.server_kills += 1
            else:
                os.kill(pids[0], signal.SIGKILL)
        codes = [self._order({"wait": pid, "seconds": PATIENCE}) for pid in pids]
        if kind == "server":
            self.server.start()
        return codes

    def _start_order(self, base: BaseUnderTest, child: Child) -> dict[str, Any]:
        ids = {q: fact.fact_id for q, fact in base.world.facts.items()}
        return {
            "url": base.url,
            "home": str(base.settings.home),
            "journal": str(child.journal),
            "steps": [asdict(step) for step in child.steps],
            "fact_ids": ids,
            "point": child.blow.point,
            "at": child.blow.at,
            "nth": child.blow.nth,
            "prelude": self.prelude,
        }

    def _order(self, order: dict[str, Any]) -> int:
        _pipe(self._nursery.stdin).write(f"{json.dumps(order)}\n")
        _pipe(self._nursery.stdin).flush()
        return int(_pipe(self._nursery.stdout).readline())

    def _tally_round(self, number: int, kind: str, journals: list[StepJournal], codes: list[int]) -> None:
        """Add a round to the tally, with a finding for each child that ended in an unexpected way."""
        tally = self.tally
        tally.two_children += kind == "two"
        for journal, code in zip(journals, codes, strict=True):
            tally.acknowledged += len(journal.acknowledged)
            tally.in_doubt += journal.in_doubt is not None
            doing = journal.in_doubt.do if journal.in_doubt else None
            if kind == "server":
                tally.kills[name_of_database(doing)] += 1
            elif code == -signal.SIGKILL:
                tally.kills[name_of(journal.killed or OUTSIDE, doing)] += 1
            if code not in (0, FAILED, -signal.SIGKILL) and (code, kind) != (STOPPED, "server"):
                # The cause of FAILED is in the child's journal, where the judge finds it.
                cause = "it hung" if code == -signal.SIGABRT else f"it ended with {code}"
                what = f"a child: {cause}, {journal.stopped or ''} in {journal.in_doubt}"
                tally.findings.append((number, Violation("errors", what)))

    def _judge(
        self, base: BaseUnderTest, journals: list[StepJournal], second: Second | None, *, is_alone: bool
    ) -> Verdict:
        with KnowledgeBase.open(base.settings) as opened:
            quiet = is_quiet(opened.engine)
            verdict = judge(opened, base.world, journals, base.head)
            findings = [] if quiet else [Violation("errors", "the database still works for a killed child")]
            findings += judge_purges(opened, base.world, verdict.world, journals, is_alone=is_alone)
            if second:
                findings += second.judge(opened, base.world, verdict.world, journals[0])
        return replace(verdict, findings=(*verdict.findings, *findings))

    def fresh_base(self, number: int) -> BaseUnderTest:
        """Make a base of some hundred facts with keys of the first encoder."""
        if self.server.can_be_killed:
            self.server.start()  # the round before may have failed while it was down
        planner = Planner(Random(f"{self.seed}/base {number}"), f"base{number}")
        steps = planner.population(DOCUMENTS, INSERTED)
        settings = Settings(
            home=self.folder / f"home-{number}", database_url=self.server.make_database(), actor=WHO["actor"]
        )
        with KnowledgeBase.open(settings) as opened:
            world = World()
            for step in steps:
                _populate(opened, step)
                world = world.apply(step)
            opened.keysets.create(ENCODERS[0].checkpoint, INDEX_SPECS[0])
            opened.keysets.rekey(ENCODERS[0])
            world = world.apply(WorkloadStep("rekey")).apply(WorkloadStep("activate"))
            facts = {str(f.question): f.fact_id for f in opened.facts.find(deleted=None, limit=10_000)}
            return BaseUnderTest(settings, world.with_stored(facts, world.keysets), opened.log.head_seq())


def _populate(opened: KnowledgeBase, step: WorkloadStep) -> None:
    if step.do == "ingest":
        parsed = [Parsed(text.document(name)) for name, text in step.documents]
        opened.corpora.ingest(parsed, CORPUS, **WHO)
    else:
        opened.facts.add(step.questions[0], step.value, **WHO)


def _second_of(base: BaseUnderTest, target: CrashTarget, last: WorkloadStep) -> Second:
    match last.do:
        case "restore_backup":
            return Copy(target)
        case "migrate":
            return Migration(base.settings, target, last.value)
        case "sync":
            return FollowedFolder(target, last.value)
        case _:
            return ImportedRelease(target, last.value)


def _plan(planner: Planner, world: World, work: str, number: int) -> list[WorkloadStep]:
    match work:
        case "purge":
            return planner.purge(world)
        case "sync":
            return [WorkloadStep("sync", value=str(number))]
        case "import":
            return [WorkloadStep("import_release", value=str(number))]
        case "copy":
            return planner.copy(world)
        case "migration":
            return planner.migration((NO_SCHEMA, database.head_revision()))
        case _:
            return planner.plan(world, planner.random.randint(6, 12))


def _await_step(child: Child) -> None:
    deadline = time.monotonic() + PATIENCE
    while not has_begun(child.journal, child.blow.at) and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(child.blow.delay)


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


# Judges purges: an erasure that claims a level is searched for in the files, and settings are as they were
# before.

HEAP, LOG = 3, 4  # the levels at which nothing is left in the files of tables, and in the write-ahead log

_SETTINGS = text("""
SELECT name, setting FROM pg_file_settings
WHERE sourcefile LIKE '%auto.conf' AND starts_with(name, 'wal') ORDER BY name
""")
# No file is of a transaction that still runs: the judge has waited until nobody is connected.
_ORPHANS = text("""
SELECT folder || '/' || name
FROM (SELECT 'base/' || oid FROM pg_database WHERE datname = current_database()) AS d (folder),
     pg_ls_dir(folder) AS name
WHERE name ~ '^[0-9]+([._]|$)' AND pg_filenode_relation(0, CAST(substring(name FROM '^[0-9]+') AS oid)) IS NULL
""")
_DATABASE = text("SELECT CAST(oid AS text) FROM pg_database WHERE datname = current_database()")


def judge_purges(
    opened: KnowledgeBase, before: World, now: World, journals: Sequence[StepJournal], *, is_alone: bool
) -> Iterator[Violation]:
    """Find fault unless each purge reached what it claims, and the next one completes those that did not end.

    A purge that `is_alone`, and comes to its end, must reach the last level, unless a crash of the server before had
    left files that no table has. These are removed, as an operator does.
    """
    began = [journal for journal in journals if _has_purged(journal)]
    levels = [journal.purged["level"] if journal.purged else 0 for journal in began]
    for journal, level in zip(began, levels, strict=True):
        if level >= HEAP:
            yield from _search(opened, now, _erased_by(before, journal), level)
    if levels and min(levels) < LOG:
        orphans = _remove_orphans(opened.engine)
        for purged in (journal.purged for journal in began if journal.purged and is_alone and not orphans):
            yield Violation("mismatched", f"a purge alone reached level {purged['level']}: {purged['left']}")
        yield from _complete(opened, now)
    if began:
        yield from _settings(opened.engine)


def _has_purged(journal: StepJournal) -> bool:
    """Tell whether a child began a purge, by its journal."""
    return any(step.do == "purge" for step in (*journal.acknowledged, journal.in_doubt) if step)


def _erased_by(world: World, journal: StepJournal) -> frozenset[str]:
    """Give the facts that were erased when the child's purge began, or by it."""
    for step in (*journal.acknowledged, journal.in_doubt):
        if step:
            world = world.apply(step)
            if step.do == "purge":
                break
    return world.erased_questions


def _complete(opened: KnowledgeBase, world: World) -> Iterator[Violation]:
    """Purge once more, as the next one does after a kill, and search for all that was ever erased."""
    report = Erasure(opened).finish(now=True)
    if report.level < LOG:
        left = [level.left for level in report.levels]
        yield Violation("mismatched", f"the purge after one that did not end reached {report.level}: {left}")
    yield from _search(opened, world, world.erased_questions, report.level)


def _search(opened: KnowledgeBase, world: World, erased: Iterable[str], level: int) -> Iterator[Violation]:
    """Find files that hold a value of an erased fact, of those that a purge of this level has cleared."""
    facts = [world.facts[question] for question in sorted(erased)]
    values = [value for fact in facts for value in (fact.value, *fact.past) if len(value.encode()) >= LEAST]
    matcher = Matcher([value.encode() for value in values])
    for file in _files(opened.engine, level):
        try:
            found, _ = matcher.find_in_file(file)
        except FileNotFoundError:  # a segment or a temporary file that was removed meanwhile
            continue
        for number in sorted(found):
            place = f"{file.parent.name}/{file.name}"
            yield Violation("residue", f"level {level} was claimed, and {place} says {values[number]!r}")


def _files(engine: Engine, level: int) -> list[Path]:
    """List the server's files for this database, once all is written, and from level 4 on those of the log."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("CHECKPOINT"))
        data = Path(str(connection.scalar(text("SHOW data_directory"))))
        folders = [data / "global", data / "base" / str(connection.scalar(_DATABASE))]
    folders += [data / "pg_wal"] if level >= LOG else []
    return [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]


def _remove_orphans(engine: Engine) -> list[str]:
    """Remove the files of this database that no table has, and give their names."""
    with engine.connect() as connection:
        data = Path(str(connection.scalar(text("SHOW data_directory"))))
        orphans = list(connection.scalars(_ORPHANS))
    for name in orphans:
        (data / name).unlink()
    return orphans


def _settings(engine: Engine) -> Iterator[Violation]:
    """Find settings of the log that a purge has left behind, and reset them, so that they count once."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for name, value in connection.execute(_SETTINGS).all():
            yield Violation("mismatched", f"{name} = {value} is left from a purge")
            connection.execute(text(f"ALTER SYSTEM RESET {name}"))
        connection.execute(text("SELECT pg_reload_conf()"))


# The commands: the rounds, and the other scenarios.

app = typer.Typer(
    help="Kill what works on a base, and check that nothing was lost.",
    epilog=examples("colmlm-lab faults database"),
)
FAULTS = ("lost", "resurrected", "mismatched", "residue", "chain_breaks", "errors")


for name, scenario in (
    ("database", served.database),
    ("edits", processes.edits),
    ("erasure", served.erasure),
    ("switch", processes.switch),
):
    app.command(name)(scenario_command(scenario))


@app.callback()
def group() -> None:
    """Kill what works on a base, and check that nothing was lost."""


EXAMPLES = examples(
    "colmlm-lab crashlab",
    "colmlm-lab crashlab --rounds 500 --seed 7 --json",
    "colmlm-lab crashlab --seed 7 --only 31",
)


def crashlab(
    rounds: Annotated[int, typer.Option("--rounds", min=1, max=1_000_000, help="How many kills.")] = 100,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Another seed is another run.")] = 1,
    only: Annotated[
        int | None,
        typer.Option("--only", min=0, help="Repeat this round, with those before it on the same base."),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the temporary folder for a look at it.")
    ] = False,
) -> None:
    """Prove that a kill loses nothing: kill working processes and the database, and check every invariant.

    It works on a temporary home with a database of its own, never on yours. The exit code is 1 where an
    acknowledged edit was lost, a deleted fact came back, anything disagrees, or the change log is broken.
    """
    folder = Path(tempfile.mkdtemp(prefix="colmlm-faults-"))
    folder.chmod(0o755)  # the embedded server may run as another user
    began = time.monotonic()
    try:
        tally = _run(folder, seed, only or 0, rounds if only is None else only + 1)
    finally:
        if keep:
            note(f"Kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    show_figures(_figures(tally, seed, time.monotonic() - began))


def _run(folder: Path, seed: int, first: int, last: int) -> RoundTally:
    with (
        FolderServer(folder / "server") as server,
        Laboratory(server, folder, seed) as laboratory,
        progress("Killing") as advance,
    ):
        for tally in laboratory.rounds(first, last):
            advance(tally.rounds, None)
        return laboratory.tally


def _figures(tally: RoundTally, seed: int, seconds: float) -> Figures:
    failures = [
        {"round": number, "seed": seed, "kind": finding.kind, "what": finding.what}
        for number, finding in tally.findings
    ]
    return {
        "rounds": tally.rounds,
        **{fault: tally.count(fault) for fault in FAULTS},
        "seed": seed,
        "seconds": round(seconds, 1),
        "seconds_per_round": round(seconds / max(tally.rounds, 1), 2),
        "acknowledged": tally.acknowledged,
        "in_doubt": tally.in_doubt,
        "server_kills": tally.server_kills,
        "rounds_of_two_processes": tally.two_children,
        "kill_points": dict(sorted(tally.kills.items())),
        "failures": failures[:100],
    }
