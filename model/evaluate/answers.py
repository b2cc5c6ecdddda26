"""Scores of closed-book answers (appendix A): exact match within the first 100 characters, or, for an answer that
completes a statement, within the first five tokens.

The paper strips "annotation tokens" before it scores. Those are the tags: the value that Co-LMLM splices at a lookup
*is* the answer. Rel-LMLM's value is part of its call and stripped with it, since the text says it again. Since the
paper does not settle this, an output is scored both with its spliced values and without them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from colmlm.model.evaluate.intervals import of_share

if TYPE_CHECKING:
    from colmlm.model.decoding.rows import SpliceRecord

FIRST_CHARACTERS = 100
FIRST_TOKENS = 5
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """A question with its gold answers and, if the knowledge base has it, the fact that answers it.

    A statement is the beginning of a sentence that the answer completes.
    """

    question_id: str
    text: str
    answers: tuple[str, ...]
    fact_id: int | None = None
    is_statement: bool = False

    @property
    def prompt(self) -> str:
        return self.text if self.is_statement else f"Question: {self.text}\nAnswer:"


class Output(Protocol):
    """The output of a decoder, as a protocol: `model.decoding.decoder.DecodedOutput`."""

    @property
    def output(self) -> str: ...
    @property
    def splices(self) -> Sequence[SpliceRecord]: ...
    @property
    def content_tokens(self) -> int: ...
    @property
    def finish(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Answered:
    """One question's output and its scores. `lookups` counts hits, no matches and abstentions."""

    question_id: str
    question: str
    answers: list[str]
    output: str
    without_values: str
    values: list[str]
    fact_ids: list[int]
    exact_match: bool
    exact_match_without_values: bool
    lookups: int
    hits: int
    no_matches: int
    abstained: int
    right_fact: bool
    right_value: bool
    content_tokens: int
    finish: str


def exact_match(output: str, answers: Sequence[str]) -> bool:
    """Tells whether any answer is in the first 100 characters of the output, ignoring case."""
    said = output[:FIRST_CHARACTERS].lower()
    return any(answer.strip().lower() in said for answer in answers if answer.strip())


def without_values(output: str, splices: Sequence[SpliceRecord]) -> str:
    """Removes the spliced values from the output."""
    kept, at = [], 0
    for splice in splices:
        kept.append(output[at : splice.output_start])
        at = splice.output_end
    return "".join((*kept, output[at:]))


def score(asked: AskedQuestion, generation: Output, opening: Callable[[str], str]) -> Answered:
    """Scores one output; `opening` gives its first tokens, in which a statement must be completed."""
    looked_at = opening if asked.is_statement else str
    splices = list(generation.splices)
    hits = [s for s in splices if s.outcome == "hit"]
    values = [generation.output[s.output_start : s.output_end] for s in hits]
    bare = without_values(generation.output, splices)
    outcomes = [s.outcome for s in splices]
    wanted = {folded(answer) for answer in asked.answers}
    return Answered(
        question_id=asked.question_id,
        question=asked.text,
        answers=list(asked.answers),
        output=generation.output,
        without_values=bare,
        values=values,
        fact_ids=[s.fact_id for s in hits if s.fact_id is not None],
        exact_match=exact_match(looked_at(generation.output), asked.answers),
        exact_match_without_values=exact_match(looked_at(bare), asked.answers),
        lookups=len(splices),
        hits=len(hits),
        no_matches=outcomes.count("no_match"),
        abstained=outcomes.count("abstained"),
        right_fact=asked.fact_id is not None and any(s.fact_id == asked.fact_id for s in hits),
        right_value=any(folded(value) in wanted for value in values),
        content_tokens=generation.content_tokens,
        finish=generation.finish,
    )


def folded(text: str) -> str:
    """Gives the text in the form in which it is compared: case folded, one space between words."""
    return " ".join(text.casefold().split())


@dataclass(frozen=True, slots=True)
class Share:
    """A share in [0, 1] of questions, with its 95 % interval by bootstrap over questions."""

    share: float
    low: float
    high: float


def share(holds: Sequence[bool], seed: int = 0, resamples: int = RESAMPLES) -> Share:
    """Gives the share that holds. A resample of the questions is drawn as a binomial with this share."""
    if not holds:
        raise ValueError("no questions to take a share of")
    mean = float(np.mean(holds))
    drawn = np.random.default_rng(seed).binomial(len(holds), mean, resamples) / len(holds)
    middle = np.quantile(drawn, [0.025, 0.975])
    low, high = of_share(mean, (float(middle[0]), float(middle[1])), len(holds))
    return Share(round(mean, 4), round(low, 4), round(high, 4))


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of a run.

    `right_fact` is a share of the questions whose fact the knowledge base has; `num_with_fact` is their number.
    """

    questions: int
    exact_match: Share
    exact_match_without_values: Share
    looked_up: Share
    right_value: Share
    right_fact: Share | None
    num_with_fact: int
    lookups: int
    hits: int
    no_matches: int
    abstained: int
    content_tokens: int
    finishes: dict[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def summarise(rows: Sequence[Answered], with_fact: Sequence[str], seed: int = 0) -> Summary:
    """Computes the figures over all rows; `with_fact` are the ids of the questions whose fact is known."""
    known = [row.right_fact for row in rows if row.question_id in set(with_fact)]
    finishes = [row.finish for row in rows]
    return Summary(
        questions=len(rows),
        exact_match=share([row.exact_match for row in rows], seed),
        exact_match_without_values=share([row.exact_match_without_values for row in rows], seed),
        looked_up=share([row.lookups > 0 for row in rows], seed),
        right_value=share([row.right_value for row in rows], seed),
        right_fact=share(known, seed) if known else None,
        num_with_fact=len(known),
        lookups=sum(row.lookups for row in rows),
        hits=sum(row.hits for row in rows),
        no_matches=sum(row.no_matches for row in rows),
        abstained=sum(row.abstained for row in rows),
        content_tokens=sum(row.content_tokens for row in rows),
        finishes={name: finishes.count(name) for name in sorted(set(finishes))},
    )
