"""The tables of the results page, in Markdown: the results of a section's steps beside the paper's figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from colmlm.lab.paper.published import ANSWERS, PERPLEXITY, UNDERSTANDING
from colmlm.model.evaluate.answers import share

Record = Mapping[str, Any]  # of a step: its declaration and its result
NONE = "-"


def markdown(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Gives the lines of a table. A cell that is None is a dash."""

    def line(cells: Sequence[object]) -> str:
        texts = (NONE if cell is None else str(cell).replace("|", "\\|") for cell in cells)
        return f"| {' | '.join(texts)} |"

    return [line(columns), line(["---"] * len(columns)), *map(line, rows)]


def percent(found: Mapping[str, float] | None) -> str | None:
    """Writes a share with its interval, in per cent."""
    if found is None:
        return None
    share_, low, high = (100 * found[name] for name in ("share", "low", "high"))
    return f"{share_:.1f} [{low:.1f}, {high:.1f}]"


def answers(records: Sequence[Record]) -> list[str]:
    columns = ("questions, way of asking", "model", "questions", "answered, %", "looked up, %", "right value, %",
               "covered, %", "the paper, %")  # fmt: skip
    rows = []
    for one in records:
        result = one["result"]
        figures = (percent(result[name]) for name in ("exact_match", "looked_up", "right_value"))
        covered = f"{100 * result['covered']:.1f}"
        paper = ANSWERS.get(one["label"])
        rows.append((one["label"], result["checkpoint"], result["questions"], *figures, covered, paper))
    return markdown(columns, rows)


def perplexity(records: Sequence[Record]) -> list[str]:
    lines: list[str] = []
    for one in records:
        result = one["result"]
        found = result["perplexity"]
        rows = [
            (name.replace("_", " "), f"{p['perplexity']:.2f} [{p['low']:.2f}, {p['high']:.2f}]", p["tokens"],
             _paper_of(name))
            for name, p in found.items()
        ]  # fmt: skip
        lines += markdown(("reading", "perplexity", "tokens", "the paper"), rows)
        lines += ["", f"Of {result['checkpoint']}: {result['documents']} documents, {result['lookups']} lookups: "
                  f"{result['right_nearest']} found the very span and {result['matched_gated']} matched above the "
                  f"threshold ({result['right_gated']} the very span)."]  # fmt: skip
        lines += [f"Dynamic over {name}: {ratio:.3f}." for name, ratio in ratios(found).items()]
        lines += [f"The paper's ratio of dynamic to Standard, over all its tokens: {_paper_ratio():.3f}."]
    return lines


def ratios(found: Mapping[str, Any]) -> dict[str, float]:
    """Gives the ratio of our perplexity with lookups to that of each model without, over all its tokens and over the
    same ones.
    """
    dynamic = found["dynamic"]["perplexity"]
    return {name: dynamic / p["perplexity"] for name, p in found.items() if is_beside(name)}


def is_beside(name: str) -> bool:
    """Tells whether a perplexity is of a model without lookups."""
    return name.endswith((", all tokens", ", same tokens"))


def _paper_of(name: str) -> object:
    if name == "dynamic":
        return PERPLEXITY["dynamic"]
    return PERPLEXITY["standard"] if "standard" in name and name.endswith("all tokens") else None


def _paper_ratio() -> float:
    return PERPLEXITY["dynamic"].value / PERPLEXITY["standard"].value


def tofu(records: Sequence[Record]) -> list[str]:
    columns = ("model", "examples to forget", "model utility", "forget quality p", "log10 p", "probability",
               "ROUGE-L recall", "truth ratio")  # fmt: skip
    rows = []
    for label, report in tofu_reports(records):
        p = report.get("forget_quality")
        scores = (
            _with_interval(report, f"forget_{name}") for name in ("prob", "rougeL_recall", "truth_ratio")
        )
        logarithm = None if p is None else f"{log10(p):.2f}"
        utility = _with_interval(report, "model_utility")
        rows.append(
            (label, report["forget_n"], utility, None if p is None else f"{p:.3g}", logarithm, *scores)
        )
    return markdown(columns, rows)


def tofu_reports(records: Sequence[Record]) -> list[tuple[str, Record]]:
    """Gives each log's report with a name. A model with lookups has one report for each reading."""
    found = []
    for one in records:
        result = one["result"]
        readings = [name for name in ("spoken", "masked", "none") if name in result]
        found += [(f"{one['label']}, {name}", result[name]) for name in readings] or [(one["label"], result)]
    return found


def log10(p: float) -> float:
    """Gives the logarithm of a p-value, and that of the smallest number for one that underflows to 0."""
    return math.log10(max(p, 1e-300))


def _with_interval(report: Record, name: str) -> str:
    low, high = report["intervals"][name]
    return f"{report[name]:.3f} [{low:.3f}, {high:.3f}]"


def recall(records: Sequence[Record]) -> list[str]:
    rows = []
    for one in records:
        for checkpoint, by_query in one["result"]["tables"].items():
            for queries, by_keys in by_query.items():
                for keys, row in by_keys.items():
                    shares = (
                        _counted(row[name], row["questions"]) for name in ("recall_at_1", "recall_at_10")
                    )
                    rows.append(
                        (
                            checkpoint,
                            queries,
                            keys,
                            row["facts"],
                            row["questions"],
                            *shares,
                            f"{row['mrr']:.3f}",
                        )
                    )
    columns = ("checkpoint", "queries", "keys", "facts", "questions", "recall@1, %", "recall@10, %", "MRR")
    return markdown(columns, rows)


def _counted(held: float, of: int) -> str | None:
    """Writes a share of questions that was given without its interval."""
    right = round(held * of)
    found = share([True] * right + [False] * (of - right))
    return percent({"share": found.share, "low": found.low, "high": found.high})


def understanding(records: Sequence[Record]) -> list[str]:
    rows = []
    for one in records:
        result = one["result"]
        shares = (_accuracy(result, name) for name in ("acc", "acc_norm"))
        rows.append(
            (one["label"], result["checkpoint"], result["items"], *shares, UNDERSTANDING.get(one["label"]))
        )
    columns = ("set", "model", "items", "accuracy, %", "by character, %", "the paper, %")
    return markdown(columns, rows)


def _accuracy(result: Record, name: str) -> str | None:
    low, high = result["intervals"][name]
    return percent({"share": result[name], "low": low, "high": high})


def anything(records: Sequence[Record]) -> list[str]:
    """Tabulates every number of a result by its path, for a measurement without a table of its own."""
    lines: list[str] = []
    for one in records:
        rows = [(path, value) for path, value in _numbers(one["result"], "")]
        lines += [f"{one['label']}:", "", *markdown(("", "value"), rows), ""]
    return lines[:-1]


def _numbers(value: Any, path: str) -> Iterable[tuple[str, str]]:
    if isinstance(value, Mapping):
        if {"share", "low", "high"} <= set(value):
            yield f"{path}, %", percent(value) or NONE
            return
        for name, item in value.items():
            yield from _numbers(item, f"{path} {name}".strip().replace("_", " "))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for number, item in enumerate(value, start=1):
            yield from _numbers(item, f"{path} {number}")
    elif value is not None:
        yield path, f"{value:.4g}" if isinstance(value, float) else str(value)


Render = Callable[[Sequence[Record]], list[str]]
