"""Reads the shell commands from a page of the docs, as somebody would type them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_HEADING = re.compile(r"^#+ (.+)$")
_HERE = re.compile(r"<<'?(\w+)'?$")


@dataclass(frozen=True, slots=True)
class Command:
    """A command, with its continuation lines, and the section of the page it is in."""

    section: str
    text: str


def commands(page: str) -> list[Command]:
    """Lists the commands of every `sh` and `console` block, in order; a comment or an output is not one."""
    found: list[Command] = []
    section, lines = "", iter(page.splitlines())
    for line in lines:
        if heading := _HEADING.match(line):
            section = heading[1]
        if line in _READERS:
            found += [Command(section, text) for text in _READERS[line](lines)]
    return found


def _plain(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        if line == "```":
            return
        if not line.strip() or line.startswith("#"):
            continue
        whole = [line]
        if here := _HERE.search(line):
            whole += _until(here[1], lines)
        while whole[-1].endswith("\\"):
            whole.append(next(lines))
        yield "\n".join(whole)


def _with_outputs(lines: Iterator[str]) -> Iterator[str]:
    """Yield what follows `$ `, with the lines right below it that follow `> `."""
    typed: list[str] = []
    for line in lines:
        if typed and line.startswith("> "):
            typed.append(line[2:])
            continue
        if typed:
            yield "\n".join(typed)
        typed = [line[2:]] if line.startswith("$ ") else []
        if line == "```":
            return


def _until(end: str, lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield line
        if line == end:
            return


_READERS = {"```sh": _plain, "```console": _with_outputs}
