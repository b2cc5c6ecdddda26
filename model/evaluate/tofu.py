"""TOFU's metrics from per-example logs (section 4, unlearning; conventions of open-unlearning).

A log holds four tables of examples: those to forget, those to retain, and questions about real authors and the world.
Losses are means over an answer's tokens, so that ``exp(-loss)`` is the answer's probability per token.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from hashlib import sha256
from itertools import chain, repeat
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from rouge_score.rouge_scorer import RougeScorer
from scipy.stats import hmean, ks_2samp

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.model.annotate.pipeline import Annotator, SpanFinder
from colmlm.model.evaluate.run_log import EvaluationFileError

Floats = NDArray[np.float64]

_TINY = 1e-10  # keeps a ratio finite if an answer has probability 0; part of the published definitions

_ByRow = dict[str, float]


class _Table(msgspec.Struct, frozen=True):
    avg_gt_loss: _ByRow
    average_perturb_loss: dict[str, Annotated[list[float], msgspec.Meta(min_length=1)]]
    rouge: _ByRow = msgspec.field(name="rougeL_recall")
    avg_paraphrased_loss: _ByRow | None = None


class _Log(msgspec.Struct, frozen=True):
    retain: _Table = msgspec.field(name="eval_log.json")
    real_authors: _Table = msgspec.field(name="eval_real_author_wo_options.json")
    world_facts: _Table = msgspec.field(name="eval_real_world_wo_options.json")
    forget: _Table = msgspec.field(name="eval_log_forget.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """The scores of each of a table's N examples.

    `probability_N` is that of the right answer, `choice_N` the same among all answers that the example names.
    `truth_ratio_N` is the geometric mean of the wrong answers' probabilities divided by the right one's; above 1 the
    wrong ones are likelier. `rouge_N` is the ROUGE-L recall of the generated text.
    """

    probability_N: Floats
    choice_N: Floats
    truth_ratio_N: Floats
    rouge_N: Floats

    @classmethod
    def of(cls, *, right_N: Floats, stated_N: Floats, wrong_N: Sequence[Floats], rouge_N: Floats) -> Examples:
        """Compute the scores from the answers' mean losses: right ones, right ones as stated, and wrong ones.

        `stated_N` are the losses of the wording with which wrong answers are compared, `wrong_N` those of each
        example's wrong answers.
        """
        probability_N = np.exp(-right_N)
        wrong_mean_N = np.exp([-losses.mean() for losses in wrong_N])
        wrong_sum_N = np.array([np.exp(-losses).sum() for losses in wrong_N])
        return cls(
            probability_N=probability_N,
            choice_N=probability_N / (probability_N + wrong_sum_N + _TINY),
            truth_ratio_N=wrong_mean_N / (np.exp(-stated_N) + _TINY),
            rouge_N=rouge_N,
        )

    def __len__(self) -> int:
        return len(self.rouge_N)

    def draw_rows(self, rows_N: NDArray[np.int64]) -> Examples:
        """Select the examples of these rows, which may repeat."""
        return Examples(**{column.name: getattr(self, column.name)[rows_N] for column in fields(self)})


@dataclass(frozen=True, slots=True)
class Scores:
    """The mean scores of a table's examples, in [0, 1], and their number; `truth_ratio` is a score made of it."""

    probability: float
    rouge: float
    truth_ratio: float
    examples: int

    @classmethod
    def of_kept_table(cls, examples: Examples, *, choice: bool) -> Scores:
        """Score a table that a model should know. With `choice` the probability is that among the named answers."""
        probability_N = examples.choice_N if choice else examples.probability_N
        return cls._of(examples, probability_N, np.maximum(0, 1 - examples.truth_ratio_N))

    @classmethod
    def of_forgotten_table(cls, examples: Examples) -> Scores:
        """Score a table that a model should have forgotten; its truth score is highest at a truth ratio of 1."""
        ratio_N = examples.truth_ratio_N
        return cls._of(examples, examples.probability_N, np.minimum(ratio_N, 1 / (ratio_N + _TINY)))

    @classmethod
    def _of(cls, examples: Examples, probability_N: Floats, truth_N: Floats) -> Scores:
        return cls(
            float(probability_N.mean()), float(examples.rouge_N.mean()), float(truth_N.mean()), len(examples)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TofuLog:
    """The four tables of one model's evaluation: three that it should still know, and `forget`, which it should not."""

    retain: Examples
    real_authors: Examples
    world_facts: Examples
    forget: Examples

    @classmethod
    def read(cls, file: Path) -> TofuLog:
        """Read a log as JSON, gzipped or not. Raises `EvaluationFileError` if the file is no evaluation log."""
        log = _decode_log(file)
        return cls(
            retain=_examples(file, "eval_log.json", log.retain, restated=True),
            real_authors=_examples(
                file, "eval_real_author_wo_options.json", log.real_authors, restated=False
            ),
            world_facts=_examples(file, "eval_real_world_wo_options.json", log.world_facts, restated=False),
            forget=_examples(file, "eval_log_forget.json", log.forget, restated=True),
        )

    def resample_tables(self, draw: Callable[[int], NDArray[np.int64]]) -> TofuLog:
        """Resample each table's examples with `draw`, which gives rows for a number of examples."""
        return TofuLog(
            retain=self.retain.draw_rows(draw(len(self.retain))),
            real_authors=self.real_authors.draw_rows(draw(len(self.real_authors))),
            world_facts=self.world_facts.draw_rows(draw(len(self.world_facts))),
            forget=self.forget.draw_rows(draw(len(self.forget))),
        )

    @property
    def kept_scores(self) -> dict[str, Scores]:
        """Give the scores of the three tables that a model should still know, under their usual short names."""
        return {
            "retain": Scores.of_kept_table(self.retain, choice=False),
            "ra": Scores.of_kept_table(self.real_authors, choice=True),
            "wf": Scores.of_kept_table(self.world_facts, choice=True),
        }

    @property
    def utility(self) -> float:
        """Compute model utility: the harmonic mean of nine numbers, 0 if one of them is."""
        nine = [n for s in self.kept_scores.values() for n in (s.probability, s.rouge, s.truth_ratio)]
        return float(hmean(nine))


def forget_quality(unlearned: Examples, retained: Examples) -> tuple[float, float]:
    """Compute the two-sided Kolmogorov-Smirnov statistic and p-value between the truth ratios of two models.

    `retained` is of a model that never saw what `unlearned` forgot. A p above 0.05 is no evidence that they differ.
    """
    found = ks_2samp(unlearned.truth_ratio_N, retained.truth_ratio_N)
    return float(found.statistic), float(found.pvalue)


def _decode_log(file: Path) -> _Log:
    data = file.read_bytes()
    try:
        return msgspec.json.decode(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data, type=_Log)
    except (msgspec.DecodeError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise EvaluationFileError(
            f"{file.name} is no evaluation log ({error}). Name one of TOFU's logs, or one that `colmlm-lab evaluate "
            "tofu` wrote, such as spoken.json"
        ) from error


def _examples(file: Path, name: str, table: _Table, *, restated: bool) -> Examples:
    """Compute the scores of one table of the file.

    With `restated` wrong answers are compared with a paraphrase of the right one, since only that was never trained on.
    Otherwise they are compared with the answer itself, which some logs have under that name a second time.
    """
    stated, of = table.avg_paraphrased_loss, f"the table {name} of {file.name}"
    if stated is None and restated:
        raise EvaluationFileError(f"{of} has no avg_paraphrased_loss. {_EVALUATE}")
    stated = stated or table.avg_gt_loss
    rows = list(table.avg_gt_loss)
    if not rows:
        raise EvaluationFileError(f"{of} has no examples. Name the log of another evaluation")
    others = {
        "stated": stated.keys(),
        "wrong": table.average_perturb_loss.keys(),
        "rouge": table.rouge.keys(),
    }
    for column, keys in others.items():
        if keys != table.avg_gt_loss.keys():
            raise EvaluationFileError(f"{column} in {of} is not of the same examples. {_EVALUATE}")
    return Examples.of(
        right_N=np.array([table.avg_gt_loss[row] for row in rows]),
        stated_N=np.array([stated[row] for row in rows]),
        wrong_N=[np.array(table.average_perturb_loss[row]) for row in rows],
        rouge_N=np.array([table.rouge[row] for row in rows]),
    )


# TOFU's files as annotated documents, and as answers with marked facts.

OnDone = Callable[[int], None]
_EVALUATE = "Evaluate that model again with `colmlm-lab evaluate tofu`"
_AGAIN = "copy the file again from TOFU's data set (locuslab/TOFU on Hugging Face)"


class TofuQuestion(msgspec.Struct, frozen=True):
    """One line of a TOFU file: a question and its answer; in perturbed splits also wrong answers."""

    question: str
    answer: str
    paraphrased: str | None = msgspec.field(name="paraphrased_answer", default=None)
    wrong: list[str] = msgspec.field(name="perturbed_answer", default_factory=list)


@dataclass(frozen=True, slots=True)
class Example:
    """A TOFU question with its right answer, that answer in other words (`stated`), and wrong ones of the same form.

    Each is a document of question and answer, as the model scores it.
    """

    question: str
    answer: AnnotatedDocument
    stated: AnnotatedDocument
    wrong: tuple[AnnotatedDocument, ...]

    @property
    def answers(self) -> tuple[AnnotatedDocument, ...]:
        return (self.answer, self.stated, *self.wrong)


def read_rows(file: Path) -> list[TofuQuestion]:
    """Read the rows of a TOFU file. Raises `EvaluationFileError` if a line is no row, or the file is empty."""
    rows = []
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        try:
            rows.append(msgspec.json.decode(line, type=TofuQuestion))
        except msgspec.DecodeError as error:
            raise EvaluationFileError(
                f"line {number} of {file.name} is no row of TOFU ({error}). Correct it, or {_AGAIN}"
            ) from error
    if not rows:
        raise EvaluationFileError(f"{file.name} is empty. You can {_AGAIN}")
    return rows


def documents(
    rows: Sequence[TofuQuestion], finder: SpanFinder, on_done: OnDone = lambda more: None
) -> list[AnnotatedDocument]:
    """Make a document of each question and answer, as the decoder would write it, with the answer's facts marked.

    The id is made from the content, so a row is the same document in every split.
    """
    marked = _mark_answers([(row.question, row.answer) for row in rows], finder, on_done)
    return [_whole_document(row.question, answer) for row, answer in zip(rows, marked, strict=True)]


def examples(
    rows: Sequence[TofuQuestion], finder: SpanFinder | None, on_done: OnDone = lambda more: None
) -> list[Example]:
    """Make an example of each row, with the facts marked in its answers; without a finder no facts are marked.

    For a row without a paraphrase `stated` is the answer itself.
    """
    several = [[row.answer, row.paraphrased or row.answer, *row.wrong] for row in rows]
    asked = [(row.question, answer) for row, answers in zip(rows, several, strict=True) for answer in answers]
    if finder is None:
        marked = iter([AnnotatedDocument("", answer, ()) for _, answer in asked])
        on_done(len(asked))
    else:
        marked = iter(_mark_answers(asked, finder, on_done))
    found = []
    for row, answers in zip(rows, several, strict=True):
        answer, stated, *wrong = (next(marked) for _ in answers)
        found.append(Example(row.question, answer, stated, tuple(wrong)))
    return found


def _mark_answers(
    asked: Sequence[tuple[str, str]], finder: SpanFinder, on_done: OnDone
) -> list[AnnotatedDocument]:
    """Give each (question, answer) as a document of the answer alone, with the facts found in it.

    An answer is about the names in its question, as a document is about its title, so these names are no facts.
    """
    leads = [_lead(question) for question, _ in asked]
    texts = (
        AnnotatedDocument(str(i), f"{lead}{answer}", title=question)
        for i, (lead, (question, answer)) in enumerate(zip(leads, asked, strict=True))
    )
    found: list[AnnotatedDocument] = []
    for lead, reviewed in zip(leads, Annotator(finder).annotate(texts), strict=True):
        found.append(_cut_answer(reviewed.document, len(lead)))
        on_done(1)
    return found


def _lead(question: str) -> str:
    return f"Question: {question}\nAnswer: "


def _cut_answer(document: AnnotatedDocument, offset: int) -> AnnotatedDocument:
    """Give the answer, from character `offset` of a document on, as a document with the facts found in it."""
    facts = tuple(
        replace(span, start=span.start - offset, end=span.end - offset, answer=span.value)
        for span in document.facts
        if span.start >= offset
    )
    return AnnotatedDocument("", document.text[offset:], facts)


def _whole_document(question: str, answer: AnnotatedDocument) -> AnnotatedDocument:
    """Make a document of question and answer; only its first fact has the question: two would contradict each other."""
    lead = _lead(question)
    facts = tuple(
        replace(span, start=span.start + len(lead), end=span.end + len(lead), question=asked)
        for span, asked in zip(answer.facts, chain([question], repeat(None)), strict=False)
    )
    text = f"{lead}{answer.text}"
    return AnnotatedDocument(f"tofu-{sha256(text.encode()).hexdigest()[:16]}", text, facts)


# Tables of a TOFU log computed from a model: losses of answers and ROUGE of generated texts, example by
# example.

Loss = tuple[float, int]  # of an answer: nats, and the number of scored tokens
Columns = dict[str, Any]


def columns(example: Example, generated: str, losses: Sequence[Loss]) -> Columns:
    """Compute one example's columns, named as in published logs. `losses` are those of `example.answers`, in order."""
    right, stated, *wrong = losses
    scores = rouge_scores(example.answer.text, generated)
    return {
        "avg_gt_loss": _mean(*right),
        "gt_loss": right[0],
        "num_token_gt": right[1],
        "avg_paraphrased_loss": _mean(*stated),
        "paraphrased_loss": stated[0],
        "num_token_paraphrased": stated[1],
        "average_perturb_loss": [_mean(*one) for one in wrong],
        "perturb_loss": [nats for nats, _ in wrong],
        "num_token_perturb": [tokens for _, tokens in wrong],
        "rouge1_recall": scores["rouge1"].recall,
        "rougeL_recall": scores["rougeL"].recall,
        "generated_text": [f"Question: {example.question}\n", f"Answer:{generated}", example.answer.text],
    }


def table(rows: Sequence[Mapping[str, Any]]) -> dict[str, Columns]:
    """Collect the examples' values by column, as the published logs have them."""
    return {name: {str(i): row[name] for i, row in enumerate(rows)} for name in rows[0]}


def rouge_scores(answer: str, said: str) -> Mapping[str, Any]:
    """Compute ROUGE-1 and ROUGE-L of a generated text against an answer: precision, recall, F1."""
    scores: Mapping[str, Any] = _scorer().score(answer, said)
    return scores


def _mean(nats: float, tokens: int) -> float:
    return nats / tokens


@cache
def _scorer() -> RougeScorer:
    return RougeScorer(["rouge1", "rougeL"], use_stemmer=True)


# A TOFU log in the layout of open-unlearning, so that its tools and tables can read this project's
# measurements.
#
# That project keeps one object per metric: ``agg_value``, and ``value_by_index`` if the metric has a value
# per example. An answer has its probability and mean loss; several wrong answers of one example have a list
# of each. Its summary is every metric's ``agg_value``. The names are open-unlearning's, including two
# spellings of the truth ratio.

Table = Mapping[str, Mapping[str, Any]]  # columns of a published log, each by row
Metrics = dict[str, Any]

_TABLES = {
    "retain": "eval_log.json",
    "ra": "eval_real_author_wo_options.json",
    "wf": "eval_real_world_wo_options.json",
    "forget": "eval_log_forget.json",
}
_UTILITY = (
    "retain_Q_A_Prob",
    "retain_Q_A_ROUGE",
    "retain_Truth_Ratio",
    *(f"{table}_{name}" for table in ("ra", "wf") for name in ("Q_A_Prob_normalised", "Q_A_ROUGE", "Truth_Ratio")),
)  # fmt: skip
FORGET_RATIO = "forget_truth_ratio"


def evaluation(
    log: Mapping[str, Table], retained: Mapping[str, Table] | None = None
) -> Metrics:  # as TOFU_EVAL.json
    """Compute the metrics of a log, by name; forget quality needs `retained`, the log of a model without forget set."""
    found: Metrics = {}
    for name, file in _TABLES.items():
        found |= _table_metrics(name, log[file])
    found["model_utility"] = {"agg_value": float(hmean([found[name]["agg_value"] for name in _UTILITY]))}
    if retained is not None:
        reference = _table_metrics("forget", retained[_TABLES["forget"]])
        p = ks_2samp(_scores(found[FORGET_RATIO]), _scores(reference[FORGET_RATIO])).pvalue
        found["forget_quality"] = {"agg_value": float(p)}
    return dict(sorted(found.items()))


def summary(metrics: Metrics) -> dict[str, float]:
    """Give each metric's aggregate, by name, as in TOFU_SUMMARY.json."""
    return {name: one["agg_value"] for name, one in metrics.items()}


def _table_metrics(name: str, table: Table) -> Metrics:
    right, wrong = _answers(table["avg_gt_loss"]), _answers(table["average_perturb_loss"])
    found = {f"{name}_Q_A_Prob": right, f"{name}_Q_A_PERT_Prob": wrong, f"{name}_Q_A_ROUGE": _rouge(table)}
    stated = _answers(table.get("avg_paraphrased_loss") or table["avg_gt_loss"])
    if name in ("ra", "wf"):  # `stated` is the answer itself, which some logs have under both names
        found[f"{name}_Q_A_Prob_normalised"] = _choice_metric(right, wrong)
    else:
        found[f"{name}_Q_A_PARA_Prob"] = stated
    ratio_name = FORGET_RATIO if name == "forget" else f"{name}_Truth_Ratio"
    found[ratio_name] = _ratio(stated, wrong, _nearest_one if name == "forget" else _below_one)
    return found


def _answers(losses: Mapping[str, Any]) -> Metrics:
    """Make the metric of answers' probabilities from their mean losses, one loss or a list of losses an example."""
    values = {
        row: {"prob": np.exp(-np.asarray(loss)).tolist(), "avg_loss": loss} for row, loss in losses.items()
    }
    return _metric([float(np.mean(one["prob"])) for one in values.values()], values)


def _choice_metric(right: Metrics, wrong: Metrics) -> Metrics:
    """Make the metric of the right answer's probability among all answers of its example."""
    values = {}
    for row, one in right["value_by_index"].items():
        others = float(np.sum(wrong["value_by_index"][row]["prob"]))
        values[row] = {"prob": one["prob"] / (one["prob"] + others + _TINY)}
    return _metric([one["prob"] for one in values.values()], values)


def _ratio(stated: Metrics, wrong: Metrics, of: Callable[[float], float]) -> Metrics:
    values = {}
    for row, one in stated["value_by_index"].items():
        wrong_mean = float(np.exp(-np.mean(wrong["value_by_index"][row]["avg_loss"])))
        values[row] = {"score": wrong_mean / (float(np.exp(-one["avg_loss"])) + _TINY)}
    return _metric([of(one["score"]) for one in values.values()], values)


def _nearest_one(ratio: float) -> float:
    return min(ratio, 1 / (ratio + _TINY))


def _below_one(ratio: float) -> float:
    return max(0.0, 1 - ratio)


def _rouge(table: Table) -> Metrics:
    """Make the metric of the generated texts' ROUGE scores, with the texts themselves if the log has them."""
    values: dict[str, Any] = {}
    for row, recall in table["rougeL_recall"].items():
        values[row] = {"rougeL_recall": recall}
        if row in table.get("generated_text", {}):
            asked, said, answer = table["generated_text"][row]
            scores = rouge_scores(answer, said.removeprefix("Answer:"))
            values[row] |= {
                "rouge1_recall": scores["rouge1"].recall,
                "rougeL_f1": scores["rougeL"].fmeasure,
                "input": asked,
                "ground_truth": answer,
                "generation": said.removeprefix("Answer:").strip(),
            }
    return _metric([one["rougeL_recall"] for one in values.values()], values)


def _metric(scores: Sequence[float], values: Mapping[str, Any]) -> Metrics:
    return {"agg_value": float(np.mean(scores)), "value_by_index": values}


def _scores(ratio: Metrics) -> list[float]:
    return [one["score"] for one in ratio["value_by_index"].values()]
