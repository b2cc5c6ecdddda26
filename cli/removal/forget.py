"""`colmlm forget`: forgets a set of facts by a selector, with a plan before and a verification after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colmlm.cli.bases.anywhere import anywhere
from colmlm.cli.bases.local_base import Base
from colmlm.cli.errors import CHECK_FAILED
from colmlm.cli.fact_view import brief_table, format_source
from colmlm.cli.options import (
    MAX_BIGINT,
    Actor,
    After,
    CheckpointPath,
    DryRun,
    Limit,
    Output,
    Reason,
    WhyUnlessDry,
    Yes,
    examples,
    no_nan,
    parse_time,
    require_reason,
    require_somebody,
    some_text,
    wants_json,
    without_json,
)
from colmlm.cli.output import count_of, format_value, note, print_json, print_table, say, shorten, some_ids
from colmlm.kb.removal.records import (
    LEVELS,
    OUTCOMES,
    SAMPLE,
    Drift,
    ForgetPlan,
    Rates,
    RunRecord,
    SaidSurvivor,
    Verification,
)
from colmlm.kb.texts.characters import json_visible

if TYPE_CHECKING:
    from colmlm.kb.facts.records import Edit, FactRecord


# The options: the parts of a selector, and how a plan is made.


class Policy(StrEnum):
    abstain = "abstain"
    successor = "successor"


class Equivalents(StrEnum):
    include = "include"
    only_list = "only-list"
    exclude = "exclude"


RunId = Annotated[int, typer.Argument(metavar="RUN", min=1, max=MAX_BIGINT, help="See `colmlm forget list`.")]

Facts = Annotated[
    list[int] | None, typer.Option("--fact", min=1, max=MAX_BIGINT, help="A fact's id; may be repeated.")
]
OfDocument = Annotated[
    str | None, typer.Option("--document", callback=some_text, help="A document's id, or corpus/name.")
]
OfCorpus = Annotated[str | None, typer.Option("--corpus", callback=some_text, help="Facts of this corpus.")]
OfUri = Annotated[
    str | None,
    typer.Option(
        "--uri", callback=some_text, help="Facts of documents with this address; with * last, that begins so."
    ),
]
WithText = Annotated[
    str | None,
    typer.Option("--text", callback=some_text, help="Value or question holds this text, in either case."),
]
WithQuestion = Annotated[
    str | None, typer.Option("--question", callback=some_text, help="The question is exactly this.")
]
Licence = Annotated[
    str | None,
    typer.Option("--licence", callback=some_text, help="Facts of documents under this licence."),
]


def _change_or_time(said: str) -> int | datetime:
    """Read the number of a change, or a time."""
    if not said.isdecimal():
        return parse_time(said)
    if not 0 < (seq := int(said)) <= MAX_BIGINT:
        raise typer.BadParameter(f"{said} is not the number of a change, such as 12; see `colmlm log list`.")
    return seq


Since = Annotated[
    Any,
    typer.Option(
        "--since", parser=_change_or_time, metavar="TIME|SEQ",
        help="Added at this time (ISO 8601; UTC) or by this change, or later.",
    ),
]  # fmt: skip
Until = Annotated[
    Any,
    typer.Option(
        "--until", parser=_change_or_time, metavar="TIME|SEQ",
        help="Added at this time (ISO 8601; UTC) or by this change, or earlier.",
    ),
]  # fmt: skip
Like = Annotated[
    int | None,
    typer.Option("--like", min=1, max=MAX_BIGINT, help="Facts whose key is near this fact's."),
]
Radius = Annotated[
    float | None,
    typer.Option(
        "--radius",
        min=-1,
        max=1,
        callback=no_nan,
        help="Least cosine for --like and for equivalents. Default: the keyset's threshold.",
    ),
]
Everything = Annotated[
    bool, typer.Option("--everything", help="Every live fact; leaves no room for other parts.")
]
AllowEmpty = Annotated[bool, typer.Option("--allow-empty", help="Matching nothing is no error.")]
WithEquivalents = Annotated[
    Equivalents, typer.Option("--equivalents", help="What to do with facts that say the same elsewhere.")
]
WithPolicy = Annotated[
    Policy, typer.Option("--policy", help="What a question gets: no match, or the next fact.")
]

NoModel = Annotated[
    bool, typer.Option("--no-model", help="Load no model: stored keys stand for the questions of facts.")
]
Sample = Annotated[
    int,
    typer.Option("--sample", min=1, max=100_000, help="How many facts to preview and ask about at most."),
]
WhyOrDefault = Annotated[
    str | None, typer.Option("--reason", callback=some_text, help="Why. Default: the plan's reason.")
]

app = typer.Typer(
    help="Forget sets of facts: plan, apply, verify, undo, certify.",
    epilog=examples(
        'colmlm forget plan --text Lima --equivalents include --reason "request 12"',
        'colmlm forget apply 1 --reason "request 12"',
        "colmlm forget verify 1",
    ),
)


@app.command(
    epilog=examples(
        'colmlm forget plan --text Lima --equivalents include --reason "request 12"',
        'colmlm forget plan --document demo/eiffel-tower --reason "withdrawn" --no-model --json',
        'colmlm forget plan --like 12 --radius 0.9 --reason "facts like this one"',
    )
)
@anywhere
def plan(
    base: Base,
    reason: Reason,
    fact: Facts = None,
    document: OfDocument = None,
    corpus: OfCorpus = None,
    uri: OfUri = None,
    text: WithText = None,
    question: WithQuestion = None,
    licence: Licence = None,
    since: Since = None,
    until: Until = None,
    like: Like = None,
    radius: Radius = None,
    everything: Everything = False,
    allow_empty: AllowEmpty = False,
    equivalents: WithEquivalents = Equivalents.only_list,
    policy: WithPolicy = Policy.abstain,
    sample: Sample = SAMPLE,
    limit: Limit = 50,
    no_model: NoModel = False,
    checkpoint: CheckpointPath = None,
    actor: Actor = None,
) -> None:
    """Choose facts (they must match every option) and show what forgetting them would do. Changes nothing."""
    from colmlm.kb.removal.selector import Selector

    begins, by_seq = uri is not None and uri.endswith("*"), (isinstance(since, int), isinstance(until, int))
    selector = Selector(
        fact_ids=tuple(fact or ()), document=document, corpus=corpus, uri=None if begins else uri,
        uri_prefix=uri[:-1] if uri is not None and begins else None, text=text, question=question, licence=licence,
        first_seq=since if by_seq[0] else None, last_seq=until if by_seq[1] else None,
        since=None if by_seq[0] else since, until=None if by_seq[1] else until,
        like=like, radius=None if like is None else radius, everything=everything,
    )  # fmt: skip
    base.use_checkpoint(checkpoint)
    made = base.forgetting.plan(
        selector, model=not no_model, sample=sample, actor=base.actor(actor), reason=reason,
        equivalents=equivalents, radius=radius, policy=policy, allow_empty=allow_empty,
    )  # fmt: skip
    texts = texts_of(base, made, limit)
    survivors = base.forgetting.survivors(made.run_id, 0, limit) if made.survivors else []
    if wants_json():
        print_json(plan_json(made, texts, survivors, limit))
        return
    show_plan(made, texts, limit)
    show_survivors(made.read, len(made.survivors), survivors, texts)
    note(f"Planned as run {made.run_id}; nothing has changed. To forget: colmlm forget apply {made.run_id}")


@app.command(
    epilog=examples("colmlm forget apply 1 --dry-run", 'colmlm forget apply 1 --reason "request 12" --yes')
)
@anywhere
def apply(
    base: Base,
    run_id: RunId,
    reason: WhyOrDefault = None,
    actor: Actor = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Forget the facts of a plan: all of them in one change, or none. A plan that is out of date is refused."""
    require_somebody(yes or dry_run, "apply")
    record, drift = base.forgetting.record(run_id), base.forgetting.drift(run_id)
    if dry_run:
        _preview(record, drift=drift)
        return
    _warn(drift)
    if not yes:
        typer.confirm(f"Forget {count_of(record.num_facts, 'fact')} of run {run_id}?", abort=True, err=True)
    edit = base.forgetting.apply(run_id, actor=base.actor(actor), reason=reason or record.reason)
    _print_edit(run_id, edit, drift=drift)


def _warn(drift: Drift) -> None:
    for verb, what, fact_ids in (
        ("match", "the selector", drift.newly_selected),
        ("say", "the same", drift.newly_equivalent),
    ):
        if fact_ids:
            late = count_of(len(fact_ids), "later fact", verb)
            note(
                f"{late} {what} and would not be forgotten: {some_ids(fact_ids)}. Plan again to forget more."
            )


def _preview(record: RunRecord, **more: object) -> None:
    if wants_json():
        print_json({"dry_run": True, "run": record, **more})
        return
    say(
        f"run {record.run_id} is {record.state}: {count_of(record.num_facts, 'fact')}, policy {record.policy}"
    )
    for drift in more.values():
        if isinstance(drift, Drift):
            _warn(drift)
            if drift.stale:
                say(f"It is stale and would be refused. Edited since: {some_ids(drift.stale)}")


def _print_edit(run_id: int, edit: Edit, **more: object) -> None:
    if wants_json():
        print_json({"run_id": run_id, "seq": edit.seq, "kind": edit.kind, "fact_ids": edit.fact_ids, **more})
    else:
        of_facts = f" of {count_of(len(edit.fact_ids), 'fact')}" if edit.fact_ids else ""
        say(f"Change {edit.seq}: {edit.kind}{of_facts}, run {run_id}")


@app.command(epilog=examples('colmlm forget undo 1 --reason "withdrawn"', "colmlm forget undo 1 --dry-run"))
@anywhere
def undo(
    base: Base,
    run_id: RunId,
    reason: WhyUnlessDry = None,
    actor: Actor = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Undo an applied run: all its facts are restored in one change, as they were. A planned run is discarded."""
    require_reason(reason, unless=dry_run)
    require_somebody(yes or dry_run, "undo")
    record = base.forgetting.record(run_id)
    if dry_run:
        _preview(record)
        return
    if not yes:
        facts = count_of(record.num_facts, "fact")
        is_plan = record.state == "planned"
        question = (
            f"Discard the plan of run {run_id}, of {facts}?"
            if is_plan
            else f"Bring {facts} of run {run_id} back?"
        )
        typer.confirm(question, abort=True, err=True)
    edit = base.forgetting.restore(run_id, actor=base.actor(actor), reason=reason or "")
    _print_edit(run_id, edit)


@app.command(
    epilog=examples("colmlm forget verify 1", "colmlm forget verify 1 --paraphrases questions.txt --json")
)
@anywhere
def verify(
    base: Base,
    run_id: RunId,
    paraphrases: Annotated[
        Path | None,
        typer.Option(
            "--paraphrases", dir_okay=False, help="A text file: one more question to ask on each line."
        ),
    ] = None,
    sample: Sample = SAMPLE,
    limit: Limit = 50,
    no_model: NoModel = False,
    checkpoint: CheckpointPath = None,
) -> None:
    """Ask for the forgotten facts with every check there is. The exit code is 1 where one of them is found."""
    lines = paraphrases.read_text(encoding="utf-8").splitlines() if paraphrases else []
    questions = [line.strip() for line in lines if line.strip()]
    if questions and no_model:
        raise typer.BadParameter("name their model with --checkpoint.", param_hint="--paraphrases")
    base.use_checkpoint(checkpoint)
    before = base.forgetting.before(run_id)  # raises for an unknown run before a model is loaded
    found = base.forgetting.verify(run_id, questions, model=not no_model, sample=sample)
    survivors = base.forgetting.survivors(run_id, 0, limit) if found.survivors else []
    if wants_json():
        said = {**asdict(found), "texts": {"survivors": survivors}}
        print_json({"run_id": run_id, "holds": found.holds, "before": before, **said})
    else:
        show_verification(before, found)
        asked = base.forgetting.facts([one.asked_fact_id for one in survivors])
        show_survivors(found.read, len(found.survivors), survivors, asked)
    if not found.holds:
        raise typer.Exit(CHECK_FAILED)


@app.command(
    "list", epilog=examples("colmlm forget list", "colmlm forget list --json", "colmlm forget list 1")
)
@anywhere
def list_runs(
    base: Base,
    run_id: Annotated[
        int | None, typer.Argument(metavar="[RUN]", min=1, max=MAX_BIGINT, help="Show this one.")
    ] = None,
    after: After = 0,
    limit: Limit = 50,
) -> None:
    """List forget runs, oldest first, or show one: its plan, its state now, and its last verification."""
    if run_id is not None:
        _show_run(base, run_id, limit)
        return
    runs = base.forgetting.runs(after, limit)
    more = runs[-1].run_id if len(runs) == limit else None
    if wants_json():
        print_json({"runs": runs, "next_after": more})
        return
    rows = (
        (
            r.run_id,
            r.state,
            r.policy,
            r.num_facts,
            "" if r.level is None else r.level,
            r.actor,
            shorten(r.reason),
        )
        for r in runs
    )
    print_table(
        ("run", "state", "policy", "facts", "level", "actor", "reason"),
        rows,
        "No forget runs found. Plan one: colmlm forget plan",
    )
    if more is not None:
        note(f"More runs: --after {more}")


def _show_run(base: Base, run_id: int, limit: int) -> None:
    record, made, found = base.forgetting.run(run_id)
    texts = texts_of(base, made, limit)
    survivors = base.forgetting.survivors(run_id, 0, limit)
    if wants_json():
        told = plan_json(made, texts, survivors, limit)
        print_json({"run": record, "plan": told, "verification": found})
        return
    say(
        f"run {run_id} is {record.state}; planned at change {record.planned_seq} by {record.actor}: {record.reason}"
    )
    say(f"selector: {shorten(format_value(record.selector), 200)}")
    show_plan(made, texts, limit)
    if found is not None:
        say()
        show_verification(made.before, found)
    last = found if found is not None and found.read else made
    show_survivors(last.read, len(last.survivors), survivors, texts)


@app.command(epilog=examples("colmlm forget certificate 1 --output run-1.json"))
@anywhere
@without_json
def certificate(base: Base, run_id: RunId, output: Output = None) -> None:
    """Give the signed certificate of a verified run, as JSON on stdout or as a file."""
    give_certificate(base.forgetting.certificate(run_id), output)


def give_certificate(text: str, out: Path | None) -> None:
    """Print a certificate, or write it to a file."""
    if out is None:
        typer.echo(json_visible(text), nl=False)
        return
    out.write_text(text, encoding="utf-8")
    note(f"Wrote {out}. To check it against this base: colmlm log verify FILE")
    note("Elsewhere, with the key that `colmlm log export --public-key --output base.pem` writes here:")
    note("  colmlm log verify FILE --offline --public-key base.pem")


# Shows plans and verifications of forget runs, for people and as JSON.


def texts_of(base: Base, made: ForgetPlan, limit: int) -> dict[int, FactRecord]:
    """Read the facts that the output of a plan shows, by id; erased ones are missing."""
    shown = [*made.fact_ids[:limit], *made.equivalents[:limit], *made.conflicting[:limit]]
    for successor in made.successors[:limit]:
        shown += [successor.asked_fact_id, successor.successor_id or 0]
    return base.forgetting.facts([*shown, *(one.asked_fact_id for one in made.survivors[:limit])])


def plan_json(
    made: ForgetPlan, texts: Mapping[int, FactRecord], survivors: Sequence[SaidSurvivor], limit: int
) -> dict[str, Any]:
    """Give the plan for JSON, with all ids, and with the texts of the first `limit` facts and places of each kind."""

    def records(fact_ids: Iterable[int]) -> list[FactRecord]:
        return [texts[fact_id] for fact_id in fact_ids if fact_id in texts]

    successors = []
    for successor in made.successors:
        asked, found = texts.get(successor.asked_fact_id), texts.get(successor.successor_id or 0)
        said = {"question": asked.question if asked else None, "value": found.value if found else None}
        successors.append({**asdict(successor), "would_answer": successor.would_answer, **said})
    return {
        **asdict(made),
        "successors": successors,
        "selector_digest": made.selector_digest or None,
        "texts": {
            "facts": records(made.fact_ids[:limit]),
            "equivalents": records(made.equivalents[:limit]),
            "conflicting": records(made.conflicting[:limit]),
            "survivors": survivors,
        },
    }


def show_plan(made: ForgetPlan, texts: Mapping[int, FactRecord], limit: int) -> None:
    """Print a plan: its facts, equivalent and conflicting ones, and what would be answered instead."""
    forgets = count_of(len(made.fact_ids), "fact")
    say(f"run {made.run_id}: forget {forgets} of {made.live_facts} live, policy {made.policy}")
    _show_facts(made.fact_ids, texts, limit)
    taken = "included" if made.included else "NOT included"
    for what, fact_ids in (
        (f"elsewhere saying the same ({taken}; radius {made.radius:.3f})", made.equivalents),
        ("answering the same questions otherwise, which stay", made.conflicting),
    ):
        if fact_ids:
            say()
            say(f"{count_of(len(fact_ids), 'fact')} {what}:")
            _show_facts(fact_ids, texts, limit)
    say()
    _show_successors(made, texts, limit)
    touched = made.collateral
    say(
        f"{touched.displaced} of {count_of(touched.neighbours, 'fact')} near by are hidden by one of these: it ranks "
        f"first for their own question. {count_of(touched.generations, 'stored output')} spliced them, "
        f"{count_of(touched.splices, 'time')}."
    )
    if made.unkeyed:
        say(
            f"{count_of(made.unkeyed, 'fact', 'have')} no key in the active keyset: no lookup finds that even now."
        )


def _show_facts(fact_ids: tuple[int, ...], texts: Mapping[int, FactRecord], limit: int) -> None:
    brief_table(texts[fact_id] for fact_id in fact_ids[:limit] if fact_id in texts)
    if len(fact_ids) > limit:
        say(f"and {len(fact_ids) - limit} more")


def _show_successors(made: ForgetPlan, texts: Mapping[int, FactRecord], limit: int) -> None:
    encoded = sum(successor.encoded for successor in made.successors)
    answering = sum(successor.would_answer for successor in made.successors)
    say(
        f"{made.previewed} of {count_of(made.affected, 'question')} previewed ({encoded} encoded, the "
        f"others by the fact's own key): {answering} would be answered with another fact "
        f"(threshold {made.threshold:.3f})"
    )
    rows = []
    for successor in made.successors[:limit]:
        asked, found = texts.get(successor.asked_fact_id), texts.get(successor.successor_id or 0)
        score = "" if successor.score is None else f"{successor.score:.3f}"
        question = (
            shorten(asked.question) if asked and asked.question else f"(fact {successor.asked_fact_id})"
        )
        rows.append(
            (
                question,
                successor.outcome,
                score,
                successor.successor_id,
                shorten(found.value) if found else "",
            )
        )
    print_table(("question", "outcome", "score", "next fact", "value"), rows)
    if len(made.successors) > limit:
        say(f"and {len(made.successors) - limit} more")


def show_survivors(
    read: int, count: int, survivors: Sequence[SaidSurvivor], texts: Mapping[int, FactRecord]
) -> None:
    """Print the first of `count` places that might still answer, with what they say; nothing if `read` is 0."""
    if not read:
        return
    say()
    say(
        f"{count_of(read, 'question')} asked of the whole base as if these facts were gone: "
        f"{count_of(count, 'place')} might still answer"
        + (". One of low probability has the value, and is not given as an answer." if count else "")
    )
    rows = []
    for one in survivors:
        asked = texts.get(one.asked_fact_id)
        question = shorten(asked.question) if asked and asked.question else f"(fact {one.asked_fact_id})"
        facts = ", ".join(str(fact.fact_id) for fact in one.facts)
        rows.append(
            (question, shorten(one.text), one.says, f"{one.score:.3f}", facts, format_source(one.source))
        )
    print_table(("question", "would say", "value", "probability", "facts", "source"), rows)
    if count > len(survivors):
        say(f"and {count - len(survivors)} more")


def show_verification(asked_before: Mapping[str, Rates], found: Verification) -> None:
    """Print the level reached, and for each class of checks the share with each outcome."""
    say(f"level {found.level}: {LEVELS[found.level]}")
    columns = ("checks", "n", "found before", "found", "same value", "other value", "abstained", "no match")
    rows = []
    for name, rates in found.probes.items():
        before = asked_before.get(name)
        was = "" if before is None else f"{before.rate('leaks'):.1%}"
        rows.append((name, rates.probes, was, *(f"{rates.rate(outcome):.1%}" for outcome in OUTCOMES)))
    print_table(columns, rows)
    say(
        f"facts still live {found.still_live}, keys in the index {found.keys_in_index}, tombstones {found.tombstones}"
    )
    if found.leaked:
        say(f"found: {some_ids(found.leaked)}")
