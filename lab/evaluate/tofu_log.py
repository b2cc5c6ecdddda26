"""`colmlm-lab evaluate tofu-log`: computes TOFU's metrics from a log of per-example losses and scores."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from colmlm.cli.options import examples, wants_json
from colmlm.cli.output import note, print_json, print_table, say
from colmlm.model.evaluate.intervals import Interval, bootstrap
from colmlm.model.evaluate.tofu import Scores, TofuLog, TofuLogError, forget_quality

EXAMPLES = examples(
    "colmlm-lab evaluate tofu-log full.json.gz",
    "colmlm-lab evaluate tofu-log unlearned.json --retain retain90.json --json",
)

LogFile = Annotated[
    Path, typer.Argument(metavar="LOG", exists=True, dir_okay=False, help="JSON, gzipped or not.")
]
RetainFile = Annotated[
    Path | None,
    typer.Option(
        "--retain",
        metavar="LOG",
        exists=True,
        dir_okay=False,
        help="The log of a model that never saw what was to be forgotten: gives the forget quality.",
    ),
]


def tofu_log(
    log: LogFile,
    retain: RetainFile = None,
    resamples: Annotated[
        int, typer.Option("--resamples", min=100, max=100_000, help="Of the bootstrap intervals.")
    ] = 1000,
) -> None:
    """Compute model utility, its nine numbers, the scores of the forget set and, with --retain, the forget quality.

    LOG has the layout of TOFU's published evaluation logs. Intervals are 95 %, by bootstrap over examples.
    """
    found = _read(log, "LOG")
    report = report_of(found, resamples)
    if retain is not None:
        report |= beside(found, _read(retain, "--retain"))
    print_json(report) if wants_json() else show(found, report)


def report_of(log: TofuLog, resamples: int = 1000) -> dict[str, Any]:
    """Gives the metrics of a log, with the interval of each score."""
    intervals = bootstrap(lambda draw: _numbers(log.drawn(draw)), resamples=resamples)
    return {**_numbers(log), **_counts(log), "intervals": intervals}


def _read(file: Path, hint: str) -> TofuLog:
    try:
        return TofuLog.read(file)
    except TofuLogError as error:
        raise typer.BadParameter(f"{error}.", param_hint=hint) from error


def _tables(log: TofuLog) -> dict[str, Scores]:
    return log.kept | {"forget": Scores.forgotten(log.forget)}


def _numbers(log: TofuLog) -> dict[str, float]:
    named = {
        f"{table}_{name}": value
        for table, s in _tables(log).items()
        for name, value in (
            ("prob", s.probability),
            ("rougeL_recall", s.rouge),
            ("truth_ratio", s.truth_ratio),
        )
    }
    return named | {"model_utility": log.utility}


def _counts(log: TofuLog) -> dict[str, int]:
    return {f"{table}_n": s.examples for table, s in _tables(log).items()}


def beside(log: TofuLog, retained: TofuLog) -> dict[str, float]:
    """Gives the forget quality of a log against that of a model that never saw the forget set."""
    if len(log.forget) != len(retained.forget):
        note(
            f"warning: the forget sets differ, {len(log.forget)} and {len(retained.forget)} examples: "
            "take logs of the same one"
        )
    statistic, quality = forget_quality(log.forget, retained.forget)
    return {"forget_quality": quality, "forget_ks": statistic}


def show(log: TofuLog, report: Mapping[str, Any]) -> None:
    """Prints the report for people, one line per table."""
    rows, intervals = [], report["intervals"]
    for table, scores in _tables(log).items():
        numbers = {n: v for n, v in _numbers(log).items() if n.startswith(f"{table}_")}
        rows.append([table, scores.examples, *(_cell(v, intervals[n]) for n, v in numbers.items())])
    print_table(["table", "examples", "probability", "ROUGE-L recall", "truth ratio"], rows)
    say(f"\nModel utility: {_cell(log.utility, intervals['model_utility'])}")
    if "forget_quality" in report:
        say(f"Forget quality: p = {report['forget_quality']:.4g} (KS {report['forget_ks']:.4f})")


def _cell(value: float, interval: Interval) -> str:
    return f"{value:.4f} [{interval[0]:.4f}, {interval[1]:.4f}]"
