"""Kept questions of a remote knowledge base. A set is asked there as a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Unpack
from urllib.parse import quote

import msgspec

from colmlm.api.client.api import Api
from colmlm.api.client.jobs import RemoteJobs
from colmlm.api.client.only_there import options
from colmlm.api.nouns.questions import AskingSet
from colmlm.api.wire.requests import MAX_FACTS_PER_EDIT
from colmlm.kb.jobs.kinds import AskQuestions, work_of
from colmlm.kb.questions.records import (
    AskedItem,
    DraftQuestion,
    KeptQuestion,
    KeptSet,
    QuestionRun,
    RunComparison,
    TakenQuestion,
)


@dataclass(frozen=True, slots=True)
class RemoteQuestions:
    """The verbs of `api.nouns.questions.QuestionVerbs` over the API. The actor is the token, whatever `actor` says."""

    api: Api

    def all(self) -> list[KeptSet]:
        return self.api.listed("/questions", KeptSet, "questions")

    def show(self, name: str) -> KeptSet:
        return self.api.get(_path(name), KeptSet)

    def questions(self, name: str, after: int = 0, limit: int = 100) -> list[KeptQuestion]:
        return self.api.listed(f"{_path(name)}/items", KeptQuestion, "kept", after=after, limit=limit)

    def add(
        self, name: str, questions: Sequence[DraftQuestion], *, corpus: str | None = None, actor: str
    ) -> KeptSet:
        """Adds the questions in requests of a thousand, each of which is carried out or not."""
        kept: KeptSet | None = None
        for start in range(0, len(questions) or 1, MAX_FACTS_PER_EDIT):
            part = [asdict(one) for one in questions[start : start + MAX_FACTS_PER_EDIT]]
            kept = self.api.edit(_path(name), KeptSet, {"questions": part, "corpus": corpus})
        assert kept is not None
        return kept

    def take(self, name: str, generation_id: int, *, actor: str, **said: Unpack[TakenQuestion]) -> KeptSet:
        body = {"generation_id": generation_id, **options(TakenQuestion, said)}
        return self.api.edit(f"{_path(name)}/outputs", KeptSet, body)

    def edit(self, name: str, question_id: int, question: str, expected: Sequence[str]) -> KeptSet:
        body = {"question": question, "expected": list(expected)}
        return self.api.edit(f"{_path(name)}/items/{question_id}", KeptSet, body, method="PUT")

    def remove(self, name: str, question_ids: Sequence[int] | None = None) -> KeptSet:
        if question_ids is None:
            return self.api.edit(_path(name), KeptSet, method="DELETE")
        body = {"question_ids": list(question_ids)}
        return self.api.edit(f"{_path(name)}/items", KeptSet, body, method="DELETE")

    def ask(self, name: str, how: AskingSet, *, actor: str) -> QuestionRun:
        self.show(name)  # an unknown set is refused before a job is queued
        work = work_of(AskQuestions.kind, {"question_set": name, **asdict(how)})
        return msgspec.convert(RemoteJobs(self.api).done(work), QuestionRun)

    def runs(self, name: str, before: int | None = None, limit: int = 100) -> list[QuestionRun]:
        path = f"{_path(name)}/runs"
        return self.api.listed(path, QuestionRun, "question-runs", after=before or 0, limit=limit)

    def show_run(self, name: str, run_id: int) -> QuestionRun:
        return self.api.get(f"{_path(name)}/runs/{run_id}", QuestionRun)

    def items(self, name: str, run_id: int, after: int = 0, limit: int | None = None) -> list[AskedItem]:
        return self.api.listed(
            f"{_path(name)}/runs/{run_id}/items", AskedItem, "asked", after=after, limit=limit
        )

    def compare(self, name: str, before: int | None = None, after: int | None = None) -> RunComparison:
        return self.api.get(f"{_path(name)}/comparison", RunComparison, before=before, after=after)


def _path(name: str) -> str:
    return f"/questions/{quote(name, safe='', errors='surrogatepass')}"
