"""Runs the pages of the site: types every command of a `console` block, and compares what it shows.

    python -m tests.acceptance.pages docs/facts/correct.md        # say where a page differs from a run
    python -m tests.acceptance.pages --update docs/facts          # write the outputs of a run into the pages

A page that has such blocks says in a comment of its first lines what they start from:

    <!-- base: none -->           an empty home
    <!-- base: demo -->           the demo corpus with its keys, as `colmlm up` makes it
    <!-- base: demo, server -->   the same, and a server on it: $COLMLM_TOKEN is its first token
    <!-- base: demo, wide -->     the same at a terminal of 120 columns in place of 80

Commands run in a copy of docs/examples, in one folder for the page and in the page's order. A block with a title, such
as ```python title="ask.py", is a file there, and `python` has this program. In an output a line with
`...` alone stands for any lines. Times, digests, scores and durations may differ from run to run.
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from colmlm.kb import interpreter
from tests.acceptance.tutorial import PORT, Failed, Newcomer, at_a_terminal, newcomer
from tests.places import PYTHONPATH, ROOT

DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", DOCS)
BASE = re.compile(r"^<!-- base: ([a-z, ]+) -->$", re.MULTILINE)
FENCE = "```console"
FILE = re.compile(r'^```\w+ title="([\w.-]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
ANY = "..."
# What differs from run to run, and what it is compared as.
_UNSTABLE = [
    (re.compile(r"\x1b\[[0-9;?]*[A-Za-z]"), ""),
    (
        re.compile(r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?)?"),
        "<time>",
    ),
    (re.compile(r"\b\d\d:\d\d:\d\d\b"), ""),  # the time of a date in the line above, in a narrow table
    (re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b"), "<digest>"),
    (re.compile(r"colmlm_[\w-]{6,}"), "<token>"),
    (re.compile(r"\b\d[\d.,]* ?(?:ms|s|seconds?|minutes?|hours?|[kKMG]i?B|bytes)\b"), "<amount>"),
    (re.compile(r"(?<![\w.])-?\d+\.\d+\b"), "<number>"),
    (re.compile(r"[─-╿]+|\s+"), " "),
]


@dataclass(frozen=True, slots=True)
class ShownCommand:
    """A command of a page with the output that the page shows: `first` and `last` are the output's lines, 0-based."""

    text: str
    first: int
    last: int


def shown_commands(page: str) -> Iterator[ShownCommand]:
    """Yield the commands of the `console` blocks of a page, in order."""
    lines = page.splitlines()
    number = 0
    while number < len(lines):
        if lines[number].strip() != FENCE:
            number += 1
            continue
        number += 1
        while lines[number].strip() != "```":
            if not lines[number].startswith("$ "):
                raise Failed(f"line {number + 1}: a console block begins with a command: $ colmlm ...")
            typed = [lines[number][2:]]
            number += 1
            while lines[number].startswith("> "):
                typed.append(lines[number][2:])
                number += 1
            first = number
            while lines[number].strip() != "```" and not lines[number].startswith("$ "):
                number += 1
            yield ShownCommand("\n".join(typed), first, number)


def stable(line: str) -> str:
    """Give a line without that which differs from run to run."""
    for pattern, instead in _UNSTABLE:
        line = pattern.sub(instead, line)
    return line.strip()


def agrees(shown: Sequence[str], printed: Sequence[str]) -> bool:
    """Say whether a page shows what was printed; `...` stands for any lines, blank lines do not count."""
    wanted, found = ([one for line in lines if (one := stable(line))] for lines in (shown, printed))
    parts: list[list[str]] = [[]]
    for line in wanted:
        if line == ANY:
            parts.append([])
        else:
            parts[-1].append(line)
    if len(parts) == 1:
        return wanted == found
    if found[: len(parts[0])] != parts[0]:
        return False
    at = len(parts[0])
    for part in parts[1:-1]:
        at = next((n + len(part) for n in range(at, len(found)) if found[n : n + len(part)] == part), -1)
        if at < 0:
            return False
    end = parts[-1]
    return not end or (len(found) - len(end) >= at and found[-len(end) :] == end)


class PageRun:
    """A page that is run in a home of its own, which is a copy of `base` where the page asks for one."""

    def __init__(self, file: Path, base: Path | None) -> None:
        self.file, self.base = file, base
        self.page = file.read_text(encoding="utf-8")
        asked = BASE.search(self.page)
        if asked is None:
            raise Failed(
                f"{file}: it has commands, and does not say what they start from: <!-- base: demo -->"
            )
        self.wants = {word.strip() for word in asked[1].split(",")}

    def differences(self, *, update: bool = False) -> list[str]:
        """Run the page, and give what differs from what it shows; with `update` write that into the page."""
        lines, found = self.page.splitlines(), list[str]()
        runs = []
        with newcomer() as somebody:
            self._prepare(somebody)
            for command in shown_commands(self.page):
                printed = self._typed(somebody, command.text)
                runs.append((command, printed))
                if not agrees(lines[command.first : command.last], printed):
                    shown = "\n".join(lines[command.first : command.last])
                    found.append(
                        f"{self.file.name}:{command.first}: $ {command.text}\n--- shown\n{shown}\n--- printed\n"
                        + "\n".join(printed)
                    )
        if update and found:
            for command, printed in reversed(runs):
                if not agrees(lines[command.first : command.last], printed):
                    lines[command.first : command.last] = printed
            self.file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return found

    def _prepare(self, somebody: Newcomer) -> None:
        shutil.copytree(DOCS / "examples", somebody.place, dirs_exist_ok=True)
        for name, text in FILE.findall(self.page):
            (somebody.place / name).write_text(text.replace(PORT, somebody.port), encoding="utf-8")
        python = somebody.place / ".venv" / "bin" / "python"
        python.write_text(
            f'#!/bin/sh\nPYTHONPATH="{PYTHONPATH}" exec {shlex.join(interpreter.command())} "$@"\n'
        )
        python.chmod(0o755)
        if "demo" in self.wants:
            assert self.base is not None
            somebody.home.rmdir()
            copy_home(self.base, somebody.home)
        somebody.exports += [f'export PATH="{somebody.place}/.venv/bin:$PATH"', "export COLMLM_ACTOR=you"]
        if "server" in self.wants:
            somebody.start()
            somebody.exports.append(f"export COLMLM_TOKEN={somebody.token}")

    def _typed(self, somebody: Newcomer, text: str) -> list[str]:
        """Type a command, which may fail, and give the lines that it printed, with the page's own places."""
        typed = text.replace(PORT, somebody.port)
        if typed.startswith(("export ", "cd ")):
            somebody.exports.append(typed)
            return []
        environment = {**somebody.environment(), "COLUMNS": "120"}
        if "wide" in self.wants:  # at a dumb terminal Rich takes 80 columns unless both are set
            environment["LINES"] = "50"
        _, output, _ = at_a_terminal("\n".join([*somebody.exports, typed]), somebody.place, environment)
        for place, name in ((somebody.home, "/home/you"), (somebody.place, "/home/you/work")):
            output = output.replace(str(place), name)
        output = output.replace(somebody.port, PORT)
        lines = [
            re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line.rpartition("\r")[2]).rstrip()
            for line in output.split("\n")
        ]
        return "\n".join(lines).strip("\n").splitlines()


def copy_home(source: Path, target: Path) -> None:
    """Copy a home with its owners: the embedded server runs as another user, if the tests run as root."""
    subprocess.run(["cp", "-a", source, target], check=True)


@contextmanager
def demo_home() -> Iterator[Path]:
    """Give a home with the demo corpus and its keys, whose server was stopped."""
    with tempfile.TemporaryDirectory(prefix="colmlm-pages-") as folder:
        with newcomer() as somebody:
            somebody.start()
            somebody.interrupt()
            at_a_terminal(".venv/bin/colmlm db down", somebody.place, somebody.environment())
            home = Path(folder) / "home"
            copy_home(somebody.home, home)
        yield home


def pages_with_commands(paths: Sequence[Path] = PAGES) -> list[Path]:
    """List the pages that have console blocks."""
    files = (file for path in paths for file in (sorted(path.rglob("*.md")) if path.is_dir() else [path]))
    return [file for file in files if FENCE in file.read_text(encoding="utf-8")]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", type=Path, default=PAGES)
    parser.add_argument("--update", action="store_true")
    parser.add_argument(
        "--home",
        type=Path,
        help="A home with the demo corpus; it is made there if there is none, in some minutes. "
        "Default: one for this run.",
    )
    given = parser.parse_args()
    different = 0
    with ExitStack() as stack:
        home = given.home
        if home is None or not home.exists():
            made = stack.enter_context(demo_home())
            if home is None:
                home = made
            else:
                copy_home(made, home)
        for file in pages_with_commands(given.paths):
            run = PageRun(file, home)
            for difference in run.differences(update=given.update):
                different += 1
                print(difference, flush=True)
    print(f"{different} outputs differ." if different else "Every output is that of a run.")
    return int(different > 0 and not given.update)


if __name__ == "__main__":
    sys.exit(main())
