"""Decoding with lookups (section 3.1): where the model opens a lookup its query is sent, and the hit is spliced in."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from colmlm.kb.texts.asked import asked_text
from colmlm.model.decoding.config import DecodeConfig, DecoderLookupOptions, LookupPort, Prompt
from colmlm.model.decoding.rows import (
    PrefixCache,
    QueryBuilder,
    QueryEncoder,
    Row,
    SpliceRecord,
    StateQueryBuilder,
    WordQueryBuilder,
)
from colmlm.model.lm.checkpoint import Checkpoint
from colmlm.model.lm.past import BLOCK, ForwardPass, Piece, StaticRows, block_end
from colmlm.model.text.tokens import FactTokenizer

OnStep = Callable[[], object]


@dataclass(frozen=True, slots=True)
class DecodedOutput:
    """An output with its attribution. `seq` is the last change that its lookups saw (None: no lookup).

    `finish` is "end" (the model ended), "length" (the budget is used up), "stop" (a stop string), "hit" (with
    `until_hit`, the first lookup had a hit), "miss" (a lookup had none, and it abstains) or "context" (the context is
    full). `tokens` are all that the model chose, including the one that ended the text and those that were cut off.
    `ranking` is the ranking of its lookups.
    """

    prompt: str
    output: str
    splices: tuple[SpliceRecord, ...]
    seq: int | None
    mode: str
    content_tokens: int
    finish: str
    prompt_tokens: int = 0
    tokens: tuple[int, ...] = ()
    ranking: str = "key"


class Decoder:
    """Decode prompts with one checkpoint, against one knowledge base.

    A method that asks in words needs a `query_encoder` for the key space of the keyset that it queries. With `static`
    (None: on an accelerator) all rows share one cache (`model.lm.past.StaticRows`), so steps have few shapes.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        lookup: LookupPort | None,
        query_encoder: QueryEncoder | None = None,
        *,
        static: bool | None = None,
    ) -> None:
        self.checkpoint, self.tokenizer = checkpoint, checkpoint.tokenizer
        self.lookup, self.query_encoder = lookup, query_encoder
        self.static = checkpoint.lm.device.type != "cpu" if static is None else static

    def generate(
        self, prompts: Sequence[Prompt], config: DecodeConfig, on_step: OnStep = lambda: None
    ) -> list[DecodedOutput]:
        """Decode all prompts as one batch; each row's output is the same as if it were decoded alone.

        `on_step` is called after each forward, and may end the decoding by raising an error.
        """
        if not prompts:
            return []
        run, rows = self.run(prompts, config)
        for _ in run.steps():
            on_step()
        return [output_of(row, self.tokenizer) for row in rows]

    def stream(
        self, prompt: Prompt, config: DecodeConfig, on_step: OnStep = lambda: None
    ) -> Iterator[str | SpliceRecord | DecodedOutput]:
        """Yield the pieces of the output's text as they are decoded, and last the `DecodedOutput`.

        The record of each lookup is yielded in between, that of a hit right after the piece that ends with its value.
        """
        run, (row,) = self.run([prompt], config)
        telling = RowNews(row, self.tokenizer)
        for _ in run.steps():
            on_step()
            yield from telling.news()
        yield output_of(row, self.tokenizer)

    def run(self, prompts: Sequence[Prompt], config: DecodeConfig) -> tuple[DecodingRun, list[Row]]:
        """Give a run and its rows, one for each prompt, before the first step. Raises `ValueError` as `check` does."""
        self.check(config)
        run = self.new_run()
        return run, [run.join(prompt, config, config.seed + n) for n, prompt in enumerate(prompts)]

    def new_run(self, prefixes: PrefixCache | None = None, wide_threads: int | None = None) -> DecodingRun:
        """Make a run without rows. The parameters are those of `DecodingRun`."""
        return DecodingRun(
            self.checkpoint, self.lookup, self._query_builder(), prefixes, wide_threads, static=self.static
        )

    def check(self, config: DecodeConfig) -> None:
        """Raise `ValueError` if `config` has lookups, and the method has none, or their base or encoder is missing."""
        if config.mode != "off":
            self._check_lookups(config.mode)

    def _check_lookups(self, mode: str) -> None:
        markup, instead = self.tokenizer.markup, "pass --mode off (mode='off')"
        if markup.opens is None:
            raise ValueError(f"a model of method {markup.method} never looks anything up; {instead}")
        if self.lookup is None:
            raise ValueError(f"mode {mode!r} needs a knowledge base; give the decoder one, or {instead}")
        if markup.asks is not None and self.query_encoder is None:
            raise ValueError(
                f"a model of method {markup.method} asks in words; give the decoder their encoder, or {instead}"
            )

    def _query_builder(self) -> QueryBuilder:
        if self.query_encoder is None or self.tokenizer.markup.asks is None:
            return StateQueryBuilder(self.checkpoint)
        return WordQueryBuilder(self.tokenizer, self.query_encoder, self.checkpoint.end_tokens)


class RowNews:
    """The progress of a row since the last call of `news`: a piece of its output, then its new lookups."""

    def __init__(self, row: Row, tokenizer: FactTokenizer) -> None:
        self.row, self.tokenizer, self.told = row, tokenizer, 0

    def news(self) -> Iterator[str | SpliceRecord]:
        row = self.row
        if piece := row.release(self.tokenizer, row.config.stop, row.config.abstains):
            yield piece
        yield from row.splices[self.told :]
        self.told = len(row.splices)


def output_of(row: Row, tokenizer: FactTokenizer) -> DecodedOutput:
    """Give the output of a finished row. Raises the error that ended the row, if there is one."""
    if row.failure is not None:
        raise row.failure
    return DecodedOutput(
        row.prompt, row.output(tokenizer), tuple(row.splices), row.seq, row.config.mode, row.content,
        row.finish or "length", row.prompt_tokens, tuple(row.sampled), row.config.ranking,
    )  # fmt: skip


# A decoding run: rows that are decoded together, each with a queue of forced tokens, and their lookups.
#
# - Rows join before any step and leave after any. Each has settings and a past of its own; one forward feeds all.
# - A row whose queue (its prompt, later the spliced values) is empty samples. A short queue is fed in one step. A
#   longer one is fed in blocks between the steps of the others, which it delays by one block at most; alone it takes
#   many.
# - All lookups of a step that ask alike go to the knowledge base in one batch.
# - No match is a normal outcome: the row continues from the logits before the lookup, at that position, and lookups
#   are forbidden for a while (appendix A, enforced lookup). The tokens fed since are overwritten in the past.
# - Where a row abstains, the first lookup without a match ends it, and it is cut behind its last hit when it ends.
# - Attribution is recorded at the splice itself, in offsets of the output's characters, with the query.
# - A lookup that fails ends the rows that asked, and no other.

NO_FACT_AFTER_MISS = 8
STORED = np.dtype("<f2")  # the format in which keys are stored, so that a query can be sent again
# Tokens of long queues that a step feeds where somebody waits for the next token, and where nobody does: with pasts
# apart, and over static rows, as an accelerator reads some hundred tokens in the time of one.
QUEUE_TOKENS_APART, QUEUE_TOKENS_STATIC = (1, 512), (512, 8192)


class DecodingRun:
    """Rows that are decoded together. `live` are those that are not finished; `prefixes` caches states of prompts.

    A step of many tokens is computed by `wide_threads` threads (None: as many as any other step).
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        lookup: LookupPort | None,
        query_builder: QueryBuilder,
        prefixes: PrefixCache | None = None,
        wide_threads: int | None = None,
        *,
        static: bool = False,
    ) -> None:
        self.checkpoint, self.tokenizer = checkpoint, checkpoint.tokenizer
        self.forward: ForwardPass | StaticRows = (
            checkpoint.lm.static_rows(self) if static else checkpoint.lm.inference
        )
        self.lookup, self.query_builder, self.prefixes = lookup, query_builder, prefixes
        self.wide_threads = wide_threads
        self.queue_tokens = QUEUE_TOKENS_STATIC if static else QUEUE_TOKENS_APART
        self.markup = self.tokenizer.markup
        self.opens = None if self.markup.opens is None else self.tokenizer.fact
        self.ends = checkpoint.end_tokens
        self.unseen_V = self._unseen_tokens()
        self.live: list[Row] = []
        self.num_steps = 0

    def _unseen_tokens(self) -> Tensor:
        return torch.zeros(self.tokenizer.vocabulary_size, dtype=torch.bool, device=self.checkpoint.lm.device)

    @torch.inference_mode()
    def join(self, prompt: Prompt, config: DecodeConfig, seed: int) -> Row:
        """Make the row of this prompt, to decode from the next step on. One that fills the context is finished."""
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
        ids, seen_V = self.tokenizer.prompt(prompt), self._unseen_tokens()
        seen_V[torch.tensor(ids[1:], dtype=torch.long, device=seen_V.device)] = True
        text, given = (
            (prompt, len(ids) - 1)
            if isinstance(prompt, str)
            else (self.tokenizer.decode(prompt), len(prompt))
        )
        generator = torch.Generator("cpu").manual_seed(seed)
        return Row(ids, text, given, config, self.forward.past(), generator, seen_V, ids)

    def leave(self, row: Row) -> None:
        """Remove a row whose output nobody waits for any more."""
        self.live = [other for other in self.live if other is not row]

    def steps(self) -> Iterator[None]:
        """Decode to the end, yielding after every step."""
        while self.live:
            self.step()
            yield

    @torch.inference_mode()
    def step(self) -> None:
        """Feed every row its next tokens; rows whose queue is then empty choose a token or look up."""
        self.num_steps += 1
        fed, states = self._feed_rows(self._token_shares())
        ready = [row for row in fed if not row.pending]
        at_once = [row for row in ready if row.opened_at is not None and not self.query_builder.in_words]
        sampling = [row for row in ready if row not in at_once]
        asking = list(at_once)
        if sampling:
            logits_NV = self.forward.logits(torch.stack([states[row] for row in sampling]))
            asking += self._sample(sampling, logits_NV)
        for alike in _group_rows(asking, lambda row: row.lookup_group):
            self._look_up(alike, [states[row] for row in alike if row in at_once])
        for row in fed:
            self._check_context(row)
        self._remove_finished()

    def _remove_finished(self) -> None:
        """Remove finished rows from the run, and cut the outputs of those that abstain."""
        for row in self.live:
            if row.finish is not None and row.config.abstains:
                row.cut_after_last_hit()
        self.live = [row for row in self.live if row.finish is None]

    def _token_shares(self) -> list[tuple[Row, int]]:
        """Give the rows that this step feeds, each with its number of tokens. Long queues take turns."""
        short = [(row, len(row.pending)) for row in self.live if len(row.pending) <= BLOCK]
        left = self.queue_tokens[not any(row.sampled or row.splices for row in self.live)]
        for row in sorted((row for row in self.live if len(row.pending) > BLOCK), key=lambda r: r.last_fed):
            if left <= 0:
                break
            end = block_end(row.position + left - 1)  # only whole blocks part a queue
            share = min(len(row.pending), end - row.position)
            left -= share
            short.append((row, share))
        return short

    def _feed_rows(self, shares: Sequence[tuple[Row, int]]) -> tuple[list[Row], dict[Row, Tensor]]:
        """Feed each row its number of tokens. Give the rows that were fed, and the state of each one's last token."""
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
        """Cache the states of a prompt that was fed to its end, and keep the logits before a forced lookup."""
        before = row.opened_at - 1 - piece.start if row.lacks_fallback and row.opened_at is not None else -1
        if 0 <= before < len(piece.ids):
            row.fallback_V = self.forward.logits(states_TD[before : before + 1])[0]
        if self.prefixes is not None and not row.sampled and not row.splices and not row.pending:
            self.prefixes.keep(row.prompt_ids, row.past)

    def _sample(self, rows: Sequence[Row], logits_NV: Tensor) -> list[Row]:
        """Sample and record each row's next token; give the rows whose query in words is now complete."""
        logits_of = dict(zip(rows, logits_NV, strict=True))
        asking = []
        for alike in _group_rows(rows, lambda row: row.sampling_group):
            penalty, temperature, top_p = alike[0].sampling_group
            tokens = sample_tokens(
                self._adjust_logits(alike, torch.stack([logits_of[row] for row in alike]), penalty),
                temperature=temperature,
                top_p=top_p,
                generators=[row.generator for row in alike],
            )
            for row, token in zip(alike, tokens, strict=True):
                asking += [row] * self._take_token(row, token, logits_of[row])
        return asking

    def _take_token(self, row: Row, token: int, logits_V: Tensor) -> bool:
        """Take a row's next token; tell whether it completes a query in words."""
        if row.opened_at is not None:
            return self.query_builder.take_query_token(row, token)
        if token == self.opens:
            row.open(token, logits_V)
        else:
            self._add_token(row, token)
        return False

    def _adjust_logits(self, rows: Sequence[Row], logits_NV: Tensor, penalty: float) -> Tensor:
        """Lower the logits of tokens that a row has used, and set those of forbidden tokens to minus infinity.

        A query in words has no repetition penalty: it has to repeat words of the text that it is about.
        """
        if penalty != 1.0:
            seen_NV = torch.stack(
                [self.unseen_V if row.opened_at is not None else row.seen_V for row in rows]
            )
            logits_NV = penalise_seen(logits_NV, seen_NV, penalty)
        return add_biases(logits_NV, (bias for n, row in enumerate(rows) for bias in self._biases(n, row)))

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

    def _add_token(self, row: Row, token: int) -> None:
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
        """Look up for rows with equal lookup options, in one batch. Rows without a match sample from the logits
        before the lookup, or end if they abstain.
        """
        asked = [row for row in rows if row.words or not self.query_builder.in_words]
        unasked = [row for row in rows if self.query_builder.in_words and not row.words]
        missed = [(row, self._record_miss(row, SpliceRecord(0, 0, "no_match"))) for row in unasked]
        if asked:
            states_ND = torch.stack(list(states)) if states else torch.empty(0, device=self.unseen_V.device)
            try:
                missed += self._splice_hits(asked, self.query_builder.query_vectors(asked, states_ND))
            except Exception as error:  # noqa: BLE001 - handed to those who asked; the others go on
                for row in asked:
                    row.failure, row.finish = error, "error"
        self._continue_after_misses(missed)

    def _continue_after_misses(self, missed: Sequence[tuple[Row, Tensor]]) -> None:
        for row, _ in missed:
            if row.config.abstains:
                row.finish = "miss"
        if going_on := [(row, logits_V) for row, logits_V in missed if row.finish is None]:
            again = self._sample(
                [row for row, _ in going_on], torch.stack([logits_V for _, logits_V in going_on])
            )
            assert not again, "a lookup is forbidden after a miss"

    def _splice_hits(self, rows: Sequence[Row], queries_ND: np.ndarray) -> list[tuple[Row, Tensor]]:
        """Look up these queries and splice each hit. Give the rows without a match, and the logits to continue from."""
        assert self.lookup is not None
        queries_ND = self._with_questions(rows, queries_ND)
        results = self.lookup.find(
            queries_ND, checkpoint_id=self.query_builder.checkpoint_id, **self._lookup_options(rows)
        )
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
                missed.append((row, self._record_miss(row, record)))
        return missed

    def _with_questions(self, rows: Sequence[Row], queries_ND: np.ndarray) -> np.ndarray:
        """Give the queries, [N, D], with that of each row that has a `question` replaced by the encoded question.

        So the reader decides as it does on a question that is asked without a decoder.
        """
        asked = [(n, question) for n, row in enumerate(rows) if (question := row.question) is not None]
        if not asked:
            return queries_ND
        mixed_ND = np.array(queries_ND)
        mixed_ND[[n for n, _ in asked]] = self.query_builder.encode_questions([text for _, text in asked])
        return mixed_ND

    def _text_of(self, row: Row) -> str:
        if (question := row.question) is not None:
            return question
        return row.words or asked_text(row.prompt, row.output(self.tokenizer))

    def _lookup_options(self, rows: Sequence[Row]) -> DecoderLookupOptions:
        """Give the lookup options of these rows, with a text for each row if their ranking is not "key"."""
        asked = rows[0].config.lookup_options
        if "ranking" in asked:
            asked["texts"] = [self._text_of(row) for row in rows]
        return asked

    def _record_miss(self, row: Row, record: SpliceRecord) -> Tensor:
        return row.miss(self.tokenizer, record, NO_FACT_AFTER_MISS)

    def _check_context(self, row: Row) -> None:
        if row.finish is None and row.position + len(row.pending) >= self.forward.context:
            row.finish = "context"


def _group_rows(rows: Sequence[Row], by: Callable[[Row], Hashable]) -> list[list[Row]]:
    groups: dict[Hashable, list[Row]] = {}
    for row in rows:
        groups.setdefault(by(row), []).append(row)
    return list(groups.values())


def _bias(checkpoint: Checkpoint, config: DecodeConfig) -> float:
    """Give the bias on the logit of the token that opens a lookup; 0 unless the mode is "auto"."""
    if config.mode != "auto":
        return 0.0
    own = float(checkpoint.config.decoding.get("fact_bias", 0.0))
    return own if config.fact_bias is None else config.fact_bias


# The choice of the next tokens of a batch: repetition penalty, bans, temperature, top-p.


def penalise_seen(logits_NV: Tensor, seen_NV: Tensor, penalty: float) -> Tensor:
    """Make tokens already seen less likely: divide positive logits by `penalty` and multiply negative ones."""
    if penalty == 1.0:
        return logits_NV
    if logits_NV.device.type != "cpu":  # to find the few would make the host wait
        return torch.where(
            seen_NV, torch.where(logits_NV > 0, logits_NV / penalty, logits_NV * penalty), logits_NV
        )
    at = seen_NV.nonzero(as_tuple=True)  # few of the vocabulary
    logits = logits_NV[at]
    return logits_NV.index_put(at, torch.where(logits > 0, logits / penalty, logits * penalty))


def add_biases(logits_NV: Tensor, biases: Iterable[tuple[int, int, float]]) -> Tensor:
    """Add biases to logits, each given as (row, token, bias).

    Minus infinity is a ban: the token cannot be chosen at all. The paper's no-KB setting adds -100 (appendix A), but a
    logit more than 100 above the others would defeat such a ban, and after a miss decoding would then never end.
    """
    if not (listed := list(biases)):
        return logits_NV
    rows, tokens, amounts = zip(*listed, strict=True)
    logits_NV = logits_NV.clone()
    amounts_N = torch.tensor(amounts, dtype=logits_NV.dtype, device=logits_NV.device)
    at_2N = torch.tensor([rows, tokens], device=logits_NV.device)
    logits_NV.index_put_((at_2N[0], at_2N[1]), amounts_N, accumulate=True)
    return logits_NV


def sample_tokens(
    logits_NV: Tensor, *, temperature: float, top_p: float, generators: Sequence[torch.Generator]
) -> list[int]:
    """Choose one token a row: the likeliest at temperature 0, else one drawn from the smallest set of mass `top_p`."""
    if temperature == 0.0:
        return logits_NV.argmax(dim=-1).tolist()
    below_NV = (
        logits_NV.float() - logits_NV.max(dim=-1, keepdim=True).values
    )  # so that no temperature overflows
    probabilities_NV = torch.softmax(below_NV / max(temperature, 1e-6), dim=-1)
    ordered_NV, order_NV = probabilities_NV.sort(dim=-1, descending=True)
    outside_NV = ordered_NV.cumsum(dim=-1) - ordered_NV >= top_p
    ordered_NV, order_NV = ordered_NV.masked_fill(outside_NV, 0.0).cpu(), order_NV.cpu()
    drawn = [
        torch.multinomial(row, 1, generator=own) for row, own in zip(ordered_NV, generators, strict=True)
    ]
    return [int(order_V[at]) for order_V, at in zip(order_NV, drawn, strict=True)]


# The number of threads that a product is computed with.
#
# A step of few tokens waits for memory, and a further thread brings little; one of many tokens computes. So a server
# can leave a core to all else that it does, and take it for a moment where that pays. The bits do not depend on it
# (tested).

COMPUTING_TOKENS = 24  # tokens from which on a step computes rather than waits for memory


@contextmanager
def threads_for(num_tokens: int, wide: int | None) -> Iterator[None]:
    """Let torch compute the block by `wide` threads from `COMPUTING_TOKENS` tokens on, else by as many as before."""
    before = torch.get_num_threads()
    if wide is None or num_tokens < COMPUTING_TOKENS or wide == before:
        yield
        return
    torch.set_num_threads(wide)
    try:
        yield
    finally:
        torch.set_num_threads(before)
