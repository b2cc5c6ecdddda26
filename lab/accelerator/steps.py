"""The steps of a script: which there are, and how a bare machine carries them out and gives their results.

A script is a file of data: what travels, the commands of the product, and what comes back. Steps are carried out by a
process of its own session, which outlives the command that began it; each command of a step is one more. A step that
was cut off begins again with the same commands, which go on where they were.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise, product
from pathlib import Path
from string import Template
from typing import IO, Any

from colmlm.kb import interpreter
from colmlm.lab.accelerator import BACK_BYTES, MOST_FILES, write_result

PLAN, SITE = "plan.json", "site"
HOME = "COLMLM_HOME"
PROGRAMS = {"colmlm": "colmlm.cli", "colmlm-lab": "colmlm.lab.main"}
DESCRIPTIONS = ("colmlm.json", "annotator.json")  # of a run, with its tokens and seconds
DONE, FAILED, WRONG, MORE = 0, 1, 2, 3  # exit codes
_GRACE = 20.0  # seconds in which a command that is told to end saves what it has
_LOOK = 0.5  # seconds between two looks at the state
_ALONE, _TRIES = "steps", 20
_NOWHERE = dict.fromkeys(("data", "runs", "released", "homes"), "")


@dataclass(frozen=True, kw_only=True)
class ScriptStep:
    """A step of a script.

    `commands` run one after the other, or `together`. After `seconds` those that still run are ended, which is a
    failure unless the step is `bounded` by its time. `anew` are folders that a command writes whole, and `back` what
    comes back, both below the runs. `speed` are the runs whose tokens a second are told. A step is left out where one
    that it `needs` failed. Where the data has its `stand_in`, that becomes the run of its name, and no command runs.
    """

    name: str
    commands: list[str]
    seconds: float
    back: list[str] = field(default_factory=list)
    anew: list[str] = field(default_factory=list)
    speed: list[str] = field(default_factory=list)
    needs: list[str] = field(default_factory=list)
    stand_in: str = ""
    together: bool = False
    bounded: bool = False


@dataclass(frozen=True, slots=True)
class StepScript:
    """A script at one size. `values` stand for ``$name`` in its commands; `shares` are those of ``$share``.

    A value that is a list stands for each of its items in turn.
    """

    name: str
    about: str
    size: str
    values: dict[str, str | list[str]]
    data: list[dict[str, Any]]
    released: list[str]
    weights: list[str]
    prepare: list[str]
    steps: list[ScriptStep]

    @classmethod
    def read(cls, name: str, size: str, values: Sequence[str] = ()) -> StepScript:
        """Read a script by its name or path. `values` are NAME=VALUE, in place of those of the size."""
        file = Path(name) if name.endswith(".toml") else Path(__file__).with_name(f"{name}.toml")
        if not file.is_file():
            known = ", ".join(sorted(one.stem for one in Path(__file__).parent.glob("*.toml")))
            raise ValueError(f"no script {name!r}; there are {known}, or name a file that ends in .toml")
        record = tomllib.loads(file.read_text(encoding="utf-8"))
        chosen: dict[str, str | list[str]] = {
            name: list(map(str, value)) if isinstance(value, list) else str(value)
            for name, value in record["sizes"][size].items()
        }
        for one in values:
            key, equals, value = one.partition("=")
            if not equals or key not in chosen:
                raise ValueError(f"{one!r} is not NAME=VALUE of one of {', '.join(sorted(chosen))}")
            chosen[key] = value.split(",") if isinstance(chosen[key], list) else value
        slower = float(
            str(chosen.get("slower", 1))
        )  # how many times the seconds of a step this size may take
        steps = [ScriptStep(**one | {"seconds": one["seconds"] * slower}) for one in record["steps"]]
        return cls(
            file.stem, record["about"], size, chosen, record.get("data", []), record.get("released", []),
            record.get("weights", []), record.get("prepare", []), steps,
        )  # fmt: skip

    def save(self, file: Path) -> None:
        """Write what the machine needs of it."""
        steps = [vars(step) for step in self.steps]
        file.write_text(
            json.dumps({"name": self.name, "size": self.size, "values": self.values, "steps": steps})
        )

    @classmethod
    def of_store(cls, store: Path) -> StepScript:
        """Read the script that came with the parcels."""
        if not (store / PLAN).is_file():
            raise ValueError(f"{store} has no {PLAN}. Receive all parcels first")
        record = json.loads((store / PLAN).read_text())
        steps = [ScriptStep(**one) for one in record["steps"]]
        return cls(record["name"], "", record["size"], record["values"], [], [], [], [], steps)

    @property
    def num_shares(self) -> int:
        """Give the number of processes that share the work of a command with ``$share``."""
        return int(str(self.values.get("shares", 1)))

    def number_of(self, name: str | None) -> int | None:
        """Give the number that a value names; None for none, and where it is empty."""
        return int(str(self.values[name])) if name and self.values.get(name) else None

    def fill_values(self, text: str, places: Mapping[str, str] | None = None) -> list[str]:
        """Fill in the values of a text: once for every item of a list that it names, and of several with each other."""
        lists = {name: value for name, value in self.values.items() if isinstance(value, list)}
        lists["share"] = [f"{share:02}" for share in range(self.num_shares)]
        named = [name for name in Template(text).get_identifiers() if name in lists]
        single = {name: value for name, value in self.values.items() if isinstance(value, str)}
        return [
            Template(text).substitute(single | dict(places or {}), **dict(zip(named, items, strict=True)))
            for items in product(*(lists[name] for name in named))
        ]

    def words(self, commands: Sequence[str], places: Mapping[str, Path]) -> list[list[str]]:
        """Give the commands as words. A word with ``*`` stands for all such files, each after the option before it."""
        quoted = {name: shlex.quote(str(path)) for name, path in places.items()}
        return [
            _files_of_patterns(shlex.split(line))
            for command in commands
            for line in self.fill_values(command, quoted)
        ]


def _files_of_patterns(words: Sequence[str]) -> list[str]:
    found: list[str] = []
    for word in words:
        if "*" not in word:
            found.append(word)
            continue
        option = found.pop()
        path = Path(word)
        for file in sorted(path.parent.glob(path.name)):
            if file.stat().st_size and not file.name.endswith(".rejects.jsonl"):
                found += [option, str(file)]
    return found


def program_line(words: Sequence[str]) -> list[str]:
    """Give the command line of this interpreter for a command of the product."""
    if words[0] not in PROGRAMS:
        raise ValueError(
            f"{words[0]} is none of {', '.join(PROGRAMS)}; a script has commands of the product only"
        )
    return interpreter.command("-m", PROGRAMS[words[0]], *words[1:])


def without_home(words: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Give the home that a command begins with, as ``COLMLM_HOME=FOLDER colmlm ...``, and the words after it."""
    named, equals, folder = words[0].partition("=")
    return (Path(folder), list(words[1:])) if equals and named == HOME else (None, list(words))


def environment_of(home: Path, site: Path) -> dict[str, str]:
    """Give the environment of a command: no setting of the caller's, no network, and no JAX on the accelerator."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COLMLM_")}
    return kept | {
        HOME: str(home),
        "PYTHONPATH": str(site),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "JAX_PLATFORMS": "cpu",  # it would take three quarters of the memory where any library imports it
        "TOKENIZERS_PARALLELISM": "false",
    }


class StepsFolder:
    """The folder on the machine: what the parcels unpacked, the runs, and how far the steps are."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.state, self.results, self.runs = (self.root / name for name in ("state", "results", "runs"))
        self.state.mkdir(parents=True, exist_ok=True)
        self.runs.mkdir(exist_ok=True)

    @property
    def places(self) -> dict[str, Path]:
        """The folders that commands name."""
        released = self.root / SITE / "colmlm" / "model" / "released"
        homes = self.root / "homes"  # of further knowledge bases
        return {"data": self.root / "data", "runs": self.runs, "released": released, "homes": homes}

    def environment(self, home: Path | None) -> dict[str, str]:
        """Give the environment of a command. A further home shares the base models of the first."""
        first = self.root / "home"
        if home is not None and not (home / "models").exists():
            (first / "models").mkdir(parents=True, exist_ok=True)
            home.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                (home / "models").symlink_to(first / "models")
        return environment_of(home or first, self.root / SITE)

    def line(self, step: ScriptStep) -> dict[str, Any] | None:
        """Read the line of a step that is over; None before."""
        file = self.state / f"{step.name}.json"
        return json.loads(file.read_text()) if file.is_file() else None

    def write(self, name: str, record: Any) -> None:
        """Write a record of the state, at once or not at all."""
        unfinished = self.state / f".{name}"
        unfinished.write_text(json.dumps(record))
        unfinished.replace(self.state / name)

    @contextmanager
    def lock(self, name: str, *, wait: bool) -> Iterator[IO[str] | None]:
        """Hold a lock, which the commands that it is passed to hold too; None where another has it."""
        with (self.state / f"{name}.lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield None
                return
            yield file

    def left_seconds(self) -> float:
        """Give the seconds until the time that was set is over."""
        begun = json.loads((self.state / "begun.json").read_text())
        return float(begun["until"] - time.time())


# The process that carries the steps out.


def carry_out(root: Path) -> None:
    """Carry out the steps that are not done, one after the other; do nothing where another process does that."""
    store = StepsFolder(root)
    script = StepScript.of_store(store.root)
    for _ in range(_TRIES):  # who looks whether this runs holds the lock for an instant
        with store.lock(_ALONE, wait=False) as alone:
            if alone is not None:
                for step in script.steps:
                    if store.line(step) is None:
                        _carry_out_step(store, script, step)
                return
        time.sleep(_LOOK / _TRIES)


def _carry_out_step(store: StepsFolder, script: StepScript, step: ScriptStep) -> None:
    failed = [one.name for one in script.steps if one.name in step.needs and not _is_done(store, one)]
    line: dict[str, Any] = {"step": step.name, "seconds": 0, "tokens_per_second": None, "rc": None}
    if failed:
        store.write(f"{step.name}.json", line | {"left_out": f"needs {', '.join(failed)}"})
        return
    if store.left_seconds() < step.seconds:
        store.write(f"{step.name}.json", line | {"left_out": "no time"})
        return
    started = time.monotonic()
    with store.lock(step.name, wait=True) as lock:  # a command that outlived its supervisor still has it
        assert lock is not None
        for name in step.anew:
            shutil.rmtree(store.runs / name, ignore_errors=True)
        log, figures = store.state / f"{step.name}.log", dict[str, Any]()
        code = 0
        if not _take_stand_in(store, step):
            code, figures = _run_commands(store, script, step, log, lock.fileno())
    line |= {"seconds": round(time.monotonic() - started, 1), "rc": code}
    line["tokens_per_second"] = _tokens_per_second(store, script, step)
    if figures:
        line["figures"] = figures if len(figures) > 1 else next(iter(figures.values()))
    if code:
        line["error"] = _last_line(log)
    names = [name for one in step.back for name in script.fill_values(one)]
    back = {name: store.runs / name for name in names if (store.runs / name).exists()}
    (store.state / f"{step.name}.line.json").write_text(json.dumps(line))
    paths = back | {"step.json": store.state / f"{step.name}.line.json", "step.log": log}
    pieces = write_result(paths, store.results, f"{script.name}-{step.name}")
    line["results"] = {piece.name: piece.stat().st_size for piece in pieces}
    store.write(f"{step.name}.json", line)


def _is_done(store: StepsFolder, step: ScriptStep) -> bool:
    line = store.line(step)
    return line is not None and line["rc"] == 0


def _take_stand_in(store: StepsFolder, step: ScriptStep) -> bool:
    """Copy the data that stands in for a step to the runs; tell whether there is any."""
    source = store.places["data"] / step.stand_in
    if not step.stand_in or not source.exists():
        return False
    target = store.runs / step.stand_in
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copyfile(source, target)
    return True


def _make_parents(words: Sequence[str], runs: Path) -> None:
    """Make the folders of the files and folders that a command will write below the runs."""
    for option, value in pairwise(words):
        if option in ("--out", "--output") and runs in Path(value).parents:
            Path(value).parent.mkdir(parents=True, exist_ok=True)


def _run_commands(
    store: StepsFolder, script: StepScript, step: ScriptStep, log: Path, lock: int
) -> tuple[int, dict[str, Any]]:
    """Run a step's commands, each in a session of its own.

    Gives the first exit code that is not 0, and what each command reported as JSON. A command that stands for several
    runs as so many processes at once.
    """
    until, figures = time.monotonic() + step.seconds, dict[str, Any]()
    for commands in _commands_at_once(store, script, step):
        logs = [log.with_suffix(f".{number}.log") for number in range(len(commands))]
        for _, words in commands:
            _make_parents(words, store.runs)
        running = [
            _start_command(words, store.environment(home), store.runs, one, lock)
            for (home, words), one in zip(commands, logs, strict=True)
        ]
        codes = [_wait_until(process, until, bounded=step.bounded) for process in running]
        for (home, words), one in zip(commands, logs, strict=True):
            if "--json" in words and (report := _last_report(one)) is not None:
                figures[_name_command(home, words, store.root)] = report
        with log.open("ab") as out:
            out.writelines(one.read_bytes() for one in logs)
        for one in logs:
            one.unlink()
        if code := next(filter(None, codes), 0):
            return code, figures
    return 0, figures


def _commands_at_once(
    store: StepsFolder, script: StepScript, step: ScriptStep
) -> Iterator[list[tuple[Path | None, list[str]]]]:
    """Yield the commands that run at once, each with its home. A size may say how many these are `at_most`."""
    for group in [step.commands] if step.together else [[one] for one in step.commands]:
        commands = [without_home(words) for words in script.words(group, store.places)]
        most = script.number_of("at_most") or len(commands)
        yield from (commands[start : start + most] for start in range(0, len(commands), most))


def _start_command(
    words: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path, lock: int
) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(
            program_line(words), stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=folder,
            env=environment, start_new_session=True, pass_fds=(lock,),
        )  # fmt: skip


def _name_command(home: Path | None, words: Sequence[str], root: Path) -> str:
    """Name a command in a line's figures: its words, with paths below the store's folder."""
    named = [*([f"{HOME}={home}"] if home else []), *(word for word in words if word != "--json")]
    return " ".join(named).replace(f"{root}/", "")


def _wait_until(process: subprocess.Popen[bytes], until: float, *, bounded: bool) -> int:
    """Wait for a command, and end it after its time; its exit code, 124 where it was ended and is not `bounded`."""
    try:
        return process.wait(max(0.1, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return 0 if bounded else 124


def _tokens_per_second(store: StepsFolder, script: StepScript, step: ScriptStep) -> float | None:
    """Give the tokens a second of a step's runs: of all, where they ran at once."""
    runs: list[tuple[float, float]] = []
    for name in (name for one in step.speed for name in script.fill_values(one)):
        for file in (store.runs / name / one for one in DESCRIPTIONS):
            if file.is_file():
                training = json.loads(file.read_text())["training"]
                runs.append((float(training["tokens"]), max(float(training["seconds"]), 1e-3)))
    if not runs:
        return None
    if step.together or any(len(script.fill_values(command, _NOWHERE)) > 1 for command in step.commands):
        return round(sum(tokens / seconds for tokens, seconds in runs), 1)
    return round(sum(tokens for tokens, _ in runs) / sum(seconds for _, seconds in runs), 1)


def _last_report(log: Path) -> Any:
    """Give the JSON that the last command printed as one line or as lines, if it did."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    for begin in range(len(lines) - 1, max(-1, len(lines) - 400), -1):
        if lines[begin].startswith("{"):
            with suppress(ValueError):
                return json.loads("\n".join(lines[begin:]))
            return None
    return None


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip()[:500] for line in reversed(lines) if line.strip()), "")


# The command that starts that process, tells of its steps, and brings their results.


def run_steps(root: Path, out: Path | None, *, wait: float, minutes: float | None) -> int:
    """Start the steps if nothing carries them out, print a line for each that is over, and bring results to `out`.

    Ends when all are over and brought, when `out` holds as much as may come back at once, or after `wait` seconds.
    """
    store = StepsFolder(root)
    script = StepScript.of_store(store.root)
    if not (store.state / "begun.json").is_file():
        store.write("begun.json", {"until": time.time() + (60 * minutes if minutes else 10**9)})
    started = _start(store)
    until, told, earlier = time.monotonic() + wait, set[str](), frozenset(_brought(store))
    while True:
        lines = {step.name: line for step in script.steps if (line := store.line(step)) is not None}
        for name, line in lines.items():
            if name not in told:
                told.add(name)
                _print(line)
        is_full = bring_results(store, out, lines, earlier) if out is not None else False
        if len(lines) == len(script.steps) and not is_full:
            return FAILED if any(line["rc"] for line in lines.values()) else DONE
        if is_full or time.monotonic() > until:
            left = [step.name for step in script.steps if step.name not in lines]
            more = {"steps": left, "results_to_bring": _to_bring(store, lines) if out is not None else []}
            _print({"more": "give the same command again", **more})
            return MORE
        is_over = started.poll() is not None and not _is_running(store)
        if is_over and any(store.line(step) is None for step in script.steps):
            log = store.state / "supervisor.log"
            _print({"error": f"the steps ended early; see {log}, then give the command again"})
            return FAILED
        time.sleep(_LOOK)


def bring_results(
    store: StepsFolder,
    out: Path,
    lines: Mapping[str, Mapping[str, Any]],
    earlier: frozenset[str] = frozenset(),
) -> bool:
    """Copy results to `out`, as many as may come back from one command; tell whether some are left for the next.

    Results that `earlier` commands brought do not count where they are still there.
    """
    out.mkdir(parents=True, exist_ok=True)
    for name in _to_bring(store, lines):
        piece = store.results / name
        files = (file for file in out.rglob("*") if file.is_file() and file.name not in earlier)
        there = [file.stat().st_size for file in files]
        if len(there) >= MOST_FILES or sum(there) + piece.stat().st_size > BACK_BYTES:
            return True
        shutil.copyfile(piece, out / name)
        store.write("brought.json", [*_brought(store), name])
    return False


def _brought(store: StepsFolder) -> list[str]:
    file = store.state / "brought.json"
    return json.loads(file.read_text()) if file.is_file() else []


def _to_bring(store: StepsFolder, lines: Mapping[str, Mapping[str, Any]]) -> list[str]:
    made = [name for line in lines.values() for name in line.get("results", {})]
    brought = set(_brought(store))
    return [name for name in made if name not in brought]


def _start(store: StepsFolder) -> subprocess.Popen[bytes]:
    """Start the process that carries the steps out, in a session of its own.

    It ends at once where another carries them out. On a busy machine it takes long to begin.
    """
    root = Path(__file__).absolute().parents[3]
    with (store.state / "supervisor.log").open("ab") as log:
        return subprocess.Popen(
            interpreter.command("-m", "colmlm.lab.accelerator", "carry-out", "--store", store.root),
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=store.root, start_new_session=True,
            env=os.environ | {"PYTHONPATH": str(root)},
        )  # fmt: skip


def _is_running(store: StepsFolder) -> bool:
    with store.lock(_ALONE, wait=False) as lock:
        return lock is None


def _print(line: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
