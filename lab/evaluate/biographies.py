"""`colmlm-lab evaluate biographies` and `judge-biographies`: measure FActScore against texts of the knowledge base."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import CheckpointPath, Threshold, examples, wants_json
from colmlm.cli.output import counting, note, print_json, say
from colmlm.lab.evaluate.judged import (
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
    show,
)
from colmlm.lab.evaluate.kept import FromTheFirst, open_log, read_kept, said_as
from colmlm.lab.evaluate.qa import QuestionMode
from colmlm.lab.methods.methods import Answerer, Method, answerer
from colmlm.model.decoding.config import DecodeConfig
from colmlm.model.evaluate.answers import PASSAGES, Evidence
from colmlm.model.evaluate.judge import Checked, Judge, checking, fact_score, judge_each, splitting, tokens_of
from colmlm.model.evaluate.run_log import Row, RunLog

WRITE_EXAMPLES = examples(
    "colmlm-lab evaluate biographies names.txt --mode auto --out biographies.jsonl",
    "colmlm-lab evaluate biographies names.txt --method standard --checkpoint runs/standard --out standard.jsonl",
)
JUDGE_EXAMPLES = examples(
    "colmlm-lab evaluate judge-biographies biographies.jsonl --corpus people --judge-url https://llm.example/v1 "
    "--judge-model large --dry-run",
    "colmlm-lab evaluate judge-biographies biographies.jsonl --corpus people --judge local --json",
)
FIGURES = ("score", "score_with_length_penalty", "abstained", "claims")
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
        raise typer.BadParameter("it has no name.", param_hint="NAMES")
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
    """Writes the biographies that the log lacks."""
    waiting = [name for name in people if name not in log.rows]
    if len(waiting) < len(people):
        note(f"{len(people) - len(waiting)} biographies are there already.")
    with counting("Writing", len(waiting)) as done:
        for start in range(0, len(waiting), batch):
            some = waiting[start : start + batch]
            outputs = who.decoder.generate(who.prompts([f"{name}\n\n{name}" for name in some]), config)
            log.add(
                {
                    name: {
                        "output": one.output,
                        "lookups": len(one.splices),
                        "hits": sum(splice.outcome == "hit" for splice in one.splices),
                        "content_tokens": one.content_tokens,
                        "finish": one.finish,
                    }
                    for name, one in zip(some, outputs, strict=True)
                }
            )
            done(len(some))


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
        raise typer.BadParameter(f"{file} holds no biography.", param_hint="FILE")
    people, target = people[:limit], judged_beside(file, out)
    with Runtime.from_environment() as runtime:
        seq = runtime.kb.log.head_seq()
        evidence = Evidence(document for name in corpus for document in runtime.kb.corpora.export(name))
    run = options.run | {"corpora": list(corpus), "seq": seq}
    log = open_log(None if dry_run and not target.exists() else target, run | {"of": written})
    waiting = [one for one in people if not _is_done(log.rows.get(one.row))]
    cost, usage = _cost(waiting, log, evidence), None
    if not dry_run:
        agreed(cost, options, yes=yes)
        with opened(options, target) as judging:
            _judge(judging, waiting, log, evidence, concurrency)
            usage = judging.usage
    covered = sum(evidence.covers(one.name) for one in people) / len(people)
    report = {
        "dry_run": dry_run, **run, "covered": round(covered, 4), "out": str(target),
        **_figures([log.rows.get(one.row) for one in people]), "biographies_of": written,
        "estimate": cost, "usage": usage,
    }  # fmt: skip
    show(report, FIGURES)


def _biography(row: Row) -> Biography:
    return Biography(said_as(row), str(row["row"]), row["output"])


def _is_done(row: Row | None) -> bool:
    return row is not None and row["claims"] is not None and None not in row["supported"]


def _cost(waiting: Sequence[Biography], log: RunLog, evidence: Evidence) -> Cost:
    """Gives what the judging may cost. The claims of a biography that is not split yet are estimated from its words."""
    requests = sent = received = 0
    for one in (each for each in waiting if not each.is_empty):
        row = log.rows.get(one.row)
        if row is None or row["claims"] is None:
            count = max(1, len(one.text.split()) // WORDS_A_CLAIM)
            requests += 1
            split = splitting(one.name, one.text)
            sent, received = sent + tokens_of(split), received + 2 * tokens_of(split[-1:])
        else:
            count = row["supported"].count(None)
        asked = checking(one.name, one.name, evidence.passages(one.name, one.text)[:PASSAGES])
        requests, sent = requests + count, sent + count * (tokens_of(asked) + 2 * WORDS_A_CLAIM)
        received += 10 * count
    return Cost(requests, sent, received)


def _judge(
    judging: OpenedJudge, waiting: Sequence[Biography], log: RunLog, evidence: Evidence, concurrency: int
) -> None:
    with counting("Judging", len(waiting)) as done:

        def keep(one: Biography, row: Row) -> None:
            log.add({one.row: row})
            done(1)

        def check(one: Biography) -> Row:
            return checked(judging.judge, one, log.rows.get(one.row), evidence)

        judge_each(waiting, check, keep, concurrency=concurrency, stop=judging.stop)


def checked(judge: Judge, one: Biography, before: Row | None, evidence: Evidence) -> Row:
    """Gives the claims of a biography, and which are supported. It asks only for what a row in `before` lacks."""
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


def _figures(rows: Sequence[Row | None]) -> dict[str, Any]:
    """Gives FActScore's figures over the judged claims, and counts the unjudged.

    Biographies without a judged claim are left out.
    """
    split = [row for row in rows if row is not None and row["claims"] is not None]
    judged = [row for row in split if not row["claims"] or any(held is not None for held in row["supported"])]
    counts = [
        Checked(sum(held is not None for held in row["supported"]), row["supported"].count(True))
        for row in judged
    ]
    return {
        "biographies": len(rows),
        "judged": len(judged),
        "unjudged": len(rows) - len(judged),
        "claims_unjudged": sum(row["supported"].count(None) for row in split),
        **fact_score(counts),
    }
