"""Measures what finding facts by more than the key costs a decoder: the same questions by each ranking."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from colmlm.kb.answers.ranked import RankedLookups
from colmlm.kb.answers.reading import JudgedReader
from colmlm.kb.service import KnowledgeBase
from colmlm.lab.bench.rounds import Seconds, in_turns
from colmlm.model.decoding.config import DecodeConfig
from colmlm.model.decoding.decoder import DecodedOutput, Decoder
from colmlm.model.lm.checkpoint import Checkpoint

TOKENS = 24
TOGETHER = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingCost:
    """The cost of a ranking: questions in mode auto, one at a time and eight at once, which go on without a match.

    `tokens` are those of all outputs, spliced ones too; `lookup_ms` is the mean time of a lookup of one row.
    """

    tokens: int
    lookups: int
    hits: int
    alone: Seconds
    together: Seconds
    tokens_per_s: float
    tokens_per_s_together: float
    lookup_ms: float


@dataclass(slots=True)
class _Timed:
    lookups: RankedLookups
    seconds: float = 0.0

    def find(self, queries_BD: Any, **options: Any) -> Any:
        started = time.perf_counter()
        found = self.lookups.find(queries_BD, **options)
        self.seconds += time.perf_counter() - started
        return found


def bench_rankings(
    checkpoint: Checkpoint,
    kb: KnowledgeBase,
    reader: Callable[[], JudgedReader],
    questions: Sequence[str],
    rankings: Sequence[str],
    rounds: int,
) -> dict[str, RankingCost]:
    """Decodes the questions by each of the rankings, in turns."""
    lookups = RankedLookups(kb, reader)
    decoder = Decoder(checkpoint, lookups)
    configs = {name: DecodeConfig(max_tokens=TOKENS, ranking=name) for name in rankings}
    timed = {name: _Timed(lookups) for name in rankings}
    outputs = {}
    for name, config in configs.items():
        decoder.generate(questions[:1], config)  # opens the index, and loads the reader
        outputs[name] = _all(Decoder(checkpoint, timed[name]), questions, config, 1)
    alone, together = (
        in_turns(
            {name: partial(_all, decoder, questions, one, rows) for name, one in configs.items()}, rounds
        )
        for rows in (1, TOGETHER)
    )
    return {
        name: _cost(checkpoint, outputs[name], alone[name], together[name], timed[name].seconds)
        for name in rankings
    }


def _all(decoder: Decoder, questions: Sequence[str], config: DecodeConfig, rows: int) -> list[DecodedOutput]:
    starts = range(0, len(questions), rows)
    return [one for start in starts for one in decoder.generate(questions[start : start + rows], config)]


def _cost(
    checkpoint: Checkpoint, outputs: Sequence[DecodedOutput], alone: Seconds, together: Seconds, spent: float
) -> RankingCost:
    splices = [splice for output in outputs for splice in output.splices]
    tokens = sum(len(checkpoint.tokenizer.encode(output.output)) for output in outputs)
    return RankingCost(
        tokens=tokens,
        lookups=len(splices),
        hits=sum(splice.outcome == "hit" for splice in splices),
        alone=alone,
        together=together,
        tokens_per_s=tokens / alone.median,
        tokens_per_s_together=tokens / together.median,
        lookup_ms=1000 * spent / max(1, len(splices)),
    )
