"""Makes lm_eval tasks of CSQA, HellaSwag, PIQA, SIQA, ARC-Easy, and the same items for `colmlm-lab evaluate choices`.

python benchmarks/nlu_task.py ../shared/data/nlu nlu --limit 100

Of each set there are then NAME.jsonl (the items), NAME.shots.jsonl (what exemplars are drawn from) and
colmlm_NAME.yaml. Exemplars come from another split where the folder has one (HellaSwag's), otherwise from a hundred
items that are drawn once and not scored; the paper drew them from the sets' training splits, which are not there.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

SHOTS = 100
YAML = """\
task: {task}
dataset_path: json
dataset_kwargs:
  data_files:
    train: {shots}
    validation: {items}
output_type: multiple_choice
validation_split: validation
fewshot_split: train
doc_to_text: "{{{{context}}}}"
doc_to_choice: choices
doc_to_target: answer
metric_list:
  - metric: acc
  - metric: acc_norm
"""
Made = dict[str, Any]


def csqa(folder: Path) -> tuple[list[Made], list[Made]]:
    lines = (folder / "csqa_dev.jsonl").read_text(encoding="utf-8").splitlines()
    return apart([csqa_item(json.loads(line)) for line in lines])


def csqa_item(record: Made) -> Made:
    choices = record["choices"]
    return {
        "context": f"Question: {record['question']}\nAnswer:",
        "choices": choices["text"],
        "answer": choices["label"].index(record["answerKey"]),
    }


def hellaswag(folder: Path) -> tuple[list[Made], list[Made]]:
    splits = json.loads((folder / "hellaswag.json").read_text(encoding="utf-8"))
    items, shots = ([hellaswag_item(record) for record in splits[name]] for name in ("test", "dev"))
    return items, shots


def hellaswag_item(record: Made) -> Made:
    letters = sorted(record["choices"])
    return {
        "context": without_signs(record["question"]),
        "choices": [without_signs(record["choices"][letter]) for letter in letters],
        "answer": letters.index(record["answer"]),
    }


def without_signs(text: str) -> str:
    """As lm_eval reads HellaSwag: the signs of WikiHow are left out, a title ends what stands before it."""
    bare = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
    return bare.replace("  ", " ").strip()


def piqa(folder: Path) -> tuple[list[Made], list[Made]]:
    return apart(instructed(folder / "piqa_test.json", "Solution"))


def siqa(folder: Path) -> tuple[list[Made], list[Made]]:
    return apart(instructed(folder / "siqa_test.json", "Answer"))


def arc_easy(folder: Path) -> tuple[list[Made], list[Made]]:
    return apart(instructed(folder / "arc_easy_test.json", "Answer"))


def instructed(file: Path, word: str) -> list[Made]:
    """Items that were written as instructions, with choices `word`1, `word`2 and so on."""
    return [instructed_item(record, word) for record in json.loads(file.read_text(encoding="utf-8"))]


def instructed_item(record: Made, word: str) -> Made:
    asked, _, names = record["instruction"].rpartition("\n\nAnswer format: ")
    text = asked.partition(" to the question: ")[2]
    choices: list[str] = []
    for number in range(len(names.split("/")), 0, -1):  # from the last: a question may hold the words too
        text, _, choice = text.rpartition(f"{word}{number}: ")
        choices.insert(0, choice.strip())
    if not (question := text.strip()) or not all(choices):
        raise ValueError(f"an item of another form: {record['instruction']!r}")
    return {
        "context": f"Question: {question}\nAnswer:",
        "choices": choices,
        "answer": names.split("/").index(record["answer"]),
    }


def apart(items: list[Made]) -> tuple[list[Made], list[Made]]:
    """The items, and those that exemplars are drawn from instead."""
    drawn = set(random.Random(0).sample(range(len(items)), SHOTS))
    return (
        [item for n, item in enumerate(items) if n not in drawn],
        [item for n, item in enumerate(items) if n in drawn],
    )


SETS: dict[str, Callable[[Path], tuple[list[Made], list[Made]]]] = {
    "csqa": csqa,
    "hellaswag": hellaswag,
    "piqa": piqa,
    "siqa": siqa,
    "arc_easy": arc_easy,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path, help="the folder of the sets' files")
    parser.add_argument("folder", type=Path, help="where the tasks and their items go")
    parser.add_argument("--limit", type=int, default=None, help="items of each set, from the first")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, read in SETS.items():
        items, shots = read(options.data)
        files = {
            kind: write(options.folder / f"{name}{suffix}.jsonl", rows)
            for kind, suffix, rows in (("items", "", items[: options.limit]), ("shots", ".shots", shots))
        }
        task = f"colmlm_{name}"
        (options.folder / f"{task}.yaml").write_text(YAML.format(task=task, **files), encoding="utf-8")
        sys.stdout.write(
            f"{task}: {len(items[: options.limit])} items, {len(shots)} to draw exemplars from\n"
        )


def write(file: Path, rows: list[Made]) -> Path:
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return file.resolve()


if __name__ == "__main__":
    main()
