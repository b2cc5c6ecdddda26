"""The docs name what exists, and all of it: settings, commands, files."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import typer.main

from colmlm.api.settings import ServerSettings
from colmlm.cli.settings import UserSettings
from colmlm.cli.start.commands import COMMANDS
from colmlm.cli.start.root import app
from colmlm.kb.store.settings import Settings
from colmlm.lab import main as lab
from tests.blocks import commands
from tests.places import ROOT

PROGRAMS = {"colmlm": app, "colmlm-lab": lab.app}
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
SETTING = re.compile(r"COLMLM_[A-Z_]+")
COMMAND = re.compile(r"^(colmlm(?:-lab)? [a-z][^`#|>\n]*)", re.MULTILINE)
INLINE = re.compile(r"`(colmlm(?:-lab)? [a-z][^`#|>\n]*)")
BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
MESSAGE = re.compile(r"(?:[`\"']|: )(colmlm(?:-lab)? [a-z][^`\"'|>)\n]*)")
DRAWN = {  # by scripts/site_pages.py when the site is built
    ROOT / "docs" / "reference" / f"{name}.md"
    for name in ("command-line", "errors", "http", "metrics", "rights", "settings")
}
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")


def settings_read() -> set[str]:
    return {name for kind in (Settings, ServerSettings, UserSettings) for name in variables(kind, "COLMLM_")}


def variables(kind: type, prefix: str) -> Iterator[str]:
    hints = get_type_hints(kind)
    for field in fields(kind):
        name = f"{prefix}{field.name.upper()}"
        if is_dataclass(hints[field.name]):
            yield from variables(hints[field.name], f"{name}_")
        else:
            yield from (name,) if field.repr else (name, f"{name}_FILE")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_setting_named_exists(page: Path) -> None:
    assert set(SETTING.findall(page.read_text())) <= settings_read()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_named_exists(page: Path) -> None:
    text = page.read_text()
    typed = [line for command in commands(text) for line in COMMAND.findall(command.text)]
    named = [*typed, *INLINE.findall(BLOCK.sub("", text))]
    wrong = [f"{line}: {fault}" for line in named if (fault := fault_of(line))]
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_block_is_complete(
    page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    typed = [words for command in commands(page.read_text()) for words in invocations(command.text)]
    wrong = [f"{' '.join(words)}: {fault}" for words in typed if (fault := refusal_of(words))]
    assert wrong == []


def test_the_first_screen_of_the_readme_is_a_part_of_the_tutorial() -> None:
    """So that the test that types the tutorial has typed these as well."""
    readme, tutorial = (
        commands((ROOT / name).read_text()) for name in ("README.md", "docs/start/tutorial.md")
    )
    tried = [command.text for command in readme if command.section == "Try it"]
    assert tried
    assert set(typed_in(tried)) <= set(typed_in([command.text for command in tutorial]))


def typed_in(texts: Iterable[str]) -> list[tuple[str, ...]]:
    """The commands of the program and of make without remarks, reasons, and a slash that ends a folder's name."""
    lines = [shlex.split(text, comments=True) for text in texts if text.startswith(("colmlm ", "make "))]
    return [
        tuple(
            word.rstrip("/") for n, word in enumerate(words) if "--reason" not in words[max(0, n - 1) : n + 1]
        )
        for words in lines
    ]


@pytest.mark.parametrize("package", ["api", "cli", "kb", "lab", "model"])
def test_every_command_that_a_message_names_exists(package: str) -> None:
    wrong = [
        f"{path.name}: {line}: {fault}"
        for path in (ROOT / package).rglob("*.py")
        for line in MESSAGE.findall(path.read_text())
        if (fault := fault_of(line))
    ]
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = [
        f"{file}#{anchor}"
        for file, anchor in LINK.findall(BLOCK.sub("", page.read_text()))
        if not leads(page, file, anchor)
    ]
    assert broken == []


def test_the_picture_of_the_rooms_is_todays() -> None:
    drawn = subprocess.run([ROOT / "scripts" / "packages"], capture_output=True, text=True, check=True).stdout
    assert (ROOT / "docs" / "explanation" / "packages.md").read_text() == drawn, (
        "draw it again: scripts/packages > docs/explanation/packages.md"
    )


def test_every_make_target_named_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        name for page in PAGES for name in re.findall(r"(?:`|^)make ([a-z]+)", page.read_text(), re.MULTILINE)
    }
    assert named <= targets


@cache
def whole(name: str) -> Any:
    """A command line, built once: it takes a tenth of a second each time."""
    return typer.main.get_command(PROGRAMS[name])


def fault_of(line: str) -> str | None:
    """What is wrong with a `colmlm ...` line, or None: an unknown command, or an option its command has not."""
    name, *words = shlex.split(line)
    path, command = [name], whole(name)
    while is_group(command) and words and not (words := named_in(command, words))[0].startswith("-"):
        context = command.make_context(path[-1], [], resilient_parsing=True)
        path.append(words[0])
        _, command, words = command.resolve_command(context, words)
        if command is None:
            return f"no command {' '.join(path)!r}"
    options = {
        name for parameter in options_of(command) for name in (*parameter.opts, *parameter.secondary_opts)
    }
    unknown = [
        w for w in words if w.startswith("--") and w != "--help" and w.partition("=")[0] not in options
    ]
    return f"{' '.join(path)!r} has no {', '.join(unknown)}" if unknown else None


def is_group(command: Any) -> bool:
    return hasattr(command, "resolve_command")


def named_in(group: Any, words: list[str]) -> list[str]:
    """The words with the command that is meant where a group's first one need not be named."""
    return group.with_default(words) if hasattr(group, "with_default") else words


def options_of(command: Any) -> list[Any]:
    """The parameters that a command takes, also those of the whole program."""
    shared = command.program_options() if hasattr(command, "program_options") else ()
    return [*command.params, *shared]


def invocations(text: str) -> list[list[str]]:
    """The words of each `colmlm` or `colmlm-lab` that a shell command starts."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split, found = True, []
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word and set(word) <= set("|&;<>()"):
            names = [n for n, one in enumerate(words) if not re.match(r"[A-Z_]+=", one)]
            if names and words[names[0]] in PROGRAMS:
                found.append(words[names[0] :])
            words = []
        else:
            words.append(word)
    return found


def refusal_of(words: list[str]) -> str | None:
    """What the command line says to these words before it does anything, or None. Files need not be there."""
    name, *words = words
    command = whole(name)
    while is_group(command) and words and not (words := named_in(command, words))[0].startswith("-"):
        context = command.make_context(name, [], resilient_parsing=True)
        _, command, words = command.resolve_command(context, words)
    if hasattr(command, "resolve_command") or "--help" in words:
        return None  # a group's own options act as they are read: --install-completion would install it
    try:
        command.make_context(name, list(words))
    except typer.TyperException as refused:
        message = refused.format_message()
        return None if "does not exist" in message else message
    return None


def leads(page: Path, file: str, anchor: str) -> bool:
    target = (page.parent / file).resolve() if file else page
    if target in DRAWN:
        return True
    if not target.exists():
        return False
    return not anchor or anchor in {
        anchor_of(h) for h in re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
    }


def anchor_of(heading: str) -> str:
    """The anchor a Markdown viewer gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def test_the_commands_that_take_a_server_are_those_listed() -> None:
    page = (ROOT / "docs" / "integrate" / "scripts.md").read_text()
    table = page.partition("| command | verbs that work with `--server` |")[2].partition("\n\n")[0]
    listed = set()
    for noun, verbs in re.findall(r"^\| `colmlm ?([a-z-]*)` \| (.*) \|$", table, re.MULTILINE):
        words = [verb.split()[0] for verb in re.findall(r"`([a-z][^`]*)`", verbs)]
        listed |= {f"{noun} {verb}".strip() for verb in words} | (
            {noun} if verbs.startswith("also") else set()
        )
    assert listed == set(commands_with("--server"))


def commands_with(option: str) -> Iterator[str]:
    """Every command and group that has this option, by its path."""
    waiting: list[tuple[str, Any]] = [(name, lazy.command(name)) for name, lazy in COMMANDS.items()]
    while waiting:
        path, command = waiting.pop()
        waiting += [(f"{path} {name}".strip(), sub) for name, sub in getattr(command, "commands", {}).items()]
        if any(option in parameter.opts for parameter in options_of(command)):
            yield path


def test_every_claim_of_the_threat_model_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "explanation" / "claims.md").read_text(encoding="utf-8")
    claims = re.findall(r"^\| ([^|]+) \| (`tests/[^|]+) \|$", page, re.MULTILINE)
    assert len(claims) > 20
    for claim, tests in claims:
        for named in re.findall(r"`([^`]+)`", tests):
            file, _, test = named.partition("::")
            assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), (claim, named)
