"""Tables of a TOFU log computed from a model: losses of answers and ROUGE of generated texts, example by example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from rouge_score.rouge_scorer import RougeScorer

from colmlm.model.evaluate.tofu_data import Example

Loss = tuple[float, int]  # of an answer: nats, and the number of scored tokens
Columns = dict[str, Any]


def columns(example: Example, generated: str, losses: Sequence[Loss]) -> Columns:
    """Gives one example's values, by the names of the published logs. `losses` are of its answers, in their order."""
    right, stated, *wrong = losses
    scores = rouge(example.answer.text, generated)
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
    """Gives the examples' values by column, as the published logs have them."""
    return {name: {str(i): row[name] for i, row in enumerate(rows)} for name in rows[0]}


def rouge(answer: str, said: str) -> Mapping[str, Any]:
    """Computes ROUGE-1 and ROUGE-L of a generated text against an answer: precision, recall, F1."""
    scores: Mapping[str, Any] = _scorer().score(answer, said)
    return scores


def _mean(nats: float, tokens: int) -> float:
    return nats / tokens


@cache
def _scorer() -> RougeScorer:
    return RougeScorer(["rouge1", "rougeL"], use_stemmer=True)
