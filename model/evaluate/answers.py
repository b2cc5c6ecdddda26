"""Scores of closed-book answers (appendix A): exact match within the first 100 characters, or, for an answer that
completes a statement, within the first five tokens.

The paper contradicts itself. "Retrieved factual spans are removed before scoring" (section 4.3), and "annotation tokens
from retrieval are removed before scoring" (appendix A). The value that Co-LMLM splices at a lookup *is* the answer, so
its figures can only be of the second reading. Rel-LMLM's value is part of its call and stripped with it, since the text
says it again. An output is scored both with its spliced values and without them, and both are printed.
"""

from __future__ import annotations

import csv
import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.model.evaluate.run_log import EvaluationFileError, share_bounds
from colmlm.model.text.passages import PassageIndex, passages_of

if TYPE_CHECKING:
    from colmlm.model.decoding.rows import SpliceRecord


FIRST_CHARACTERS = 100
RARE = 100  # views a month below which a subject is in the paper's long tail
FIRST_TOKENS = 5
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """A question with its gold answers and, if the knowledge base has it, the fact that answers it.

    A statement is the beginning of a sentence that the answer completes. `views` are those of the subject's page in a
    month, where the set says so.
    """

    question_id: str
    text: str
    answers: tuple[str, ...]
    fact_id: int | None = None
    is_statement: bool = False
    views: int | None = None

    @property
    def prompt(self) -> str:
        return self.text if self.is_statement else f"Question: {self.text}\nAnswer:"


class Output(Protocol):
    """A protocol for a decoder's output, such as `DecodedOutput`. `finish` names the reason why decoding ended."""

    @property
    def output(self) -> str: ...
    @property
    def splices(self) -> Sequence[SpliceRecord]: ...
    @property
    def content_tokens(self) -> int: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def finish(self) -> str: ...


@dataclass(frozen=True, slots=True)
class ScoredOutput:
    """One question's output and its scores. `lookups` is the number of lookups with any outcome."""

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
    prompt_tokens: int = 0  # in rows that an older program wrote


def exact_match(output: str, answers: Sequence[str]) -> bool:
    """Tell whether any answer is in the first 100 characters of the output, ignoring case."""
    said = output[:FIRST_CHARACTERS].lower()
    return any(answer.strip().lower() in said for answer in answers if answer.strip())


def without_values(output: str, splices: Sequence[SpliceRecord]) -> str:
    """Remove the spliced values from the output."""
    kept, at = [], 0
    for splice in splices:
        kept.append(output[at : splice.output_start])
        at = splice.output_end
    return "".join((*kept, output[at:]))


def score(asked: AskedQuestion, generation: Output, opening: Callable[[str], str]) -> ScoredOutput:
    """Score one output; for a statement the answer must be in the part of it that `opening` gives, its first tokens."""
    looked_at = opening if asked.is_statement else str
    splices = list(generation.splices)
    hits = [s for s in splices if s.outcome == "hit"]
    values = [generation.output[s.output_start : s.output_end] for s in hits]
    bare = without_values(generation.output, splices)
    outcomes = [s.outcome for s in splices]
    wanted = {fold_text(answer) for answer in asked.answers}
    return ScoredOutput(
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
        right_value=any(fold_text(value) in wanted for value in values),
        content_tokens=generation.content_tokens,
        finish=generation.finish,
        prompt_tokens=generation.prompt_tokens,
    )


def fold_text(text: str) -> str:
    """Fold the text for comparison: case folded, one space between words."""
    return " ".join(text.casefold().split())


@dataclass(frozen=True, slots=True)
class Share:
    """A share in [0, 1] of questions, with its 95 % interval by bootstrap over questions."""

    share: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.share:.3f} [{self.low:.3f}, {self.high:.3f}]"


def share(holds: Sequence[bool], seed: int = 0, resamples: int = RESAMPLES) -> Share:
    """Compute the share of True with its 95 % interval; a resample is drawn as a binomial with this share."""
    if not holds:
        raise ValueError("no questions to take a share of; name a file with some")
    mean = float(np.mean(holds))
    drawn = np.random.default_rng(seed).binomial(len(holds), mean, resamples) / len(holds)
    middle = np.quantile(drawn, [0.025, 0.975])
    low, high = share_bounds(mean, (float(middle[0]), float(middle[1])), len(holds))
    return Share(round(mean, 4), round(low, 4), round(high, 4))


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of an evaluation over its questions.

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
    prompt_tokens: int
    finishes: dict[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def summarise(rows: Sequence[ScoredOutput], with_fact: Sequence[str], seed: int = 0) -> Summary:
    """Compute the summary of all rows; `with_fact` are the ids of questions whose fact the knowledge base has."""
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
        prompt_tokens=sum(row.prompt_tokens for row in rows),
        finishes={name: finishes.count(name) for name in sorted(set(finishes))},
    )


# Passages of documents in the knowledge base, against which a claim about a person is checked.

PASSAGES = 5  # the number that FActScore takes


class Evidence:
    """Passages of documents about people, found by the person's name as the title. Threads may share it."""

    def __init__(self, documents: Iterable[AnnotatedDocument]) -> None:
        self._of: dict[str, list[str]] = defaultdict(list)
        self._every: list[str] = []
        for document in documents:
            passages = list(passages_of([document]))
            self._every += passages
            self._of[fold_text(document.title or "")] += passages
        self._indices: dict[str | None, PassageIndex] = {}
        self._lock = threading.Lock()

    def covers(self, name: str) -> bool:
        """Tell whether there is a document about this person."""
        return fold_text(name) in self._of

    def passages(self, name: str, claim: str) -> list[str]:
        """Give the passages most similar to the claim, from the documents titled `name` or, without any, from all."""
        own = fold_text(name) if self.covers(name) else None
        with self._lock:
            if own not in self._indices:
                self._indices[own] = PassageIndex(self._every if own is None else self._of[own])
            (found,) = self._indices[own].search([f"{name} {claim}"], PASSAGES)
        return found


# Questions with gold answers in the formats of published sets: JSON, JSON Lines or CSV, a file or a folder of
# files.
#
# A row has a question and its answers under any of the names in use. A row of T-REx names a subject and an
# object instead, and its file, or its own `relation`, the relation; from these it becomes the beginning of a
# sentence that ends with the object. The wording is this project's, since the sentences of the published set are not
# among its facts. So every row can be read from left to right, where the paper keeps the 11,615 whose own sentence
# ends with the object.

SUFFIXES = {".json", ".jsonl", ".csv"}
_QUESTION_FIELDS = ("question", "problem")
_ANSWER_FIELDS = ("answers", "golden_answers", "possible_answers", "answer")
_FORMS = "Write each question as an object on a line of its own, all as one list, or as CSV with a header"

RELATIONS = {
    "P17": "{} is in the country of",
    "P19": "{} was born in",
    "P20": "{} died in",
    "P27": "{} is a citizen of",
    "P30": "{} is on the continent of",
    "P31": "{} is a kind of",
    "P36": "The capital of {} is",
    "P37": "The official language of {} is",
    "P39": "{} held the office of",
    "P47": "{} has a border with",
    "P101": "{} works in the field of",
    "P103": "The native language of {} is",
    "P106": "By profession {} is a",
    "P108": "{} is employed by",
    "P127": "{} is owned by",
    "P131": "{} lies in",
    "P136": "The genre of {} is",
    "P138": "{} is named after",
    "P140": "The religion of {} is",
    "P159": "The headquarters of {} are in",
    "P176": "{} is made by",
    "P178": "{} was developed by",
    "P190": "The twin city of {} is",
    "P264": "The record label of {} is",
    "P276": "{} took place in",
    "P279": "{} is a subclass of",
    "P361": "{} is part of",
    "P364": "The original language of {} is",
    "P407": "{} was written in",
    "P413": "In sport {} plays as a",
    "P449": "{} was first shown on",
    "P463": "{} is a member of",
    "P495": "{} was made in the country of",
    "P527": "{} consists of",
    "P530": "{} has diplomatic relations with",
    "P740": "{} was founded in",
    "P937": "{} worked in the city of",
    "P1001": "{} is a term of law in",
    "P1303": "The instrument that {} plays is the",
    "P1376": "{} is the capital of",
    "P1412": "{} used to speak in",
}  # fmt: skip


def read_question_set(path: Path) -> list[AskedQuestion]:
    """Read the questions of a file, or of the files of a folder, in order; of equal rows only the first is kept.

    Rows with the same question and other answers are kept apart, since each is an example of its set. Raises
    `EvaluationFileError`, which names the row, if a row is no question with an answer.
    """
    asked = [_question_of(where, row) for where, row in _rows(path)]
    if not asked:
        raise EvaluationFileError(f"{path} has no question; name a file with some")
    return list({one.question_id: one for one in asked}.values())


def digest(path: Path) -> str:
    """Compute the SHA-256, in hex, of a question set's files, in order."""
    return sha256(b"".join(sha256(file.read_bytes()).digest() for file in _files(path))).hexdigest()


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    for file in _files(path):
        try:
            for number, row in _rows_of(file):
                yield f"{file.name}:{number}", row
        except (ValueError, csv.Error) as error:
            if isinstance(error, EvaluationFileError):
                raise
            form = "CSV" if file.suffix == ".csv" else "JSON"
            raise EvaluationFileError(f"{file.name} is no {form}: {error}. {_FORMS}") from error


def _rows_of(file: Path) -> Iterator[tuple[int, Any]]:
    """Yield the rows of a file with their numbers: in JSON Lines the number of the line, else that of the row."""
    text = file.read_text(encoding="utf-8-sig")
    if file.suffix == ".csv":
        yield from enumerate(csv.DictReader(text.splitlines(keepends=True)), start=1)
    elif text.lstrip().startswith("["):
        yield from enumerate(json.loads(text), start=1)
    else:
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                yield number, _decode_line(f"{file.name}:{number}", line)


def _decode_line(where: str, line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise EvaluationFileError(f"{where} is not a whole JSON object ({error.msg}). {_FORMS}") from error


def _question_of(where: str, row: Any) -> AskedQuestion:
    if not isinstance(row, Mapping):
        raise EvaluationFileError(f"{where} is no object. {_FORMS}")
    if "sub_label" in row:
        text, answers = _statement(where, row), _texts(row.get("obj_label"))
    else:
        text = next((row[name] for name in _QUESTION_FIELDS if isinstance(row.get(name), str)), "")
        answers = next((found for name in _ANSWER_FIELDS if (found := _texts(row.get(name)))), ())
    if not text.strip() or not answers:
        ours = ("obj_label",) if "sub_label" in row else _ANSWER_FIELDS
        what, names = ("answer", ours) if text.strip() else ("question", _QUESTION_FIELDS)
        raise EvaluationFileError(f"{where} has no {what}; give it in a field {' or '.join(names)}")
    name = sha256("\n".join((text.strip(), *answers)).encode()).hexdigest()[:16]
    return AskedQuestion(name, text.strip(), answers, is_statement="sub_label" in row, views=_views_of(row))


def _views_of(row: Mapping[str, Any]) -> int | None:
    """Read the monthly views of a PopQA row's subject, from the row or its metadata; None if it has no number."""
    apart = row.get("metadata")
    found = row.get("s_pop", apart.get("s_pop") if isinstance(apart, Mapping) else None)
    return int(found) if isinstance(found, int | str) and str(found).isdecimal() else None


def _statement(where: str, row: Mapping[str, Any]) -> str:
    relation = str(row.get("relation") or where.split(".")[0])
    if relation not in RELATIONS:
        raise EvaluationFileError(
            f"{where}: no sentence is known for relation {relation!r}; name the file as in P17.jsonl"
        )
    return RELATIONS[relation].format(row["sub_label"])


def _texts(found: Any) -> tuple[str, ...]:
    """Read a row's answers, given as one text, a list, or a list in JSON within a text; empty without an answer."""
    if isinstance(found, str) and found.startswith("["):
        with suppress(ValueError):  # it is an answer that begins with a bracket
            found = json.loads(found)
    several = found if isinstance(found, list) else [found]
    return tuple(dict.fromkeys(one.strip() for one in several if isinstance(one, str) and one.strip()))
