"""Makes a smaller TOFU of its files, so that forgetting can be measured with trainings of minutes instead of hours.

python benchmarks/tofu_part.py ../shared/data/tofu small/tofu
make -f lab/paper/Makefile DATA=small OUT=results tofu

Its `full` has the rows that retain_perturbed.jsonl asks about and those of the largest forget set, and each retain set
what of its own is among them. Of retain_perturbed.jsonl every fourth row is asked; everything else is as it was.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

ASKED = "retain_perturbed"
EVERY = 4
WHOLE = ("real_authors", "real_authors_perturbed", "world_facts", "world_facts_perturbed")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tofu", type=Path, help="the folder of TOFU's files")
    parser.add_argument("out", type=Path, help="the folder to make")
    args = parser.parse_args()
    if not (args.tofu / f"{ASKED}.jsonl").is_file():
        sys.exit(f"{args.tofu} has no {ASKED}.jsonl: name the folder of TOFU's files")
    args.out.mkdir(parents=True, exist_ok=True)
    for name, lines in part_of(args.tofu).items():
        (args.out / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
        sys.stdout.write(f"{name}: {len(lines)} rows\n")


def part_of(folder: Path) -> dict[str, list[str]]:
    """The lines of each file of the smaller TOFU."""

    def read(name: str) -> list[str]:
        return (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)

    asked = read(ASKED)
    known = {_question(line) for line in (*asked, *read("forget10"))}
    made = {ASKED: asked[::EVERY]}
    for name in ("full", "retain90", "retain95", "retain99"):
        made[name] = [line for line in read(name) if _question(line) in known]
    for name in ("forget01", "forget05", "forget10"):
        made |= {name: read(name), f"{name}_perturbed": read(f"{name}_perturbed")}
    return made | {name: read(name) for name in WHOLE}


def _question(line: str) -> str:
    question: str = json.loads(line)["question"]
    return question


if __name__ == "__main__":
    main()
