"""A TOFU log in the layout of open-unlearning, so that its tools and tables can read this project's measurements.

That project keeps one object per metric: ``agg_value``, and ``value_by_index`` if the metric has a value per example.
An answer has its probability and mean loss; several wrong answers of one example have a list of each. Its summary is
every metric's ``agg_value``. The names are open-unlearning's, including two spellings of the truth ratio.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import hmean, ks_2samp

from colmlm.model.evaluate.tofu_tables import rouge

Table = Mapping[str, Mapping[str, Any]]  # columns of a published log, each by row
Metrics = dict[str, Any]
_TINY = 1e-10

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
    """Computes every metric of a log, by name. `retained`, of a model without the forget set, gives forget quality."""
    found: Metrics = {}
    for name, file in _TABLES.items():
        found |= _of_table(name, log[file])
    found["model_utility"] = {"agg_value": float(hmean([found[name]["agg_value"] for name in _UTILITY]))}
    if retained is not None:
        reference = _of_table("forget", retained[_TABLES["forget"]])
        p = ks_2samp(_scores(found[FORGET_RATIO]), _scores(reference[FORGET_RATIO])).pvalue
        found["forget_quality"] = {"agg_value": float(p)}
    return dict(sorted(found.items()))


def summary(metrics: Metrics) -> dict[str, float]:
    """Gives each metric's one number: TOFU_SUMMARY.json."""
    return {name: one["agg_value"] for name, one in metrics.items()}


def _of_table(name: str, table: Table) -> Metrics:
    right, wrong = _answers(table["avg_gt_loss"]), _answers(table["average_perturb_loss"])
    found = {f"{name}_Q_A_Prob": right, f"{name}_Q_A_PERT_Prob": wrong, f"{name}_Q_A_ROUGE": _rouge(table)}
    stated = _answers(table.get("avg_paraphrased_loss") or table["avg_gt_loss"])
    if name in ("ra", "wf"):  # `stated` is the answer itself, which some logs have under both names
        found[f"{name}_Q_A_Prob_normalised"] = _among(right, wrong)
    else:
        found[f"{name}_Q_A_PARA_Prob"] = stated
    ratio_name = FORGET_RATIO if name == "forget" else f"{name}_Truth_Ratio"
    found[ratio_name] = _ratio(stated, wrong, _nearest_one if name == "forget" else _below_one)
    return found


def _answers(losses: Mapping[str, Any]) -> Metrics:
    """Gives the probabilities of one answer, or of several, for each example."""
    values = {
        row: {"prob": np.exp(-np.asarray(loss)).tolist(), "avg_loss": loss} for row, loss in losses.items()
    }
    return _metric([float(np.mean(one["prob"])) for one in values.values()], values)


def _among(right: Metrics, wrong: Metrics) -> Metrics:
    """Gives the right answer's probability among all answers that the example names."""
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
    """Gives the ROUGE scores of the generated text, with the texts if the log has them."""
    values: dict[str, Any] = {}
    for row, recall in table["rougeL_recall"].items():
        values[row] = {"rougeL_recall": recall}
        if row in table.get("generated_text", {}):
            asked, said, answer = table["generated_text"][row]
            scores = rouge(answer, said.removeprefix("Answer:"))
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
