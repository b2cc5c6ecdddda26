"""Builds a folder for `colmlm-lab evaluate documents --wild`: our own files, and those of Debian's packages.

`python -m colmlm.lab.wild test --out wild-test` needs `apt-get` and `dpkg-deb`. Nothing is installed.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from html import unescape
from pathlib import Path

from colmlm.cli.output import note, say

HERE = Path(__file__).parent
FOLDERS = ("test", "fitting")
_TAG = re.compile(r"<[^>]+>")


def main() -> int:
    """Build the folder, and say which questions its files do not answer as written; the exit code is then 1."""
    parser = argparse.ArgumentParser(
        prog="python -m colmlm.lab.wild", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("folder", choices=FOLDERS)
    parser.add_argument("--out", type=Path, required=True, help="a folder that is not there yet")
    asked = parser.parse_args()
    source, out = HERE / asked.folder, asked.out
    if out.exists():
        parser.error(f"{out} is there; name another folder")
    shutil.copytree(source, out)
    _fetch(out)
    astray = _astray(out)
    say(f"{out}: {sum(one.is_file() for one in (out / 'files').rglob('*'))} files")
    for question in astray:
        note(f"not in its file any more: question {question}")
    return 1 if astray else 0


def _fetch(out: Path) -> None:
    """Copy the files of the packages that `packages.tsv` names: package, path in it, path in the folder."""
    wanted = defaultdict[str, list[tuple[str, str]]](list)
    for line in (out / "packages.tsv").read_text(encoding="utf-8").splitlines():
        package, path, target = line.split("\t")
        wanted[package].append((path, target))
    with tempfile.TemporaryDirectory() as folder:
        for package, paths in wanted.items():
            subprocess.run(
                ["apt-get", "download", package], cwd=folder, check=True, stdout=subprocess.DEVNULL
            )
            (archive,) = Path(folder).glob(f"{package}_*.deb")
            unpacked = Path(folder, package)
            subprocess.run(["dpkg-deb", "-x", archive, unpacked], check=True)
            for path, target in paths:
                (out / target).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(unpacked / path, out / target)


def _astray(out: Path) -> list[int]:
    """List the questions whose answers their files do not say: a package may be of another version."""
    found = []
    for line in (out / "questions.jsonl").read_text(encoding="utf-8").splitlines():
        question = json.loads(line)
        if question["file"] is None:
            continue
        raw = (out / "files" / question["file"]).read_text(encoding="utf-8")
        shown = _plain(_TAG.sub("", raw)) if question["file"].endswith(".html") else _plain(raw)
        if not all(_plain(answer) in shown for answer in question["answers"]):
            found.append(question["id"])
    return found


def _plain(text: str) -> str:
    """Give the words and signs without blanks, entities and emphasis, which no answer depends on."""
    return re.sub(r"[\s*`_\\]+", "", unescape(text))


if __name__ == "__main__":
    sys.exit(main())
