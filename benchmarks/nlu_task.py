"""Makes an lm_eval task of CommonsenseQA items, and the same items for `colmlm evaluate choices`.

python benchmarks/nlu_task.py ../shared/data/nlu/csqa_dev.jsonl nlu --limit 100
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

TASK = "colmlm_csqa"
YAML = """\
task: {task}
dataset_path: json
dataset_kwargs:
  data_files:
    validation: {items}
output_type: multiple_choice
validation_split: validation
doc_to_text: "{{{{context}}}}"
doc_to_choice: choices
doc_to_target: answer
metric_list:
  - metric: acc
  - metric: acc_norm
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("csqa", type=Path, help="CommonsenseQA's items, as JSON Lines")
    parser.add_argument("folder", type=Path, help="where the task and its items go")
    parser.add_argument("--limit", type=int, default=None)
    options = parser.parse_args()
    lines = options.csqa.read_text(encoding="utf-8").splitlines()[: options.limit]
    options.folder.mkdir(parents=True, exist_ok=True)
    items = (options.folder / "items.jsonl").resolve()
    items.write_text(
        "".join(json.dumps(item_of(json.loads(line))) + "\n" for line in lines), encoding="utf-8"
    )
    (options.folder / f"{TASK}.yaml").write_text(YAML.format(task=TASK, items=items), encoding="utf-8")
    sys.stdout.write(f"{len(lines)} items of {TASK} in {options.folder}\n")


def item_of(record: dict) -> dict[str, object]:
    choices = record["choices"]
    return {
        "context": f"Question: {record['question']}\nAnswer:",
        "choices": choices["text"],
        "answer": choices["label"].index(record["answerKey"]),
    }


if __name__ == "__main__":
    main()
