"""Declares the knowledge bases that the steps use, and the commands that fill them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from colmlm.lab.paper import excerpts
from colmlm.lab.paper.declared import Excerpt, Places, Preparation, Take
from colmlm.lab.paper.sizes import VariantSizes

AS_PEOPLE = "0.1"  # marks about as many spans as people marked in SQuAD
DENSELY = "0.05"  # marks half as many again, since a fact that is not marked cannot be looked up


def knowledge(places: Places, sizes: VariantSizes) -> list[Preparation]:
    """Declares knowledge bases, each an enlarged copy of the one before, since a measurement may change its own."""
    made, data = places.out / "data", places.data
    excerpt = partial(Excerpt, rows=sizes.passages_of)
    popqa = data / "popqa" / "popqa_with_passages_500.json"
    vital = data / "vital_articles" / "summaries_en-us.json"
    articles = data / "simplewiki" / "eval_1k.jsonl.gz"
    return [
        Preparation(
            name="squad",
            excerpts=(
                Excerpt(
                    source=data / "squad" / "dev.jsonl", target=made / "squad.jsonl", take=excerpts.spread,
                    rows=sizes.paragraphs,
                ),
            ),
            commands=(
                ("db", "migrate"),
                ("corpus", "ingest", str(made / "squad.jsonl"), "--format", "squad", "--corpus", "squad-dev"),
                ("rekey",),
                ("backup", "create", str(places.out / "kb" / "squad.backup"), "--replace"),
            ),
        ),
        _copy(places, "deletion", of="squad"),
        _copy(places, "updates", of="squad"),
        _grown(
            places, "popqa", of="squad", source=made / "popqa-passages.jsonl",
            made_from=(
                excerpt(source=popqa, target=made / "popqa-passages.jsonl", take=excerpts.passages),
                excerpt(source=popqa, target=made / "popqa-questions.jsonl", take=excerpts.questions),
            ),
        ),
        _grown(
            places, "vital", of="popqa", source=made / "vital.jsonl",
            made_from=(Excerpt(source=vital, target=made / "vital.jsonl", take=excerpts.leads, rows=None),),
        ),
        _grown(
            places, "leads", of="squad", source=made / "leads.jsonl",
            made_from=(
                Excerpt(
                    source=vital, target=made / "leads.jsonl",
                    take=partial(excerpts.leads_of, articles=articles), rows=sizes.articles,
                ),
            ),
        ),
        _articles(places, "covered", articles, partial(excerpts.covered, by=vital), sizes.articles),
        _articles(places, "articles", articles, excerpts.lines, None),
        *_asked(places),
        _questioned(places, made / "popqa-passages.jsonl"),
    ]  # fmt: skip


def _asked(places: Places) -> list[Preparation]:
    """Declares SQuAD's facts with questions that the annotator wrote, for a method that asks in words.

    With the human questions, each fact's key would be the very question that it is asked with.
    """
    asked, generator = places.out / "data" / "asked.jsonl", places.released / "question-generator-135m"
    writing = ("--no-baselines", "--generated", str(asked), "--questions-by", str(generator))
    copy = _copy(places, "questions", of="squad")
    return [
        replace(copy, commands=(*copy.commands, ("evaluate", "recall", "--corpus", "squad-dev", *writing))),
        Preparation(
            name="asked",
            after=("questions",),
            commands=(
                ("db", "migrate"),
                ("corpus", "ingest", str(asked), "--format", "annotated", "--corpus", "squad-dev"),
                ("rekey",),
                ("rekey", "--encoder", "minilm"),
            ),
        ),
    ]


def _questioned(places: Places, passages: Path) -> Preparation:
    """Declares PopQA's passages with generated questions, and keys of these beside those of contexts."""
    marked = passages.with_name("popqa-questioned.jsonl")
    return Preparation(
        name="popqa-questioned",
        after=("popqa",),
        commands=(
            ("db", "migrate"),
            _annotate(passages, marked, DENSELY, questions=True),
            ("corpus", "ingest", str(marked), "--format", "annotated", "--corpus", "popqa"),
            ("rekey", "--kinds", "context,question"),
        ),
    )


def _articles(places: Places, name: str, source: Path, take: Take, rows: int | None) -> Preparation:
    """Declares articles with marked facts, to measure perplexity on."""
    made = places.out / "data" / f"{name}.jsonl"
    return Preparation(
        name=name,
        excerpts=(Excerpt(source=source, target=made, take=take, rows=rows),),
        commands=(_annotate(made, made.with_name(f"{name}-marked.jsonl"), AS_PEOPLE),),
    )


def _copy(places: Places, name: str, *, of: str) -> Preparation:
    backup = places.out / "kb" / f"{of}.backup"
    restored = ("backup", "restore", str(backup), "--trust-signer", "--without-later-erasures", "--yes")
    return Preparation(name=name, after=(of,), commands=(("db", "migrate"), restored))


def _grown(
    places: Places, name: str, *, of: str, source: Path, made_from: tuple[Excerpt, ...]
) -> Preparation:
    """Declares a copy of a knowledge base with more documents, whose facts the annotator marks."""
    marked = source.with_name(f"{source.stem}-marked.jsonl")
    return Preparation(
        name=name,
        after=(of,),
        excerpts=made_from,
        commands=(
            *_copy(places, name, of=of).commands,
            _annotate(source, marked, DENSELY),
            ("corpus", "ingest", str(marked), "--format", "annotated", "--corpus", name),
            ("rekey",),
            ("backup", "create", str(places.out / "kb" / f"{name}.backup"), "--replace"),
        ),
    )


def _annotate(source: Path, marked: Path, threshold: str, *, questions: bool = False) -> tuple[str, ...]:
    """Gives the command that annotates, by default without questions, which context keys do not need and take long."""
    options = (*(() if questions else ("--no-questions",)), "--span-threshold", threshold)
    return ("corpus", "annotate", str(source), "--out", str(marked), *options)
