"""The command line with a database and a home of the test's own, and a tiny random model for commands that need one."""

from __future__ import annotations

import ast
import json
import os
import pty
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import URL
from typer.testing import CliRunner

from colmlm.cli.composition.readers import CONFIDENCE
from colmlm.cli.start.root import app
from colmlm.kb import interpreter
from colmlm.kb.answers.reading import UNFITTED
from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, to_record
from colmlm.lab import main as lab
from colmlm.model.annotate.checkpoint import SMALL_READER
from tests import servers
from tests.places import ROOT
from tests.tiny import tiny_checkpoint

if TYPE_CHECKING:
    from colmlm.kb.service import KnowledgeBase
    from tests.cli.elsewhere import There, ThereParts


TEXT = "Peru is a country. 🇵🇪 The capital of Peru is Lima. Its great lake is Titicaca."
OPENING = "When did the harbour, the museum and the lighthouse open?"
QUESTIONS = {"Lima": "What is the capital of Peru?", "Titicaca": "Which lake lies highest?"}


def document(external_id: str = "peru", text: str = TEXT) -> AnnotatedDocument:
    spans = (FactSpan(text.index(v), text.index(v) + len(v), v, q, v) for v, q in QUESTIONS.items())
    return AnnotatedDocument(external_id, text, tuple(spans), title="Peru", uri="https://example.org/peru")


@dataclass(frozen=True)
class Ran:
    """The exit code of a command and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON object on stdout; any other output there is an error."""
        assert self.out.endswith("\n") and self.out.count("\n") == 1
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return value


Run = Callable[..., Ran]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session")
def lively(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights to which every question is another, so that a fact with a key of its question is found by it."""
    return tiny_checkpoint(tmp_path_factory.mktemp("lively"), eagerness=1.0)


@pytest.fixture(scope="session")
def own_judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small reader, which judges by its own scores alone: the fitted judge also weighs cosines, and those of a
    tiny checkpoint mean nothing.
    """
    folder = tmp_path_factory.mktemp("reader")
    for file in SMALL_READER.iterdir():
        (folder / file.name).symlink_to(file)
    (folder / CONFIDENCE).unlink()
    UNFITTED.save(folder / CONFIDENCE)
    return folder


@pytest.fixture
def home(
    database_url: str, checkpoint: Path, own_judge: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A user's environment: an empty database with the newest schema, a checkpoint, and a name."""
    folder = tmp_path / "home"
    for name, value in {
        "COLMLM_HOME": str(folder),
        "COLMLM_DATABASE_URL": database_url,
        "COLMLM_CHECKPOINT": str(checkpoint),
        "COLMLM_READER": str(own_judge),
        "COLMLM_ACTOR": "tester",
    }.items():
        monkeypatch.setenv(name, value)
    return folder


@dataclass(frozen=True)
class Annotators:
    """The light annotators of the settings: every year is a fact, and of each the same is asked."""

    span_annotator: Path
    question_generator: Path

    @contextmanager
    def gone(self) -> Iterator[None]:
        """Takes them away in the block, where a command that loads them fails."""
        away = self.span_annotator.rename(self.span_annotator.with_name("away"))
        try:
            yield
        finally:
            away.rename(self.span_annotator)


def annotators_that_ask(question: str, folder: Path, env: pytest.MonkeyPatch) -> Annotators:
    """Makes tiny annotators, and names them in the settings."""
    from tests.tiny_annotators import (
        tiny_asker,
        tiny_year_finder,
    )  # imports models that few of these tests need

    made = Annotators(tiny_year_finder(folder / "spans"), tiny_asker(folder / "questions", question))
    env.setenv("COLMLM_SPAN_ANNOTATOR", str(made.span_annotator))
    env.setenv("COLMLM_QUESTION_GENERATOR", str(made.question_generator))
    return made


@pytest.fixture
def light(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Annotators:
    return annotators_that_ask(OPENING, tmp_path_factory.mktemp("annotators"), monkeypatch)


def invoke(*words: object, stdin: str | None = None) -> Ran:
    """Runs a command, also one of the laboratory, in this process. It never exits with a traceback."""
    result = CliRunner().invoke(
        lab.app if words[:1] and words[0] in lab.LABORATORY else app,
        [str(word) for word in words],
        input=stdin,
    )
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    assert "Traceback" not in result.stderr
    return Ran(result.exit_code, result.stdout, result.stderr)


@pytest.fixture
def run(home: Path) -> Run:
    """`invoke`, with a knowledge base."""
    return invoke


@pytest.fixture
def annotated(tmp_path: Path) -> Path:
    """An annotated file of one document with two facts."""
    file = tmp_path / "peru.jsonl"
    file.write_text(json.dumps(to_record(document())) + "\n", encoding="utf-8")
    return file


def ingest_by_command(kb: KnowledgeBase, env: pytest.MonkeyPatch, folder: Path) -> list[int]:
    """Ingest the document by the command, and give the ids of its two facts."""
    env.setenv("COLMLM_HOME", str(folder / "home"))
    env.setenv("COLMLM_DATABASE_URL", str(kb.settings.database_url))
    env.setenv("COLMLM_ACTOR", "tester")
    file = folder / "peru.jsonl"
    file.write_text(json.dumps(to_record(document())) + "\n", encoding="utf-8")
    assert invoke("corpus", "add", file, "--format", "annotated", "--corpus", "atlas").code == 0
    return [fact["fact_id"] for fact in invoke("facts", "list", "--json").json["facts"]]


@pytest.fixture(scope="session")
def atlas_template(server: URL, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[int]]:
    """The name of a database with the document, and the ids of its facts."""

    def filling(kb: KnowledgeBase) -> list[int]:
        with pytest.MonkeyPatch.context() as env:
            return ingest_by_command(kb, env, tmp_path_factory.mktemp("atlas"))

    return "cli_atlas_template", servers.fill(server, "cli_atlas_template", filling)


@pytest.fixture(scope="session")
def keyed_template(
    server: URL, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, list[int]]:
    """The same with keys of the tiny model."""

    def filling(kb: KnowledgeBase) -> list[int]:
        with pytest.MonkeyPatch.context() as env:
            fact_ids = ingest_by_command(kb, env, tmp_path_factory.mktemp("keyed"))
            env.setenv("COLMLM_CHECKPOINT", str(checkpoint))
            assert invoke("keysets", "fill").code == 0
            return fact_ids

    return "cli_keyed_template", servers.fill(server, "cli_keyed_template", filling)


@pytest.fixture(scope="session")
def there_parts(
    server: URL, lively: Path, own_judge: Path, tmp_path_factory: pytest.TempPathFactory
) -> ThereParts:
    """Load what servers of `there` share: a database of the document with its questions' keys, a model and a reader."""
    from tests.cli.elsewhere import (  # imports the API, which few of these tests need
        ThereParts,
        ingest_and_key,
    )

    parts = ThereParts.load(lively, own_judge, tmp_path_factory.mktemp("there"))
    servers.fill(server, "cli_there_template", lambda kb: ingest_and_key(kb, parts.encoder))
    return parts


@pytest.fixture
def template(request: pytest.FixtureRequest) -> str:
    """The database of what a test uses: the base of `there`, the document with keys or without, or an empty one."""
    if "there" in request.fixturenames:
        request.getfixturevalue("there_parts")
        return "cli_there_template"
    for fixture in ("keyed", "atlas"):
        if fixture in request.fixturenames:
            name: str = request.getfixturevalue(f"{fixture}_template")[0]
            return name
    return servers.TEMPLATE


@pytest.fixture
def atlas(run: Run, atlas_template: tuple[str, list[int]]) -> list[int]:
    """The ids of two facts in corpus "atlas", not keyed."""
    return list(atlas_template[1])


@pytest.fixture
def keyed(run: Run, keyed_template: tuple[str, list[int]]) -> list[int]:
    """The ids of the two facts, now keyed with the tiny model."""
    return list(keyed_template[1])


@pytest.fixture
def keyed_here(run: Run, annotated: Path) -> list[int]:
    """The two facts, keyed by commands of this home, which leave a snapshot of the index in it."""
    assert run("corpus", "add", annotated, "--format", "annotated", "--corpus", "atlas").code == 0
    assert run("keysets", "fill").code == 0
    return [fact["fact_id"] for fact in run("facts", "list", "--json").json["facts"]]


@pytest.fixture
def there(
    kb: KnowledgeBase,
    home: Path,
    lively: Path,
    there_parts: ThereParts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[There]:
    """The base of `home` behind a server, with the same model on both sides."""
    from tests.cli.elsewhere import served_base

    monkeypatch.setenv("COLMLM_CHECKPOINT", str(lively))
    with served_base(kb, there_parts, tmp_path) as there:
        yield there


@pytest.fixture
def facts(there: There) -> list[int]:
    """The ids of its two facts: the capital, and the lake."""
    return [fact.fact_id for fact in there.kb.facts.find()]


def command_of(*words: object) -> list[str]:
    """Gives what a shell would start for these words of `colmlm`, or of `colmlm-lab` where that has the command."""
    module = "colmlm.lab.main" if words[:1] and words[0] in lab.LABORATORY else "colmlm.cli"
    return interpreter.command("-m", module, *words)


def program(
    *words: object, env: dict[str, str] | None = None, timeout: float = 120, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs the program in a process of its own."""
    return subprocess.run(
        command_of(*words),
        env={**os.environ, **(env or {})},
        cwd=ROOT,
        text=True,
        capture_output=True,
        timeout=timeout,
        **options,
    )


@contextmanager
def started(*words: object) -> Iterator[subprocess.Popen[bytes]]:
    """Starts the program in a process of its own, which is gone at the end of the block."""
    with subprocess.Popen(
        command_of(*words),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def at_terminal(*words: object, typed: str) -> Ran:
    """Runs the program in a process of its own, at a terminal where somebody types this."""
    keyboard, terminal = pty.openpty()
    try:
        os.write(keyboard, typed.encode())
        ran = program(*words, stdin=terminal)
    finally:
        os.close(keyboard)
        os.close(terminal)
    return Ran(ran.returncode, ran.stdout, ran.stderr)


def loaded(code: str, modules: tuple[str, ...], **env: str) -> list[str]:
    """Which of these modules a process of its own has loaded when this code has run."""
    code += f"\nimport sys; print([m for m in {modules} if m in sys.modules], file=sys.stderr)"
    command = interpreter.command("-c", code)
    ran = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **env}, text=True, capture_output=True, timeout=60
    )
    found = ast.literal_eval(ran.stderr.strip().splitlines()[-1])
    assert isinstance(found, list)
    return found


RUN = """
import sys
from colmlm.cli.start.root import app
from colmlm.lab import main as lab
try: app({words}, prog_name="colmlm")
except SystemExit: pass
"""
