"""`colmlm ask`: answers a question with a span of a document, or says that nothing stored answers it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from colmlm.cli.auditing.trace import stored_as
from colmlm.cli.bases.anywhere import anywhere
from colmlm.cli.bases.local_base import Base
from colmlm.cli.errors import REFUSED
from colmlm.cli.options import (
    AcceptedOnly,
    AsOf,
    CheckpointPath,
    Verbose,
    examples,
    finite,
    some_text,
    some_texts,
    wants_json,
)
from colmlm.cli.output import note, print_json, print_table, say, shorten
from colmlm.kb.answers.records import NOTHING, PASSAGE, Answer
from colmlm.kb.lookup.options import AnswerOptions
from colmlm.kb.texts.characters import visible_text

ASK_EXAMPLES = examples(
    'colmlm ask "When was the canteen opened?"',
    'colmlm ask "When was the canteen opened?" --threshold 0 --json',
    'colmlm ask "When was the canteen opened?" --mode paper',
    'colmlm ask "When was the canteen opened?" --corpus handbook --corpus news',
    'colmlm ask "When was the canteen opened?" --as-of 12',
)


class AnswerMode(StrEnum):
    read = "read"
    paper = "paper"


@anywhere
def ask(
    base: Base,
    question: Annotated[str, typer.Argument(callback=some_text, help="The question.")],
    mode: Annotated[
        AnswerMode, typer.Option("--mode", help="Read what is near, or take the fact with the nearest key.")
    ] = AnswerMode.read,
    threshold: Annotated[
        float | None,
        typer.Option(
            "--threshold",
            min=-1,
            max=1,
            callback=finite,
            help="The least score of an answer: a probability, or in mode paper a cosine. Default: the fitted one.",
        ),
    ] = None,
    nearest: Annotated[
        int, typer.Option("--nearest", min=0, max=10, help="How many of the nearest passages to show.")
    ] = 3,
    accepted_only: AcceptedOnly = False,
    corpora: Annotated[
        list[str] | None,
        typer.Option("--corpus", callback=some_texts, help="Only documents of this corpus; may be repeated."),
    ] = None,
    as_of: AsOf = None,
    checkpoint: CheckpointPath = None,
    verbose: Verbose = False,
) -> None:
    """Answer a question from the documents, with the place that says it.

    Where nothing stored answers it, the nearest passages are shown, and the exit code is 3. Each answer is stored as an
    output, also where nothing is said, unless COLMLM_KEEP_ANSWERS is `no`. What is asked of the past is not stored.
    """

    how: AnswerOptions = {"threshold": threshold, "nearest": nearest, "accepted_only": accepted_only}
    if corpora:  # which a server of before does not know
        how["corpora"] = corpora

    def answered(asked: Base) -> Answer:
        asked.use_checkpoint(checkpoint)
        return asked.lookups.answer(question, mode=mode.value, as_of=as_of, **how)

    found = base.answered(answered, checkpoint=checkpoint, as_of=as_of, verbose=verbose)
    if wants_json():
        print_json(_as_dict(found))
    else:
        _show(found)
        if found.generation_id is not None:
            note(stored_as(found.generation_id, base.server))
    if found.abstained:
        raise typer.Exit(REFUSED)


def _as_dict(found: Answer) -> dict[str, object]:
    source = found.source
    return {
        "question": found.question,
        "answer": found.answer,
        "grain": found.grain,
        "fact_id": found.facts[0].fact_id if found.facts else None,
        "facts": found.facts,
        "unreviewed": found.unreviewed,
        "corpus": source.corpus if source else None,
        "document": source.external_id if source else None,
        "title": source.title if source else None,
        "start": source.start if source else None,
        "end": source.end if source else None,
        "score": found.score,
        "threshold": found.threshold,
        "abstained": found.abstained,
        "withheld": found.withheld,
        "why": found.why,
        "nearest": found.nearest,
        "seq": found.seq,
        "generation_id": found.generation_id,
    }


def _show(found: Answer) -> None:
    if found.answer is not None:
        say(visible_text(found.answer))
        say()
        where = "a fact without a document"
        if (source := found.source) is not None:
            where = f"{source.corpus}/{source.external_id}, {source.start} to {source.end}"
        said = ", ".join(str(fact.fact_id) for fact in found.facts)
        facts = f"fact{'' if len(found.facts) == 1 else 's'} {said}" if said else "no marked fact"
        what = "the lines that answer; " if found.grain == PASSAGE else ""
        note(f"{what}{where}; {facts}; score {found.score:.2f}")
        if found.unreviewed:
            proposed = ", ".join(map(str, found.unreviewed))
            facts = "fact" if len(found.unreviewed) == 1 else "facts"
            note(f"Unreviewed: nobody has accepted {facts} {proposed} yet. See: colmlm review list")
        return
    say(NOTHING)
    if found.why is not None:
        note(found.why)
    if found.nearest:
        say()
        print_table(
            ("nearest passages", "document", "facts"),
            [
                (
                    shorten(passage.text, 200),
                    f"{passage.source.corpus}/{passage.source.external_id}" if passage.source else "",
                    ", ".join(str(fact.fact_id) for fact in passage.facts[:5]),
                )
                for passage in found.nearest
            ],
        )
