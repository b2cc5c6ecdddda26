"""`colmlm misses`: the work list of what was asked and found nothing, or was called wrong."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from colmlm.cli.bases.anywhere import anywhere
from colmlm.cli.bases.local_base import Base
from colmlm.cli.errors import CHECK_FAILED
from colmlm.cli.options import (
    MAX_BIGINT,
    Actor,
    After,
    Limit,
    Reason,
    each_once,
    examples,
    given_options,
    some_text,
    wants_json,
)
from colmlm.cli.output import count_of, note, print_json, print_table, say, shorten
from colmlm.kb.errors import refusals

if TYPE_CHECKING:
    from colmlm.kb.facts.records import Contradicting
    from colmlm.kb.misses.records import MissDetails, MissGroup, Solving

app = typer.Typer(
    help="What was asked and found nothing, as a work list: list, settle.",
    epilog=examples("colmlm misses list"),
)


class GroupState(StrEnum):
    open = "open"
    dismissed = "dismissed"
    solved = "solved"


class GroupVerdict(StrEnum):
    """The decision on groups of misses."""

    dismiss = "dismiss"
    solve = "solve"
    reopen = "reopen"


class GroupSort(StrEnum):
    asked = "asked"
    newest = "newest"


@app.command(
    "list",
    epilog=examples("colmlm misses list", "colmlm misses list --sort newest --json", "colmlm misses list 4"),
)
@anywhere
def list_misses(
    base: Base,
    group_id: Annotated[
        int | None,
        typer.Argument(
            metavar="[GROUP_ID]", min=1, max=MAX_BIGINT, help="Show this one with its different questions."
        ),
    ] = None,
    state: Annotated[
        GroupState, typer.Option("--state", help="Open ones, or those that were dismissed or solved.")
    ] = GroupState.open,
    sort: Annotated[
        GroupSort, typer.Option("--sort", help="By how often it was asked, or newest first.")
    ] = GroupSort.asked,
    after: After = 0,
    limit: Limit = 20,
) -> None:
    """List groups of questions that found nothing, or show one, with the facts near each."""
    if group_id is not None:
        details = base.misses.read(group_id)
        print_json(details) if wants_json() else _show(details)
        return
    page = base.misses.find(state=state.value, sort=sort.value, after=after, limit=limit)
    if wants_json():
        print_json(page)
        return
    print_table(
        ("group", "asked", "wrong", "last", "question", "facts near it"),
        map(_row, page.groups),
        "No groups found.",
    )
    if not page.kept:
        note("COLMLM_KEEP_ANSWERS is `no`: no questions are kept, so nothing is listed.")
    if page.total > len(page.groups):
        note(f"{count_of(page.total, 'group')} in all.")
    if page.ungrouped:
        note(f"{count_of(page.ungrouped, 'miss', 'are')} in no group yet; a worker groups them.")
    if page.next_after is not None:
        note(f"More groups: --after {page.next_after}")


def _row(group: MissGroup) -> tuple[object, ...]:
    near = "; ".join(f"{fact.fact_id}: {shorten(fact.value, 30)}" for fact in group.nearest)
    question, last = shorten(group.question, 60), f"{group.last_at:%Y-%m-%d %H:%M}"
    return group.group_id, group.asked, group.wrong or "", last, question, near


def _show(details: MissDetails) -> None:
    group = details.group
    asked = f"asked {count_of(group.asked, 'time')}, called wrong {count_of(group.wrong, 'time')}"
    say(f"group {group.group_id}, {group.state}: {asked}")
    if (decided := group.decision) is not None:
        by_fact = "" if group.fact_id is None else f" by fact {group.fact_id}"
        say(f"{decided.kind}{by_fact}: {decided.actor}, change {decided.seq}: {decided.reason}")
    print_table(
        ("output", "asked", "last", "question", "proposed", "facts"),
        [
            (
                one.generation_id,
                one.asked,
                f"{one.last_at:%Y-%m-%d %H:%M}",
                one.question,
                one.proposed,
                "accepted only" if one.accepted_only else "",
            )
            for one in details.questions
        ],
    )
    say("facts near it now:")
    print_table(
        ("fact", "score", "value", "question", "document"),
        [
            (
                near.fact_id,
                "words" if near.score is None else f"{near.score:.3f}",
                shorten(near.value),
                shorten(near.question),
                near.document_id,
            )
            for near in group.nearest
        ],
        "None.",
    )
    note(f'To add a fact: colmlm misses settle solve {group.group_id} --value "..." --reason "..."')


@app.command(
    epilog=examples(
        'colmlm misses settle dismiss 4 7 --reason "not about our products"',
        'colmlm misses settle reopen 4 --reason "it is ours after all"',
        'colmlm misses settle solve 4 --fact 12 --reason "that is it"',
        'colmlm misses settle solve 4 --value "May 1987" --reason "was missing"',
        'colmlm misses settle solve 4 --document 3 --text "May 1987" --reason "was not marked"',
    )
)
@anywhere
def settle(
    base: Base,
    verdict: Annotated[
        GroupVerdict,
        typer.Argument(
            metavar="VERDICT",
            help="dismiss what is not this base's to answer, solve one group by a fact, or reopen.",
        ),
    ],
    group_ids: Annotated[
        list[int], typer.Argument(metavar="GROUP_ID...", min=1, max=MAX_BIGINT, help="Of `misses list`.")
    ],
    reason: Reason,
    fact_id: Annotated[
        int | None, typer.Option("--fact", min=1, max=MAX_BIGINT, help="The fact that answers it.")
    ] = None,
    value: Annotated[
        str | None, typer.Option("--value", callback=some_text, help="Add a fact with this value first.")
    ] = None,
    document: Annotated[
        int | None,
        typer.Option("--document", min=1, max=MAX_BIGINT, help="Add a fact that this document says first."),
    ] = None,
    text: Annotated[
        str | None, typer.Option("--text", callback=some_text, help="The document's exact words.")
    ] = None,
    question: Annotated[
        str | None,
        typer.Option(
            "--question", callback=some_text, help="The new fact's question. Default: the last one."
        ),
    ] = None,
    anyway: Annotated[
        bool,
        typer.Option(
            "--anyway",
            help="Solve it although a question does not find the fact, or another fact answers otherwise.",
        ),
    ] = False,
    actor: Actor = None,
) -> None:
    """Dismiss groups, reopen them, or solve one by a fact that is there or is added now.

    What is asked near a dismissed group later joins it. To solve a group, its newest five questions are asked again.
    Only where all of them find the fact is the group solved; otherwise the exit code is 1.
    """
    who, ids = base.actor(actor), each_once(group_ids)
    if verdict is not GroupVerdict.solve:
        of_solve = {"value": value, "document": document, "text": text, "question": question}
        if given := given_options(fact=fact_id, **of_solve, anyway=anyway):
            raise typer.BadParameter(
                "only `solve` takes this; leave it out, or give the verdict `solve`.", param_hint=given
            )
        decide = base.misses.dismiss if verdict is GroupVerdict.dismiss else base.misses.reopen
        _tell_decided(decide(ids, actor=who, reason=reason), verdict, ids)
        return
    if len(ids) != 1:
        raise typer.BadParameter("a fact solves one group at a time; name one group.", param_hint="GROUP_ID")
    (group_id,) = ids
    if sum(one is not None for one in (fact_id, value, document)) != 1 or (document is None) != (
        text is None
    ):
        raise typer.BadParameter("give --fact, or --value, or --document with --text.")
    if fact_id is None:
        asked = _question_to_add(base.misses.read(group_id).group, question)
        if document is None:
            assert value is not None
            edit = base.facts.add(asked, value, actor=who, reason=reason, anyway=anyway)
        else:
            how: Contradicting = {"actor": who, "reason": reason, "anyway": anyway}
            edit = base.facts.add_to(document, {"text": text}, question=asked, **how)
        (fact_id,) = edit.fact_ids
    done = base.misses.solve(group_id, fact_id, anyway=anyway, actor=who, reason=reason)
    print_json(done) if wants_json() else _tell(done)
    if not done.solved:
        raise typer.Exit(CHECK_FAILED)


def _tell_decided(seq: int, verdict: GroupVerdict, group_ids: list[int]) -> None:
    state = "dismissed" if verdict is GroupVerdict.dismiss else "open"
    if wants_json():
        print_json({"seq": seq, "state": state, "group_ids": group_ids})
    else:
        say(f"change {seq}: {count_of(len(group_ids), 'group', 'are')} {state}")


def _question_to_add(group: MissGroup, question: str | None) -> str:
    """Give the question of the fact to add. Raises an error if the group is solved or its question redacted."""
    if group.state == "solved":
        raise refusals.miss_group_state([group.group_id], group.state)
    from colmlm.kb.facts.redaction import MARK

    if question is None and MARK in group.question:
        raise typer.BadParameter("a part of the group's question was erased or is withheld; give --question.")
    return question or group.question


def _tell(done: Solving) -> None:
    print_table(
        ("output", "found", "question"),
        [(one.generation_id, "yes" if one.found else "no", one.question) for one in done.asked],
    )
    if done.solved:
        say(f"change {done.seq}: group {done.group_id} is solved by fact {done.fact_id}")
    else:
        say(f"Not solved: not every question finds fact {done.fact_id}.")
        note(
            "See `colmlm lookup` for what they find; the fact's question may need their words. "
            f"To solve it still: colmlm misses settle solve {done.group_id} --fact {done.fact_id} --anyway "
            '--reason "..."'
        )
