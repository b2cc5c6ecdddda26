"""What is listed by hand is what is there: packages, their data, and the libraries they import."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from colmlm.cli.errors import EXTRAS, USAGE, Failure, explain
from tests.places import ROOT

PACKAGES = ("api", "cli", "kb", "lab", "migrations", "model")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_room_is_linked_under_the_one_name_that_is_imported() -> None:
    links = {path.name: path.resolve() for path in (ROOT / "src" / "colmlm").iterdir() if path.is_symlink()}
    assert links == {name: ROOT / name for name in PACKAGES}


def test_every_folder_of_code_is_a_package() -> None:
    folders = {path.parent for name in PACKAGES for path in modules(name)}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_every_data_file_is_installed() -> None:
    patterns: dict[str, list[str]] = PROJECT["tool"]["setuptools"]["package-data"]
    installed = {
        path
        for name, globs in patterns.items()
        for g in globs
        for path in (ROOT / name.removeprefix("colmlm.").replace(".", "/")).glob(g)
    }
    data = {
        p
        for name in PACKAGES
        for p in (ROOT / name).rglob("*")
        if p.is_file() and p.suffix not in (".py", ".pyc") and not is_read_in_a_checkout(p)
    }
    assert sorted(data - installed) == []


def is_read_in_a_checkout(path: Path) -> bool:
    """Say whether a file describes code or measurements to people, and no program reads it."""
    return path.is_relative_to(ROOT / "lab" / "notebook") or path == ROOT / "lab" / "faults" / "README.md"


def test_every_imported_library_is_a_dependency() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    optional = (
        extras[name]
        for name in (
            "cpu",
            "train",
            "lab",
            "bench",
            "harness",
            "mcp",
            "milvus",
            "otel",
            "ray",
            "wiki",
        )
    )
    listed = [*PROJECT["project"]["dependencies"], *chain.from_iterable(optional)]
    declared = {normal(re.split(r"[^\w.-]", requirement)[0]) for requirement in listed}
    distributions = packages_distributions()
    missing = {
        f"{path.relative_to(ROOT)} imports {name}"
        for package in PACKAGES
        for path in modules(package)
        for name in imports(path)
        if not declared & {normal(d) for d in distributions.get(name, not_installed(name, declared))}
    }
    assert sorted(missing) == []


def test_what_an_extra_brings_is_named_where_it_is_missing() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    brought = {
        normal(re.split(r"[^\w.-]", requirement)[0]): extra
        for extra in ("train", "lab", "mcp", "ray")
        for requirement in extras[extra]
    }
    del brought["colmlm"]  # an extra that takes another
    assert {normal(name): extra for name, extra in EXTRAS.items()} == brought
    missing = ModuleNotFoundError("No module named 'scipy'", name="scipy.stats")
    assert explain(missing) == Failure(
        USAGE, "scipy.stats is not installed. Install it with: pip install 'colmlm[lab]'"
    )


def not_installed(module: str, declared: set[str]) -> list[str]:
    """What would bring a module that is not here: an optional package is declared and need not be installed."""
    named = {"sklearn": "scikit-learn"}.get(module, module)
    return [name for name in declared if name.startswith(normal(named))]


def modules(package: str, stem: str = "*") -> Iterator[Path]:
    return (ROOT / package).rglob(f"{stem}.py")


def imports(path: Path) -> Iterator[str]:
    """The top-level names of other projects that a module imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module]
        for name in (n.partition(".")[0] for n in names):
            if name not in sys.stdlib_module_names and name != "colmlm":
                yield name


def normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def locked(name: str) -> dict[str, list[str]]:
    """Gives the releases that a lock file of `scripts/lock` names, which may differ from platform to platform."""
    found: dict[str, list[str]] = {}
    for line in (ROOT / "deploy" / name).read_text().splitlines():
        if match := re.match(r"([\w.-]+)==([^\s;]+)", line):
            found.setdefault(normal(match[1]), []).append(match[2])
    return found


@pytest.mark.parametrize(
    ("name", "extras"), [("image.lock", ("cpu", "otel", "s3")), ("development.lock", ("cpu", "dev"))]
)
def test_a_lock_has_a_release_for_each_requirement_within_its_range(
    name: str, extras: tuple[str, ...]
) -> None:
    optional, releases = PROJECT["project"]["optional-dependencies"], locked(name)
    asked = [*PROJECT["project"]["dependencies"], *chain.from_iterable(map(optional.__getitem__, extras))]
    left_out = {"colmlm", "torch"}  # see scripts/lock
    wrong = [
        f"{requirement} has {releases.get(normal(requirement.name))}"
        for requirement in map(Requirement, asked)
        if requirement.name not in left_out
        and not any(
            requirement.specifier.contains(release) for release in releases.get(normal(requirement.name), ())
        )
    ]
    assert wrong == []


@pytest.mark.parametrize("name", ["image.lock", "development.lock"])
def test_every_locked_release_has_its_digests(name: str) -> None:
    lines = (ROOT / "deploy" / name).read_text().replace("\\\n", "").splitlines()
    assert lines and [line for line in lines if "--hash=sha256:" not in line] == []


# It answers as the interpreter of an environment, and notes what pip is told to install.
_NOTING = """#!/bin/sh
case "$*" in *" install "*) echo "$*" >> "$0.told"; for file; do :; done ;; esac
case "$*" in *locked.txt*) cat "$file" >> "$0.locked" ;; esac
"""


@pytest.mark.parametrize(("extras", "faiss"), [("cpu,dev", True), ("cpu", True), ("gpu,dev", False)])
def test_an_install_takes_nothing_without_a_digest_but_torch_and_what_no_lock_names(
    tmp_path: Path, extras: str, faiss: bool
) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(_NOTING)
    python.chmod(0o755)
    install = [ROOT / "scripts" / "install", tmp_path, tmp_path / "stamp", extras]
    subprocess.run(install, cwd=ROOT, check=True)
    told = python.with_name("python.told").read_text().splitlines()
    checked = [line for line in told if "--require-hashes" in line or "released/requirements" in line]
    (torch, ours) = [line for line in told if line not in checked]
    assert " torch==" in torch and f".[{extras}]" in ours and ("--no-index" in ours) is ("gpu" not in extras)
    taken = python.with_name("python.locked").read_text()
    assert taken.count("setuptools==") == 2 and ("faiss-cpu==" in taken) is faiss
