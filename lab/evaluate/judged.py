"""`colmlm-lab evaluate judge-answers`, `biographies` and `judge-biographies`: SimpleQA's figures, and FActScore."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import CheckpointPath, Threshold, examples, require_somebody, wants_json
from colmlm.cli.output import counting, note, print_json, say
from colmlm.lab.bench.machine import print_report
from colmlm.lab.evaluate.kept import FromTheFirst, fill_log, name_of_row, open_log, read_kept
from colmlm.lab.evaluate.qa import QuestionMode
from colmlm.lab.methods.methods import Answerer, Method, answerer
from colmlm.model.decoding.config import DecodeConfig
from colmlm.model.evaluate.answers import PASSAGES, Evidence
from colmlm.model.evaluate.judge import (
    ChatJudge,
    ClaimCounts,
    Judge,
    LocalJudge,
    checking_messages,
    fact_score,
    grading_messages,
    judge_each,
    rubric,
    simple_qa,
    splitting_messages,
    tokens_of,
)
from colmlm.model.evaluate.run_log import Row, RunLog
from colmlm.model.lm.chat_endpoint import Chat, Endpoint

T = TypeVar("T")

# The judge: the options that the commands share, the judge they name, and its cost.


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
        """Give what identifies the judge to a later run."""
        if self.kind is JudgeSort.local:
            return {"judge": "local", "comparable": False}
        return {"judge": self.model, "comparable": True, "temperature": self.temperature, "rubric": rubric()}

    def require(self) -> None:
        """Refuse options that name no judge, before anything is read or opened."""
        if self.kind is JudgeSort.chat and not (self.url and self.model):
            raise typer.BadParameter(
                "name the endpoint and its model, or take --judge local.",
                param_hint="--judge-url and --judge-model",
            )


@dataclass(frozen=True, slots=True)
class Cost:
    """Record what is still to be asked. Tokens are estimates, without answers that must be asked for again."""

    requests: int
    tokens_in: int
    tokens_out: int

    def __str__(self) -> str:
        return f"about {self.requests} requests, {self.tokens_in} tokens sent and {self.tokens_out} received"


def ask_consent(cost: Cost, options: JudgeOptions, *, yes: bool) -> None:
    """Tell what it may cost, and ask for consent on a terminal. Raises `Abort` or `BadParameter` without consent."""
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

    def judge_waiting(
        self, waiting: Mapping[str, T], judge: Callable[[T], Row], log: RunLog, concurrency: int
    ) -> None:
        """Judge everything in `waiting`, so many at once, and add each row to the log under its name."""
        with counting("Judging", len(waiting)) as done:

            def keep(named: tuple[str, T], row: Row) -> None:
                log.add({named[0]: row})
                done(1)

            judge_each(
                list(waiting.items()),
                lambda named: judge(named[1]),
                keep,
                concurrency=concurrency,
                stop=self.stop,
            )

    @property
    def usage(self) -> dict[str, int] | None:
        return asdict(self.judge.usage) if isinstance(self.judge, ChatJudge) else None


@contextmanager
def open_judge(options: JudgeOptions, out: Path) -> Iterator[OpenedJudge]:
    """Yield the judge of these options. If it fails, tells what is stored."""
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
        except (Exception, KeyboardInterrupt):  # the answers that are paid for are kept, whatever ended it
            note(f"What was judged is in {out}. Run the same command again to go on from there.")
            raise


def judged_beside(file: Path, out: Path | None) -> Path:
    return out or file.with_name(f"{file.name.removesuffix('.jsonl')}.judged.jsonl")


def _key(file: Path | None) -> str | None:
    if file is None:
        return None
    if not (key := file.read_text(encoding="utf-8").strip()):
        raise typer.BadParameter(f"{file} is empty; write the key into it.", param_hint="--judge-key-file")
    return key


EXAMPLES = examples(
    "colmlm-lab evaluate judge-answers answers.jsonl --judge-url https://llm.example/v1 --judge-model large --dry-run",
    "colmlm-lab evaluate judge-answers answers.jsonl --judge local --json",
)
TOKENS_OUT = 10  # tokens of one verdict


@dataclass(frozen=True, slots=True)
class StoredAnswer:
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
    answered, kept = read_kept(file, _parse_answer, "qa")
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
        ask_consent(cost, options, yes=yes)
        with open_judge(options, target) as judging:
            judging.judge_waiting(
                {one.name: one for one in waiting}, partial(grade, judging.judge), log, concurrency
            )
            usage = judging.usage
    verdicts = [log.rows.get(one.name, {}).get("verdict") for one in kept]
    told = [verdict for verdict in verdicts if verdict is not None]
    report = {
        "dry_run": dry_run, **options.run, "answers": len(kept), "judged": len(told),
        "unjudged": len(kept) - len(told), "counts": dict(Counter(told)), **simple_qa(told),
        "answers_of": answered, "out": str(target), "estimate": cost, "usage": usage,
    }  # fmt: skip
    print_report(report)


def _parse_answer(row: Row) -> StoredAnswer:
    said, question, references = row["output"], row["question"], tuple(row["answers"])
    if not (isinstance(said, str) and isinstance(question, str) and references):
        raise TypeError("a row without a question and its answers")
    return StoredAnswer(name_of_row(row), question, tuple(str(one) for one in references), said)


def _cost(waiting: list[StoredAnswer]) -> Cost:
    sent = sum(tokens_of(grading_messages(one.question, one.references, one.said)) for one in waiting)
    return Cost(len(waiting), sent, TOKENS_OUT * len(waiting))


def grade(judge: Judge, one: StoredAnswer) -> Row:
    """Give the judge's verdict on an answer, and what it said."""
    opinion = judge.grade(one.question, one.references, one.said)
    return {
        "verdict": opinion.value,
        "question": one.question,
        "output": one.said,
        "judge_said": opinion.said,
    }


# Biographies, and FActScore of them against texts of the knowledge base.

WRITE_EXAMPLES = examples(
    "colmlm-lab evaluate biographies names.txt --mode auto --out biographies.jsonl",
    "colmlm-lab evaluate biographies names.txt --method standard --checkpoint runs/standard --out standard.jsonl",
)
JUDGE_EXAMPLES = examples(
    "colmlm-lab evaluate judge-biographies biographies.jsonl --corpus people --judge-url https://llm.example/v1 "
    "--judge-model large --dry-run",
    "colmlm-lab evaluate judge-biographies biographies.jsonl --corpus people --judge local --json",
)
WORDS_A_CLAIM = 8  # an estimate, since the cost is told before the claims are known
PENALTY = 1.2  # the penalty of repetition, as the paper has it for biographies


@dataclass(frozen=True, slots=True)
class Biography:
    """A biography that a model wrote. Its name in the log changes with its text."""

    row: str
    name: str
    said: str

    @property
    def text(self) -> str:
        return self.name + self.said  # the prompt ends with the name

    @property
    def is_empty(self) -> bool:
        return not self.said.strip()


def biographies(
    names: Annotated[
        Path, typer.Argument(metavar="NAMES", exists=True, dir_okay=False, help="A name on each line.")
    ],
    out: Annotated[
        Path, typer.Option("--out", dir_okay=False, help="The biographies; a stopped run goes on from there.")
    ],
    corpus: Annotated[
        list[str] | None, typer.Option("--corpus", help="For rag: whose passages; may be repeated.")
    ] = None,
    limit: FromTheFirst = None,
    method: Annotated[Method, typer.Option("--method", help="Who writes.")] = Method.co_lmlm,
    mode: Annotated[
        QuestionMode | None,
        typer.Option("--mode", help="When to look up. Default: auto, or off where the model cannot."),
    ] = None,
    threshold: Threshold = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=1, help="Content tokens of each; spliced ones are free.")
    ] = 256,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Biographies written together.")] = 8,
    checkpoint: CheckpointPath = None,
) -> None:
    """Write a biography of each name greedily, after the paper's prompt: the name, an empty line and the name again."""
    people = list(
        dict.fromkeys(line.strip() for line in names.read_text("utf-8").splitlines() if line.strip())
    )
    if not (people := people[:limit]):
        raise typer.BadParameter("it has no name; write one on each line.", param_hint="NAMES")
    with Runtime.from_environment() as runtime:
        runtime.open()
        who = answerer(runtime, method, checkpoint, mode, corpus or ())
        config = DecodeConfig(
            mode=who.mode, max_tokens=max_tokens, repetition_penalty=PENALTY, threshold=threshold
        )
        run = who.run | {
            "checkpoint": who.decoder.checkpoint.config.name, "seq": runtime.kb.log.head_seq(),
            "corpora": list(corpus or ()), "max_tokens": max_tokens, "threshold": threshold,
        }  # fmt: skip
        log = open_log(out, run)
        _write(who, config, people, log, batch)
    rows = [log.rows[name] for name in people]
    report = {**run, "biographies": len(rows), "hits": sum(row["hits"] for row in rows), "out": str(out)}
    if wants_json():
        print_json(report)
    else:
        say(
            f"{report['checkpoint']}: {len(rows)} biographies with {report['hits']} facts looked up, in {out}."
        )


def _write(who: Answerer, config: DecodeConfig, people: Sequence[str], log: RunLog, batch: int) -> None:
    """Write the biographies that the log lacks."""

    def write_people(names: Sequence[str]) -> list[Row]:
        outputs = who.decoder.generate(who.prompts([f"{name}\n\n{name}" for name in names]), config)
        return [
            {
                "output": one.output,
                "lookups": len(one.splices),
                "hits": sum(splice.outcome == "hit" for splice in one.splices),
                "content_tokens": one.content_tokens,
                "finish": one.finish,
            }
            for one in outputs
        ]

    wanted = {name: name for name in people}
    fill_log(log, wanted, write_people, batch=batch, doing="Writing", what="biographies")


def judge_biographies(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", exists=True, dir_okay=False, help="--out of colmlm-lab evaluate biographies."
        ),
    ],
    corpus: Annotated[
        list[str], typer.Option("--corpus", help="A corpus with texts about these people; may be repeated.")
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
    """Have biographies split into claims, each checked against passages of the corpora: FActScore.

    The passages are those of the document with the name as its title; `covered` is the share of people that have one,
    and the claims about others are checked against all documents. A claim without a usable answer of the judge is
    *unjudged*: it is not counted, and the next run asks again.
    """
    options = JudgeOptions(
        kind=judge, url=judge_url, model=judge_model, key_file=judge_key_file, temperature=temperature,
        concurrency=concurrency,
    )  # fmt: skip
    if not dry_run:
        options.require()
    written, people = read_kept(file, _biography, "biographies")
    if not people:
        raise typer.BadParameter(
            f"{file} holds no biography; name the --out of `colmlm-lab evaluate biographies`.",
            param_hint="FILE",
        )
    people, target = people[:limit], judged_beside(file, out)
    with Runtime.from_environment() as runtime:
        seq = runtime.kb.log.head_seq()
        evidence = Evidence(document for name in corpus for document in runtime.kb.corpora.export(name))
    run = options.run | {"corpora": list(corpus), "seq": seq}
    log = open_log(None if dry_run and not target.exists() else target, run | {"of": written})
    waiting = [one for one in people if not _is_done(log.rows.get(one.row))]
    cost, usage = _cost_of_claims(waiting, log, evidence), None
    if not dry_run:
        ask_consent(cost, options, yes=yes)
        with open_judge(options, target) as judging:
            judging.judge_waiting(
                {one.row: one for one in waiting},
                lambda one: check_claims(judging.judge, one, log.rows.get(one.row), evidence),
                log,
                concurrency,
            )
            usage = judging.usage
    covered = sum(evidence.covers(one.name) for one in people) / len(people)
    report = {
        "dry_run": dry_run, **run, "covered": round(covered, 4), "out": str(target),
        **_claim_figures([log.rows.get(one.row) for one in people]), "biographies_of": written,
        "estimate": cost, "usage": usage,
    }  # fmt: skip
    print_report(report)


def _biography(row: Row) -> Biography:
    return Biography(name_of_row(row), str(row["row"]), row["output"])


def _is_done(row: Row | None) -> bool:
    return row is not None and row["claims"] is not None and None not in row["supported"]


def _cost_of_claims(waiting: Sequence[Biography], log: RunLog, evidence: Evidence) -> Cost:
    """Give what the judging may cost. The claims of a biography that is not split yet are estimated from its words."""
    requests = sent = received = 0
    for one in (each for each in waiting if not each.is_empty):
        row = log.rows.get(one.row)
        if row is None or row["claims"] is None:
            count = max(1, len(one.text.split()) // WORDS_A_CLAIM)
            requests += 1
            split = splitting_messages(one.name, one.text)
            sent, received = sent + tokens_of(split), received + 2 * tokens_of(split[-1:])
        else:
            count = row["supported"].count(None)
        asked = checking_messages(one.name, one.name, evidence.passages(one.name, one.text)[:PASSAGES])
        requests, sent = requests + count, sent + count * (tokens_of(asked) + 2 * WORDS_A_CLAIM)
        received += 10 * count
    return Cost(requests, sent, received)


def check_claims(judge: Judge, one: Biography, before: Row | None, evidence: Evidence) -> Row:
    """Give the claims of a biography, and which are supported. It asks only for what a row in `before` lacks."""
    claims, said = (before["claims"], before["judge_said"]) if before else (None, None)
    if one.is_empty:
        claims = []
    if claims is None:
        split = judge.claims(one.name, one.text)
        claims, said = split.value, None if split.value is not None else split.said
    known = before["supported"] if before and before["claims"] is not None else [None] * len(claims or ())
    supported = [
        judge.supports(one.name, claim, evidence.passages(one.name, claim)).value if held is None else held
        for claim, held in zip(claims or (), known, strict=True)
    ]
    return {"claims": claims, "supported": supported, "output": one.said, "judge_said": said}


def _claim_figures(rows: Sequence[Row | None]) -> dict[str, Any]:
    """Give FActScore's figures over the judged claims, and count the unjudged.

    Biographies without a judged claim are left out.
    """
    split = [row for row in rows if row is not None and row["claims"] is not None]
    judged = [row for row in split if not row["claims"] or any(held is not None for held in row["supported"])]
    counts = [
        ClaimCounts(sum(held is not None for held in row["supported"]), row["supported"].count(True))
        for row in judged
    ]
    return {
        "biographies": len(rows),
        "judged": len(judged),
        "unjudged": len(rows) - len(judged),
        "claims_unjudged": sum(row["supported"].count(None) for row in split),
        **fact_score(counts),
    }
