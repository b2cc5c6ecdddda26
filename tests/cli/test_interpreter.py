"""No process of ours runs code that lies in the directory where it was started."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from colmlm.cli.composition.worker_process import WorkerProcess
from colmlm.kb import interpreter
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from tests.places import ROOT

OURS = ("colmlm", "cli", "kb", "api", "model", "migrations", "lab", "tests")
THEIRS = ("sitecustomize", "usercustomize", "typing", "pickle", "socket", "psycopg", "multiprocessing")
MODULES = (
    "cli",
    "colmlm.lab.bench.clients",
    "colmlm.lab.faults.child",
    "colmlm.lab.accelerator",
    "colmlm.lab.main",
)

# Started under a library that is called like jemalloc, this says so; else it starts itself anew.
_RESTARTED = """
import ctypes.util, os, sys
ctypes.util.find_library = lambda name: sys.argv[1]
from colmlm.kb import interpreter
from colmlm.model.lm.llama import prefer_jemalloc
prefer_jemalloc(interpreter.restart_command())
print(os.environ["LD_PRELOAD"])
"""
_SPAWNED = """
import multiprocessing, os
from colmlm.kb import interpreter
if __name__ == "__main__":
    interpreter.shut_out_current_directory()
    process = multiprocessing.get_context("spawn").Process(target=os.getpid)
    process.start()
    process.join()
    print(process.exitcode)
"""


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory, full of modules with our names and the library's; none of them may have run."""
    folder, ran = tmp_path / "foreign", tmp_path / "ran"
    folder.mkdir()
    for name in OURS:
        (folder / name).mkdir()
        for module in ("__init__", "__main__"):
            (folder / name / f"{module}.py").write_text(f"open({str(ran)!r}, 'a').write('{name}\\n')\n")
    for name in THEIRS:
        (folder / f"{name}.py").write_text(f"open({str(ran)!r}, 'a').write('{name}\\n')\n")
    monkeypatch.chdir(folder)
    yield folder
    assert not ran.exists(), ran.read_text()


def started(*words: object, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        interpreter.command(*words),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )


@pytest.mark.parametrize("module", MODULES)
def test_a_module_of_ours_is_started_and_none_that_lies_there(foreign: Path, module: str) -> None:
    ran = started("-m", module, "--help")
    assert "No module named" not in ran.stderr and "ModuleNotFoundError" not in ran.stderr, ran.stderr


def test_an_empty_entry_of_the_path_is_no_way_in(foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{os.pathsep}{ROOT / 'src'}")
    interpreter.shut_out_current_directory()
    assert os.environ["PYTHONPATH"] == str(ROOT / "src")
    assert started("-m", "colmlm.cli", "--version").returncode == 0


def test_a_process_that_multiprocessing_starts_is_none_of_theirs(foreign: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_SPAWNED)
    without = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    ran = started(program, env=without)
    assert ran.stdout == "0\n", ran.stderr


def test_a_process_that_starts_itself_anew_is_the_same_program(foreign: Path, tmp_path: Path) -> None:
    library = tmp_path / "libjemalloc.so"
    library.symlink_to(next(Path("/").glob("lib/*-linux-gnu/libm.so.6")))
    without = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    ran = started("-c", _RESTARTED, library, env=without)
    assert ran.stdout.startswith(str(library)), ran.stderr


def test_the_servers_worker_works_in_a_directory_of_others(
    foreign: Path, kb: KnowledgeBase, settings: Settings
) -> None:
    with WorkerProcess(settings):
        deadline = time.monotonic() + 120
        while not Jobs(kb).num_workers():
            assert time.monotonic() < deadline, "the worker was never heard of"
            time.sleep(0.1)


def test_no_command_line_of_python_is_made_elsewhere() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for folder in (
            "cli",
            "kb",
            "api",
            "model",
            "migrations",
            "lab",
            "scripts",
            "benchmarks",
            "tests",
            ".ci",
        )
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix in ("", ".py", ".sh") and "__pycache__" not in path.parts
        if path not in (Path(interpreter.__file__).resolve(), Path(__file__))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if _MADE.search(line)
    ]
    assert found == [], "make them with colmlm.kb.interpreter.command"


# `sys.executable` but for the folder it lies in, and Python by its name with a module or a program.
_MADE = re.compile(r"""(?<!Path\()sys\.executable|orig_argv|["']python3?["'], *["']-[cm]""")


def test_what_is_deployed_starts_python_in_no_directory_of_data() -> None:
    assert '"python", "-I", "-c"' in (ROOT / "deploy" / "Dockerfile").read_text()
    assert "python -m" not in (ROOT / "deploy" / "colmlm.service").read_text()
