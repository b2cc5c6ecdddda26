from __future__ import annotations

import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from sqlalchemy import text

from colmlm.cli.start.commands import COMMANDS, VERBS
from colmlm.cli.start.root import app
from colmlm.kb import interpreter
from colmlm.kb.service import KnowledgeBase
from tests.cli.conftest import ROOT, RUN, Ran, Run, invoke, loaded, program
from tests.gates import await_that, interrupted, table_locked

# What must start at once. Whoever imports torch here makes every one of them take seconds.
LIGHT = (
    ["--help"],
    ["facts", "list"],
    ["corpus", "list"],
    ["trace", "fact", "1"],
    ["db", "status"],
    ["generate", "--help"],
    ["up", "--help"],
)
BAD_LINES = (
    ["nonsense"],
    ["facts"],
    ["facts", "show"],
    ["facts", "show", "one"],
    ["facts", "show", "-1"],
    ["facts", "list", "--limit", "0"],
    ["facts", "list", "--after", "9" * 30],
    ["facts", "list", "--deleted", "--all"],
    ["facts", "edit", "1", "--value", " ", "--reason", "because"],
    ["facts", "edit", "1", "--value", "x"],
    ["facts", "delete", "1"],
    ["facts", "delete", "1", "--reason", "because"],
    ["facts", "restore", "1", "--reason", " "],
    ["generate", ""],
    ["generate", "x", "--max-tokens", "-5"],
    ["generate", "x", "--temperature", "nan"],
    ["generate", "x", "--top-p", "0"],
    ["generate", "x", "--repetition-penalty", "-1"],
    ["generate", "x", "--threshold", "2"],
    ["generate", "x", "--stream", "--json"],
    ["generate", "x", "--stop", ""],
    ["generate", "x", "--checkpoint", "/no/such/directory"],
    ["lookup", "x", "-k", "0"],
    ["keysets", "activate", "9" * 30],
    ["keysets", "threshold", "--calibrate", "--false-accept-rate", "nan"],
    ["corpus", "add", "/no/such/file", "--format", "annotated", "--corpus", "x"],
    ["corpus", "add", "/", "--format", "annotated", "--corpus", "x"],
    ["corpus", "add", "README.md", "--format", "yaml", "--corpus", "x"],
    ["demo", "--facts", "0"],
    ["serve", "--port", "70000"],
)
UNKNOWN = (
    ["facts", "show", "77"],
    ["facts", "show", "9" * 30],
    ["facts", "edit", "77", "--value", "x", "--reason", "because"],
    ["facts", "delete", "77", "--reason", "because", "--yes"],
    ["facts", "delete", "9" * 30, "--dry-run"],
    ["facts", "restore", "9" * 30, "--reason", "because"],
    ["facts", "list", "--corpus", "nowhere"],
    ["trace", "fact", "9" * 30],
    ["trace", "output", "77"],
    ["trace", "output", "9" * 30],
    ["corpus", "list", "nowhere"],
    ["corpus", "export", "nowhere"],
    ["keysets", "activate", "77"],
    ["demo", "--corpus", "nowhere"],
)


def commands() -> Iterator[tuple[str, ...]]:
    """Every group and command that is light enough to be imported here."""
    yield ()
    todo: list[tuple[tuple[str, ...], Any]] = [
        ((name,), lazy.command(name)) for name, lazy in COMMANDS.items()
    ]
    while todo:
        path, command = todo.pop()
        yield path
        todo += [((*path, name), child) for name, child in getattr(command, "commands", {}).items()]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_listed_with_the_words_it_has_for_itself(name: str) -> None:
    listed, itself = COMMANDS[name].help, COMMANDS[name].command(name).help
    words = " ".join(itself.partition("\n\n")[0].split())
    assert words.startswith(listed.rstrip("."))


@pytest.mark.parametrize("path", sorted(commands()), ids=" ".join)
def test_every_command_has_help_with_an_example(path: tuple[str, ...]) -> None:
    ran = invoke(*path, "--help")
    assert ran.code == 0
    assert "Examples:" in ran.out
    assert f"colmlm {' '.join(path)}".strip() in ran.out.partition("Examples:")[2]


def test_every_command_takes_json_but_those_that_the_manual_names() -> None:
    without, todo = set(), [((name,), lazy.command(name)) for name, lazy in COMMANDS.items()]
    while todo:
        path, command = todo.pop()
        verbs = getattr(command, "commands", {})
        todo += [((*path, name), child) for name, child in verbs.items()]
        if not verbs and not any("--json" in option.opts for option in command.program_options()):
            without.add(" ".join(path))
    manual = (ROOT / "docs" / "integrate" / "scripts.md").read_text()
    (line,) = re.findall(r"^- These have no `--json`: (.*)$", manual, re.MULTILINE)
    assert without == set(re.findall(r"`([^`]+)`", line))


@pytest.mark.parametrize("noun", VERBS)
def test_a_verb_is_completed_with_the_words_it_has_for_itself(noun: str) -> None:
    verbs = COMMANDS[noun].command(noun).commands
    assert list(VERBS[noun]) == list(verbs)
    for name, verb in verbs.items():
        assert " ".join(verb.help.split()).startswith(VERBS[noun][name].rstrip("."))


def test_a_noun_is_what_has_verbs() -> None:
    has_verbs = {name for name, lazy in COMMANDS.items() if hasattr(lazy.command(name), "commands")}
    assert set(VERBS) == has_verbs


def test_the_options_of_a_command_are_known_without_what_it_works_with() -> None:
    heavy = (
        "torch",
        "numpy",
        "scipy",
        "sqlalchemy",
        "psycopg",
        "faiss",
        "cryptography",
        "litestar",
        "httpx2",
    )
    code = (
        "from colmlm.cli.start.commands import COMMANDS\nfor name in COMMANDS: COMMANDS[name].command(name)"
    )
    assert loaded(code, heavy) == []


def test_help_loads_no_database_no_arrays_and_no_http() -> None:
    heavy = ("sqlalchemy", "psycopg", "numpy", "litestar", "httpx2", "ctypes.util")
    assert loaded(RUN.format(words=["--help"]), heavy) == []


@pytest.mark.parametrize("line", ["colmlm tr", "colmlm facts l", "colmlm keysets a"])
def test_the_completion_of_a_name_loads_no_command_and_not_what_runs_commands(line: str) -> None:
    completing = {"_COLMLM_COMPLETE": "complete_bash", "COMP_WORDS": line}
    completing["COMP_CWORD"] = str(len(line.split()) - 1)
    heavy = ("typer", "pydantic", "rich", "sqlalchemy", "numpy", "dataclasses")
    code = "from colmlm.cli.main import main; main()"
    assert loaded(code, heavy, **completing) == []


def test_what_lists_facts_loads_the_database_and_little_else(atlas: list[int], home: Path) -> None:
    heavy = (
        "numpy",
        "faiss",
        "alembic",
        "cryptography",
        "procrastinate",
        "rich.console",
        "httpx2",
        "litestar",
        "colmlm.kb.evidence",
        "colmlm.kb.lookup.searcher",
        "colmlm.kb.corpus.raw",
    )
    assert loaded(RUN.format(words=["facts", "list", "--corpus", "atlas"]), heavy) == []


def test_a_value_that_is_typed_is_still_converted_and_checked(run: Run, atlas: list[int]) -> None:
    assert len(run("facts", "list", "--limit", "1", "--json").json["facts"]) == 1
    for wrong in ("0", "few"):
        ran = run("facts", "list", "--limit", wrong)
        assert ran.code == 2 and "--limit" in ran.err and is_one_error_line(ran)


def test_a_command_that_needs_no_model_does_not_import_torch(home: Path) -> None:
    code = "".join(RUN.format(words=words) for words in LIGHT)
    assert loaded(code, ("torch", "transformers")) == []


def is_one_error_line(ran: Ran) -> bool:
    return ran.out == "" and ran.err.startswith("error: ") and ran.err.count("\n") == 1


@pytest.mark.parametrize("words", BAD_LINES, ids=" ".join)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(words: list[str]) -> None:
    ran = invoke(*words)
    assert (ran.code, is_one_error_line(ran)) == (2, True), ran


def test_a_misspelt_command_is_answered_with_the_one_that_was_meant() -> None:
    for words, meant in (
        (["facst", "list"], "colmlm facts"),
        (["facts", "delet", "1"], "'delete'"),
        (["facts", "forget"], "colmlm forget"),
        (["delete", "3"], "colmlm facts delete or colmlm corpus delete"),
        (["answers", "calibrate"], "colmlm questions threshold or colmlm keysets threshold"),
        (["webhooks", "pause"], "colmlm webhooks edit"),
    ):
        ran = invoke(*words)
        assert f"Did you mean {meant}? See: colmlm" in ran.err and is_one_error_line(ran)
    for far in (["tokens", "issue"], ["gibberish", "3"]):
        assert "Did you mean" not in invoke(*far).err
    assert "it takes whole numbers. See:" in invoke("facts", "delete", "first").err


def test_what_does_not_exist_is_one_line_and_exit_code_3(run: Run) -> None:
    for words in UNKNOWN:
        ran = run(*words)
        assert (ran.code, is_one_error_line(ran)) == (3, True), (words, ran)


def test_a_bad_setting_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, words in (("COLMLM_LOCK_TIMEOUT_SECONDS", ["facts", "list"]), ("COLMLM_PORT", ["serve"])):
        with monkeypatch.context() as changed:
            changed.setenv(name, "soon")
            ran = run(*words)
        assert ran.code == 2 and name in ran.err and is_one_error_line(ran)


def test_a_database_out_of_reach_is_exit_code_5_without_its_password(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLMLM_DATABASE_URL", "postgresql://me:secret@127.0.0.1:1/nothing")
    for words in (["facts", "list"], ["keysets", "fill"], ["demo"]):
        ran = run(*words)
        assert ran.code == 5 and is_one_error_line(ran) and "secret" not in ran.err


def test_a_checkpoint_that_is_none_is_exit_code_7(run: Run, atlas: list[int], tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    ran = run("keysets", "fill", "--checkpoint", empty)
    assert ran.code == 7 and is_one_error_line(ran) and str(empty) in ran.err


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupting_is_exit_code_130(run: Run, database_url: str, by: signal.Signals) -> None:
    """SIGHUP comes where the terminal is closed; tests may run under nohup, which has it ignored."""
    before = signal.signal(by, signal.default_int_handler if by is signal.SIGINT else signal.SIG_DFL)
    try:
        with table_locked(database_url, "fact") as reached, interrupted(reached, by):
            ran = run("facts", "list")
    finally:
        signal.signal(by, before)
    assert ran.code == 130 and is_one_error_line(ran)


def test_under_nohup_a_command_outlives_its_terminal(run: Run, database_url: str) -> None:
    with table_locked(database_url, "fact") as reached:
        words = interpreter.command("-m", "colmlm.cli", "facts", "list", "--json")
        command = subprocess.Popen(["nohup", *words], stdout=subprocess.PIPE)
        await_that(reached)
        command.send_signal(signal.SIGHUP)
    out, _ = command.communicate(timeout=60)
    assert command.returncode == 0 and b"facts" in out


def test_a_fault_of_the_program_is_one_line_and_debug_shows_where(run: Run, kb: KnowledgeBase) -> None:
    with kb.engine.begin() as connection:  # what no program can do anything with
        connection.execute(text("ALTER TABLE fact RENAME COLUMN question TO lost"))
    ran = run("facts", "list")
    assert ran.code == 70 and is_one_error_line(ran) and "--debug" in ran.err
    shown = typer.testing.CliRunner().invoke(app, ["--debug", "facts", "list"])
    assert shown.exit_code == 70 and "Traceback" in shown.stderr


def test_a_reader_that_leaves_early_is_no_error(atlas: list[int], home: Path) -> None:
    command = f"{shlex.join(interpreter.command('-m', 'colmlm.cli'))} facts list --json | true; exit ${{PIPESTATUS[0]}}"
    ran = subprocess.run(["bash", "-c", command], cwd=ROOT, text=True, capture_output=True, timeout=60)
    # The pipe's buffer may take the little there is before `true` has gone.
    assert ran.returncode in (0, 141) and ran.stderr == ""


def test_the_program_alone_prints_help_and_its_version(home: Path) -> None:
    assert "Commands" in program().stdout
    assert program("--version").stdout.strip()


def test_options_of_the_program_stand_before_the_command_or_after_it(run: Run, atlas: list[int]) -> None:
    listed = run("facts", "list", "--json").json
    assert run("--json", "facts", "list").json == listed
    for words in (["--server", ""], ["facts", "list", "--json", "--server", ""]):
        before = words if "facts" in words else ["--json", *words, "facts", "list"]
        assert run(*before).json == listed


@pytest.mark.parametrize("command", [["serve"], ["corpus", "export", "atlas"], ["mcp"]], ids=" ".join)
def test_what_prints_no_json_refuses_it_on_either_side(command: list[str]) -> None:
    for words in (["--json", *command], [*command, "--json"]):
        ran = invoke(*words)
        assert ran.code == 2 and "--json" in ran.err and is_one_error_line(ran)


@pytest.mark.parametrize(
    "command", [["up"], ["train"], ["corpus", "sync", ".", "--corpus", "y"]], ids=" ".join
)
def test_what_owns_a_machine_refuses_a_server_on_either_side(command: list[str]) -> None:
    for words in (["--server", "http://127.0.0.1:1", *command], [*command, "--server", "http://127.0.0.1:1"]):
        ran = invoke(*words)
        assert ran.code == 2 and "only on the machine" in ran.err and is_one_error_line(ran)
