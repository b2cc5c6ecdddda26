"""`colmlm evaluate judge-answers`: has a judge grade stored answers, and gives SimpleQA's figures."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from colmlm.cli.options import AsJson, examples
from colmlm.cli.output import counting, note, print_json, print_table, say
from colmlm.lab.evaluate.judges import (
    Concurrency,
    Cost,
    CostOnly,
    JudgedOut,
    JudgeKey,
    JudgeKind,
    JudgeModel,
    JudgeOptions,
    JudgeSort,
    JudgeUrl,
    MayCost,
    OpenedJudge,
    Temperature,
    agreed,
    judged_beside,
    opened,
)
from colmlm.lab.evaluate.kept import open_log, read_kept, said_as
from colmlm.lab.evaluate.options import FromTheFirst
from colmlm.model.evaluate.judge import grading, tokens_of
from colmlm.model.evaluate.judged import simple_qa
from colmlm.model.evaluate.judging import judge_each
from colmlm.model.evaluate.run_log import Row, RunLog

EXAMPLES = examples(
    "colmlm evaluate judge-answers answers.jsonl --judge-url https://llm.example/v1 --judge-model large --dry-run",
    "colmlm evaluate judge-answers answers.jsonl --judge local --json",
)
TOKENS_OUT = 10  # tokens of one verdict
FIGURES = ("correct", "incorrect", "not_attempted", "correct_given_attempted", "f_score")


@dataclass(frozen=True, slots=True)
class Kept:
    """An answer that `colmlm evaluate qa --out` stored. Its name in the log changes with its text."""

    name: str
    question: str
    references: tuple[str, ...]
    said: str


def judge_answers(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", exists=True, dir_okay=False, help="The answers: --out of colmlm evaluate qa."
        ),
    ],
    judge: JudgeKind = JudgeSort.chat,
    judge_url: JudgeUrl = None,
    judge_model: JudgeModel = None,
    judge_key_file: JudgeKey = None,
    temperature: Temperature = None,
    concurrency: Concurrency = 4,
    limit: FromTheFirst = None,
    out: JudgedOut = None,
    dry_run: CostOnly = False,
    yes: MayCost = False,
    as_json: AsJson = False,
) -> None:
    """Have kept answers judged correct, incorrect or not attempted, and count them as SimpleQA does.

    It tells the cost before it begins. If the judge's answer has not the required form, it is asked again, at most
    twice; then the row is *unjudged*: it is not counted, and the next run asks again.
    """
    options = JudgeOptions(
        kind=judge, url=judge_url, model=judge_model, key_file=judge_key_file, temperature=temperature,
        concurrency=concurrency,
    )  # fmt: skip
    answered, kept = read_kept(file, _kept, "qa")
    kept, target = kept[:limit], judged_beside(file, out)
    if not dry_run:
        options.require()
    log = open_log(None if dry_run and not target.exists() else target, options.run | {"answers": answered})
    waiting = [one for one in kept if log.rows.get(one.name, {}).get("verdict") is None]
    cost = _cost(waiting)
    usage = None
    if not dry_run:
        if len(waiting) < len(kept):
            note(f"{len(kept) - len(waiting)} verdicts are there already.")
        agreed(cost, options, yes=yes, as_json=as_json)
        with opened(options, target) as judging:
            _judge(judging, waiting, log, concurrency)
            usage = judging.usage
    verdicts = [log.rows.get(one.name, {}).get("verdict") for one in kept]
    told = [verdict for verdict in verdicts if verdict is not None]
    report = {
        "dry_run": dry_run, **options.run, "answers": len(kept), "judged": len(told),
        "unjudged": len(kept) - len(told), "counts": dict(Counter(told)), **simple_qa(told),
        "answers_of": answered, "out": str(target), "estimate": cost, "usage": usage,
    }  # fmt: skip
    show(report, FIGURES, as_json=as_json)


def _kept(row: Row) -> Kept:
    said, question, references = row["output"], row["question"], tuple(row["answers"])
    if not (isinstance(said, str) and isinstance(question, str) and references):
        raise TypeError("a row without a question and its answers")
    return Kept(said_as(row), question, tuple(str(one) for one in references), said)


def _cost(waiting: list[Kept]) -> Cost:
    sent = sum(tokens_of(grading(one.question, one.references, one.said)) for one in waiting)
    return Cost(len(waiting), sent, TOKENS_OUT * len(waiting))


def _judge(judging: OpenedJudge, waiting: list[Kept], log: RunLog, concurrency: int) -> None:
    def verdict(one: Kept) -> Row:
        opinion = judging.judge.grade(one.question, one.references, one.said)
        return {
            "verdict": opinion.value,
            "question": one.question,
            "output": one.said,
            "judge_said": opinion.said,
        }

    with counting("Judging", len(waiting)) as done:

        def keep(one: Kept, row: Row) -> None:
            log.add({one.name: row})
            done(1)

        judge_each(waiting, verdict, keep, concurrency=concurrency, stop=judging.stop)


def show(report: dict[str, Any], figures: tuple[str, ...], *, as_json: bool) -> None:
    """Prints these figures with their intervals and who judged, or in a dry run what judging would cost."""
    if as_json:
        print_json(report)
        return
    if report["dry_run"]:
        say(f"{report['estimate']}.")
        return
    rows = [
        (name.replace("_", " "), f"{report[name]:.3f}", "{:.3f} to {:.3f}".format(*report["intervals"][name]))
        for name in figures
        if name in report
    ]
    print_table(("", "figure", "95 % interval"), rows)
    who = f"judged by {report['judge']}" + ("" if report["comparable"] else ", which compares with nothing")
    note(f"{report['judged']} {who}; {report['unjudged']} unjudged. Each is in {report['out']}.")
