"""Measures one model that writes a whole marked text, where the two annotators here only choose spans of it.

python benchmarks/one_annotator.py write data/squad/train.jsonl one.jsonl
colmlm train --method standard --annotated one.jsonl --no-demo --batch 8 --steps 160 --set qa_fraction=0 \\
    --set title_fraction=0 --set ntp_fraction=1.0 --max-length 512 --out runs/one-annotator
python benchmarks/one_annotator.py judge data/squad/dev.jsonl runs/one-annotator --limit 100 --json

A text is *faithful* if it is the paragraph again, once its marks are taken away. The paper says 33 % of its single
annotator's documents are.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from itertools import islice
from operator import and_
from pathlib import Path
from typing import Any

from colmlm.kb.corpus.format import AnnotatedDocument, to_record
from colmlm.kb.corpus.squad import read_squad

BEGIN, END = "[[", "]]"
HEAD = "Text: {text}\nMarked:"
MOST_CHARACTERS = 800  # so that both texts fit into 512 tokens
TOGETHER = 10


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    written = commands.add_parser("write", help="write the documents to learn from")
    written.add_argument("squad", type=Path)
    written.add_argument("out", type=Path)
    written.set_defaults(run=write)
    judged = commands.add_parser("judge", help="have paragraphs marked, and compare")
    judged.add_argument("squad", type=Path)
    judged.add_argument("checkpoint", type=Path)
    judged.add_argument("--limit", type=int, default=100)
    judged.add_argument("--json", action="store_true")
    judged.set_defaults(run=judge)
    options = parser.parse_args()
    options.run(options)


def paragraphs(squad: Path) -> Iterator[AnnotatedDocument]:
    """Yield the short paragraphs of a SQuAD file, each on one line, with the spans that people asked for."""
    for parsed in read_squad(squad):
        document = parsed.document
        if document is not None and len(document.text) <= MOST_CHARACTERS and "\n" not in document.text:
            yield document


def marked_text(document: AnnotatedDocument) -> str:
    """Put marks around the spans of a paragraph."""
    text, at = "", 0
    for span in document.facts:
        text += f"{document.text[at : span.start]}{BEGIN}{document.text[span.start : span.end]}{END}"
        at = span.end
    return text + document.text[at:]


def write(options: argparse.Namespace) -> None:
    with options.out.open("w", encoding="utf-8") as target:
        for document in paragraphs(options.squad):
            text = f"{HEAD.format(text=document.text)} {marked_text(document)}"
            record = to_record(AnnotatedDocument(document.external_id, text, ()))
            target.write(json.dumps(record, ensure_ascii=False) + "\n")


def judge(options: argparse.Namespace) -> None:
    from colmlm.cli.composition.runtime import Runtime
    from colmlm.model.decoding.config import DecodeConfig
    from colmlm.model.decoding.decoder import Decoder
    from colmlm.model.lm.checkpoint import load

    every = list(paragraphs(options.squad))
    step = max(1, len(every) // options.limit)
    asked = list(islice(every[::step], options.limit))
    with Runtime.from_environment() as runtime:
        checkpoint = load(options.checkpoint, runtime.settings.home / "models")
    decoder = Decoder(checkpoint, None)
    config = DecodeConfig(mode="off", max_tokens=300, repetition_penalty=1.0)
    said: list[str] = []
    while len(said) < len(asked):
        some = asked[len(said) : len(said) + TOGETHER]
        prompts = [HEAD.format(text=document.text) for document in some]
        said += [one.output for one in decoder.generate(prompts, config)]
        sys.stderr.write(f"{len(said)} of {len(asked)}\n")
    faithful = [without_marks(text) == document.text for text, document in zip(said, asked, strict=True)]
    marked = [BEGIN in text for text in said]
    report: dict[str, Any] = {
        "paragraphs": len(asked),
        "faithful": sum(faithful) / len(asked),
        "with_marks": sum(marked) / len(asked),
        "faithful_with_marks": sum(map(and_, faithful, marked)) / len(asked),
        "marks": sum(text.count(BEGIN) for text in said) / len(asked),
        "marks_of_people": sum(len(document.facts) for document in asked) / len(asked),
    }
    sys.stdout.write(f"{json.dumps(report) if options.json else report}\n")


def without_marks(text: str) -> str:
    return text.strip().replace(BEGIN, "").replace(END, "")


if __name__ == "__main__":
    main()
