"""TOFU's metrics from per-example logs (section 4, unlearning; conventions of open-unlearning).

A log holds four tables of examples: those to forget, those to retain, and questions about real authors and the world.
Losses are means over an answer's tokens, so that ``exp(-loss)`` is the answer's probability per token.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.stats import hmean, ks_2samp

Floats = NDArray[np.float64]

_TINY = 1e-10  # keeps a ratio finite if an answer has probability 0; part of the published definitions

_ByRow = dict[str, float]


class TofuLogError(ValueError):
    """The file is no log; the message says what is wrong with it."""


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
        """Computes the scores from losses of three kinds.

        They are those of the answer itself, of the wording that wrong answers are compared with, and of the wrong
        answers.
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

    def drawn(self, rows_N: NDArray[np.int64]) -> Examples:
        """Gives the examples of these rows, which may repeat."""
        return Examples(**{column.name: getattr(self, column.name)[rows_N] for column in fields(self)})


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of one table: three numbers between 0 and 1, and the number of its examples."""

    probability: float
    rouge: float
    truth_ratio: float
    examples: int

    @classmethod
    def kept(cls, examples: Examples, *, choice: bool) -> Scores:
        """Scores a table that a model should know. With `choice` the probability is that among the named answers."""
        probability_N = examples.choice_N if choice else examples.probability_N
        return cls._of(examples, probability_N, np.maximum(0, 1 - examples.truth_ratio_N))

    @classmethod
    def forgotten(cls, examples: Examples) -> Scores:
        """Scores a table that a model should have forgotten; a truth ratio near 1 tells right from wrong least."""
        ratio_N = examples.truth_ratio_N
        return cls._of(examples, examples.probability_N, np.minimum(ratio_N, 1 / (ratio_N + _TINY)))

    @classmethod
    def _of(cls, examples: Examples, probability_N: Floats, truth_N: Floats) -> Scores:
        return cls(
            float(probability_N.mean()), float(examples.rouge_N.mean()), float(truth_N.mean()), len(examples)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TofuLog:
    """The four tables of one model's evaluation."""

    retain: Examples
    real_authors: Examples
    world_facts: Examples
    forget: Examples

    @classmethod
    def read(cls, file: Path) -> TofuLog:
        """Reads a log as JSON, gzipped or not. Raises `TofuLogError` if it is none."""
        log = _decoded(file)
        return cls(
            retain=_examples("eval_log.json", log.retain, restated=True),
            real_authors=_examples("eval_real_author_wo_options.json", log.real_authors, restated=False),
            world_facts=_examples("eval_real_world_wo_options.json", log.world_facts, restated=False),
            forget=_examples("eval_log_forget.json", log.forget, restated=True),
        )

    def drawn(self, draw: Callable[[int], NDArray[np.int64]]) -> TofuLog:
        """Resamples each table's examples with `draw`, which gives rows for a number of examples."""
        return TofuLog(
            retain=self.retain.drawn(draw(len(self.retain))),
            real_authors=self.real_authors.drawn(draw(len(self.real_authors))),
            world_facts=self.world_facts.drawn(draw(len(self.world_facts))),
            forget=self.forget.drawn(draw(len(self.forget))),
        )

    @property
    def kept(self) -> dict[str, Scores]:
        """Gives the scores of the three tables that a model should still know, under their usual short names."""
        return {
            "retain": Scores.kept(self.retain, choice=False),
            "ra": Scores.kept(self.real_authors, choice=True),
            "wf": Scores.kept(self.world_facts, choice=True),
        }

    @property
    def utility(self) -> float:
        """Computes model utility: the harmonic mean of nine numbers, 0 if one of them is."""
        nine = [n for s in self.kept.values() for n in (s.probability, s.rouge, s.truth_ratio)]
        return float(hmean(nine))


def forget_quality(unlearned: Examples, retained: Examples) -> tuple[float, float]:
    """Computes the two-sided Kolmogorov-Smirnov statistic and p-value between the truth ratios of two models.

    `retained` is of a model that never saw what `unlearned` forgot. A p above 0.05 is no evidence that they differ.
    """
    found = ks_2samp(unlearned.truth_ratio_N, retained.truth_ratio_N)
    return float(found.statistic), float(found.pvalue)


def _decoded(file: Path) -> _Log:
    data = file.read_bytes()
    try:
        return msgspec.json.decode(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data, type=_Log)
    except (msgspec.DecodeError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise TofuLogError(f"{file.name} is no evaluation log: {error}") from error


def _examples(name: str, table: _Table, *, restated: bool) -> Examples:
    """Computes the scores of one table.

    With `restated` wrong answers are compared with a paraphrase of the right one, since only that was never trained on.
    Otherwise they are compared with the answer itself, which some logs have under that name a second time.
    """
    stated = table.avg_paraphrased_loss
    if stated is None and restated:
        raise TofuLogError(f"{name} has no avg_paraphrased_loss")
    stated = stated or table.avg_gt_loss
    rows = list(table.avg_gt_loss)
    if not rows:
        raise TofuLogError(f"{name} has no examples")
    for other in (stated, table.average_perturb_loss, table.rouge):
        if other.keys() != table.avg_gt_loss.keys():
            raise TofuLogError(f"the columns of {name} are not of the same examples")
    return Examples.of(
        right_N=np.array([table.avg_gt_loss[row] for row in rows]),
        stated_N=np.array([stated[row] for row in rows]),
        wrong_N=[np.array(table.average_perturb_loss[row]) for row in rows],
        rouge_N=np.array([table.rouge[row] for row in rows]),
    )
