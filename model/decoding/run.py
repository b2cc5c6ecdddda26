"""A decoding run: rows that are decoded together, each with a queue of forced tokens, and their lookups.

Design:
- Rows join before any step and leave after any. Each has settings and a past of its own; one forward feeds all.
- A row whose queue (its prompt, later the spliced values) is empty samples. A short queue is fed in one step. A longer
  one is fed in blocks between the steps of the others, which it delays by one block at most; alone it takes many.
- All lookups of a step that ask alike go to the knowledge base in one batch.
- No match is a normal outcome: the row continues from the logits before the lookup, at that position, and lookups
  are forbidden for a while (appendix A, enforced lookup). The tokens fed since are overwritten in the past.
- Where a row abstains, the first lookup without a match ends it, and it is cut behind its last hit when it ends.
- Attribution is recorded at the splice itself, in offsets of the output's characters, with the query.
- A lookup that fails ends the rows that asked, and no other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from colmlm.kb.texts.asked import asked_text
from colmlm.model.decoding.config import DecodeConfig, Prompt
from colmlm.model.decoding.lookup import LookupAsked, LookupPort
from colmlm.model.decoding.prefixes import Prefixes
from colmlm.model.decoding.queries import Queries
from colmlm.model.decoding.rows import Row, SpliceRecord
from colmlm.model.decoding.sampling import add, penalise, sample
from colmlm.model.lm.checkpoint import Checkpoint
from colmlm.model.lm.past import BLOCK, Piece, block_end
from colmlm.model.lm.threads import threads_for

NO_FACT_AFTER_MISS = 8
STORED = np.dtype("<f2")  # the format in which keys are stored, so that a query can be sent again
WIDE = 512  # tokens of long queues that a step feeds where nobody waits for the next token


class DecodingRun:
    """A decoding run. `live` are the rows that have joined and are not done; `prefixes` remembers their prompts.

    A step of many tokens is computed by `wide_threads` threads (None: by as many as any).
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        lookup: LookupPort | None,
        queries: Queries,
        prefixes: Prefixes | None = None,
        wide_threads: int | None = None,
    ) -> None:
        self.checkpoint, self.tokenizer = checkpoint, checkpoint.tokenizer
        self.forward = checkpoint.lm.inference
        self.lookup, self.queries, self.prefixes = lookup, queries, prefixes
        self.wide_threads = wide_threads
        self.markup = self.tokenizer.markup
        self.opens = None if self.markup.opens is None else self.tokenizer.fact
        self.ends = checkpoint.end_tokens
        self.unseen_V = self._unseen()
        self.live: list[Row] = []
        self.num_steps = 0

    def _unseen(self) -> Tensor:
        return torch.zeros(self.tokenizer.vocabulary_size, dtype=torch.bool, device=self.checkpoint.lm.device)

    @torch.inference_mode()
    def join(self, prompt: Prompt, config: DecodeConfig, seed: int) -> Row:
        """Makes the row of this prompt, which is decoded from the next step on."""
        row = self._row(prompt, config, seed)
        if len(row.pending) >= self.forward.context:
            row.finish = "context"
            return row
        if self.prefixes is not None:  # a forced lookup also needs the state of the token before it
            row.feed(self.prefixes.recall(row.pending[:-2], row.past))
        if config.mode == "forced":
            row.open(self.tokenizer.fact, None)
        self.live.append(row)
        return row

    def _row(self, prompt: Prompt, config: DecodeConfig, seed: int) -> Row:
        ids, seen_V = self.tokenizer.prompt(prompt), self._unseen()
        seen_V[ids[1:]] = True
        text, given = (
            (prompt, len(ids) - 1)
            if isinstance(prompt, str)
            else (self.tokenizer.decode(prompt), len(prompt))
        )
        generator = torch.Generator().manual_seed(seed)
        return Row(ids, text, given, config, self.forward.past(), generator, seen_V, ids)

    def leave(self, row: Row) -> None:
        """Takes a row out that nobody waits for any more."""
        self.live = [other for other in self.live if other is not row]

    def steps(self) -> Iterator[None]:
        """Decodes to the end, yielding after every step."""
        while self.live:
            self.step()
            yield

    @torch.inference_mode()
    def step(self) -> None:
        """Feeds every row its next tokens; rows whose queue is then empty choose a token or look up."""
        self.num_steps += 1
        fed, states = self._feed(self._shares())
        ready = [row for row in fed if not row.pending]
        at_once = [row for row in ready if row.opened_at is not None and not self.queries.in_words]
        sampling = [row for row in ready if row not in at_once]
        asking = list(at_once)
        if sampling:
            logits_NV = self.forward.logits(torch.stack([states[row] for row in sampling]))
            asking += self._sample(sampling, logits_NV)
        for alike in _grouped(asking, lambda row: row.asked):
            self._look_up(alike, [states[row] for row in alike if row in at_once])
        for row in fed:
            self._check_context(row)
        self._part()

    def _part(self) -> None:
        """Takes finished rows out."""
        for row in self.live:
            if row.finish is not None and row.config.abstains:
                row.keep_cited()
        self.live = [row for row in self.live if row.finish is None]

    def _shares(self) -> list[tuple[Row, int]]:
        """Gives the number of tokens that this step feeds of each queue, those not fed for longest first."""
        short = [(row, len(row.pending)) for row in self.live if len(row.pending) <= BLOCK]
        left = 1 if any(row.sampled or row.splices for row in self.live) else WIDE
        for row in sorted((row for row in self.live if len(row.pending) > BLOCK), key=lambda r: r.last_fed):
            if left <= 0:
                break
            end = block_end(row.position + left - 1)  # only whole blocks part a queue
            share = min(len(row.pending), end - row.position)
            left -= share
            short.append((row, share))
        return short

    def _feed(self, shares: Sequence[tuple[Row, int]]) -> tuple[list[Row], dict[Row, Tensor]]:
        """Feeds these numbers of tokens; gives the rows that were fed with the state of each one's last token."""
        rows = [row for row, _ in shares]
        pieces = [Piece(row.feed(share), row.position - share, row.past) for row, share in shares]
        with threads_for(sum(share for _, share in shares), self.wide_threads):
            states_ND = self.forward.feed(pieces)
        end, last = 0, {}
        for row, piece in zip(rows, pieces, strict=True):
            row.last_fed = self.num_steps
            end += len(piece.ids)
            last[row] = states_ND[end - 1]
            self._remember(row, piece, states_ND[end - len(piece.ids) : end])
        return rows, last

    def _remember(self, row: Row, piece: Piece, states_TD: Tensor) -> None:
        """Keeps a prompt that was fed to its end, and the logits of the token before a forced lookup."""
        before = row.opened_at - 1 - piece.start if row.is_forced and row.opened_at is not None else -1
        if 0 <= before < len(piece.ids):
            row.fallback_V = self.forward.logits(states_TD[before : before + 1])[0]
        if self.prefixes is not None and not row.sampled and not row.splices and not row.pending:
            self.prefixes.keep(row.prompt_ids, row.past)

    def _sample(self, rows: Sequence[Row], logits_NV: Tensor) -> list[Row]:
        """Samples and records each row's next token; gives the rows whose query in words is now complete."""
        logits_of = dict(zip(rows, logits_NV, strict=True))
        asking = []
        for alike in _grouped(rows, lambda row: row.drawn_by):
            penalty, temperature, top_p = alike[0].drawn_by
            tokens = sample(
                self._adjusted(alike, torch.stack([logits_of[row] for row in alike]), penalty),
                temperature=temperature,
                top_p=top_p,
                generators=[row.generator for row in alike],
            )
            for row, token in zip(alike, tokens, strict=True):
                asking += [row] * self._chose(row, token, logits_of[row])
        return asking

    def _chose(self, row: Row, token: int, logits_V: Tensor) -> bool:
        """Takes a row's next token; tells whether it completes a query in words."""
        if row.opened_at is not None:
            return self.queries.write(row, token)
        if token == self.opens:
            row.open(token, logits_V)
        else:
            self._say(row, token)
        return False

    def _adjusted(self, rows: Sequence[Row], logits_NV: Tensor, penalty: float) -> Tensor:
        """Lowers the logits of tokens that a row has used, and sets those of forbidden tokens to minus infinity.

        A query in words has no repetition penalty: it has to repeat words of the text that it is about.
        """
        if penalty != 1.0:
            seen_NV = torch.stack(
                [self.unseen_V if row.opened_at is not None else row.seen_V for row in rows]
            )
            logits_NV = penalise(logits_NV, seen_NV, penalty)
        return add(logits_NV, (bias for n, row in enumerate(rows) for bias in self._biases(n, row)))

    def _biases(self, number: int, row: Row) -> Iterator[tuple[int, int, float]]:
        allowed = [self.opens]
        if row.opened_at is not None:
            allowed = [self.tokenizer.id_of(name) for name in (self.markup.asks, self.markup.parts) if name]
        elif row.config.mode == "off" or row.content < row.no_fact_until:
            allowed = []
        elif self.opens is not None and (bias := _bias(self.checkpoint, row.config)):
            yield number, self.opens, bias
        banned = [token for token in self.tokenizer.added if token not in allowed] + self.tokenizer.unsayable
        if row.opened_at is None and row.content < row.config.min_tokens:
            banned += self.ends
        for token in banned:
            yield number, token, -math.inf

    def _say(self, row: Row, token: int) -> None:
        if token in self.ends:
            row.sampled.append(token)
            row.finish = "end"
            return
        row.take(token)
        if row.stop_at(self.tokenizer, row.config.stop):
            row.finish = "stop"
        elif row.content >= row.config.max_tokens:
            row.finish = "length"

    def _look_up(self, rows: Sequence[Row], states: Sequence[Tensor]) -> None:
        """Looks up for rows that ask alike, in one batch. Rows without a match sample from the logits before the
        lookup, or end where they abstain.
        """
        asked = [row for row in rows if row.words or not self.queries.in_words]
        unasked = [row for row in rows if self.queries.in_words and not row.words]
        missed = [(row, self._miss(row, SpliceRecord(0, 0, "no_match"))) for row in unasked]
        if asked:
            states_ND = torch.stack(list(states)) if states else torch.empty(0)
            try:
                missed += self._answer(asked, self.queries.vectors(asked, states_ND))
            except Exception as error:  # noqa: BLE001 - handed to those who asked; the others go on
                for row in asked:
                    row.failure, row.finish = error, "error"
        self._go_on(missed)

    def _go_on(self, missed: Sequence[tuple[Row, Tensor]]) -> None:
        for row, _ in missed:
            if row.config.abstains:
                row.finish = "miss"
        if going_on := [(row, logits_V) for row, logits_V in missed if row.finish is None]:
            again = self._sample(
                [row for row, _ in going_on], torch.stack([logits_V for _, logits_V in going_on])
            )
            assert not again, "a lookup is forbidden after a miss"

    def _answer(self, rows: Sequence[Row], queries_ND: np.ndarray) -> list[tuple[Row, Tensor]]:
        """Splices each hit; gives the rows without a match, each with the logits to continue from."""
        assert self.lookup is not None
        queries_ND = self._with_questions(rows, queries_ND)
        results = self.lookup.find(queries_ND, checkpoint_id=self.queries.checkpoint_id, **self._asked(rows))
        missed = []
        for row, query_D, found in zip(rows, queries_ND, results, strict=True):
            kept, words = query_D.astype(STORED).tobytes(), row.words or None
            row.seq = max(row.seq or 0, found.seq)
            best = found.hits[0] if found.hits else None
            if best is not None and (row.config.least_score is None or best.score >= row.config.least_score):
                hit = SpliceRecord(0, 0, "hit", best.fact_id, best.version, best.score, kept, words)
                row.splice(self.tokenizer, hit, best.value)
                if row.config.until_hit and len(row.splices) == 1:
                    row.finish = "hit"
            else:
                outcome = "no_match" if found.abstained is None else "abstained"
                score = found.runner_up if best is None else best.score
                record = SpliceRecord(0, 0, outcome, score=score, query=kept, words=words)
                missed.append((row, self._miss(row, record)))
        return missed

    def _with_questions(self, rows: Sequence[Row], queries_ND: np.ndarray) -> np.ndarray:
        """Replace the queries of rows that ask their prompt's question by those of the questions.

        So what a reader decides is what it decides where the question is asked without a decoder.
        """
        asked = [(n, question) for n, row in enumerate(rows) if (question := row.question) is not None]
        if not asked:
            return queries_ND
        mixed_ND = np.array(queries_ND)
        mixed_ND[[n for n, _ in asked]] = self.queries.encode_questions([question for _, question in asked])
        return mixed_ND

    def _text(self, row: Row) -> str:
        if (question := row.question) is not None:
            return question
        return row.words or asked_text(row.prompt, row.output(self.tokenizer))

    def _asked(self, rows: Sequence[Row]) -> LookupAsked:
        """Gives what is asked of the lookups, with a text for each where the ranking looks at more than the key."""
        config = rows[0].config
        asked: LookupAsked = {"k": 1, "threshold": config.threshold, "min_seq": config.min_seq}
        if config.ranking != "key":
            asked |= {"ranking": config.ranking, "texts": [self._text(row) for row in rows]}
        if config.accepted_only:
            asked["accepted_only"] = True
        return asked

    def _miss(self, row: Row, record: SpliceRecord) -> Tensor:
        return row.miss(self.tokenizer, record, NO_FACT_AFTER_MISS)

    def _check_context(self, row: Row) -> None:
        if row.finish is None and row.position + len(row.pending) >= self.forward.context:
            row.finish = "context"


def _grouped(rows: Sequence[Row], by: Callable[[Row], Hashable]) -> list[list[Row]]:
    groups: dict[Hashable, list[Row]] = {}
    for row in rows:
        groups.setdefault(by(row), []).append(row)
    return list(groups.values())


def _bias(checkpoint: Checkpoint, config: DecodeConfig) -> float:
    """Gives the bias on the logit of a lookup, which applies only where the model decides on lookups."""
    if config.mode != "auto":
        return 0.0
    own = float(checkpoint.config.decoding.get("fact_bias", 0.0))
    return own if config.fact_bias is None else config.fact_bias
