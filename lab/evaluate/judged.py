"""`colmlm-lab evaluate judge-answers`: has a judge grade stored answers, and gives SimpleQA's figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from colmlm.cli.asking import require_somebody
from colmlm.cli.options import examples, wants_json
from colmlm.cli.output import counting, note, print_json, print_table, say
from colmlm.lab.evaluate.kept import FromTheFirst, open_log, read_kept, said_as
from colmlm.model.evaluate.judge import (
    ChatJudge,
    Judge,
    LocalJudge,
    grading,
    judge_each,
    rubric,
    simple_qa,
    tokens_of,
)
from colmlm.model.evaluate.run_log import Row, RunLog
from colmlm.model.lm.chat_endpoint import Chat, Endpoint

# The judge of answers and biographies: the options that the commands share, the judge they name, and its
# cost.


class JudgeSort(StrEnum):
    chat = "chat"
    local = "local"


JudgeKind = Annotated[
    JudgeSort,
    typer.Option("--judge", help="A large model at an endpoint, or strings alone (not comparable)."),
]
JudgeUrl = Annotated[
    str | None, typer.Option("--judge-url", help="An endpoint that speaks OpenAI's chat protocol, to /v1.")
]
JudgeModel = Annotated[str | None, typer.Option("--judge-model", help="The model's name there.")]
JudgeKey = Annotated[
    Path | None,
    typer.Option(
        "--judge-key-file", exists=True, dir_okay=False, help="Holds the key for it. Default: none."
    ),
]
Temperature = Annotated[
    float | None,
    typer.Option("--temperature", min=0, max=2, help="The judge's. Default: the endpoint's own."),
]
Concurrency = Annotated[
    int, typer.Option("--concurrency", min=1, max=256, help="Conversations at once with the judge.")
]
JudgedOut = Annotated[
    Path | None,
    typer.Option(
        "--out",
        dir_okay=False,
        help="Keep each verdict here, as JSON Lines, and go on from there. Default: FILE with .judged before its end.",
    ),
]
CostOnly = Annotated[bool, typer.Option("--dry-run", help="Say how much there is to ask, and stop.")]
MayCost = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask whether it may cost that.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeOptions:
    kind: JudgeSort
    url: str | None
    model: str | None
    key_file: Path | None
    temperature: float | None
    concurrency: int

    @property
    def run(self) -> dict[str, Any]:
        """Gives what identifies the judge to a later run."""
        if self.kind is JudgeSort.local:
            return {"judge": "local", "comparable": False}
        return {"judge": self.model, "comparable": True, "temperature": self.temperature, "rubric": rubric()}

    def require(self) -> None:
        """Refuses options that name no judge, before anything is read or opened."""
        if self.kind is JudgeSort.chat and not (self.url and self.model):
            raise typer.BadParameter(
                "name the endpoint and its model, or take --judge local.",
                param_hint="--judge-url and --judge-model",
            )


@dataclass(frozen=True, slots=True)
class Cost:
    """What is still to be asked. Tokens are estimates, without answers that must be asked for again."""

    requests: int
    tokens_in: int
    tokens_out: int

    def __str__(self) -> str:
        return f"about {self.requests} requests, {self.tokens_in} tokens sent and {self.tokens_out} received"


def agreed(cost: Cost, options: JudgeOptions, *, yes: bool) -> None:
    """Tells what it may cost, and asks for consent on a terminal. Raises `Abort` or `BadParameter` without consent."""
    if options.kind is JudgeSort.local or cost.requests == 0:
        return
    note(f"{cost}; what must be asked again comes on top.")
    if yes:
        return
    require_somebody(yes, "let it cost that")
    if not typer.confirm(f"Send {cost.requests} requests to {options.url}?", err=True):
        raise typer.Abort


@dataclass(frozen=True, slots=True)
class OpenedJudge:
    """A judge, and its chat endpoint to close (None: the local judge)."""

    judge: Judge
    chat: Chat | None

    def stop(self) -> None:
        if self.chat is not None:
            self.chat.stop()

    @property
    def usage(self) -> dict[str, int] | None:
        return asdict(self.judge.usage) if isinstance(self.judge, ChatJudge) else None


@contextmanager
def opened(options: JudgeOptions, out: Path) -> Iterator[OpenedJudge]:
    """Yields the judge of these options. If it fails, tells what is stored."""
    if options.kind is JudgeSort.local:
        yield OpenedJudge(LocalJudge(), None)
        return
    assert options.url is not None and options.model is not None
    endpoint = Endpoint(
        base_url=options.url, model=options.model, api_key=_key(options.key_file), temperature=options.temperature,
        options=("--judge-url", "--judge-model"), key_from="--judge-key-file",
    )  # fmt: skip
    with Chat(endpoint) as chat:
        try:
            yield OpenedJudge(ChatJudge(chat), chat)
        except (Exception, KeyboardInterrupt):
            note(f"What was judged is in {out}. Run the same command again to go on from there.")
            raise


def judged_beside(file: Path, out: Path | None) -> Path:
    return out or file.with_name(f"{file.name.removesuffix('.jsonl')}.judged.jsonl")


def _key(file: Path | None) -> str | None:
    if file is None:
        return None
    if not (key := file.read_text(encoding="utf-8").strip()):
        raise typer.BadParameter("the file holds no key.", param_hint="--judge-key-file")
    return key


EXAMPLES = examples(
    "colmlm-lab evaluate judge-answers answers.jsonl --judge-url https://llm.example/v1 --judge-model large --dry-run",
    "colmlm-lab evaluate judge-answers answers.jsonl --judge local --json",
)
TOKENS_OUT = 10  # tokens of one verdict
FIGURES = ("correct", "incorrect", "not_attempted", "correct_given_attempted", "f_score")


@dataclass(frozen=True, slots=True)
class Kept:
    """An answer that `colmlm-lab evaluate qa --out` stored. Its name in the log changes with its text."""

    name: str
    question: str
    references: tuple[str, ...]
    said: str


def judge_answers(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", exists=True, dir_okay=False, help="The answers: --out of colmlm-lab evaluate qa."
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
        agreed(cost, options, yes=yes)
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
    show(report, FIGURES)


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


def show(report: dict[str, Any], figures: tuple[str, ...]) -> None:
    """Prints these figures with their intervals and who judged, or in a dry run what judging would cost."""
    if wants_json():
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
