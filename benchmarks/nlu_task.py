"""Makes lm_eval tasks of CSQA, HellaSwag, PIQA, SIQA, ARC-Easy, and the same items for `colmlm-lab evaluate choices`.

python benchmarks/nlu_task.py ../shared/data/nlu nlu --limit 100

Of each set there are then NAME.jsonl (the items), NAME.shots.jsonl (what exemplars are drawn from) and
colmlm_NAME.yaml.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from colmlm.lab.paper.excerpts import CHOICES, Record

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path, help="the folder of the sets' files")
    parser.add_argument("folder", type=Path, help="where the tasks and their items go")
    parser.add_argument("--limit", type=int, default=None, help="items of each set, from the first")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, read in CHOICES.items():
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


def write(file: Path, rows: list[Record]) -> Path:
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return file.resolve()


if __name__ == "__main__":
    main()
