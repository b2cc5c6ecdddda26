"""A generator without a model that looks up the prompt as a question; its outputs and records are real."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from colmlm.kb.answers.ranked import RankedLookups
from colmlm.kb.errors import refusals
from colmlm.kb.evidence.generation import (
    CompletedRequest,
    FinishedOutput,
    GenerationRequest,
    Item,
    MissedLookup,
    SplicedValue,
    TokenLogprob,
)
from colmlm.kb.evidence.records import NewOutput, OutputTrace, Splice
from colmlm.kb.keys.records import CheckpointInfo
from colmlm.kb.keys.rekey import Encoder
from colmlm.kb.lookup.options import filter_of
from colmlm.kb.service import KnowledgeBase
from tests.fakes import NearReader

BEFORE = "𝄞 They say "  # the clef is one code point and two UTF-16 units


@dataclass(frozen=True, slots=True)
class LookupGenerator:
    """Answers with `BEFORE` and the fact that answers the prompt, or says that it does not know.

    Where it is to abstain it ends with the fact, and says nothing without one.
    """

    kb: KnowledgeBase
    encoder: Encoder

    @property
    def model(self) -> CheckpointInfo:
        return self.encoder.checkpoint

    def check_prompts(self, requests: Sequence[GenerationRequest]) -> None:
        for request in requests:
            text_of(request)

    def count_tokens(self, texts: Sequence[str]) -> int:
        return sum(map(len, texts))

    def complete(
        self, requests: Sequence[GenerationRequest], top: int | None = None
    ) -> list[CompletedRequest]:
        """Generates each request's output. Every character is a token, and all are equally likely."""
        finished = FinishedOutput(reason="end", prompt_tokens=2, completion_tokens=3)
        done = []
        for request in requests:
            trace = self.generate(request) if request.max_tokens else None
            prompt, output = text_of(request), trace.output if trace else ""
            of_prompt, of_output = (() if top is None else as_likely(text) for text in (prompt, output))
            done.append(
                CompletedRequest(
                    prompt=prompt,
                    trace=trace,
                    finished=finished,
                    prompt_logprobs=of_prompt,
                    output_logprobs=of_output,
                )
            )
        return done

    def generate(self, request: GenerationRequest) -> OutputTrace:
        *_, trace = self.stream(request)
        assert isinstance(trace, OutputTrace)
        return trace

    def stream(self, request: GenerationRequest) -> Iterator[Item]:
        seq, value = self.kb.log.head_seq(), "I do not know"
        splices: tuple[Splice, ...] = ()
        prompt = text_of(request)
        if request.mode != "off":
            question = prompt.strip().removeprefix("Question: ").removesuffix(" Answer:")
            query_1D = self.encoder.encode_questions([question])
            asked = query_1D.astype("<f2").tobytes()
            (found,) = RankedLookups(self.kb, NearReader, steady=True).find(
                query_1D,
                checkpoint_id=self.encoder.checkpoint.checkpoint_id,
                threshold=request.threshold,
                min_seq=request.min_seq,
                **filter_of(request),
            )
            seq, splices = (
                found.seq,
                (Splice(len(BEFORE), len(BEFORE), "no_match", score=found.runner_up, query=asked),),
            )
            for hit in found.hits:
                value, end = hit.value, len(BEFORE) + len(hit.value)
                splices = (Splice(len(BEFORE), end, "hit", hit.fact_id, hit.version, hit.score, asked),)
        pieces = [BEFORE, value, "."]
        if request.abstains:
            splices = tuple(self._kept(splice) for splice in splices)
            pieces = pieces[:2] if any(splice.fact_id for splice in splices) else []
        yield from pieces[:2]
        yield from (self._event(splice, value) for splice in splices)
        yield from pieces[2:]
        yield FinishedOutput(reason="end", prompt_tokens=2, completion_tokens=3)
        stored = NewOutput(
            prompt=prompt,
            output="".join(pieces),
            checkpoint_id=self.encoder.checkpoint.checkpoint_id,
            mode=request.mode,
            seq=seq,
            splices=splices,
            ranking=request.ranking or "key",
            **filter_of(request),
        )
        yield self.kb.outputs.trace(self.kb.outputs.record(stored))

    def _kept(self, splice: Splice) -> Splice:
        return splice if splice.fact_id else replace(splice, output_start=0, output_end=0)

    def _event(self, splice: Splice, value: str) -> Item:
        if splice.fact_id is None:
            return MissedLookup(output_start=splice.output_start, outcome=splice.outcome, score=splice.score)
        return SplicedValue(
            output_start=splice.output_start,
            output_end=splice.output_end,
            fact_id=splice.fact_id,
            version=splice.version or 0,
            value=value,
            score=splice.score or 0.0,
            document=self.kb.facts.show(splice.fact_id).source,
        )


def text_of(request: GenerationRequest) -> str:
    """Gives the prompt as text; token ids are code points. Raises `PromptRefused` for an id that is none."""
    if isinstance(request.prompt, str):
        return request.prompt
    try:
        return "".join(map(chr, request.prompt)).encode().decode()
    except (ValueError, OverflowError) as error:
        raise refusals.prompt_refused(f"{error}") from error


def as_likely(text: str) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(token=one.encode(), logprob=-1.0, top=((one.encode(), -1.0),)) for one in text)
