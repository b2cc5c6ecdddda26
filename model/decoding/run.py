"""One decoding run: rows over one KV cache, each with a queue of forced tokens, and their lookups.

Design:
- A row whose queue (its prompt, later the spliced values) is empty samples. A forward feeds as many forced tokens as
  every row has queued, so a single row takes a whole value in one forward. A finished row leaves the batch.
- All lookups of a step go to the knowledge base in one batch.
- No match is a normal outcome: the row continues from the logits before the lookup, at that position, and lookups
  are forbidden for a while (appendix A, enforced lookup). The tokens fed since are overwritten in the cache.
- Where a row abstains, the first lookup without a match ends it, and it is cut behind its last hit when it ends.
- Attribution is recorded at the splice itself, in offsets of the output's characters, with the query.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from colmlm.kb.texts.asked import asked_text
from colmlm.model.decoding.config import DecodeConfig, Prompt
from colmlm.model.decoding.lookup import LookupAsked, LookupPort
from colmlm.model.decoding.queries import Queries
from colmlm.model.decoding.rows import Row, SpliceRecord
from colmlm.model.decoding.sampling import add, penalise, sample
from colmlm.model.lm.checkpoint import Checkpoint

NO_FACT_AFTER_MISS = 8
STORED = np.dtype("<f2")  # the format in which keys are stored, so that a query can be sent again


class DecodingRun:
    """A decoding run. Iterate over `steps()` to the end; `rows` then hold the outputs. `live` are not done yet."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        prompts: Sequence[Prompt],
        config: DecodeConfig,
        lookup: LookupPort | None,
        queries: Queries,
    ) -> None:
        self.tokenizer, self.config = checkpoint.tokenizer, config
        self.llama = checkpoint.lm.inference
        self.lookup, self.queries = lookup, queries
        self.markup = self.tokenizer.markup
        self.opens = None if self.markup.opens is None else self.tokenizer.fact
        self.bias = _bias(checkpoint, config)
        self.ends = end_tokens(checkpoint)
        size, device = self.tokenizer.vocabulary_size, checkpoint.lm.device
        self.seen_BV = torch.zeros(len(prompts), size, dtype=torch.bool, device=device)
        self.unseen_V = torch.zeros(size, dtype=torch.bool, device=device)
        self.rows = [self._row(number, prompt) for number, prompt in enumerate(prompts)]
        self.live = [row for row in self.rows if row.finish is None]
        self.cache = self.llama.cache(len(self.live))

    def _row(self, number: int, prompt: Prompt) -> Row:
        ids, seen_V = self.tokenizer.prompt(prompt), self.seen_BV[number]
        seen_V[ids[1:]] = True
        text, given = (
            (prompt, len(ids) - 1)
            if isinstance(prompt, str)
            else (self.tokenizer.decode(prompt), len(prompt))
        )
        row = Row(ids, text, given, torch.Generator().manual_seed(self.config.seed + number), seen_V)
        if len(ids) >= self.llama.context:
            row.finish = "context"
        elif self.config.mode == "forced":
            row.open(self.tokenizer.fact, None)
        return row

    def steps(self) -> Iterator[None]:
        """Decodes to the end, yielding after every forward. The first takes whole prompts, padded to the longest."""
        prefill = True
        while self.live:
            widths = [len(row.pending) for row in self.live]
            self._step(max(widths) if prefill else min(widths))
            prefill = False
            self._leave()
            yield

    def _leave(self) -> None:
        """Takes finished rows out of the batch."""
        if self.config.abstains:
            for row in self.live:
                if row.finish is not None:
                    row.keep_cited()
        staying = [at for at, row in enumerate(self.live) if row.finish is None]
        if 0 < len(staying) < len(self.live):
            self.cache.keep(staying)
        self.live = [self.live[at] for at in staying]

    @torch.inference_mode()
    def _step(self, width: int) -> None:
        rows = self.live
        states_BTD, last = self._feed(width)
        ready = [b for b, row in enumerate(rows) if not row.pending]
        self._remember([(rows[b], states_BTD[b, last[b] - 1]) for b in ready if rows[b].is_forced])
        at_once = [b for b in ready if rows[b].opened_at is not None and not self.queries.in_words]
        sampling = [b for b in ready if b not in at_once]
        asking = [rows[b] for b in at_once]
        if sampling:
            logits_NV = self.llama.logits(states_BTD[sampling, [last[b] for b in sampling]])
            asking += self._sample([rows[b] for b in sampling], logits_NV)
        if asking:
            self._look_up(asking, states_BTD[at_once, [last[b] for b in at_once]])
        for row in rows:
            self._check_context(row)

    def _remember(self, forced: Sequence[tuple[Row, Tensor]]) -> None:
        """Keeps the logits before a forced lookup, whose token was fed in one forward with the token before it."""
        if forced:
            logits_NV = self.llama.logits(torch.stack([state_D for _, state_D in forced]))
            for (row, _), logits_V in zip(forced, logits_NV, strict=True):
                row.fallback_V = logits_V

    def _feed(self, width: int) -> tuple[Tensor, list[int]]:
        """Feeds `width` queued tokens of every row; gives the states and the index of each row's last token."""
        ids_BT = torch.zeros(len(self.live), width, dtype=torch.long)
        starts, last = [], []
        for b, row in enumerate(self.live):
            taken, row.pending = row.pending[:width], row.pending[width:]
            ids_BT[b, : len(taken)] = torch.tensor(taken)
            starts.append(row.position)
            last.append(len(taken) - 1)
            row.position += len(taken)
        return self.llama.advance(ids_BT, starts, self.cache, [at + 1 for at in last]), last

    def _sample(self, rows: Sequence[Row], logits_NV: Tensor) -> list[Row]:
        """Samples and records each row's next token; gives the rows whose query in words is now complete."""
        config = self.config
        tokens = sample(
            self._adjusted(rows, logits_NV),
            temperature=config.temperature,
            top_p=config.top_p,
            generators=[row.generator for row in rows],
        )
        asking = []
        for row, token, logits_V in zip(rows, tokens, logits_NV, strict=True):
            if row.opened_at is not None:
                asking += [row] * self.queries.write(row, token)
            elif token == self.opens:
                row.open(token, logits_V)
            else:
                self._say(row, token)
        return asking

    def _adjusted(self, rows: Sequence[Row], logits_NV: Tensor) -> Tensor:
        """Lowers the logits of tokens that a row has used, and sets those of forbidden tokens to minus infinity.

        A query in words has no repetition penalty: it has to repeat words of the text that it is about.
        """
        if self.config.repetition_penalty != 1.0:
            seen_NV = torch.stack(
                [self.unseen_V if row.opened_at is not None else row.seen_V for row in rows]
            )
            logits_NV = penalise(logits_NV, seen_NV, self.config.repetition_penalty)
        return add(logits_NV, (bias for n, row in enumerate(rows) for bias in self._biases(n, row)))

    def _biases(self, number: int, row: Row) -> Iterator[tuple[int, int, float]]:
        allowed = [self.opens]
        if row.opened_at is not None:
            allowed = [self.tokenizer.id_of(name) for name in (self.markup.asks, self.markup.parts) if name]
        elif self.config.mode == "off" or row.content < row.no_fact_until:
            allowed = []
        elif self.bias and self.opens is not None:
            yield number, self.opens, self.bias
        banned = [token for token in self.tokenizer.added if token not in allowed] + self.tokenizer.unsayable
        if row.opened_at is None and row.content < self.config.min_tokens:
            banned += self.ends
        for token in banned:
            yield number, token, -math.inf

    def _say(self, row: Row, token: int) -> None:
        if token in self.ends:
            row.sampled.append(token)
            row.finish = "end"
            return
        row.take(token)
        if row.stop_at(self.tokenizer, self.config.stop):
            row.finish = "stop"
        elif row.content >= self.config.max_tokens:
            row.finish = "length"

    def _look_up(self, rows: Sequence[Row], states_ND: Tensor) -> None:
        """Looks up for these rows in one batch. Rows without a match sample from the logits before the lookup, or end
        where they abstain.
        """
        asked = [row for row in rows if row.words or not self.queries.in_words]
        unasked = [row for row in rows if self.queries.in_words and not row.words]
        missed = [(row, self._miss(row, SpliceRecord(0, 0, "no_match"))) for row in unasked]
        if asked:
            missed += self._answer(asked, self.queries.vectors(asked, states_ND))
        if self.config.abstains:
            for row, _ in missed:
                row.finish = "miss"
        elif missed:
            again = self._sample(
                [row for row, _ in missed], torch.stack([logits_V for _, logits_V in missed])
            )
            assert not again, "a lookup is forbidden after a miss"

    def _answer(self, rows: Sequence[Row], queries_ND: np.ndarray) -> list[tuple[Row, Tensor]]:
        """Splices each hit; gives the rows without a match, each with the logits to continue from."""
        assert self.lookup is not None
        results = self.lookup.find(queries_ND, checkpoint_id=self.queries.checkpoint_id, **self._asked(rows))
        missed = []
        for row, query_D, found in zip(rows, queries_ND, results, strict=True):
            kept, words = query_D.astype(STORED).tobytes(), row.words or None
            row.seq = max(row.seq or 0, found.seq)
            if found.hits:
                best = found.hits[0]
                hit = SpliceRecord(0, 0, "hit", best.fact_id, best.version, best.score, kept, words)
                row.splice(self.tokenizer, hit, best.value)
                if self.config.until_hit and len(row.splices) == 1:
                    row.finish = "hit"
            else:
                outcome = "no_match" if found.abstained is None else "abstained"
                record = SpliceRecord(0, 0, outcome, score=found.runner_up, query=kept, words=words)
                missed.append((row, self._miss(row, record)))
        return missed

    def _asked(self, rows: Sequence[Row]) -> LookupAsked:
        """Gives what is asked of the lookups, with a text for each where the ranking looks at more than the key."""
        asked: LookupAsked = {"k": 1, "threshold": self.config.threshold, "min_seq": self.config.min_seq}
        if self.config.ranking != "key":
            texts = [row.words or asked_text(row.prompt, row.output(self.tokenizer)) for row in rows]
            asked |= {"ranking": self.config.ranking, "texts": texts}
        if self.config.accepted_only:
            asked["accepted_only"] = True
        return asked

    def _miss(self, row: Row, record: SpliceRecord) -> Tensor:
        return row.miss(self.tokenizer, record, NO_FACT_AFTER_MISS)

    def _check_context(self, row: Row) -> None:
        if row.finish is None and row.position + len(row.pending) >= self.llama.context:
            row.finish = "context"


def end_tokens(checkpoint: Checkpoint) -> list[int]:
    """Lists the tokens that end a text."""
    eos = checkpoint.lm.causal.config.eos_token_id
    others = [] if eos is None else [eos] if isinstance(eos, int) else list(eos)
    return sorted({checkpoint.tokenizer.end_of_text, *others})


def _bias(checkpoint: Checkpoint, config: DecodeConfig) -> float:
    """Gives the bias on the logit of a lookup, which applies only where the model decides on lookups."""
    if config.mode != "auto":
        return 0.0
    own = float(checkpoint.config.decoding.get("fact_bias", 0.0))
    return own if config.fact_bias is None else config.fact_bias
