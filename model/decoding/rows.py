"""The state of one sequence being decoded: what is to be fed, what has been said, what was looked up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from colmlm.model.text.tokens import FactTokenizer

REPLACEMENT = "\ufffd"
_OPENING = "([{<“‘«$£€¥#/–—-"


@dataclass(frozen=True, slots=True)
class SpliceRecord:
    """One lookup: ``output[output_start:output_end]`` is the spliced value where `outcome` is "hit".

    For "no_match" and "abstained" (it points at a fact that was forgotten) the span is empty and there is no
    fact. `query` is what was asked, as little-endian fp16 bytes; its last bits depend on the batch, so records
    compare without it. None: there was nothing to ask. `words` is the query where the model wrote one.
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
    """One sequence. `pending` is the queue of forced tokens: the prompt, then every spliced value.

    `text` is what has been said up to the last splice and `tail` the tokens sampled since, so that
    offsets into the output are exact whatever the tokens look like. `sampled` are all tokens that the model chose, with
    the one that ended the text and those that a stop string cut off. Only sampled tokens of the text count as
    `content`; a splice, its tags and a query in words cost nothing of the budget. `seen_V` marks what the
    repetition penalty holds against a token.

    Inside a lookup `opened_at` is the position of its first token, `fallback_V` the logits in its place, and
    `query` and `words` what the model has written as its query.
    """

    pending: list[int]
    prompt: str
    prompt_tokens: int
    generator: torch.Generator
    seen_V: Tensor
    position: int = 0
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
    released: int = 0

    @property
    def is_forced(self) -> bool:
        """Whether it is in a lookup that it did not choose, and whose alternative is not known yet."""
        return self.opened_at is not None and self.fallback_V is None

    @property
    def after_splice(self) -> int:
        """Where the text sampled since the last splice begins in the output."""
        return len(self.text)

    def output(self, tokenizer: FactTokenizer) -> str:
        return self.text + tokenizer.decode(self.tail)

    def take(self, token: int) -> None:
        """Say a sampled token."""
        self.tail.append(token)
        self.sampled.append(token)
        self.seen_V[token] = True
        self.pending = [token]
        self.content += 1

    def open(self, opens: int, fallback_V: Tensor | None) -> None:
        """Begin a lookup; `fallback_V` may come later, where the token before is yet to be fed."""
        self.opened_at = self.position + len(self.pending)
        self.pending = [*self.pending, opens]
        self.fallback_V, self.query, self.words = fallback_V, [], ""

    def splice(self, tokenizer: FactTokenizer, hit: SpliceRecord, value: str) -> None:
        """Say a fact's value: queue its tokens and the closing one, and record where in the output it stands."""
        said = self.output(tokenizer)
        if tokenizer.space_inside and needs_space(self.prompt + said):
            said += " "
            inside = tokenizer.encode(f" {value}")
        else:
            inside = tokenizer.encode(value)
        start = len(said)
        self.text, self.tail = said + value, []
        self.splices.append(replace(hit, output_start=start, output_end=start + len(value)))
        self.seen_V[inside] = True
        asks = [] if tokenizer.markup.asks is None else [tokenizer.id_of(tokenizer.markup.asks)]
        self.pending = [*asks, *inside, tokenizer.fact_end]
        self.opened_at = self.fallback_V = None

    def miss(self, tokenizer: FactTokenizer, missed: SpliceRecord, ban_tokens: int) -> Tensor:
        """Take the lookup back: the logits before it. Another is forbidden for the next `ban_tokens` content tokens."""
        at = len(self.output(tokenizer))
        self.splices.append(replace(missed, output_start=at, output_end=at))
        self.no_fact_until = self.content + ban_tokens
        assert self.opened_at is not None and self.fallback_V is not None
        fallback_V, self.position, self.pending = self.fallback_V, self.opened_at, []
        self.opened_at = self.fallback_V = None
        return fallback_V

    def stop_at(self, tokenizer: FactTokenizer, stop: Sequence[str]) -> bool:
        """Cut the output before the first stop string in the text sampled since the last splice."""
        if not stop:
            return False
        said = tokenizer.decode(self.tail)
        cuts = [cut for string in stop if string and (cut := said.find(string)) >= 0]
        if cuts:
            self.text, self.tail = self.text + said[: min(cuts)], []
            end = len(self.text)  # a lookup that missed may stand in what was cut off
            self.splices = [
                s if s.output_end <= end else replace(s, output_start=end, output_end=end)
                for s in self.splices
            ]
        return bool(cuts)

    def release(self, tokenizer: FactTokenizer, stop: Sequence[str]) -> str:
        """The text that may be shown now and was not before.

        Held back: half a character, and an end that a stop string may still cut off.
        """
        said = self.output(tokenizer)
        upto = len(said)
        if self.finish is None:
            upto = len(said.rstrip(REPLACEMENT))
            longest = max((len(string) for string in stop), default=0)
            upto = max(self.after_splice, upto - max(0, longest - 1))
        piece = said[self.released : upto]
        self.released = max(self.released, upto)
        return piece


def needs_space(before: str) -> bool:
    """Whether a value that follows `before` wants a space: not after a space or an opening mark."""
    if not before or before[-1].isspace() or before[-1] in _OPENING:
        return False
    opens_quote = before[-1] in "\"'" and (len(before) == 1 or before[-2].isspace())
    return not opens_quote
