"""`colmlm outputs`: says whether stored outputs are right, and leads from a wrong one to what to mend."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from colmlm.cli.auditing.trace import marked
from colmlm.cli.bases.anywhere import anywhere
from colmlm.cli.bases.protocol import Base
from colmlm.cli.options import Actor, examples, some_text, wants_json
from colmlm.cli.output import plain, print_json, say

if TYPE_CHECKING:
    from colmlm.kb.evidence.records import OutputTrace, TracedSplice

app = typer.Typer(
    help="Say whether stored outputs are right, and mend those that are wrong.",
    epilog=examples("colmlm outputs wrong 3"),
)

OutputId = Annotated[int, typer.Argument(metavar="OUTPUT_ID", min=1, help="The stored output's id.")]
Comment = Annotated[
    str | None, typer.Option("--comment", callback=some_text, help="What is right or wrong with it.")
]
RightValue = Annotated[
    str | None, typer.Option("--value", callback=some_text, help="What it should have said.")
]


@app.command(
    epilog=examples(
        "colmlm outputs feedback 3 --up", 'colmlm outputs feedback 3 --down --value "June 1988" --json'
    )
)
@anywhere
def feedback(
    base: Base,
    generation_id: OutputId,
    up: Annotated[bool, typer.Option("--up/--down", help="Whether it is right.")],
    comment: Comment = None,
    value: RightValue = None,
    actor: Actor = None,
) -> None:
    """Say whether an output is right: thumb up or down. The last one of each person counts."""
    from colmlm.kb.evidence.records import NewFeedback

    made = NewFeedback("up" if up else "down", comment, value)
    given = base.outputs.give_feedback(generation_id, made, actor=base.actor(actor))
    print_json(given) if wants_json() else say(f"thumb {given.thumb} for output {given.generation_id}")


@app.command(epilog=examples("colmlm outputs wrong 3", 'colmlm outputs wrong 3 --value "June 1988" --json'))
@anywhere
def wrong(
    base: Base,
    generation_id: OutputId,
    comment: Comment = None,
    value: RightValue = None,
    actor: Actor = None,
) -> None:
    """Say that an output is wrong, and see what to mend: the facts behind it, or one to add where there is none.

    It prints the commands that mend it. Each of them is a change, which `colmlm facts undo` takes back.
    """
    from colmlm.kb.evidence.records import NewFeedback

    base.outputs.give_feedback(generation_id, NewFeedback("down", comment, value), actor=base.actor(actor))
    trace = base.outputs.trace(generation_id)
    found = {
        "output": generation_id,
        "question": trace.question,
        "facts": [_behind(splice, value) for splice in trace.splices if splice.fact_id is not None],
    }
    found["add"] = None if found["facts"] else _adding(trace, value)
    print_json(plain(found)) if wants_json() else _show(trace, found)


def _behind(splice: TracedSplice, value: str | None) -> dict[str, object]:
    """Gives a fact behind an output, what became of it since, and the commands that mend it."""
    fact, right = splice.fact_id, quote(value or "...")
    commands = [
        f'colmlm facts edit {fact} --value {right} --reason "..."',
        f'colmlm facts edit {fact} --question "..." --reason "..."',
        f'colmlm facts delete {fact} --reason "..."',
    ]
    if splice.source is not None:
        commands.insert(2, f'colmlm facts move {fact} --text "..." --reason "..."')
    return {
        "fact_id": fact,
        "said": splice.value,
        "says_now": splice.current_value,
        "live": splice.live,
        "fixed": bool(splice.history) and not splice.is_current,
        "commands": commands if splice.live else [f'colmlm facts restore {fact} --reason "..."'],
    }


def _adding(trace: OutputTrace, value: str | None) -> str:
    asked, right = quote(trace.question), quote(value or "...")
    return f'colmlm facts add --question {asked} --value {right} --reason "..."'


def _show(trace: OutputTrace, found: dict[str, object]) -> None:
    say(f"asked:  {found['question']}")
    say(f"said:   {marked(trace)}")
    facts = found["facts"]
    assert isinstance(facts, list)
    for fact in facts:
        now = f"fact {fact['fact_id']} said: {fact['said']}"
        if fact["fixed"]:
            now += f"; says now: {fact['says_now']}" if fact["live"] else "; deleted since"
        say(now)
        for command in fact["commands"]:
            say(f"  {command}")
    if found["add"] is not None:
        say("No fact stands behind it. To add one:")
        say(f"  {found['add']}")
