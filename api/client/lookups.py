"""Lookups, answers, outputs, misses and kept questions of a remote knowledge base."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

import msgspec

from colmlm.api.client.api import Resource, edit_verb, get_verb, list_verb, options, quote_part, refuse
from colmlm.api.client.connection import RemoteError, ServerUnreachable, error_of
from colmlm.api.client.operating import RemoteJobs
from colmlm.api.wire import (
    LOOKUPS,
    MAX_FACTS_PER_EDIT,
    MAX_QUERIES,
    MAX_VECTORS,
    MSGPACK,
    OCTETS,
    Decided,
    FactImpact,
    LookupAnswer,
    LookupAnswers,
    MissList,
    Problem,
)
from colmlm.kb.answers.records import Answer, AnswerMode, AnswerThreshold, Calibrating
from colmlm.kb.errors import InvalidQuery, KBError, KeysetMismatch, count_of
from colmlm.kb.evidence.provenance import MEDIA_TYPES, ProvForm
from colmlm.kb.evidence.records import (
    FactTrace,
    Feedback,
    GenerationRecord,
    Impact,
    ImpactedOutput,
    NewFeedback,
    NewOutput,
    OutputTrace,
)
from colmlm.kb.jobs.kinds import AskQuestions, CalibrateAnswers, work_of
from colmlm.kb.log.records import OnRecord
from colmlm.kb.lookup.options import KEY, AnswerOptions, LookupOptions
from colmlm.kb.lookup.records import AsOfLookup, Lookup, LookupSpace
from colmlm.kb.misses.records import MISSES_LISTED, MissDetails, MissPage, MissSearch, Solving
from colmlm.kb.questions.records import (
    AskedItem,
    AskingSet,
    DraftQuestion,
    KeptQuestion,
    KeptSet,
    QuestionRun,
    RunComparison,
    TakenQuestion,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from colmlm.kb.evidence.generation import GenerationRequest, Item


_LOOKUPS = LOOKUPS.removeprefix("/v1")
_GENERATIONS = "/generations"
_OF_QUOTATIONS = ("part_start", "part_end", "quoted_start", "quoted_end")


@dataclass(frozen=True, slots=True)
class RemoteLookups(Resource):
    """The verbs of `kb.lookup.lookups.Lookups`, and questions as text. The token needs only the right `lookup`.

    The server answers every lookup, so a fact that was deleted before the request is never a hit. With `seq`, lookups
    are answered as of that change.
    """

    seq: int | None = None

    space = get_verb(_LOOKUPS, LookupSpace)
    answer_threshold = get_verb("/answers/threshold", AnswerThreshold)
    use_shipped_threshold = edit_verb("/answers/threshold", AnswerThreshold, method="DELETE", shape=OnRecord)

    def require(self, checkpoint_id: str | None) -> None:
        """Raise `KeysetMismatch` where the server's keys are of another checkpoint than this one, if one is given."""
        space = self.space()
        if checkpoint_id is not None and space.checkpoint_id != checkpoint_id:
            raise KeysetMismatch(checkpoint_id, space.checkpoint_id)

    def as_of(self, seq: int) -> Self:
        """Give the lookups as of change `seq`, over the same connections."""
        return replace(self, seq=seq)

    def ask(self, question: str, *, as_of: int | None = None, **how: Unpack[LookupOptions]) -> Lookup:
        past = self.seq if as_of is None else as_of
        asked = {"questions": [question], "as_of": past, **options(LookupOptions, how)}
        (told,) = self.api.ask("/lookups", LookupAnswers, asked).answers
        if told.redacted is None:
            return _lookup_of(told)
        return AsOfLookup(
            tuple(told.hits), told.runner_up, told.threshold, told.seq, told.abstained,
            redacted=told.redacted, unkeyed=told.unkeyed or 0,
        )  # fmt: skip

    def answer(
        self,
        question: str,
        *,
        mode: AnswerMode = "read",
        as_of: int | None = None,
        **how: Unpack[AnswerOptions],
    ) -> Answer:
        refuse(as_of=as_of)
        asked = {"question": question, "mode": mode, **options(AnswerOptions, how)}
        return self.api.post_once("/answers", Answer, asked)

    def calibrate_answers(
        self, questions: Path | None, how: Calibrating, **who: Unpack[OnRecord]
    ) -> dict[str, Any]:
        refuse(actor=who["actor"])
        sent = self.api.upload(questions) if questions else None
        work = {**asdict(how), "corpora": list(how.corpora), "upload_id": sent, "reason": who["reason"]}
        return RemoteJobs(self.api).run_to_end(work_of(CalibrateAnswers.kind, work))

    def find(
        self, queries_BD: npt.NDArray[Any], *, checkpoint_id: str, **how: Unpack[LookupOptions]
    ) -> list[Lookup]:
        """Look up queries as `kb.answers.ranked.RankedLookups.find` does, in batches of `MAX_VECTORS`, or as JSON in
        such of `MAX_QUERIES` where texts go with them.
        """
        import numpy as np  # a lookup by questions needs no arrays

        queries = np.ascontiguousarray(queries_BD, dtype="<f4")
        if queries.ndim != 2:
            raise InvalidQuery(f"its shape is {queries.shape}, not (batch, width)")
        said = {"as_of": self.seq, **options(LookupOptions, how)}
        if said.get("ranking", KEY) != KEY:
            return self._find_by_texts(queries, said | {"checkpoint_id": checkpoint_id})
        given = {"checkpoint_id": checkpoint_id, "dim": queries.shape[1]}
        given |= {name: value for name, value in said.items() if value is not None}
        found: list[Lookup] = []
        for start in range(0, len(queries), MAX_VECTORS):
            found += self._find_by_vectors(queries[start : start + MAX_VECTORS], given, checkpoint_id)
        return found

    def _find_by_texts(self, queries_BD: npt.NDArray[np.float32], given: Mapping[str, Any]) -> list[Lookup]:
        texts: Sequence[str] = given.get("texts", ())
        found: list[Lookup] = []
        for start in range(0, len(queries_BD), MAX_QUERIES):
            rows = slice(start, start + MAX_QUERIES)
            asked = {**given, "queries": queries_BD[rows].tolist(), "texts": texts[rows]}
            found += map(_lookup_of, self.api.ask(_LOOKUPS, LookupAnswers, asked).answers)
        return found

    def _find_by_vectors(
        self, queries_BD: npt.NDArray[np.float32], given: dict[str, Any], checkpoint_id: str
    ) -> list[Lookup]:
        try:
            response = self.api.connection.request(
                "POST",
                LOOKUPS,
                is_repeatable=True,
                params=given,
                content=queries_BD.tobytes(),
                headers={"Content-Type": OCTETS.decode(), "Accept": MSGPACK},
            )
        except KeysetMismatch as error:
            raise KeysetMismatch(checkpoint_id, self.space().checkpoint_id) from error
        try:
            told = msgspec.msgpack.decode(response.content, type=LookupAnswers)
        except msgspec.DecodeError as error:
            raise self.api.not_ours(error) from error
        if len(told.answers) != len(queries_BD):
            raise self.api.not_ours(
                ValueError(f"{count_of(len(told.answers), 'answer')} to {count_of(len(queries_BD), 'query')}")
            )
        return [_lookup_of(answer) for answer in told.answers]


def _lookup_of(answer: LookupAnswer) -> Lookup:
    return Lookup(tuple(answer.hits), answer.runner_up, answer.threshold, answer.seq, answer.abstained)


class RemoteGenerator(Resource):
    """The verbs of `kb.evidence.generation.StoringDecoder`, done by a server with its own checkpoint.

    A request is not retried, since each would store an output.
    """

    def generate(self, request: GenerationRequest) -> OutputTrace:
        return self.api.post_once(_GENERATIONS, OutputTrace, _request_body(request))

    def stream(self, request: GenerationRequest) -> Iterator[Item]:
        """Yield the pieces of text and then the trace, which holds the splices and the lookups without a match."""
        name = ""
        for line in self.api.lines_of(_GENERATIONS, _request_body(request) | {"stream": True}):
            field, _, said = line.rstrip("\r\n").partition(": ")
            if field == "event":
                name = said
            elif field == "data" and name == "piece":
                yield self.api.decode_response(said.encode(), dict[str, str])["text"]
            elif field == "data" and name == "trace":
                yield self.api.decode_response(said.encode(), OutputTrace)
                return
            elif field == "data" and name == "error":
                raise _mark_sent(error_of(self.api.decode_response(said.encode(), Problem)))
        lost = ServerUnreachable(self.api.connection.url, "the stream ended early", was_sent=True)
        lost.args = (
            f"The stream of {lost.url} ended early. Its output may have been stored: see `colmlm trace outputs`.",
        )
        raise lost


def _mark_sent(error: KBError) -> KBError:
    """Mark the error of a stream: the server had the request, and carried it out in part."""
    if isinstance(error, RemoteError):
        error.was_sent = True
    return error


def _request_body(request: GenerationRequest) -> dict[str, Any]:
    said = {name: value for name, value in asdict(request).items() if value is not None}
    return {**said, "mode": str(request.mode), "stop": list(request.stop)}


class RemoteOutputs(Resource):
    """The verbs of `kb.evidence.outputs.Outputs`."""

    find = list_verb(
        "/generations", GenerationRecord, "generations", "after?", "limit=50", "thumb?", "principal?",
        thumb="feedback",
    )  # fmt: skip
    trace = get_verb("/generations/{generation_id}", OutputTrace)
    trace_fact = get_verb("/facts/{fact_id}/trace", FactTrace)

    def give_feedback(self, generation_id: int, made: NewFeedback, *, actor: str) -> Feedback:
        body = {**asdict(made), "on_behalf_of": actor or None}
        # It may be repeated, since the last thumb of each counts.
        return self.api.ask(f"/generations/{generation_id}/feedback", Feedback, body)

    def provenance(self, generation_id: int, form: ProvForm) -> dict[str, Any]:
        return self.api.read_as_media_type(f"/generations/{generation_id}", MEDIA_TYPES[form])

    def provenance_of_fact(self, fact_id: int, form: ProvForm) -> dict[str, Any]:
        return self.api.read_as_media_type(f"/facts/{fact_id}/trace", MEDIA_TYPES[form])

    def impact(self, fact_id: int) -> Impact:
        path = f"/facts/{fact_id}/impact"
        about = self.api.get(path, FactImpact, limit=1)
        uses = self.api.read_list(path, ImpactedOutput, "uses")
        return Impact(fact_id, about.is_live, about.erased_seq, tuple(uses))

    def record_from_elsewhere(self, generation: NewOutput) -> OutputTrace:
        """Store an output on the server and give its trace, without the present state of its facts.

        The record itself is the body: the route reads its fields, without those of quotations, which no
        decoder makes. It is sent again only where the server was not reached, since a second request would store a
        second output.
        """
        return self.api.post_once("/generations/records", OutputTrace, _output_body(generation))


def _output_body(generation: NewOutput) -> dict[str, Any]:
    made: dict[str, Any] = msgspec.to_builtins(generation)
    del made["quotes"]
    for splice in made["splices"]:
        for name in _OF_QUOTATIONS:
            del splice[name]
    return made


class RemoteMisses(Resource):
    """The verbs of `kb.misses.misses.Misses`."""

    read = get_verb("/misses/{group_id}", MissDetails)
    solve = edit_verb("/misses/{group_id}/solve", Solving, "fact_id", "*", "anyway?", shape=OnRecord)

    def find(self, **sought: Unpack[MissSearch]) -> MissPage:
        said = options(MissSearch, sought)
        part = {"limit": said.pop("limit", MISSES_LISTED), "after": said.pop("after", 0)}
        groups, page, after = self.api.read_list_part("/misses", MissList, "misses", **part, **said)
        return MissPage(tuple(groups), page.total, page.ungrouped, page.kept, after)

    def dismiss(self, group_ids: Sequence[int], *, actor: str, reason: str) -> int:
        return self._decide("dismiss", group_ids, actor, reason)

    def reopen(self, group_ids: Sequence[int], *, actor: str, reason: str) -> int:
        return self._decide("reopen", group_ids, actor, reason)

    def _decide(self, verb: str, group_ids: Sequence[int], actor: str, reason: str) -> int:
        body = {"group_ids": group_ids, "on_behalf_of": actor or None, "reason": reason}
        return self.api.edit(f"/misses/{verb}", Decided, body).seq


class RemoteQuestions(Resource):
    """The verbs of `kb.questions.sets.QuestionSets`. A set is asked there as a job. The actor is the token."""

    all = list_verb("/questions", KeptSet, "questions")
    show = get_verb("/questions/{name}", KeptSet)
    questions = list_verb("/questions/{name}/items", KeptQuestion, "kept", "after?", "limit=100")
    edit = edit_verb("/questions/{name}/items/{question_id}", KeptSet, "question", "expected", method="PUT")
    show_run = get_verb("/questions/{name}/runs/{run_id}", QuestionRun)
    items = list_verb("/questions/{name}/runs/{run_id}/items", AskedItem, "asked", "after?", "limit?")
    compare = get_verb("/questions/{name}/comparison", RunComparison, "before?", "after?")

    def add(
        self, name: str, questions: Sequence[DraftQuestion], *, corpus: str | None = None, actor: str
    ) -> KeptSet:
        """Add the questions in requests of a thousand, each of which is carried out or not."""
        kept: KeptSet | None = None
        for start in range(0, len(questions) or 1, MAX_FACTS_PER_EDIT):
            part = [asdict(one) for one in questions[start : start + MAX_FACTS_PER_EDIT]]
            kept = self.api.edit(_set_path(name), KeptSet, {"questions": part, "corpus": corpus})
        assert kept is not None
        return kept

    def take(self, name: str, generation_id: int, *, actor: str, **said: Unpack[TakenQuestion]) -> KeptSet:
        body = {"generation_id": generation_id, **options(TakenQuestion, said)}
        return self.api.edit(f"{_set_path(name)}/outputs", KeptSet, body)

    def remove(self, name: str, question_ids: Sequence[int] | None = None) -> KeptSet:
        if question_ids is None:
            return self.api.edit(_set_path(name), KeptSet, method="DELETE")
        body = {"question_ids": list(question_ids)}
        return self.api.edit(f"{_set_path(name)}/items", KeptSet, body, method="DELETE")

    def ask(self, name: str, how: AskingSet, *, actor: str) -> QuestionRun:
        self.show(name)  # an unknown set is refused before a job is queued
        work = work_of(AskQuestions.kind, {"question_set": name, **asdict(how)})
        return msgspec.convert(RemoteJobs(self.api).run_to_end(work), QuestionRun)

    def runs(self, name: str, before: int | None = None, limit: int = 100) -> list[QuestionRun]:
        path = f"{_set_path(name)}/runs"
        return self.api.read_list(path, QuestionRun, "question-runs", after=before or 0, limit=limit)


def _set_path(name: str) -> str:
    return f"/questions/{quote_part(name)}"
