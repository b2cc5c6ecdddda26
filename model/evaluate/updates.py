"""Measures of value updates: a corrected fact is given wherever it is asked for, and no other answer changes.

The records are CounterFact's: a prompt that an object completes, another object to put in its place, paraphrases of the
prompt, and prompts of neighbours that the same object completes. *Efficacy* is the share of prompts that give the new
object, *paraphrase* the same share of the paraphrases, *locality* the share of neighbours that are answered as before.
A record's prompts depend on each other, so intervals are by bootstrap over records.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan
from colmlm.model.evaluate.answers import Output, exact_match, fold_text
from colmlm.model.evaluate.run_log import EvaluationFileError, bootstrap, of_share


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One record: `prompt` is completed by `value`, and by `new_value` once that is updated."""

    prompt: str
    value: str
    new_value: str
    paraphrases: tuple[str, ...]
    neighbours: tuple[str, ...]

    @property
    def document(self) -> str:
        """Give the name of the document that holds its fact."""
        return _document_name(self.prompt, self.value)

    @property
    def prompts(self) -> tuple[str, ...]:
        return (self.prompt, *self.paraphrases, *self.neighbours)


@dataclass(frozen=True, slots=True)
class PromptAnswer:
    """The answer to a prompt: the value and fact that its first lookup found (None: no match), and the whole output."""

    output: str
    value: str | None
    fact_id: int | None

    @classmethod
    def of(cls, generated: Output) -> PromptAnswer:
        first = generated.splices[0] if generated.splices else None
        if first is None or first.outcome != "hit":
            return cls(generated.output, None, None)
        return cls(generated.output, generated.output[first.output_start : first.output_end], first.fact_id)

    def gives(self, value: str) -> bool:
        """Tell whether the lookup found this value, or, without a match, whether the model itself says it."""
        if self.value is None:
            return exact_match(self.output, [value])
        return fold_text(self.value) == fold_text(value)

    def is_as(self, other: PromptAnswer) -> bool:
        if self.value is None or other.value is None:
            return self.value is other.value and self.output == other.output
        return fold_text(self.value) == fold_text(other.value)


Answers = Mapping[str, PromptAnswer]  # by prompt


@dataclass(frozen=True, slots=True)
class Portion:
    """A share of `prompts`, with its 95 % interval by bootstrap over records."""

    share: float
    low: float
    high: float
    prompts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Updated:
    """All figures. `found` is the share of prompts whose own fact was looked up before the update; None: no prompts.

    `old_value` is the share of updated prompts that still give the former value. Neighbours whose prompt is itself
    updated by another record are left out of locality. `undone` is the share of all prompts that are answered as before
    once the updates are undone.
    """

    found: Portion | None
    efficacy: Portion | None
    efficacy_where_found: Portion | None
    old_value: Portion | None
    paraphrase_found: Portion | None
    paraphrase: Portion | None
    paraphrase_where_found: Portion | None
    locality: Portion | None
    undone: Portion | None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def read_rewrites(path: Path) -> list[Rewrite]:
    """Read the records of a file in CounterFact's form. Raises `EvaluationFileError`."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise EvaluationFileError(f"{path.name} is no JSON: {error}") from error
    if not isinstance(rows, list) or not rows:
        raise EvaluationFileError(f"{path.name} is no list of records")
    found = [_rewrite(f"{path.name}, record {number}", row) for number, row in enumerate(rows, start=1)]
    if len({one.document for one in found}) < len(found):
        raise EvaluationFileError(f"{path.name} updates a fact twice")
    return found


def _rewrite(where: str, row: Any) -> Rewrite:
    try:
        asked = row["requested_rewrite"]
        return Rewrite(
            _text(asked["prompt"].format(_text(asked["subject"]))),
            _text(asked["target_true"]["str"]),
            _text(asked["target_new"]["str"]),
            tuple(map(_text, row["paraphrase_prompts"])),
            tuple(map(_text, row["neighborhood_prompts"])),
        )
    except (TypeError, KeyError, AttributeError, IndexError, ValueError) as error:
        raise EvaluationFileError(
            f"{where} is no record of an update ({type(error).__name__}: {error})"
        ) from error


def _text(found: Any) -> str:
    if not isinstance(found, str) or not found.strip():
        raise ValueError("a text is missing")
    return found.strip()


def documents(rewrites: Sequence[Rewrite]) -> list[AnnotatedDocument]:
    """Make a document for each statement: first those that are updated, then the neighbours' with their object.

    The updated ones come first and so are the older facts: if a neighbour of another record has the same prompt and
    another object, their keys are equal and the tie goes to the updated fact.
    """
    statements = [(one.prompt, one.value) for one in rewrites]
    statements += [(prompt, one.value) for one in rewrites for prompt in one.neighbours]
    return [_document(prompt, value) for prompt, value in dict.fromkeys(statements)]


def _document(prompt: str, value: str) -> AnnotatedDocument:
    start = len(prompt) + 1
    span = FactSpan(start, start + len(value), value)
    return AnnotatedDocument(_document_name(prompt, value), f"{prompt} {value}.", (span,))


def _document_name(prompt: str, value: str) -> str:
    return sha256(f"{prompt}\n{value}".encode()).hexdigest()[:16]


def prompts(rewrites: Sequence[Rewrite]) -> list[str]:
    """List every prompt once, since records share neighbours."""
    return list(dict.fromkeys(prompt for one in rewrites for prompt in one.prompts))


def measure(
    rewrites: Sequence[Rewrite],
    fact_ids: Mapping[str, int],
    before: Answers,
    after: Answers,
    undone: Answers,
    seed: int = 0,
) -> Updated:
    """Compute the figures from the answers before the updates, with them, and after they are undone.

    `fact_ids` are the updated facts by the document they belong to.
    """
    edited = {one.prompt for one in rewrites}

    def found(one: Rewrite, prompt: str) -> bool:
        return before[prompt].fact_id == fact_ids[one.document]

    def portion(asked: Callable[[Rewrite], Sequence[str]], holds: Callable[[Rewrite, str], bool]) -> Any:
        return _portion([[holds(one, prompt) for prompt in asked(one)] for one in rewrites], seed)

    def gives_new(one: Rewrite, prompt: str) -> bool:
        return after[prompt].gives(one.new_value)

    return Updated(
        found=portion(lambda one: [one.prompt], found),
        efficacy=portion(lambda one: [one.prompt], gives_new),
        efficacy_where_found=portion(lambda one: [p for p in [one.prompt] if found(one, p)], gives_new),
        old_value=portion(lambda one: [one.prompt], lambda one, prompt: after[prompt].gives(one.value)),
        paraphrase_found=portion(lambda one: one.paraphrases, found),
        paraphrase=portion(lambda one: one.paraphrases, gives_new),
        paraphrase_where_found=portion(lambda one: [p for p in one.paraphrases if found(one, p)], gives_new),
        locality=portion(
            lambda one: [p for p in one.neighbours if p not in edited],
            lambda _, prompt: after[prompt].is_as(before[prompt]),
        ),
        undone=portion(lambda one: one.prompts, lambda _, prompt: undone[prompt].is_as(before[prompt])),
    )


def _portion(holds: Sequence[Sequence[bool]], seed: int) -> Portion | None:
    """Give the share over all prompts; the bootstrap resamples records."""
    kept = [one for one in holds if one]
    if not kept:
        return None
    right_N = np.array([sum(one) for one in kept], dtype=np.float64)
    asked_N = np.array([len(one) for one in kept], dtype=np.float64)

    def measured(draw: Callable[[int], NDArray[np.int64]]) -> dict[str, float]:
        rows = draw(len(kept))
        return {"share": float(right_N[rows].sum() / asked_N[rows].sum())}

    share = float(right_N.sum() / asked_N.sum())
    low, high = of_share(share, bootstrap(measured, seed=seed)["share"], len(kept))
    return Portion(round(share, 4), round(low, 4), round(high, 4), int(asked_N.sum()))
