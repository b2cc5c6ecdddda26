"""Minutes on a rented accelerator, prepared: `python -m colmlm.lab.accelerator prepare | receive | run`.

`prepare` works on your own machine. It copies the texts, makes what a CPU can make beforehand, and packs all that a
machine without a network lacks into parcels. Each parcel unpacks itself there: python3 PARCEL STORE. `run` carries out
the steps there, prints a line of JSON for each, and brings results to a folder. Give the same command again until it
ends with 0: it goes on where it was.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from itertools import islice, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from colmlm.cli.errors import REFUSED
from colmlm.kb import interpreter
from colmlm.lab.accelerator import BACK_BYTES, PARCEL_BYTES, extract_with_modes, pack, receive
from colmlm.lab.accelerator.steps import (
    PLAN,
    SITE,
    WRONG,
    StepScript,
    carry_out,
    environment_of,
    program_line,
    run_steps,
)
from colmlm.lab.paper.excerpts import excerpt_lines

# What the machine has of what this package needs: the group `accelerator` in pyproject.toml, and what that needs.
# All else travels, but for the libraries of formats that no step reads.
THERE = frozenset(
    {
        "accelerate", "anyio", "certifi", "click", "contourpy", "cycler", "filelock",
        "fonttools", "fsspec", "h11", "hf-xet", "httpcore", "httpx", "huggingface-hub", "idna", "jax",
        "jinja2", "kiwisolver", "markdown-it-py", "markupsafe", "matplotlib", "mdurl", "mpmath", "networkx",
        "numpy", "packaging", "peft", "pillow", "psutil", "pygments", "pyparsing", "python-dateutil",
        "pyyaml", "regex", "safetensors", "scipy", "setuptools", "sympy",
        "tokenizers", "torch", "tqdm", "transformers", "typing-extensions",
    }
)  # fmt: skip
LEFT_OUT = frozenset({"pyarrow"})
_DATA = ("--annotated", "--squad", "--shards")
EXAMPLES = """\
on your own machine:
  python -m colmlm.lab.accelerator prepare first --data DATA --python 3.12 --out parcels
on the rented one, for each parcel, and then until it ends with 0:
  python3 parcels/first-1.zip /tmp/store
  PYTHONPATH=/tmp/store/site python3 -m colmlm.lab.accelerator run --store /tmp/store --out out --minutes 12
exit codes of run: 0 all steps are over and brought, 1 a step failed, 3 more to come: give the command again
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command that is named, and exit with its code."""
    asked = _parser().parse_args(arguments)
    try:
        sys.exit(asked.run(asked))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(WRONG)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m colmlm.lab.accelerator", description=__doc__, epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    first = commands.add_parser("prepare", help="make the parcels, on your own machine")
    first.add_argument("script", help="first, second, third, fourth, or a .toml file of the same form")
    first.add_argument(
        "--data", type=Path, required=True, help="the folder of the data that the script names"
    )
    first.add_argument(
        "--out", type=Path, required=True, help="the folder of the parcels; what is made stays there"
    )
    first.add_argument("--put", action="append", default=[], metavar="NAME=FILE",
                       help="take this file or folder for the data of this name: an earlier result")  # fmt: skip
    first.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", dest="values",
                       help="a value of the script's size, such as steps=400")  # fmt: skip
    first.add_argument(
        "--rehearse", action="store_true", help="the tiny size, which a CPU carries out in minutes"
    )
    first.add_argument("--python", default=_own_python(), metavar="X.Y",
                       help="the Python there; for another than this one, wheels are fetched with pip")  # fmt: skip
    first.set_defaults(run=_prepare)
    parcel = commands.add_parser("receive", help="check parcels and keep them; the last one unpacks them all")
    parcel.add_argument("parcel", type=Path, nargs="+")
    parcel.set_defaults(run=_receive)
    steps = commands.add_parser("run", help="carry out the steps, and bring their results")
    steps.add_argument("--out", type=Path, help="results go here, as many as may come back from one command")
    steps.add_argument("--wait", type=float, default=540, metavar="SECONDS",
                       help="return after so long; the steps go on. Default: %(default)s")  # fmt: skip
    steps.add_argument("--minutes", type=float,
                       help="from the first run on: begin no step that may take longer than what is left")  # fmt: skip
    steps.set_defaults(
        run=lambda asked: run_steps(asked.store, asked.out, wait=asked.wait, minutes=asked.minutes)
    )
    inner = commands.add_parser("carry-out", help="what `run` starts in a session of its own")
    inner.set_defaults(run=lambda asked: carry_out(asked.store))
    for command in (parcel, steps, inner):
        command.add_argument("--store", type=Path, required=True, help="a folder outside of any checkout")
    return parser


def _own_python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _receive(asked: argparse.Namespace) -> None:
    for parcel in asked.parcel:
        missing = receive(parcel, asked.store)
    _print({"store": str(asked.store), "missing": missing})


def _print(record: Any) -> None:
    sys.stdout.write(json.dumps(record) + "\n")


# Preparing: on the own machine, with the whole program.


def _prepare(asked: argparse.Namespace) -> None:
    script = StepScript.read(asked.script, "tiny" if asked.rehearse else "full", asked.values)
    made = asked.out / "made" / script.size
    (made / "home").mkdir(parents=True, exist_ok=True)
    copy_data(script, asked.data, dict(one.split("=", 1) for one in asked.put), made / "data")
    refuse_large(script, made)
    for command in script.words(script.prepare, _places(made)):
        sys.stderr.write(f"{' '.join(command)}\n")
        ran = subprocess.run(program_line(command), check=False, env=_environment(made), stdout=sys.stderr)
        if ran.returncode not in (0, REFUSED):  # lines that are refused are named, and the others are kept
            ran.check_returncode()
    script.save(made / PLAN)
    site = made / SITE
    shutil.rmtree(site, ignore_errors=True)
    carried = (needed_by("colmlm", ("cpu", "lab")) - {"colmlm"} - THERE - LEFT_OUT) | set(script.weights)
    carry_packages(sorted(carried), site, asked.python)
    files = {PLAN: made / PLAN, "data": made / "data", SITE: site}
    files |= dict(_own_package(script.released, made)) | dict(_kept_home(made))
    parcels = pack(files, asked.out, script.name)
    sizes = {parcel.name: parcel.stat().st_size for parcel in parcels}
    _print({"script": script.name, "size": script.size, "parcels": sizes, "most_bytes": PARCEL_BYTES})


def _places(made: Path) -> dict[str, Path]:
    released = _package_folder() / "model" / "released"
    return {"data": made / "data", "runs": made / "runs", "released": released, "homes": made / "homes"}


def _environment(made: Path) -> dict[str, str]:
    return environment_of(made / "home", _package_folder().parent)


def _package_folder() -> Path:
    return Path(__file__).absolute().parents[2]


def copy_data(script: StepScript, data: Path, put: dict[str, str], target: Path) -> None:
    """Copy the data of a script: folders, files, or so many records of one, in as many shares as it says.

    A record names a `file` of the data, or a `part`, one of the excerpts that the paper's tables are measured on.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    if unknown := put.keys() - {one["name"] for one in script.data}:
        raise ValueError(f"{', '.join(sorted(unknown))}: no data of this script goes by that name")
    for one in script.data:
        source = Path(put[one["name"]]) if one["name"] in put else data / one.get("file", "")
        if one.get("optional") and one["name"] not in put:
            continue
        if "part" in one and one["name"] not in put:
            chosen = list(excerpt_lines(one["part"], data, script.number_of(one.get("lines"))))
        elif source.is_dir():
            shutil.copytree(source, target / one["name"])
            continue
        elif source.is_file():
            chosen = _read_lines(source, script.number_of(one.get("lines")))
        else:
            raise ValueError(
                f"{source} is missing. Name the folder with --data, or the file: --put {one['name']}=FILE"
            )
        shares = script.num_shares if "$share" in one["name"] else 1
        for share in range(shares):
            file = target / one["name"].replace("$share", f"{share:02}")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"".join(chosen[share::shares]))


def _read_lines(source: Path, count: int | None) -> list[bytes]:
    with gzip.open(source, "rb") if source.suffix == ".gz" else source.open("rb") as lines:
        return list(islice(lines, count))


def refuse_large(script: StepScript, made: Path) -> None:
    """Refuse, before anything is trained, a step whose release would be too large to be written or brought.

    Each training command is asked what it would train.
    """
    for step in script.steps:
        releases = any(command.startswith("colmlm train release ") for command in step.commands)
        for words in (script.words([command], _places(made))[0] for command in step.commands):
            if words[:2] != ["colmlm", "train"] or not words[2].startswith("--"):
                continue
            plan = _plan_of(_without_data(words), made)
            most = 16_000_000 if releases else 6 * BACK_BYTES
            size = 2 * plan["parameters"]["trained" if plan["adapt"] == "lora" else "total"]
            if size > most:
                raise ValueError(
                    f"step {step.name} of {script.name} would bring {size:,} bytes, and at most {most:,} are possible. "
                    "Nothing was packed. Lower the rank or the size of the model"
                )


def _plan_of(words: Sequence[str], made: Path) -> dict[str, Any]:
    ran = subprocess.run(
        [*program_line(words), "--dry-run", "--json"], env=_environment(made), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if ran.returncode:
        raise ValueError(f"{' '.join(words)}: {ran.stderr.strip()}")
    told = json.loads(ran.stdout)
    return {"adapt": told["config"]["adapt"], **told["plan"]}


def _without_data(words: Sequence[str]) -> list[str]:
    """Leave out the options that name data or runs which are not there before the steps are carried out.

    A run that begins with another's weights is planned as one from the base.
    """
    kept: list[str] = []
    for before, word in pairwise(("", *words)):
        if before == "--init":
            kept += ["--init", "smollm2-135m"]
        elif before not in _DATA and word not in (*_DATA, "--init"):
            kept.append(word)
    return kept


def _own_package(released: Sequence[str], made: Path) -> Iterator[tuple[str, Path]]:
    """Yield the folders of this package, of its weights those that the script names, and its description."""
    package = _package_folder()
    yield f"{SITE}/colmlm/__init__.py", package / "__init__.py"
    for room in sorted(one for one in package.iterdir() if one.is_dir() and one.name != "__pycache__"):
        inside = room.resolve()
        if room.name not in ("model", "lab"):
            yield f"{SITE}/colmlm/{room.name}", inside
            continue
        for part in sorted(inside.iterdir()):
            if part.name not in ("released", "wild", "notebook", "__pycache__"):
                yield f"{SITE}/colmlm/{room.name}/{part.name}", part
    if (licence := (package / "model").resolve().parent / "LICENSE").is_file():
        yield f"{SITE}/colmlm/LICENSE", licence  # of exported checkpoints
    weights = package / "model" / "released"
    for name in ("requirements.txt", *released):
        yield f"{SITE}/colmlm/model/released/{name}", weights / name
    try:
        found = distribution("colmlm")
    except PackageNotFoundError:
        return
    description = made / "METADATA"
    description.write_text(found.read_text("METADATA") or "")
    yield f"{SITE}/colmlm-{found.version}.dist-info/METADATA", description


def _kept_home(made: Path) -> Iterator[tuple[str, Path]]:
    """Yield what was made beforehand in the home: which passages are near to which question."""
    neighbours = made / "home" / "models" / "neighbours"
    if neighbours.is_dir():
        yield "home/models/neighbours", neighbours


def needed_by(name: str, extras: Sequence[str] = ()) -> set[str]:
    """List the installed packages that a package with these extras needs on Linux, itself among them."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    found, left = set[str](), [(name, tuple(extras))]
    seen = set[tuple[str, tuple[str, ...]]]()
    while left:
        one = left.pop()
        if one in seen:
            continue
        seen.add(one)
        try:
            lines = distribution(one[0]).requires or []
        except PackageNotFoundError:
            continue
        found.add(canonicalize_name(one[0]))
        for needed in map(Requirement, lines):
            if any(
                needed.marker is None or needed.marker.evaluate({"extra": extra}) for extra in ("", *one[1])
            ):
                left.append((needed.name, tuple(sorted(needed.extras))))
    return found


def carry_packages(names: Sequence[str], site: Path, python: str) -> None:
    """Put installed packages with their descriptions into a folder, those with compiled code for that Python."""
    site.mkdir(parents=True)
    fetched = []
    for name in names:
        found = distribution(name)
        if python == _own_python() or "Root-Is-Purelib: true" in (found.read_text("WHEEL") or ""):
            _copy_distribution(found, site)
        else:
            fetched.append(f"{name}=={found.version}")
    if fetched:
        _fetch_wheels(fetched, site, python)


def _copy_distribution(found: Distribution, site: Path) -> None:
    for file in found.files or []:
        source = Path(str(found.locate_file(file)))
        if ".." in file.parts or "__pycache__" in file.parts or not source.is_file():
            continue
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, site / file)  # with its mode: a database is started by its program


def _fetch_wheels(requirements: Sequence[str], site: Path, python: str) -> None:
    """Unpack the wheels of these versions for another Python; pip fetches them."""
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 17, 12, 5)] + ["manylinux2014_x86_64"]
    with TemporaryDirectory() as folder:
        subprocess.run(
            interpreter.command(
                "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest",
                folder, "--python-version", python, "--implementation", "cp",
                *(word for one in platforms for word in ("--platform", one)), *requirements,
            ),
            check=True, stdout=sys.stderr, env=dict(os.environ),
        )  # fmt: skip
        for wheel in sorted(Path(folder).glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                extract_with_modes(archive, site)


if __name__ == "__main__":
    main()
