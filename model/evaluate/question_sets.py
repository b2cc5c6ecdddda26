"""Questions with gold answers in the formats of published sets: JSON, JSON Lines or CSV, a file or a folder of files.

A row has a question and its answers under any of the names in use. A row of T-REx names a subject and an object
instead, and its file the relation; from these it becomes the beginning of a sentence that ends with the object. The
wording is this project's, since the sentences of the published set are not among its facts.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from colmlm.model.evaluate.answers import AskedQuestion

SUFFIXES = {".json", ".jsonl", ".csv"}
_QUESTION = ("question", "problem")
_ANSWERS = ("answers", "golden_answers", "possible_answers", "answer")

RELATIONS = {
    "P17": "{} is in the country of",
    "P19": "{} was born in",
    "P20": "{} died in",
    "P27": "{} is a citizen of",
    "P30": "{} is on the continent of",
    "P31": "{} is a kind of",
    "P36": "The capital of {} is",
    "P37": "The official language of {} is",
    "P39": "{} held the office of",
    "P47": "{} has a border with",
    "P101": "{} works in the field of",
    "P103": "The native language of {} is",
    "P106": "By profession {} is a",
    "P108": "{} is employed by",
    "P127": "{} is owned by",
    "P131": "{} lies in",
    "P136": "The genre of {} is",
    "P138": "{} is named after",
    "P140": "The religion of {} is",
    "P159": "The headquarters of {} are in",
    "P176": "{} is made by",
    "P178": "{} was developed by",
    "P190": "The twin city of {} is",
    "P264": "The record label of {} is",
    "P276": "{} took place in",
    "P279": "{} is a subclass of",
    "P361": "{} is part of",
    "P364": "The original language of {} is",
    "P407": "{} was written in",
    "P413": "In sport {} plays as a",
    "P449": "{} was first shown on",
    "P463": "{} is a member of",
    "P495": "{} was made in the country of",
    "P527": "{} consists of",
    "P530": "{} has diplomatic relations with",
    "P740": "{} was founded in",
    "P937": "{} worked in the city of",
    "P1001": "{} is a term of law in",
    "P1303": "The instrument that {} plays is the",
    "P1376": "{} is the capital of",
    "P1412": "{} used to speak in",
}  # fmt: skip


class QuestionSetError(ValueError):
    """A file or folder holds no questions; the message says what is wrong with it."""


def read_question_set(path: Path) -> list[AskedQuestion]:
    """Reads every row of a file, or of the files of a folder, in order; of equal rows it keeps the first.

    Rows with the same question and other answers are kept apart, since each is an example of its set. Raises
    `QuestionSetError`, which names the row, if one is no question.
    """
    asked = [_asked(where, row) for where, row in _rows(path)]
    if not asked:
        raise QuestionSetError(f"{path} has no question")
    return list({one.question_id: one for one in asked}.values())


def digest(path: Path) -> str:
    """Computes the SHA-256 of a question set's files, in order."""
    return sha256(b"".join(sha256(file.read_bytes()).digest() for file in _files(path))).hexdigest()


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    for file in _files(path):
        try:
            for number, row in enumerate(_rows_of(file), start=1):
                yield f"{file.name}:{number}", row
        except (ValueError, csv.Error) as error:
            if isinstance(error, QuestionSetError):
                raise
            raise QuestionSetError(f"{file.name} is neither JSON, JSON Lines nor CSV: {error}") from error


def _rows_of(file: Path) -> Iterator[Any]:
    text = file.read_text(encoding="utf-8-sig")
    if file.suffix == ".csv":
        yield from csv.DictReader(text.splitlines(keepends=True))
    elif text.lstrip().startswith("["):
        yield from json.loads(text)
    else:
        yield from (json.loads(line) for line in text.split("\n") if line.strip())


def _asked(where: str, row: Any) -> AskedQuestion:
    if not isinstance(row, Mapping):
        raise QuestionSetError(f"{where} is no object")
    if "sub_label" in row:
        text, answers = _statement(where, row), _texts(row.get("obj_label"))
    else:
        text = next((row[name] for name in _QUESTION if isinstance(row.get(name), str)), "")
        answers = next((found for name in _ANSWERS if (found := _texts(row.get(name)))), ())
    if not text.strip() or not answers:
        raise QuestionSetError(f"{where} has no {'answer' if text.strip() else 'question'}")
    name = sha256("\n".join((text.strip(), *answers)).encode()).hexdigest()[:16]
    return AskedQuestion(name, text.strip(), answers, is_statement="sub_label" in row)


def _statement(where: str, row: Mapping[str, Any]) -> str:
    relation = where.split(".")[0]
    if relation not in RELATIONS:
        raise QuestionSetError(f"{where}: no sentence is known for relation {relation!r}")
    return RELATIONS[relation].format(row["sub_label"])


def _texts(found: Any) -> tuple[str, ...]:
    """Reads answers given as one text, as several, or as several in JSON within one text."""
    if isinstance(found, str) and found.startswith("["):
        with suppress(ValueError):  # it is an answer that begins with a bracket
            found = json.loads(found)
    several = found if isinstance(found, list) else [found]
    return tuple(dict.fromkeys(one.strip() for one in several if isinstance(one, str) and one.strip()))
