"""Calibrates the score from which a base answers, for commands, jobs and what is added to a corpus."""

from __future__ import annotations

import csv
import json
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, Unpack

from colmlm.api.nouns.lookups import Calibrating
from colmlm.api.nouns.telling import Telling
from colmlm.cli.composition.answering import digest_of, fitted_to
from colmlm.cli.composition.duration import WORTH_TELLING, lasting
from colmlm.cli.composition.readers import reader_at
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.settings import UserSettings
from colmlm.kb.answers.answering import MAX_QUESTION
from colmlm.kb.answers.calibrations import AnswerCalibrations
from colmlm.kb.errors import CalibrationRefused, InvalidQuestions, InvalidValue
from colmlm.kb.log import audit
from colmlm.kb.texts.characters import is_blank

if TYPE_CHECKING:
    from colmlm.kb.answers.calibration import KnownQuestion
    from colmlm.kb.log.records import OnRecord
    from colmlm.kb.service import KnowledgeBase

SECONDS_A_QUESTION = 0.3  # of one core, asked twice
MOST_SECONDS = 120.0  # that adding documents may take longer for
HOW = "colmlm answers calibrate"


def calibrations(user: UserSettings, kb: KnowledgeBase) -> AnswerCalibrations:
    """Gives the calibrations of a base with the reader of the settings, which is not loaded for it."""
    path = reader_at(user, None)
    confidence = fitted_to(path)
    return AnswerCalibrations(kb, digest_of(path, confidence), confidence.threshold)


@dataclass(frozen=True, slots=True)
class AnswerCalibrating:
    """Calibrates the answers of a runtime's base. A job gives its own `kb`, whose changes are logged for its actor."""

    runtime: Runtime
    kb: KnowledgeBase
    telling: Telling

    def run(self, questions: Path | None, how: Calibrating, **who: Unpack[OnRecord]) -> dict[str, Any]:
        """Asks, chooses the threshold and, unless it is a dry run, stores it. Raises `CalibrationRefused`."""
        from colmlm.kb.answers.calibration import ask_each, calibrate

        begun = time.monotonic()
        of_file, stored, corpora = self._questions(questions, how)
        drawn = [*of_file, *stored]
        drawn = random.Random(how.seed).sample(drawn, min(how.sample, len(drawn)))
        if (expected := SECONDS_A_QUESTION * len(drawn)) >= WORTH_TELLING:
            self.telling.note(f"{len(drawn)} questions are asked twice: this takes {lasting(expected)}.")
        with self.telling.progress("Asking") as advance:
            asked = ask_each(self.runtime.answers, drawn, advance)
        measured = calibrate(asked, self.runtime.reader.confidence.threshold, how.wrong)
        given = sum(one.fact_id is None for one in drawn)
        seconds = round(time.monotonic() - begun, 1)
        seq = None
        if not how.dry_run:
            calibrated = calibrations(self.runtime.user, self.kb)
            seq = calibrated.store_measured(measured, given=given, corpora=corpora, seconds=seconds, **who)
        return {
            "dry_run": how.dry_run, "measured": asdict(measured), "given": given, "corpora": corpora,
            "seconds": seconds, "seq": seq,
        }  # fmt: skip

    def _questions(
        self, file: Path | None, how: Calibrating
    ) -> tuple[list[KnownQuestion], list[KnownQuestion], tuple[str, ...]]:
        from colmlm.kb.answers.calibration import questions_of

        corpora = how.corpora
        if file is None and not corpora:
            before = calibrations(self.runtime.user, self.kb).standing().calibration
            if before is None or not before.corpora:
                raise InvalidQuestions(
                    "there are none: name a file of them, or corpora whose facts have questions that people wrote"
                )
            corpora = before.corpora
        known = {one.corpus for one in self.kb.corpora.all()}
        if missing := [name for name in corpora if name not in known]:
            raise InvalidQuestions(f"there is no corpus {missing[0]!r}")
        stored = questions_of(self.runtime.answers, corpora, how.sample, how.seed)
        return list(read_questions(file)) if file else [], stored, corpora

    def again(self, **who: Unpack[OnRecord]) -> str:
        """Calibrates once more after documents were added, where the questions are stored and it does not take long;
        gives a line that says what the threshold is now, and why. The documents are there, also where no reader is.
        """
        from colmlm.model.lm.config import CheckpointError

        try:
            return self._again(**who)
        except CheckpointError as error:
            return f"What score answers need is not known: {error}"

    def _again(self, **who: Unpack[OnRecord]) -> str:
        standing = calibrations(self.runtime.user, self.kb).standing()
        before = standing.calibration
        if before is None:
            return (
                f"Answers need the shipped score of {standing.threshold:.2f}: they were not calibrated for this base. "
                f"See: {HOW} --help"
            )
        stays = f"Answers still need a score of {standing.threshold:.2f}, calibrated before these documents"
        if not before.corpora or before.given:
            return f"{stays}: its questions were those of a file. Ask them again: {HOW} --questions FILE"
        if before.seconds > MOST_SECONDS:
            return f"{stays}: that takes {lasting(before.seconds)}. To do it now: {HOW}"
        measured = before.measured
        how = Calibrating(wrong=measured.rate, sample=max(measured.answerable, 1), corpora=before.corpora)
        try:
            done = self.run(None, how, **who)
        except (CalibrationRefused, InvalidQuestions) as error:
            return f"{stays}. {error}"
        return f"Answers now need a score of {done['measured']['here']['threshold']:.2f}: calibrated again."


def read_questions(file: Path) -> Iterator[KnownQuestion]:
    """Reads questions with the values that answer them: CSV with the columns question and value, or JSON Lines with
    the same fields, where `value` may be a list. One that nothing answers has an empty value. Values of the same
    question add up.

    Raises `InvalidQuestions`, which names the line.
    """
    from colmlm.kb.answers.calibration import KnownQuestion

    values: dict[str, list[str]] = {}
    for number, record in _records(file):
        question, said = _question(number, record)
        values.setdefault(question, []).extend(v for v in said if not is_blank(v))
    for question, said in values.items():
        yield KnownQuestion(question, tuple(dict.fromkeys(said)))


def _question(number: int, record: Mapping[str, Any]) -> tuple[str, list[str]]:
    question, value = record.get("question"), record.get("value")
    said = value if isinstance(value, list) else [value] if value is not None else []
    is_named = "value" in record and all(isinstance(one, str) for one in said)
    if not isinstance(question, str) or is_blank(question) or not is_named:
        raise InvalidQuestions(
            f"line {number} has no question with a value that is text, a list of texts or empty"
        )
    if len(question) > MAX_QUESTION:
        raise InvalidQuestions(f"line {number} has more than {MAX_QUESTION:,} characters")
    try:
        audit.check_text("question", question)
    except InvalidValue as error:
        raise InvalidQuestions(f"line {number}: {error}".removesuffix(".")) from error
    return question, said


def _records(file: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with file.open(encoding="utf-8-sig", newline="") as lines:
        try:
            yield from _rows(lines) if file.suffix.lower() == ".csv" else _objects(lines)
        except UnicodeDecodeError as error:
            raise InvalidQuestions("the file is not UTF-8; save it as that") from error


def _rows(lines: TextIO) -> Iterator[tuple[int, Mapping[str, Any]]]:
    rows = csv.DictReader(lines, strict=True)
    try:
        yield from ((rows.line_num, row) for row in rows)
    except csv.Error as error:
        raise InvalidQuestions(f"behind line {rows.line_num} it is no CSV ({error})") from error


def _objects(lines: TextIO) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InvalidQuestions(f"line {number} is no JSON") from error
            yield number, record if isinstance(record, dict) else {}
