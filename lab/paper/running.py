"""Runs declared commands in separate processes, each once, on knowledge bases of their own."""

from __future__ import annotations

import codecs
import json
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from colmlm.cli.output import note
from colmlm.kb import interpreter
from colmlm.lab.bench.machine import machine
from colmlm.lab.paper import excerpts
from colmlm.lab.paper.declared import PaperPlan, PaperStep, Places, Preparation

# These variables would make a command use another knowledge base than that of its home.
_ELSEWHERE = (
    "COLMLM_DATABASE_URL",
    "COLMLM_DATABASE_URL_FILE",
    "COLMLM_KEY_FILE",
    "COLMLM_SERVER",
    "COLMLM_TOKEN",
)
_MOST_SAID = 300  # characters kept of the output of a command that failed without an error message
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class StepFailed(Exception):
    """A command failed: the command line, its exit code and the cause that it named."""

    def __init__(self, command: str, exit_code: int, cause: str) -> None:
        super().__init__(f"{cause} (exit code {exit_code} of: {command})")
        self.command, self.exit_code, self.cause = command, exit_code, cause


@dataclass(frozen=True, slots=True)
class Running:
    """Runs the steps of a plan. All homes share the converted base models in `models`."""

    places: Places
    plan: PaperPlan
    models: Path
    checkpoint: Path

    def record(self, step: PaperStep) -> Path:
        """Gives the file of a step's result. The error of a failed step is beside it."""
        return self.places.out / "steps" / f"{step.name}.json"

    def result(self, step: PaperStep) -> dict[str, Any] | None:
        """Gives the step's result, if its command and those that prepare it were the ones declared now."""
        found = _read(self.record(step))
        return found if found and {**found, **self._declared(step)} == found else None

    def error(self, step: PaperStep) -> dict[str, Any] | None:
        """Gives the error of the step's last run, if it failed."""
        return _read(self._error(step))

    def run(self, step: PaperStep) -> None:
        """Prepares what the step needs, runs its command and stores what it prints. Raises `StepFailed`."""
        shown = self.places.shown(step.argv)
        try:
            for one in self.plan.chain(step):
                self._prepare(one)
            begun = time.monotonic()
            printed = self._call([*step.argv, "--json"], self._home(step), step.name)
            result = _parsed(shown, printed)
        except StepFailed as error:
            _write(
                self._error(step), {name: getattr(error, name) for name in ("command", "exit_code", "cause")}
            )
            raise
        kept = {
            **self._declared(step),
            "seconds": round(time.monotonic() - begun, 1),
            "at": _now(),
            "machine": machine(),
        }
        _write(self.record(step), {**kept, "result": result})
        self._error(step).unlink(missing_ok=True)

    def prepared(self, one: Preparation) -> list[dict[str, Any]]:
        """Gives the commands of a preparation that were run, with their seconds."""
        found = _read(self._marker(one)) or {"commands": []}
        commands: list[dict[str, Any]] = found["commands"]
        return commands

    def _prepare(self, one: Preparation) -> None:
        """Runs the commands that were not run yet. A stopped preparation resumes at the command it was stopped in."""
        done = self.prepared(one)
        wanted = [self.places.shown(argv) for argv in one.commands]
        if [each["command"] for each in done] != wanted[: len(done)]:
            done = []
        if len(done) == len(wanted):
            return
        for excerpt in one.excerpts:
            excerpts.write(excerpt)
        for number, argv in enumerate(one.commands[len(done) :], start=len(done) + 1):
            note(f"preparing {one.name}, {number} of {len(wanted)}: {wanted[number - 1]}")
            begun = time.monotonic()
            self._call(argv, self.places.home(one.name), one.name)
            done = [*done, {"command": wanted[number - 1], "seconds": round(time.monotonic() - begun, 1)}]
            _write(self._marker(one), {"commands": done})

    def _declared(self, step: PaperStep) -> dict[str, str]:
        return {
            "command": self.places.shown(step.argv),
            "prepared_sha256": self.plan.digest(step, self.places),
        }

    def _home(self, step: PaperStep) -> Path:
        return self.places.home(step.preparations[0] if step.preparations else "none")

    def _marker(self, one: Preparation) -> Path:
        return self.places.out / "kb" / f"{one.name}.json"

    def _error(self, step: PaperStep) -> Path:
        return self.record(step).with_suffix(".error")

    def _call(self, argv: Sequence[str], home: Path, name: str) -> str:
        log = self.places.out / "logs" / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        code, printed, last = _process(argv, self._environment(home), log)
        if code:
            said = last or " ".join(printed.split())[-_MOST_SAID:] or "it said nothing"
            raise StepFailed(self.places.shown(argv), code, said)
        return printed

    def _environment(self, home: Path) -> dict[str, str]:
        home.mkdir(parents=True, exist_ok=True)
        if not (home / "models").exists():
            self.models.mkdir(parents=True, exist_ok=True)
            (home / "models").symlink_to(self.models.absolute(), target_is_directory=True)
        kept = {name: value for name, value in os.environ.items() if name not in _ELSEWHERE}
        return kept | {"COLMLM_HOME": str(home), "COLMLM_CHECKPOINT": str(self.checkpoint)}


def _process(argv: Sequence[str], env: dict[str, str], log: Path) -> tuple[int, str, str]:
    """Runs a command and gives its exit code, stdout and last line of stderr, which is also shown as it arrives.

    The command has its own process group, so that Ctrl-C reaches it only once, from here: some commands then undo what
    they did.
    """
    ours, its = pty.openpty() if sys.stderr.isatty() else os.pipe()
    with tempfile.TemporaryFile() as printed, log.open("a", encoding="utf-8") as kept:
        process = subprocess.Popen(
            interpreter.command("-m", "colmlm.cli", *argv),
            env=env, stdin=subprocess.DEVNULL, stdout=printed, stderr=its, process_group=0,
        )  # fmt: skip
        os.close(its)
        try:
            last = _relayed(ours, kept)
            code = process.wait()
        except BaseException:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
        finally:
            os.close(ours)
        printed.seek(0)
        return code, printed.read().decode(), last


def _relayed(ours: int, kept: TextIO) -> str:
    """Copies the output on `ours` to stderr and to `kept` until it ends, and gives its last line."""
    decoder, said = codecs.getincrementaldecoder("utf-8")("replace"), ""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # Linux reports the closed other side of a terminal as an error
            break
        if not chunk:
            break
        text = decoder.decode(chunk)
        sys.stderr.write(text)
        sys.stderr.flush()
        kept.write(text)
        said = (said + text)[-10_000:]
    lines = [line.strip() for line in _CONTROL.sub("", said).replace("\r", "\n").split("\n")]
    return next((line.removeprefix("error: ") for line in reversed(lines) if line), "")


def _parsed(command: str, printed: str) -> Any:
    try:
        return json.loads(printed)
    except ValueError as error:
        raise StepFailed(command, 0, "it did not print one JSON object") from error


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _read(file: Path) -> dict[str, Any] | None:
    if not file.is_file():
        return None
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def _write(file: Path, value: Any) -> None:
    """Writes JSON by a rename, so that a kill leaves either all of it or the file as it was."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")
    partial.replace(file)
