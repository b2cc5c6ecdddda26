"""Documents of an organisation: the tables of `colmlm evaluate documents --wild`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.output import note, print_table, progress
from colmlm.kb.answers.answering import Answering
from colmlm.kb.answers.records import SPAN, Answer
from colmlm.lab.methods.own_base import NO_KEYS, filled, own_base
from colmlm.lab.methods.raw_documents import RawQuestion
from colmlm.lab.methods.reading_baseline import BM25Reading
from colmlm.lab.methods.remembering import remembering_answers
from colmlm.lab.methods.wild_texts import (
    WildAnswer,
    WildQuestion,
    WildTexts,
    ask_wild,
    judge,
    read_wild,
    tables,
)

Tables = dict[str, dict[str, dict[str, float]]]


def wild_report(
    folder: Path,
    checkpoint: Path | None,
    base: Path | None,
    spans: float | None,
    keys: str,
    generated: int,
    out: Path | None,
) -> dict[str, Any]:
    """Ask the questions of a folder at the shipped thresholds, without any, and by two baselines.

    A baseline answers about as many questions as the product: its threshold is chosen so. With `out` all that the
    product said is written there.
    """
    texts = read_wild(folder)
    with own_base(checkpoint, base) as runtime:
        filled(runtime, texts.documents, spans, keys)
        answers = remembering_answers(runtime, keys=keys != NO_KEYS)
        ours = _ask_questions("colmlm", texts, lambda question: answers.ask(question, nearest=0))
        found: dict[str, Any] = {"questions": len(ours), "threshold": answers.reader.confidence.threshold}
        found["colmlm"] = tables(ours)
        found["no_threshold"] = tables(
            _ask_questions(
                "no threshold", texts, lambda question: answers.ask(question, nearest=0, threshold=0.0)
            )
        )
        if generated:
            found["baselines"] = _baselines(runtime, answers, texts, ours)
    if out is not None:
        lines = (json.dumps(_row(one), ensure_ascii=False) for one in ours)
        out.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return found


def show_wild(found: Mapping[str, Any]) -> None:
    """Print the tables, one below another."""
    ways = {name: found[name] for name in ("colmlm", "no_threshold")} | found.get("baselines", {})
    names = ("right", "part", "wrong", "made_up", "silent", "alarms")
    rows = [
        (
            way,
            group,
            *(f"{of[name]:.3f}" for name in ("questions", "unanswerable")),
            *(f"{of[name]:.3f}" for name in names),
        )
        for way, by in ways.items()
        for groups in by.values()
        for group, of in groups.items()
    ]
    print_table(("", "", "questions", "unanswerable", *names), rows)
    note(f"{found['questions']} questions.")


def _ask_questions(way: str, texts: WildTexts, ask: Callable[[str], Answer]) -> list[WildAnswer]:
    with progress(f"Asking: {way}") as advance:
        return ask_wild(texts.questions, ask, texts.documents, advance)


def _baselines(
    runtime: Runtime, answers: Answering, texts: WildTexts, ours: Sequence[WildAnswer]
) -> dict[str, Tables]:
    from colmlm.lab.methods.generating_baseline import CHATS, Generating, generator

    said = {
        "bm25_reader": _ask_questions(
            "BM25 and the reader", texts, BM25Reading(answers.reader, texts.documents).ask
        )
    }
    asked = [RawQuestion(one.question, tuple(one.answers), one.file or "", None) for one in texts.questions]
    with progress("Asking: generation") as advance:
        told = Generating(generator(runtime, None), texts.documents, CHATS).ask_all(asked, advance)
    for name, those in told.items():
        said[name] = [
            _generated(*one)
            for one in zip(texts.questions, ((o.said, o.score, o.outcome) for o in those), strict=True)
        ]
    given = sum(one.outcome != "silent" for one in ours)
    return {name: tables(_as_many(those, given)) for name, those in said.items()}


def _generated(question: WildQuestion, told: tuple[str | None, float, str]) -> WildAnswer:
    said, score, found = told
    if said is None:
        judged = "silent"
    elif found == "made_up" and question.is_answerable:
        judged = "made_up"
    else:
        judged = judge(question, said, SPAN, None)
    return WildAnswer(question, said, SPAN, score, judged, None)


def _as_many(answers: Sequence[WildAnswer], given: int) -> list[WildAnswer]:
    """Silence those with the least scores, so that as many are given as wanted."""
    falling = sorted((one.score for one in answers if one.outcome != "silent"), reverse=True)
    least = falling[min(given, len(falling)) - 1] if given and falling else float("inf")
    return [
        one if one.score >= least else WildAnswer(one.question, None, one.grain, one.score, "silent", None)
        for one in answers
    ]


def _row(one: WildAnswer) -> dict[str, Any]:
    return {**asdict(one), "question": one.question.question, "id": one.question.id, "form": one.question.form,
            "kind": one.question.kind, "answers": one.question.answers, "file": one.question.file}  # fmt: skip
