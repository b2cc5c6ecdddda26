"""The state of one sequence during decoding: the tokens to feed, the output so far, and its lookups."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colmlm.kb.texts.asked import question_in
from colmlm.model.decoding.config import DecodeConfig
from colmlm.model.lm.checkpoint import Checkpoint
from colmlm.model.lm.encoder import KeyEncoder
from colmlm.model.lm.language_model import unit
from colmlm.model.lm.past import BLOCK, Past, RowPast
from colmlm.model.text.tokens import FactTokenizer

REPLACEMENT = "\ufffd"
_OPENING = "([{<“‘«$£€¥#/–—-"


@dataclass(frozen=True, slots=True)
class SpliceRecord:
    """One lookup: ``output[output_start:output_end]`` is the spliced value where `outcome` is "hit".

    For "no_match" and "abstained" (the nearest fact was forgotten) the span is empty and there is no fact. `query` is
    the query's vector as little-endian fp16 bytes, or None if no query was sent; its last bits depend on the batch, so
    records compare without it. `words` is the query if the model wrote one. A knowledge base stores a record
    without its words, in a class of its own, `Splice`.
    """

    output_start: int
    output_end: int
    outcome: str
    fact_id: int | None = None
    version: int | None = None
    score: float | None = None
    query: bytes | None = field(default=None, compare=False)
    words: str | None = None


@dataclass(slots=True, eq=False)
class Row:
    """One sequence with its own settings. `pending` is the queue of forced tokens: the prompt, then spliced values.
    `past` holds what was fed, and `failure` is the error that ended the row.

    `text` is the output up to the last splice and `tail` the tokens sampled since, so that offsets into the output are
    exact whatever text the tokens decode to. `sampled` are all tokens that the model chose, including the one that
    ended the text and those that a stop string cut off. Only sampled tokens of the text count as `content`; a splice,
    its tags and a query in words do not use up the budget. `seen_V` marks the tokens that the repetition penalty
    applies to.

    Inside a lookup `opened_at` is the position of its first token, `fallback_V` the logits at that position, and
    `query` and `words` are what the model has written as its query.
    """

    pending: list[int]
    prompt: str
    prompt_tokens: int
    config: DecodeConfig
    past: Past | RowPast
    generator: torch.Generator
    seen_V: Tensor
    prompt_ids: list[int] = field(default_factory=list)
    position: int = 0
    last_fed: int = 0
    seq: int | None = None
    text: str = ""
    tail: list[int] = field(default_factory=list)
    sampled: list[int] = field(default_factory=list)
    splices: list[SpliceRecord] = field(default_factory=list)
    content: int = 0
    opened_at: int | None = None
    fallback_V: Tensor | None = None
    query: list[int] = field(default_factory=list)
    words: str = ""
    no_fact_until: int = 0
    finish: str | None = None
    failure: Exception | None = None
    released: int = 0

    @property
    def lacks_fallback(self) -> bool:
        """Tell whether the row is in a lookup whose `fallback_V` is not known yet, as at first in a forced lookup."""
        return self.opened_at is not None and self.fallback_V is None

    @property
    def after_splice(self) -> int:
        """Give the offset in the output at which the text sampled since the last splice begins."""
        return len(self.text)

    @property
    def lookup_group(self) -> tuple[object, ...]:
        """Give the lookup options of this row beside its query; rows with equal ones are looked up together."""
        return tuple(self.config.lookup_options.items())

    @property
    def question(self) -> str | None:
        """Give the prompt's question for the reader; None without one, with another ranking, or after a hit."""
        answered = any(splice.outcome == "hit" for splice in self.splices)
        return None if answered or self.config.ranking != "reader" else question_in(self.prompt)

    @property
    def sampling_group(self) -> tuple[float, float, float]:
        """Give the sampling settings of this row; rows with equal ones are sampled together."""
        return self.config.repetition_penalty, self.config.temperature, self.config.top_p

    def feed(self, count: int) -> list[int]:
        """Take the first `count` pending tokens, move the position past them, and give them."""
        taken, self.pending = self.pending[:count], self.pending[count:]
        self.position += count
        return taken

    def output(self, tokenizer: FactTokenizer) -> str:
        return self.text + tokenizer.decode(self.tail)

    def take(self, token: int) -> None:
        """Add a sampled token to the output."""
        self.tail.append(token)
        self.sampled.append(token)
        self.seen_V[token] = True
        self.pending = [token]
        self.content += 1

    def open(self, opens: int, fallback_V: Tensor | None) -> None:
        """Begin a lookup by the token `opens`, ``<FACT>``.

        `fallback_V` are the next token's logits without a lookup, to continue from after a miss; they may come later.
        """
        self.opened_at = self.position + len(self.pending)
        self.pending = [*self.pending, opens]
        self.fallback_V, self.query, self.words = fallback_V, [], ""

    def splice(self, tokenizer: FactTokenizer, hit: SpliceRecord, value: str) -> None:
        """Splice a fact's value: queue its tokens and the closing one, and record its place in the output."""
        said = self.output(tokenizer)
        if tokenizer.space_inside and needs_space(self.prompt + said):
            said += " "
            inside = tokenizer.encode(f" {value}")
        else:
            inside = tokenizer.encode(value)
        start = len(said)
        self.text, self.tail = said + value, []
        self.splices.append(replace(hit, output_start=start, output_end=start + len(value)))
        self.seen_V[torch.tensor(inside, dtype=torch.long, device=self.seen_V.device)] = True
        asks = [] if tokenizer.markup.asks is None else [tokenizer.id_of(tokenizer.markup.asks)]
        self.pending = [*asks, *inside, tokenizer.fact_end]
        self.opened_at = self.fallback_V = None

    def miss(self, tokenizer: FactTokenizer, missed: SpliceRecord, ban_tokens: int) -> Tensor:
        """Undo the open lookup, and give the logits before it. The next `ban_tokens` content tokens open none."""
        at = len(self.output(tokenizer))
        self.splices.append(replace(missed, output_start=at, output_end=at))
        self.no_fact_until = self.content + ban_tokens
        assert self.opened_at is not None and self.fallback_V is not None
        fallback_V, self.position, self.pending = self.fallback_V, self.opened_at, []
        self.opened_at = self.fallback_V = None
        return fallback_V

    def stop_at(self, tokenizer: FactTokenizer, stop: Sequence[str]) -> bool:
        """Cut the output before the first stop string since the last splice, and tell whether there was one."""
        if not stop:
            return False
        said = tokenizer.decode(self.tail)
        cuts = [cut for string in stop if string and (cut := said.find(string)) >= 0]
        if cuts:
            self.text, self.tail = self.text + said[: min(cuts)], []
            self._keep_splices(len(self.text))
        return bool(cuts)

    def cut_after_last_hit(self) -> None:
        """Cut the output behind its last hit, or to nothing without a hit. Lookups without a match stay recorded."""
        end = max((s.output_end for s in self.splices if s.outcome == "hit"), default=0)
        self.text, self.tail = self.text[:end], []
        self._keep_splices(end)

    def _keep_splices(self, end: int) -> None:
        """Move the lookups behind `end`, where the output was cut, to `end`. They had no match."""
        self.splices = [
            s if s.output_end <= end else replace(s, output_start=end, output_end=end) for s in self.splices
        ]

    def release(self, tokenizer: FactTokenizer, stop: Sequence[str], only_cited: bool = False) -> str:
        """Give the text that may be streamed now and was not streamed before.

        An incomplete character and a possible beginning of a stop string are held back; with `only_cited` all text
        since the last splice.
        """
        said = self.output(tokenizer)
        upto = len(said)
        if only_cited:
            upto = self.after_splice
        elif self.finish is None:
            upto = len(said.rstrip(REPLACEMENT))
            longest = max((len(string) for string in stop), default=0)
            upto = max(self.after_splice, upto - max(0, longest - 1))
        piece = said[self.released : upto]
        self.released = max(self.released, upto)
        return piece


def needs_space(before: str) -> bool:
    """Tell whether a value that follows `before` needs a space first: not after a space or an opening mark."""
    if not before or before[-1].isspace() or before[-1] in _OPENING:
        return False
    opens_quote = before[-1] in "\"'" and (len(before) == 1 or before[-2].isspace())
    return not opens_quote


# Ways in which a row gets its query, the only difference between the methods in decoding (section 4.6).
#
# Co-LMLM uses the hidden state at the opening token. Where a method asks in words, the model writes them
# between two tokens of its markup and an encoder makes the vector. Such words are neither output nor content.

MAX_QUERY_TOKENS = 64


class QueryEncoder(Protocol):
    """An encoder of queries in words, in the key space of the keyset of `checkpoint_id`."""

    @property
    def checkpoint_id(self) -> str: ...

    def encode_questions(self, questions: Sequence[str]) -> NDArray[np.float32]:
        """Give [n, dim] unit rows."""
        ...


class QueryBuilder(Protocol):
    """Makes the queries of rows in the way of a method.

    `in_words` says whether the model writes a query first; `checkpoint_id` names the checkpoint whose keys are
    searched.
    """

    @property
    def in_words(self) -> bool: ...
    @property
    def checkpoint_id(self) -> str: ...

    def take_query_token(self, row: Row, token: int) -> bool:
        """Take the next token of a row's query in words, and tell whether it ended the query."""
        ...

    def query_vectors(self, rows: Sequence[Row], states_ND: Tensor) -> NDArray[np.float32]:
        """Give the queries of these rows as [n, dim] unit rows; `states_ND` are those at each row's last token."""
        ...

    def encode_questions(self, questions: Sequence[str]) -> NDArray[np.float32]:
        """Encode questions as they are asked without a decoder: [n, dim] unit rows."""
        ...


@dataclass(frozen=True, slots=True)
class StateQueryBuilder:
    """Use the state at the opening token as the query."""

    checkpoint: Checkpoint
    in_words: bool = False

    @property
    def checkpoint_id(self) -> str:
        return self.checkpoint.checkpoint_id

    def take_query_token(self, row: Row, token: int) -> bool:
        raise AssertionError("nothing is written where the state is the query")

    def query_vectors(self, rows: Sequence[Row], states_ND: Tensor) -> NDArray[np.float32]:
        return unit(states_ND).cpu().numpy()

    def encode_questions(self, questions: Sequence[str]) -> NDArray[np.float32]:
        return KeyEncoder(self.checkpoint).encode_questions(questions)


@dataclass(frozen=True, slots=True)
class WordQueryBuilder:
    """Let the model write the query, up to the token that ends it; `ends` are the tokens that end a text.

    A query without an end (the text ends first, or the query grows too long) or without a word leaves the row's `words`
    empty, and no lookup is made.
    """

    tokenizer: FactTokenizer
    encoder: QueryEncoder
    ends: Collection[int]
    in_words: bool = True

    @property
    def checkpoint_id(self) -> str:
        return self.encoder.checkpoint_id

    def take_query_token(self, row: Row, token: int) -> bool:
        if token == self.tokenizer.id_of(self.tokenizer.markup.asks):
            row.words = self.tokenizer.query_in_words(row.query).strip()
            return True
        row.query.append(token)
        row.pending = [token]
        return token in self.ends or len(row.query) >= MAX_QUERY_TOKENS

    def query_vectors(self, rows: Sequence[Row], states_ND: Tensor) -> NDArray[np.float32]:
        return self.encode_questions([row.words for row in rows])

    def encode_questions(self, questions: Sequence[str]) -> NDArray[np.float32]:
        return self.encoder.encode_questions(questions)


# Beginnings of prompts that repeat, such as a template or examples: their keys and values, kept in bounded memory.
#
# A prompt is kept in blocks of 32 tokens, each found by all tokens up to its end. What a prompt's tokens
# leave in a past depends on these tokens and the weights alone, never on a fact: values are spliced behind
# the prompt and are not kept here. So no edit can make anything here wrong.

MIB = 1 << 20


class PrefixCache:
    """A cache of prompts' keys and values in blocks. Beyond `most_bytes` the least recently used blocks are dropped."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes, self.num_bytes = most_bytes, 0
        self._blocks: OrderedDict[bytes, Tensor] = OrderedDict()

    def recall(self, ids: Sequence[int], past: Past | RowPast) -> int:
        """Copy the keys and values of the longest cached prefix of `ids` into the past. Give its number of tokens."""
        known = []
        for name in _block_digests(ids):
            if (block := self._blocks.get(name)) is None:
                break
            self._blocks.move_to_end(name)
            known.append(block)
        past.reserve(len(known) * BLOCK)
        for at, block in enumerate(known):
            past.kv[:, :, :, at * BLOCK : (at + 1) * BLOCK] = block
        return len(known) * BLOCK

    def keep(self, ids: Sequence[int], past: Past | RowPast) -> None:
        """Cache the whole blocks of these tokens, whose keys and values the past has from its start."""
        for at, name in enumerate(_block_digests(ids)):
            if name not in self._blocks:
                block = past.kv[:, :, :, at * BLOCK : (at + 1) * BLOCK].clone()
                self._blocks[name] = block
                self.num_bytes += block.nbytes
        while self.num_bytes > self.most_bytes:
            self.num_bytes -= self._blocks.popitem(last=False)[1].nbytes


def _block_digests(ids: Sequence[int]) -> Iterator[bytes]:
    """Yield a digest for each whole block: that of all tokens up to its end."""
    seen = hashlib.sha256()
    for end in range(BLOCK, len(ids) + 1, BLOCK):
        seen.update(array("i", ids[end - BLOCK : end]).tobytes())
        yield seen.digest()
