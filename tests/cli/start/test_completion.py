"""Completion in the shell: names from the tables, exactly as Typer would say them, and the rest from Typer."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from typer.core import TyperCommand, TyperGroup

from colmlm.cli.main import complete_words
from colmlm.cli.start.commands import COMMANDS, VERBS
from colmlm.cli.start.root import app
from colmlm.kb import interpreter
from tests.cli.conftest import ROOT, program


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("colmlm tr", ["trace", "train"]),
        ("colmlm keysets act", ["activate"]),
        ("colmlm facts list --se", ["--server"]),
        ("colmlm facts list --js", ["--json"]),
        ("colmlm serve --js", []),
    ],
)
def test_the_shell_is_offered_what_may_follow(typed: str, offered: list[str]) -> None:
    words = typed.split()
    asked = {"_COLMLM_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)}
    assert program(env=asked).stdout.split() == offered


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_completion_installs_itself_for_the_shell_that_asks(tmp_path: Path) -> None:
    line = f"{shlex.join(interpreter.command('-m', 'colmlm.cli'))} --install-completion; exit $?"
    ran = subprocess.run(
        ["bash", "-c", line],
        env={**os.environ, "HOME": str(tmp_path)},
        cwd=ROOT,
        text=True,
        capture_output=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    script = tmp_path / ".bash_completions" / "colmlm.sh"
    assert "_COLMLM_COMPLETE=complete_bash" in script.read_text()
    assert str(script) in (tmp_path / ".bashrc").read_text()


LINES = ("colmlm ", "colmlm s", "colmlm facts", "colmlm facts ", "colmlm keysets a", "colmlm erase ")
SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")


def asking(shell: str, line: str) -> Iterator[dict[str, str]]:
    """The environments in which the script of a shell asks what may follow a line."""
    words = line.split()
    begun = "" if line.endswith(" ") else words[-1]
    asked = {
        "_COLMLM_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - bool(begun)),
        "_TYPER_COMPLETE_ARGS": line.rstrip() if "p" in shell else line,
        "_TYPER_COMPLETE_WORD_TO_COMPLETE": begun,
    }
    for action in ("is-args", "get-args") if shell == "fish" else ("",):
        yield {**asked, "_TYPER_COMPLETE_FISH_ACTION": action}


def by_typer(capsys: pytest.CaptureFixture[str]) -> str:
    """What Typer itself says of groups with these names, in the environment of this process."""
    groups = {
        name: TyperGroup(
            name=name,
            short_help=lazy.help,
            commands={
                verb: TyperCommand(verb, short_help=said) for verb, said in VERBS.get(name, {}).items()
            },
        )
        for name, lazy in COMMANDS.items()
    }
    typer.main.get_command(app)  # makes the shells known
    with pytest.raises(SystemExit) as ended:
        TyperGroup(name="colmlm", commands=groups).main(prog_name="colmlm")
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("line", LINES)
def test_every_shell_is_told_of_names_as_typer_tells_it(
    shell: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")  # rich wraps what is said of a name to the terminal
    for env in asking(shell, line):
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        said = complete_words("colmlm", env)
        assert said is not None
        assert said == by_typer(capsys)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    "line", ["colmlm -", "colmlm nothing", "colmlm facts list ", "colmlm --debug f", "colmlm 'fa"]
)
def test_what_is_no_name_is_left_to_typer(shell: str, line: str) -> None:
    assert [complete_words("colmlm", env) for env in asking(shell, line)] in ([None], [None, None])


def test_nobody_is_offered_names_who_does_not_ask() -> None:
    assert complete_words("colmlm", {}) is None
    assert complete_words("colmlm", {"_COLMLM_COMPLETE": "source_bash"}) is None
