"""A generator that answers a prompt's question from documents, as `Answering.ask` does, and decodes other texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from colmlm.kb.answers.answering import MAX_QUESTION, Answering
from colmlm.kb.evidence.attribution import output_of_answer
from colmlm.kb.evidence.generation import (
    CompletedRequest,
    FinishedOutput,
    GenerationRequest,
    Generator,
    Item,
    MissedLookup,
    SplicedValue,
)
from colmlm.kb.evidence.records import NewOutput, OutputTrace
from colmlm.kb.lookup.options import filter_of
from colmlm.kb.texts.asked import question_of_chat

Store = Callable[[NewOutput], OutputTrace]


@dataclass(frozen=True, slots=True)
class AnsweringGenerator:
    """Answers the question that a prompt ends in from documents, and stores the answer as an output.

    Other prompts, and requests with decoding options, go to `generator`.
    """

    generator: Generator
    answering: Callable[[], Answering]
    store: Store

    def __getattr__(self, name: str) -> Any:
        return getattr(self.generator, name)

    def generate(self, request: GenerationRequest) -> OutputTrace:
        question = question_of_request(request)
        return self.generator.generate(request) if question is None else self._store_answer(request, question)

    def stream(self, request: GenerationRequest) -> Iterator[Item]:
        question = question_of_request(request)
        if question is None:
            yield from self.generator.stream(request)
            return
        trace = self._store_answer(request, question)
        yield from _pieces(trace)
        yield self._end_of_output(request, trace)
        yield trace

    def complete(
        self, requests: Sequence[GenerationRequest], top: int | None = None
    ) -> list[CompletedRequest]:
        questions = [None if top is not None else question_of_request(request) for request in requests]
        texts = [request for request, question in zip(requests, questions, strict=True) if question is None]
        decoded = iter(self.generator.complete(texts, top) if texts else [])
        return [
            next(decoded) if question is None else self._complete_request(request, question)
            for request, question in zip(requests, questions, strict=True)
        ]

    def _complete_request(self, request: GenerationRequest, question: str) -> CompletedRequest:
        trace = self._store_answer(request, question)
        assert isinstance(request.prompt, str)
        return CompletedRequest(
            prompt=request.prompt, trace=trace, finished=self._end_of_output(request, trace)
        )

    def _store_answer(self, request: GenerationRequest, question: str) -> OutputTrace:
        self.generator.check_prompts([request])
        answering = self.answering()
        if request.min_seq is not None:
            answering.kb.searcher.await_change(request.min_seq)
        asked = answering.answer_in_mode(question, "read", **filter_of(request))
        return self.store(output_of_answer(asked, "read", **filter_of(request)))

    def _end_of_output(self, request: GenerationRequest, trace: OutputTrace) -> FinishedOutput:
        """Give how an answer ended. All its words are spliced, so no token was decoded."""
        assert isinstance(request.prompt, str)
        num_tokens = self.generator.count_tokens([request.prompt])
        return FinishedOutput(
            reason="end" if trace.output else "miss", prompt_tokens=num_tokens, completion_tokens=0
        )


def question_of_request(request: GenerationRequest) -> str | None:
    """Give the question that a request asks; None if its prompt is no question or it sets decoding options."""
    is_plain = (
        request.mode == "auto"
        and request.on_miss != "continue"
        and not request.min_tokens
        and request.max_tokens > 0
        and (request.ranking, request.threshold, request.fact_bias) == (None, None, None)
    )
    if not is_plain or not isinstance(request.prompt, str):
        return None
    question = question_of_chat(request.prompt)
    return question if question and question.strip() and len(question) <= MAX_QUESTION else None


def _pieces(trace: OutputTrace) -> Iterator[Item]:
    """Yield a trace as stream items: text in pieces, each splice after the piece that ends with it, and misses."""
    said = 0
    for splice in trace.splices:
        if splice.outcome != "hit":
            yield MissedLookup(output_start=splice.output_start, outcome=splice.outcome, score=splice.score)
            continue
        if splice.output_end > said:
            yield trace.output[said : splice.output_end]
            said = splice.output_end
        assert splice.fact_id is not None and splice.version is not None and splice.score is not None
        yield SplicedValue(
            output_start=splice.output_start,
            output_end=splice.output_end,
            fact_id=splice.fact_id,
            version=splice.version,
            value=splice.value,
            score=splice.score,
            document=splice.source,
        )
    if said < len(trace.output):
        yield trace.output[said:]
