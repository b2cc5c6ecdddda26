"""`colmlm evaluate survivors`: measures which planted texts a plan to forget lists, and which it should not."""

from __future__ import annotations

import random
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from colmlm.cli.composition.keying import key_everything
from colmlm.cli.options import AsJson, CheckpointPath, examples
from colmlm.cli.output import counting, note, print_json, print_table
from colmlm.kb.corpus.squad import read_squad
from colmlm.kb.forgetting.records import OUTCOMES
from colmlm.lab.methods.own_base import own_base
from colmlm.lab.methods.planted_texts import KINDS
from colmlm.lab.methods.text_survivors import ACTOR, REASON, AfterForgetting, SurvivorAudit, TextSurvival
from colmlm.model.evaluate.answers import Share

EXAMPLES = examples("colmlm evaluate survivors --squad dev.jsonl --documents 300 --facts 100 --json")
CORPUS = "squad"


def survivors(
    squad: Annotated[
        Path,
        typer.Option(
            "--squad", exists=True, dir_okay=False, help="Texts with people's questions, in SQuAD's form."
        ),
    ],
    documents: Annotated[
        int, typer.Option("--documents", min=1, help="How many paragraphs, drawn by the seed.")
    ] = 300,
    facts: Annotated[
        int, typer.Option("--facts", min=1, help="How many of their facts are forgotten, all together.")
    ] = 100,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Draws paragraphs, facts and texts.")] = 0,
    checkpoint: CheckpointPath = None,
    as_json: AsJson = False,
) -> None:
    """Plant texts that tell facts in other words, or only seem to, and plan to forget the facts.

    The facts are those that people marked, in a knowledge base of its own. For each that is forgotten a text is planted
    in another document: one that tells it by its value, by another wording of the value, and for control one on another
    subject, with that subject's value of the same sort or with this value.
    """
    with own_base(checkpoint) as runtime:
        parsed = list(read_squad(squad))
        random.Random(seed).shuffle(parsed)
        runtime.kb.corpora.ingest(parsed[:documents], CORPUS, actor=ACTOR, reason=REASON)
        key_everything(runtime, kinds="context,question")
        audit = SurvivorAudit(runtime, CORPUS, facts, seed)
        if len(audit.others) < facts:
            raise typer.BadParameter("it has too few facts with a question.", param_hint="--facts")
        with counting("Planning", len(KINDS)) as done:
            measured = audit.measure(done)
        after = audit.after()
    report: dict[str, Any] = {"facts": facts, "documents": documents}
    report |= {"survivors": [asdict(one) for one in measured], "after": asdict(after)}
    print_json(report) if as_json else _show(measured, after)


def _show(measured: list[TextSurvival], after: AfterForgetting) -> None:
    columns = ("planted", "n", "listed", "would be taken along", "says the value", "other places")
    rows = [
        (one.kind, one.planted, _share(one.listed), _share(one.taken), _counts(one.says), one.unplanted)
        for one in measured
    ]
    print_table(columns, rows)
    print_table(
        ("checks afterwards", "n", *OUTCOMES),
        [
            (name, r.probes, *(getattr(r, outcome) for outcome in OUTCOMES))
            for name, r in after.probes.items()
        ],
    )
    note(f"level {after.level}; {after.answered} questions would still be answered were the texts gone, too")


def _counts(says: dict[str, int]) -> str:
    return ", ".join(f"{name} {says[name]}" for name in sorted(says))


def _share(found: Share) -> str:
    return f"{found.share:.3f} [{found.low:.3f}, {found.high:.3f}]"
