"""`colmlm-lab evaluate qa`: asks closed-book questions of Co-LMLM or of a baseline."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import typer

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import CheckpointPath, Threshold, examples
from colmlm.kb.corpus.squad import read_questions
from colmlm.kb.facts.records import FactRecord
from colmlm.lab.bench.machine import print_report
from colmlm.lab.evaluate.kept import AnsweredTogether, AnswerTokens, fill_log, open_log
from colmlm.lab.evaluate.perplexity import TrialIndex
from colmlm.lab.methods.methods import Answerer, Method, answerer
from colmlm.model.decoding.config import DecodeConfig
from colmlm.model.evaluate.answers import (
    FIRST_TOKENS,
    RARE,
    AskedQuestion,
    ScoredOutput,
    digest,
    read_question_set,
    score,
    summarise,
)
from colmlm.model.evaluate.run_log import EvaluationFileError, Row, RunLog
from colmlm.model.text.passages import TOP, PassageChoice

QA_EXAMPLES = examples(
    "colmlm-lab evaluate qa --corpus squad-dev --squad dev.jsonl --limit 500 --mode forced --out answers.jsonl",
    "colmlm-lab evaluate qa --corpus squad-dev --squad dev.jsonl --method asker --checkpoint runs/asker --json",
    "colmlm-lab evaluate qa --corpus passages --questions popqa.jsonl --mode auto --json",
    "colmlm-lab evaluate qa --corpus squad-dev --squad dev.jsonl --mode forced --keys context --threshold 0.7",
    "colmlm-lab evaluate qa --corpus texts --questions popqa.jsonl --method rag --passages 1 --passages-as no-ending",
)


class KeyKind(StrEnum):
    context = "context"
    question = "question"


class QuestionMode(StrEnum):
    auto = "auto"
    forced = "forced"
    off = "off"


class PassagesAs(StrEnum):
    best_last = "best-last"
    no_titles = "no-titles"
    at_random = "at-random"
    no_instruction = "no-instruction"
    no_ending = "no-ending"


def qa(
    corpus: Annotated[
        list[str], typer.Option("--corpus", help="A corpus that has the answers; may be repeated.")
    ],
    squad: Annotated[
        Path | None, typer.Option("--squad", exists=True, dir_okay=False, help="The questions: a SQuAD file.")
    ] = None,
    questions_at: Annotated[
        Path | None,
        typer.Option(
            "--questions",
            exists=True,
            help="The questions: rows of a question and its answers, as JSON, JSON Lines or CSV, or a folder of such.",
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="How many, drawn by the seed. Default: all.")
    ] = None,
    method: Annotated[Method, typer.Option("--method", help="Who answers.")] = Method.co_lmlm,
    mode: Annotated[
        QuestionMode | None,
        typer.Option("--mode", help="When to look up. Default: auto, or off where the model cannot."),
    ] = None,
    checkpoint: CheckpointPath = None,
    threshold: Threshold = None,
    keys: Annotated[
        list[KeyKind] | None,
        typer.Option(
            "--keys", help="Look up by keys of this kind alone, exactly; may be repeated. Default: all."
        ),
    ] = None,
    passages: Annotated[
        int | None,
        typer.Option(
            "--passages", min=0, max=100, help="Of method rag: how many; 0 is its prompt alone. Default: 4."
        ),
    ] = None,
    passages_as: Annotated[
        list[PassagesAs] | None,
        typer.Option(
            "--passages-as",
            help="Of method rag: the best one last, without titles, others at random, or without the paper's words "
            "around them or behind the prompt; may be repeated.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", dir_okay=False, help="Keep each answer here, as JSON Lines, and go on from there."
        ),
    ] = None,
    max_tokens: AnswerTokens = 32,
    batch: AnsweredTogether = 16,
    seed: Annotated[int, typer.Option("--seed", help="Draws the questions and the intervals.")] = 0,
) -> None:
    """Ask questions without their paragraphs, greedily, and count the answers that hold a gold one.

    The prompt is "Question: ...", with "Answer:" on the next line. Exact match is the paper's: any gold answer within
    the first 100 characters, whatever the case; with the spliced values and without them. A fact of the paper has one
    key, `--keys context`. A row with `sub_label` and `obj_label` (T-REx) is a sentence to complete within the first
    five tokens. Of a set that tells how popular its subjects are (PopQA), `long_tail` are the figures of those with
    fewer than 100 views a month. Intervals are of 95 %.
    """
    source = squad or questions_at
    if source is None or (squad and questions_at):
        raise typer.BadParameter("name the questions: --squad FILE or --questions PATH, one of them.")
    with Runtime.from_environment() as runtime:
        runtime.open()
        facts = [fact for name in corpus for fact in runtime.kb.facts.every(name)]
        questions = _of_squad(facts, source) if squad else _of_set(source)
        random.Random(seed).shuffle(questions)
        questions = questions[:limit]
        if not questions:
            raise typer.BadParameter(
                "it has no question with an answer; name another file.", param_hint="--squad"
            )
        values = {fact.value.casefold() for fact in facts}
        covered = sum(any(a.casefold() in values for a in q.answers) for q in questions) / len(questions)
        who = answerer(runtime, method, checkpoint, mode, corpus, _choice(method, passages, passages_as))
        if keys:
            who = _with_keys_of_kinds(runtime, who, keys)
        config = DecodeConfig(
            mode=who.mode, max_tokens=max_tokens, repetition_penalty=1.0, threshold=threshold
        )
        run = (
            who.run
            | {
                "corpora": list(corpus),
                "questions_sha256": digest(source),
                "seq": runtime.kb.log.head_seq(),
                "max_tokens": max_tokens,
                "threshold": threshold,
            }
            | _passages(passages, passages_as)
        )
        log = open_log(out, run)
        _answer_questions(who, config, questions, log, batch)
    report = {
        "checkpoint": who.decoder.checkpoint.config.name,
        "seed": seed,
        **run,
        "covered": round(covered, 4),
        **_figures(log, questions, seed),
    }
    if any(one.views is not None for one in questions):
        rare = [one for one in questions if one.views is not None and one.views < RARE]
        report["long_tail"] = _figures(log, rare, seed) if rare else None
    print_report(report)


def _choice(method: Method, count: int | None, ways: Sequence[PassagesAs] | None) -> PassageChoice | None:
    """Give the choice of passages; None for the paper's. Refuses one for a method without passages."""
    if count is None and not ways:
        return None
    if method is not Method.rag:
        raise typer.BadParameter(
            f"method {method} has no passages; name --method rag.", param_hint="--passages"
        )
    chosen = {way.name: True for way in ways or ()}
    return PassageChoice(TOP if count is None else count, **chosen)


def _passages(count: int | None, ways: Sequence[PassagesAs] | None) -> Row:
    """Say what differs from the paper's passages, so that logs of the paper's go on as before."""
    differs = {"passages": count, "passages_as": sorted(map(str, ways or ()))}
    return {name: value for name, value in differs.items() if value not in (None, [])}


def _figures(log: RunLog, questions: Sequence[AskedQuestion], seed: int) -> dict[str, Any]:
    """Give the figures of some of the questions that were answered."""
    rows = [ScoredOutput(**log.rows[asked.question_id]) for asked in questions]
    return summarise(rows, [q.question_id for q in questions if q.fact_id is not None], seed).as_json()


def _with_keys_of_kinds(runtime: Runtime, who: Answerer, kinds: Sequence[KeyKind]) -> Answerer:
    """Give the same answerer with an exact index of the active keyset's keys of these kinds."""
    from colmlm.model.decoding.decoder import Decoder

    if who.run.get("keys_of") != who.run["checkpoint_id"]:
        raise typer.BadParameter(
            "this model looks nothing up by a state of its own; leave --keys out.", param_hint="--keys"
        )
    chosen = sorted(map(str, kinds))
    trial = TrialIndex.of(runtime.kb, "exact", kinds=chosen)
    run = who.run | {"key_kinds": chosen, "num_keys": trial.num_keys}
    return replace(who, decoder=Decoder(who.decoder.checkpoint, trial.lookups), run=run)


def _of_squad(facts: Sequence[FactRecord], squad: Path) -> list[AskedQuestion]:
    """Give each question of a paragraph once, with all its answers and the corpus's fact at the span of the first.

    The fact is found by its place, not by its question, since a corpus may have other questions for the same spans.
    """
    known = {
        (fact.source.external_id, fact.source.start, fact.source.end): fact.fact_id
        for fact in facts
        if fact.source is not None
    }
    asked: dict[tuple[str, str], AskedQuestion] = {}
    for found in read_questions(squad):
        fact_id = known.get((found.document, *found.place)) if found.place else None
        name = sha256(f"{found.document}\n{found.question}".encode()).hexdigest()[:16]
        before = asked.get((found.document, found.question))
        answers = dict.fromkeys((*(before.answers if before else ()), *found.answers))
        asked[found.document, found.question] = AskedQuestion(
            name, found.question, tuple(answers), before.fact_id if before and before.fact_id else fact_id
        )
    return list(asked.values())


def _of_set(path: Path) -> list[AskedQuestion]:
    try:
        return read_question_set(path)
    except EvaluationFileError as error:
        raise typer.BadParameter(f"{error}.", param_hint="--questions") from error


def _answer_questions(
    who: Answerer, config: DecodeConfig, questions: Sequence[AskedQuestion], log: RunLog, batch: int
) -> None:
    """Answer the questions that the log lacks."""
    tokenizer = who.decoder.checkpoint.tokenizer

    def cut_answer(output: str) -> str:
        return tokenizer.decode(tokenizer.encode(output)[:FIRST_TOKENS])

    def answer_batch(asked: Sequence[AskedQuestion]) -> list[Row]:
        outputs = who.decoder.generate(who.prompts([question.prompt for question in asked]), config)
        return [asdict(score(one, output, cut_answer)) for one, output in zip(asked, outputs, strict=True)]

    wanted = {question.question_id: question for question in questions}
    fill_log(log, wanted, answer_batch, batch=batch, doing="Answering", what="answers")
