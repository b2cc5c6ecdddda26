"""Decoding with lookups (section 3.1): at ``<FACT>`` the hidden state is the query, the hit is spliced in.

Design:
- Rows are decoded together over one KV cache. Each has a queue of forced tokens (its prompt, later the
  spliced values); a row whose queue is empty samples. Forced tokens are fed as many at a time as every
  row has, so a lone row takes a whole value in one forward.
- All lookups that a step calls for go to the knowledge base in one batch.
- No match is a normal outcome: the ``<FACT>`` slot is masked out of the cache, the row goes on from the
  state before it, and ``<FACT>`` is forbidden for a while (appendix A, enforced lookup).
- Attribution is recorded at the splice itself, in offsets of the output's characters, with the query.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache

from model.checkpoint import Checkpoint
from model.decoding.rows import Row, SpliceRecord
from model.decoding.sampling import ban, penalise, sample
from model.lm import unit

MODES = ("auto", "forced", "off")
NO_FACT_AFTER_MISS = 8
STORED = np.dtype("<f2")  # as keys are kept, so that a query can be asked again


class FoundFact(Protocol):
    @property
    def fact_id(self) -> int: ...
    @property
    def version(self) -> int: ...
    @property
    def value(self) -> str: ...
    @property
    def score(self) -> float: ...


class Found(Protocol):
    @property
    def hits(self) -> Sequence[FoundFact]: ...
    @property
    def runner_up(self) -> float | None: ...
    @property
    def seq(self) -> int: ...
    @property
    def abstained(self) -> int | None: ...


class Lookup(Protocol):
    """What the decoder asks of a knowledge base: the best facts for unit-norm queries."""

    def lookup(
        self,
        queries_BD: NDArray[np.float32],
        *,
        checkpoint_id: str,
        k: int = 1,
        threshold: float | None = None,
        min_seq: int | None = None,
    ) -> Sequence[Found]:
        """One result a query; no hits at or above the threshold is *no match*."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeConfig:
    """How to decode. `max_tokens` counts sampled tokens only; spliced ones are free (appendix A).

    `mode`: "auto" lets the model decide when to look up, "forced" looks up once before the first token
    as well, "off" forbids it (the paper's normal, enforced-lookup and no-KB settings). `threshold` None
    means the keyset's own.
    """

    mode: str = "auto"
    max_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    repetition_penalty: float = 1.2
    stop: tuple[str, ...] = ()
    seed: int = 0
    threshold: float | None = None
    min_seq: int | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode {self.mode!r} is none of {', '.join(MODES)}")
        if (
            self.max_tokens < 1
            or not 0 <= self.temperature < math.inf
            or not 0 < self.top_p <= 1
            or not 0 < self.repetition_penalty < math.inf
        ):
            raise ValueError(
                "max_tokens and repetition_penalty must be positive, temperature >= 0, 0 < top_p <= 1"
            )


@dataclass(frozen=True, slots=True)
class Generation:
    """An output with its attribution. `seq` is the last change the lookups had seen (None: no lookup).

    `finish` is "end" (the model ended), "length" (budget), "stop" (a stop string) or "context" (full).
    """

    prompt: str
    output: str
    splices: tuple[SpliceRecord, ...]
    seq: int | None
    mode: str
    content_tokens: int
    finish: str


class Decoder:
    """Decodes prompts with one checkpoint, against one knowledge base."""

    def __init__(self, checkpoint: Checkpoint, lookup: Lookup | None) -> None:
        self.checkpoint = checkpoint
        self.lm = checkpoint.lm
        self.tokenizer = checkpoint.tokenizer
        self.lookup = lookup
        self.context = int(self.lm.causal.config.max_position_embeddings)

    def generate(self, prompts: Sequence[str], config: DecodeConfig) -> list[Generation]:
        """Decode all prompts as one batch; each row's output is what it would be alone."""
        if not prompts:
            return []
        run = _Run(self, prompts, config)
        for _ in run.steps():
            pass
        return [run.generation(row) for row in run.rows]

    def stream(self, prompt: str, config: DecodeConfig) -> Iterator[str | Generation]:
        """Pieces of the output as they are decoded (joined, they are the output), then the generation."""
        run = _Run(self, [prompt], config)
        row = run.rows[0]
        for _ in run.steps():
            if piece := row.release(self.tokenizer, config.stop):
                yield piece
        yield run.generation(row)


class _Run:
    """One call: the rows, their cache, and what has been looked up."""

    def __init__(self, decoder: Decoder, prompts: Sequence[str], config: DecodeConfig) -> None:
        if config.mode != "off" and decoder.lookup is None:
            raise ValueError(
                f"mode {config.mode!r} needs a knowledge base; decode with mode 'off' without one"
            )
        self.decoder, self.config = decoder, config
        self.lm, self.tokenizer = decoder.lm, decoder.tokenizer
        self.rows = [self._row(number, prompt) for number, prompt in enumerate(prompts)]
        self.cache: Any = DynamicCache()
        self.attended_BS = torch.zeros(len(prompts), 0, dtype=torch.bool)
        tokens = self.tokenizer
        self.always_banned = [tokens.fact_end, tokens.fact_q]
        self.ends = {tokens.end_of_text} | set(_end_ids(self.lm.causal.config.eos_token_id))

    def _row(self, number: int, prompt: str) -> Row:
        ids = self.tokenizer.prompt(prompt)
        row = Row(ids, prompt, torch.Generator().manual_seed(self.config.seed + number), seen=set(ids[1:]))
        if len(ids) >= self.decoder.context:
            row.finish = "context"
        elif self.config.mode == "forced":
            row.pending.append(self.tokenizer.fact)
            row.awaits_lookup = True
        return row

    def generation(self, row: Row) -> Generation:
        return Generation(
            row.prompt, row.output(self.tokenizer), tuple(row.splices), row.seq, self.config.mode, row.content,
            row.finish or "length",
        )  # fmt: skip

    @torch.inference_mode()
    def _step(self, width: int, *, prefill: bool) -> None:
        states_BTD = self._feed(width, prefill=prefill)
        asking = [i for i, row in enumerate(self.rows) if row.awaits_lookup and not row.pending]
        sampling = [
            i for i, row in enumerate(self.rows) if not row.finish and not row.pending and i not in asking
        ]
        logits: dict[int, Tensor] = {}
        if sampling:
            logits_NV = self.lm.logits(states_BTD[sampling, -1])
            logits = dict(zip(sampling, logits_NV, strict=True))
        if asking:
            logits |= self._look_up(asking, states_BTD)
        for i, logits_V in logits.items():
            self._sample(self.rows[i], logits_V)

    def steps(self) -> Iterator[None]:
        """Run to the end, yielding after every forward."""
        prefill = True
        while any(row.finish is None for row in self.rows):
            open_rows = [row for row in self.rows if row.finish is None]
            widths = [len(row.pending) for row in open_rows]
            self._step(max(widths) if prefill else min(widths), prefill=prefill)
            prefill = False
            yield

    def _feed(self, width: int, *, prefill: bool) -> Tensor:
        """Feed `width` queued tokens of every row. The first time, shorter prompts are padded on the left."""
        count = len(self.rows)
        ids_BT = torch.zeros(count, width, dtype=torch.long)
        positions_BT = torch.zeros(count, width, dtype=torch.long)
        fed_BT = torch.zeros(count, width, dtype=torch.bool)
        for i, row in enumerate(self.rows):
            if row.finish is not None:
                continue
            taken, row.pending = row.pending[:width], row.pending[width:]
            first = width - len(taken)
            assert prefill or first == 0
            ids_BT[i, first:] = torch.tensor(taken)
            positions_BT[i, first:] = torch.arange(row.position, row.position + len(taken))
            fed_BT[i, first:] = True
            row.position += len(taken)
        self.attended_BS = torch.cat([self.attended_BS, fed_BT], dim=1)
        return self.lm.advance(ids_BT, self.attended_BS, positions_BT, self.cache)

    def _look_up(self, asking: list[int], states_BTD: Tensor) -> dict[int, Tensor]:
        """Answer the rows at ``<FACT>`` in one batch; the logits of those that found nothing."""
        assert self.decoder.lookup is not None
        queries_BD = unit(states_BTD[asking, -1]).cpu().numpy()
        results = self.decoder.lookup.lookup(
            queries_BD,
            checkpoint_id=self.decoder.checkpoint.checkpoint_id,
            k=1,
            threshold=self.config.threshold,
            min_seq=self.config.min_seq,
        )
        missed: dict[int, Tensor] = {}
        for i, query_D, found in zip(asking, queries_BD, results, strict=True):
            row, asked = self.rows[i], query_D.astype(STORED).tobytes()
            row.awaits_lookup = False
            row.seq = max(row.seq or 0, found.seq)
            if found.hits:
                best = found.hits[0]
                record = SpliceRecord(0, 0, "hit", best.fact_id, best.version, best.score, asked)
                row.splice(self.tokenizer, record, best.value)
                self._check_context(row)
            else:
                outcome = "no_match" if found.abstained is None else "abstained"
                record = SpliceRecord(0, 0, outcome, score=found.runner_up, query=asked)
                missed[i] = self._undo_fact(i, row, record, states_BTD)
        return missed

    def _undo_fact(self, i: int, row: Row, record: SpliceRecord, states_BTD: Tensor) -> Tensor:
        """Take ``<FACT>`` back: its slot is never attended again, and the row goes on from before it."""
        row.miss(self.tokenizer, record, NO_FACT_AFTER_MISS)
        self.attended_BS[i, -1] = False
        row.position -= 1
        if row.fallback_V is None:  # a forced lookup: the state before it came in the same forward
            return self.lm.logits(states_BTD[i, -2][None])[0]
        return row.fallback_V

    def _sample(self, row: Row, logits_V: Tensor) -> None:
        tokens, config = self.tokenizer, self.config
        no_fact = config.mode == "off" or row.content < row.no_fact_until
        banned = [*self.always_banned, *([tokens.fact] if no_fact else [])]
        adjusted_V = ban(penalise(logits_V, row.seen, config.repetition_penalty), banned)
        token = sample(
            adjusted_V, temperature=config.temperature, top_p=config.top_p, generator=row.generator
        )
        if token in self.ends:
            row.finish = "end"
        elif token == tokens.fact:
            row.pending, row.awaits_lookup, row.fallback_V = [token], True, logits_V
        else:
            row.take(token)
            if row.stop_at(tokens, config.stop):
                row.finish = "stop"
            elif row.content >= config.max_tokens:
                row.finish = "length"
        self._check_context(row)

    def _check_context(self, row: Row) -> None:
        if row.finish is None and row.position + len(row.pending) >= self.decoder.context:
            row.finish = "context"


def _end_ids(eos: int | list[int] | None) -> list[int]:
    if eos is None:
        return []
    return [eos] if isinstance(eos, int) else list(eos)
