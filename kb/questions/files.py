"""Files of questions with the values that answer them: CSV with the columns question and value, or JSON Lines with the
same fields, where `value` may be a list. One that nothing answers has an empty value. Values of the same question add
up. The values may also be called expected, as a run's items call them.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from colmlm.kb.errors import InvalidQuestions, InvalidValue
from colmlm.kb.log.audit import check_text
from colmlm.kb.questions.records import DraftQuestion
from colmlm.kb.texts.characters import is_blank

MAX_QUESTION = 2_000  # characters
_VALUES = "value", "expected"


def questions_of_file(file: Path) -> list[DraftQuestion]:
    """Read a file, as CSV where its name ends so. Raises `InvalidQuestions`, which names the line."""
    with file.open(encoding="utf-8-sig", newline="") as lines:
        try:
            return _added_up(_read_rows(lines) if file.suffix.lower() == ".csv" else _read_objects(lines))
        except UnicodeDecodeError as error:
            raise InvalidQuestions("the file is not UTF-8. Save it as UTF-8") from error


def questions_of_text(text: str) -> list[DraftQuestion]:
    """Read what was pasted: JSON Lines where it begins with a brace, else CSV. Raises `InvalidQuestions`."""
    lines = io.StringIO(text.removeprefix("\ufeff"), newline="")
    return _added_up(_read_objects(lines) if text.lstrip().startswith("{") else _read_rows(lines))


def _added_up(records: Iterator[tuple[int, Mapping[str, Any]]]) -> list[DraftQuestion]:
    values: dict[str, list[str]] = {}
    for number, record in records:
        question, said = _question(number, record)
        values.setdefault(question, []).extend(said)
    if not values:
        raise InvalidQuestions(
            "there are none. Write one question on each line, below the column names in CSV"
        )
    return [DraftQuestion(question, tuple(dict.fromkeys(said))) for question, said in values.items()]


def _question(number: int, record: Mapping[str, Any]) -> tuple[str, list[str]]:
    question, value = record.get("question"), record.get("value", record.get("expected"))
    said = value if isinstance(value, list) else [value] if value is not None else []
    is_named = not record.keys().isdisjoint(_VALUES) and all(isinstance(one, str) for one in said)
    if not isinstance(question, str) or is_blank(question) or not is_named:
        raise InvalidQuestions(
            f"line {number} has no 'question' with a 'value' that is text, a list of texts or empty"
        )
    if len(question) > MAX_QUESTION:
        raise InvalidQuestions(f"line {number} has more than {MAX_QUESTION:,} characters")
    try:
        for name, text in (("question", question), *(("value", one) for one in said)):
            check_text(name, text)
    except InvalidValue as error:
        raise InvalidQuestions(f"line {number} has an invalid {error.field}: {error.cause}") from error
    return question, [one for one in said if not is_blank(one)]


def _read_rows(lines: TextIO) -> Iterator[tuple[int, Mapping[str, Any]]]:
    rows = csv.DictReader(lines, strict=True)
    try:
        for row in rows:
            if None in row or None in row.values():
                raise InvalidQuestions(f"line {rows.line_num} has more or fewer fields than the first line")
            yield rows.line_num, row
    except csv.Error as error:
        raise InvalidQuestions(f"the text after line {rows.line_num} is not CSV ({error})") from error


def _read_objects(lines: TextIO) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InvalidQuestions(f"line {number} is not JSON") from error
            yield number, record if isinstance(record, dict) else {}
