"""Answers of the decoder: what it splices first behind a question, by a ranking of its lookups."""

from __future__ import annotations

from dataclasses import dataclass

from colmlm.cli.composition.runtime import Runtime
from colmlm.kb.answers.records import Answer, SaidFact
from colmlm.kb.facts.reading import get_fact
from colmlm.kb.lookup.options import READER
from colmlm.model.decoding.config import DecodeConfig
from colmlm.model.decoding.decoder import Decoder

MAX_TOKENS = 24


@dataclass(frozen=True, slots=True)
class Decoding:
    """Asks the decoder of a runtime, at the lowest threshold; an answer's score is that of the fact."""

    runtime: Runtime

    def threshold(self, ranking: str) -> float:
        """Gives the threshold that holds for a ranking by default."""
        if ranking == READER:
            return self.runtime.reader.confidence.threshold
        return self.runtime.kb.keysets.active().threshold

    def ask(self, question: str, ranking: str) -> Answer:
        """Writes behind ``Question: ... Answer:`` in mode forced, up to the first fact."""
        decoder = Decoder(self.runtime.checkpoint, self.runtime.lookups)
        config = DecodeConfig(
            mode="forced",
            max_tokens=MAX_TOKENS,
            threshold=-1.0,
            until_hit=True,
            on_miss="abstain",
            ranking=ranking,
        )
        (told,) = decoder.generate([f"Question: {question} Answer:"], config)
        first = told.splices[0]
        if first.fact_id is None or first.version is None or first.score is None:
            return Answer(
                question, None, 0.0, -1.0, (), None, first.outcome == "abstained", (), told.seq or 0
            )
        value = told.output[first.output_start : first.output_end]
        with self.runtime.kb.sessions() as session:
            source = get_fact(session, first.fact_id).source
        said = (SaidFact(first.fact_id, first.version, value),)
        return Answer(question, value, first.score, -1.0, said, source, False, (), told.seq or 0)
