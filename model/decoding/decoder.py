"""Decoding with lookups (section 3.1): where the model opens a lookup its query is sent, and the hit is spliced in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from colmlm.model.decoding.config import DecodeConfig, Prompt
from colmlm.model.decoding.lookup import LookupPort
from colmlm.model.decoding.prefixes import Prefixes
from colmlm.model.decoding.queries import Queries, QueryEncoder, StateQueries, WordQueries
from colmlm.model.decoding.rows import Row, SpliceRecord
from colmlm.model.decoding.run import DecodingRun
from colmlm.model.lm.checkpoint import Checkpoint
from colmlm.model.text.tokens import FactTokenizer

OnStep = Callable[[], object]


@dataclass(frozen=True, slots=True)
class DecodedOutput:
    """An output with its attribution. `seq` is the last change that its lookups saw (None: no lookup).

    `finish` is "end" (the model ended), "length" (the budget is used up), "stop" (a stop string), "hit" (with
    `until_hit`, the first lookup had a hit), "miss" (where it abstains, a lookup had none) or "context" (the context is
    full). `tokens` are all that the model chose, including the one that ended the text and those that were cut off.
    `ranking` is what its lookups were found by.
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
    """Decodes prompts with one checkpoint, against one knowledge base.

    A method that asks in words needs a `query_encoder` for the key space of the keyset that it queries.
    """

    def __init__(
        self, checkpoint: Checkpoint, lookup: LookupPort | None, query_encoder: QueryEncoder | None = None
    ) -> None:
        self.checkpoint, self.tokenizer = checkpoint, checkpoint.tokenizer
        self.lookup, self.query_encoder = lookup, query_encoder

    def generate(
        self, prompts: Sequence[Prompt], config: DecodeConfig, on_step: OnStep = lambda: None
    ) -> list[DecodedOutput]:
        """Decodes all prompts as one batch; each row's output is the same as if it were decoded alone.

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
        """Yields pieces of the output as they are decoded (joined, they are the output), then the generation.

        Each lookup is yielded in between; one with a hit comes right after the piece that ends with its value.
        """
        run, (row,) = self.run([prompt], config)
        telling = RowNews(row, self.tokenizer)
        for _ in run.steps():
            on_step()
            yield from telling.news()
        yield output_of(row, self.tokenizer)

    def run(self, prompts: Sequence[Prompt], config: DecodeConfig) -> tuple[DecodingRun, list[Row]]:
        """Makes the run that decodes these prompts, not yet started. Raises `ValueError` if it could not look up."""
        self.check(config)
        run = self.new_run()
        return run, [run.join(prompt, config, config.seed + n) for n, prompt in enumerate(prompts)]

    def new_run(self, prefixes: Prefixes | None = None, wide_threads: int | None = None) -> DecodingRun:
        """Makes a run without rows."""
        return DecodingRun(self.checkpoint, self.lookup, self._queries(), prefixes, wide_threads)

    def check(self, config: DecodeConfig) -> None:
        """Raises `ValueError` where what is asked could not be looked up."""
        if config.mode != "off":
            self._check_lookups(config.mode)

    def _check_lookups(self, mode: str) -> None:
        markup = self.tokenizer.markup
        if markup.opens is None:
            raise ValueError(f"a model of method {markup.method} never looks anything up; use mode 'off'")
        if self.lookup is None:
            raise ValueError(f"mode {mode!r} needs a knowledge base; decode with mode 'off' without one")
        if markup.asks is not None and self.query_encoder is None:
            raise ValueError(
                f"a model of method {markup.method} asks in words; give the decoder their encoder"
            )

    def _queries(self) -> Queries:
        if self.query_encoder is None or self.tokenizer.markup.asks is None:
            return StateQueries(self.checkpoint)
        return WordQueries(self.tokenizer, self.query_encoder, self.checkpoint.end_tokens)


class RowNews:
    """What a row has to tell since it was last asked: the pieces of its output, and its lookups in between."""

    def __init__(self, row: Row, tokenizer: FactTokenizer) -> None:
        self.row, self.tokenizer, self.told = row, tokenizer, 0

    def news(self) -> Iterator[str | SpliceRecord]:
        row = self.row
        if piece := row.release(self.tokenizer, row.config.stop, row.config.abstains):
            yield piece
        yield from row.splices[self.told :]
        self.told = len(row.splices)


def output_of(row: Row, tokenizer: FactTokenizer) -> DecodedOutput:
    """Gives the output of a finished row. Raises the error that ended it."""
    if row.failure is not None:
        raise row.failure
    return DecodedOutput(
        row.prompt, row.output(tokenizer), tuple(row.splices), row.seq, row.config.mode, row.content,
        row.finish or "length", row.prompt_tokens, tuple(row.sampled), row.config.ranking,
    )  # fmt: skip
