"""Asks kept questions, and calibrates by them the score from which a base answers, for commands and jobs."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from colmlm.cli.composition.readers import confidence_of_reader, digest_of, reader_at
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.output import format_duration
from colmlm.cli.settings import UserSettings
from colmlm.kb.answers.calibrations import AnswerCalibrations
from colmlm.kb.answers.records import Calibrating
from colmlm.kb.errors import CalibrationRefused, InvalidQuestions, QuestionSetNotFound
from colmlm.kb.lookup.options import filter_of
from colmlm.kb.progress import Telling
from colmlm.kb.questions.records import AskingSet
from colmlm.kb.questions.sets import questions_of_file

if TYPE_CHECKING:
    from colmlm.kb.answers.calibration import KnownQuestion
    from colmlm.kb.log.records import OnRecord
    from colmlm.kb.questions.asking import Asker
    from colmlm.kb.questions.records import QuestionRun
    from colmlm.kb.service import KnowledgeBase

MOST_SECONDS = 120.0  # that adding documents may take longer for
HOW = "colmlm questions threshold --calibrate"


def calibrations(user: UserSettings, kb: KnowledgeBase) -> AnswerCalibrations:
    """Give the answer calibrations of a base for the reader of the settings, without loading that reader."""
    path = reader_at(user, None)
    confidence = confidence_of_reader(path)
    return AnswerCalibrations(kb, digest_of(path, confidence), confidence.threshold)


class _QuestionsToAsk(NamedTuple):
    """The questions of a calibration: those of a file, and those that are stored in corpora or a set."""

    of_file: list[KnownQuestion]
    stored: list[KnownQuestion]
    corpora: tuple[str, ...]
    question_set: str | None


@dataclass(frozen=True, slots=True)
class AnswerCalibrating:
    """Calibrates the answers of a runtime's base. A job gives its own `kb`, whose changes are logged for its actor."""

    runtime: Runtime
    kb: KnowledgeBase
    telling: Telling

    def run(self, questions: Path | None, how: Calibrating, **who: Unpack[OnRecord]) -> dict[str, Any]:
        """Ask the questions, choose the threshold and store it unless it is a dry run. Raises `CalibrationRefused`."""
        from colmlm.kb.answers.calibration import ask_each, calibrate_answers, require_enough_questions

        begun = time.monotonic()
        found = self._find_questions(questions, how)
        drawn = [*found.of_file, *found.stored]
        drawn = random.Random(how.seed).sample(drawn, min(how.sample, len(drawn)))
        require_enough_questions(sum(bool(one.values) for one in drawn), "with an answer", how.wrong)
        with self.telling.progress("Asking") as advance:
            asked = ask_each(self.runtime.answers, drawn, advance)
        measured = calibrate_answers(asked, self.runtime.reader.confidence.threshold, how.wrong)
        given = len(set(drawn) & set(found.of_file))
        seconds = round(time.monotonic() - begun, 1)
        seq = None
        if not how.dry_run:
            calibrated = calibrations(self.runtime.user, self.kb)
            seq = calibrated.store_measured(
                measured,
                given=given,
                corpora=found.corpora,
                seconds=seconds,
                question_set=found.question_set,
                **who,
            )
        return {
            "dry_run": how.dry_run, "measured": asdict(measured), "given": given, "corpora": found.corpora,
            "question_set": found.question_set,
            "seconds": seconds, "seq": seq,
        }  # fmt: skip

    def _find_questions(self, file: Path | None, how: Calibrating) -> _QuestionsToAsk:
        from colmlm.kb.answers.calibration import KnownQuestion, draw_questions

        corpora, question_set = how.corpora, how.question_set
        if file is None and not corpora and question_set is None:
            before = calibrations(self.runtime.user, self.kb).standing().calibration
            if before is None or not (before.corpora or before.question_set):
                raise InvalidQuestions(
                    "there are none. Name a file, a set, or corpora with questions that people wrote"
                )
            corpora, question_set = before.corpora, before.question_set
        known = {one.corpus for one in self.kb.corpora.all()}
        if missing := [name for name in corpora if name not in known]:
            raise InvalidQuestions(f"no corpus {missing[0]!r} exists. See `colmlm corpus list`")
        stored = draw_questions(self.runtime.answers, corpora, how.sample, how.seed) if corpora else []
        if corpora and not stored:
            raise InvalidQuestions(
                f"no fact of {', '.join(corpora)} has a question that a person wrote. Name a file (--file) or a "
                "set of kept questions (--question-set)"
            )
        if question_set is not None:
            kept = self.kb.questions.askable(question_set)
            stored += [KnownQuestion(one.question, one.expected) for one in kept]
        return _QuestionsToAsk(list(read_questions(file)) if file else [], stored, corpora, question_set)

    def again(self, **who: Unpack[OnRecord]) -> str:
        """Calibrate again after documents were added, if the questions are stored and it takes `MOST_SECONDS` at most.
        Gives a line that states the threshold and why, also if the reader is missing: the documents are stored already.
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
                f"Answers need a score of {standing.threshold:.2f}, as shipped. To fit it to your documents, keep "
                f"questions that people ask (colmlm questions add), then: {HOW} --question-set NAME"
            )
        stays = f"Answers still need a score of {standing.threshold:.2f}, calibrated before these documents"
        if before.given or not (before.corpora or before.question_set):
            return f"{stays}: its questions were those of a file. Ask them again: {HOW} --file FILE"
        if before.seconds > MOST_SECONDS:
            return f"{stays}: that takes {format_duration(before.seconds)}. To do it now: {HOW}"
        measured = before.measured
        how = Calibrating(
            wrong=measured.rate,
            sample=max(measured.answerable + (measured.unanswerable if before.question_set else 0), 1),
            corpora=before.corpora,
            question_set=before.question_set,
        )
        try:
            done = self.run(None, how, **who)
        except (CalibrationRefused, InvalidQuestions, QuestionSetNotFound) as error:
            return f"{stays}. {error}"
        return f"Answers now need a score of {done['measured']['here']['threshold']:.2f}: calibrated again."


def read_questions(file: Path) -> Iterator[KnownQuestion]:
    """Read a file of questions, as `kb.questions.sets` describes it. Raises `InvalidQuestions`."""
    from colmlm.kb.answers.calibration import KnownQuestion

    yield from (KnownQuestion(one.question, one.expected) for one in questions_of_file(file))


@dataclass(frozen=True, slots=True)
class SetAsking:
    """Asks the question sets of a runtime's base. A job gives its own `kb`."""

    runtime: Runtime
    kb: KnowledgeBase
    telling: Telling

    def run(self, name: str, how: AskingSet, *, actor: str) -> QuestionRun:
        """Ask every question of a set, and store the run."""
        self.kb.questions.show(name)  # fails before a model is loaded for seconds
        asker = self._asker(how)
        with self.telling.progress("Asking") as advance:
            return self.kb.questions.run(name, asker, advance, actor=actor)

    def _asker(self, how: AskingSet) -> Asker:
        from colmlm.kb.questions.asking import ByAnswers, ByRanking

        way, answers = how.way, self.runtime.answers
        if way in ("read", "paper"):
            return ByAnswers(answers, way, how.threshold, filter_of(how))
        encoder = self.runtime.encoder
        return ByRanking(answers, self.runtime.lookups, encoder, way, how.threshold, filter_of(how))
