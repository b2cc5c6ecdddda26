"""`colmlm-lab evaluate deletion`: measures what is left of forgotten facts, by policy and radius, what others lose."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Annotated, Any, TypeVar

import typer

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import CheckpointPath, DryRun, examples, wants_json
from colmlm.cli.output import counting, note, print_json, print_table, say
from colmlm.kb.errors import Conflict
from colmlm.kb.facts.records import FactRecord
from colmlm.kb.log import audit
from colmlm.kb.log.records import ChangeRecord
from colmlm.kb.removal.forget import Forgetting
from colmlm.kb.removal.records import RunRecord
from colmlm.kb.service import KnowledgeBase
from colmlm.lab.methods.deletion_audit import (
    KINDS,
    PLANTED,
    REASON,
    DeletionAudit,
    DeletionRun,
    Survival,
    as_json,
    draw,
    survive,
)
from colmlm.model.evaluate.answers import Share

EXAMPLES = examples(
    "colmlm-lab evaluate deletion --corpus demo --facts 50",
    "colmlm-lab evaluate deletion --corpus squad-dev --facts 200 --radius 0.7 --radius 0.8 --radius 0.9 --json",
)
POLICIES = ("successor", "abstain")
ASKED = {"full": "forced", "off": "off", "null": "null"}  # figures before forgetting, with their modes


def deletion(
    corpus: Annotated[
        str, typer.Option("--corpus", help="Whose facts; those with a question are asked for.")
    ],
    facts: Annotated[int, typer.Option("--facts", min=1, help="How many are forgotten, all together.")] = 100,
    others: Annotated[
        int, typer.Option("--others", min=1, help="How many other facts are looked up before and after.")
    ] = 300,
    neighbours: Annotated[
        int,
        typer.Option(
            "--neighbours", min=1, help="How many of the facts nearest to those that are forgotten."
        ),
    ] = 300,
    survivors: Annotated[
        bool, typer.Option(help="Also with a fact planted beside each that says the same in other words.")
    ] = True,
    radius: Annotated[
        list[float] | None,
        typer.Option(
            "--radius", min=-1, max=1, help="How near equivalents lie. Repeatable. Default: the threshold."
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Draws the facts.")] = 0,
    checkpoint: CheckpointPath = None,
    dry_run: DryRun = False,
) -> None:
    """Forget a sample of facts by each policy and radius, ask for them, look others up, and undo it.

    `full` is the model before anything is forgotten, `off` the model without lookups, `null` the model whose lookups
    find nothing: what it says there comes from its training, which no deletion changes. The model is asked at the first
    radius only. While this runs the facts are deleted for everybody, and others planted: use a knowledge base of your
    own.
    """
    with Runtime.from_environment(checkpoint=checkpoint) as runtime:
        runtime.open()
        if not dry_run and any(left := set_back(runtime.kb, runtime.actor(None))):
            note(f"a run that was killed had left {left[0]} facts forgotten and {left[1]} planted: undone.")
        drawn = draw(runtime.kb, corpus, facts, others, seed)
        if not all(drawn):
            raise typer.BadParameter("it has too few facts with a question.", param_hint="--corpus")
        if dry_run:
            _preview(drawn[0], corpus, len(radius or [None]), survivors)
            return
        audit = DeletionAudit(runtime, *drawn, neighbours)
        report: dict[str, Any] = {
            "checkpoint": audit.checkpoint.config.name,
            "corpus": corpus,
            "facts": len(audit.sample),
            "others": len(audit.others),
            "neighbours": len(audit.neighbours),
        }
        before = audit.found()
        radii: list[float | None] = list(radius) if radius else [None]
        with counting("Asking", (len(ASKED) + len(POLICIES)) * len(audit.sample)) as done:
            for name, mode in ASKED.items():
                report[name] = asdict(audit.said(mode, done))
            runs = [
                audit.run(policy, at, before, done if number == 0 else None)
                for policy in POLICIES
                for number, at in enumerate(radii)
            ]
        planted: list[Survival] = []
        if survivors:
            with counting("Planting", len(KINDS) * len(POLICIES) * (len(radii) + 1)) as done:
                planted = survive(audit, POLICIES, radii, done)
            report["survivors"] = [asdict(one) for one in planted]
        is_restored = audit.found().is_as(before)
    report["runs"] = [as_json(run) for run in runs]
    print_json(report) if wants_json() else _show(report, runs, planted)
    if not (is_restored and all(run.is_restored for run in runs)):
        note("warning: not every lookup is as it was; did somebody else edit meanwhile?")


def _preview(sample: Sequence[FactRecord], corpus: str, radii: int, survivors: bool) -> None:
    planted = len(sample) * len(KINDS) if survivors else 0
    runs = len(POLICIES) * (radii + (radii + 1) * len(KINDS) * survivors)
    if wants_json():
        fact_ids = [fact.fact_id for fact in sample]
        print_json(
            {"dry_run": True, "corpus": corpus, "fact_ids": fact_ids, "runs": runs, "planted": planted}
        )
        return
    say(
        f"{len(sample)} facts of {corpus} and their equivalents would be forgotten and restored {runs} times."
    )
    say(f"{planted} facts would be inserted beside them and deleted.")


def _show(report: dict[str, Any], runs: list[DeletionRun], planted: Sequence[Survival]) -> None:
    rows = [(name, "", "", *_share_columns(report[name]), "", "", "", "", "") for name in ASKED]
    rows += [
        (
            run.policy,
            f"{run.radius:.3f}",
            str(run.forgotten),
            *_share_columns(asdict(run.said) if run.said else None),
            f"{run.probes.leaks} of {run.probes.probes}",
            _share(run.wrong_neighbour),
            _share(run.others),
            _share(run.others_lost),
            _share(run.neighbours_lost),
        )
        for run in runs
    ]
    asked = ("says it", "splices it", "wrong neighbour")
    print_table(
        (
            "",
            "radius",
            "forgotten",
            *asked,
            "leaks",
            "now another value",
            "others found",
            "others lost",
            "neighbours lost",
        ),
        rows,
    )
    if planted:
        columns = (
            "planted",
            "",
            "radius",
            "read",
            "found by the plan",
            "or listed",
            "told by the question",
            "by the wording",
        )
        print_table(columns, [
            (one.kind, one.policy, f"{one.radius:.3f}", "yes" if one.reading else "",
             *map(_share, (one.found, one.listed, one.by_question, one.by_wording)))
            for one in planted
        ])  # fmt: skip
    counted = f"{report['others']} others, {report['neighbours']} neighbours"
    note(f"{report['checkpoint']}: {report['facts']} facts of {report['corpus']}, {counted}")


def _share_columns(found: dict[str, Any] | None) -> tuple[str, str, str]:
    names = ("says", "splices", "wrong_neighbour")
    says, splices, wrong = (_share(Share(**found[name])) if found else "" for name in names)
    return says, splices, wrong


def _share(found: Share | None) -> str:
    return "" if found is None else str(found)


# Undoes what a killed `colmlm-lab evaluate deletion` has left in a knowledge base.

PAGE = 1000
_Record = TypeVar("_Record")


def set_back(kb: KnowledgeBase, actor: str) -> tuple[int, int]:
    """Restore the facts still forgotten, delete those still planted, and give the number of each.

    It restores first, since a run may have forgotten planted facts too. A run of which somebody has restored or erased
    a fact since is reported and left as it is.
    """
    forgetting, restored = Forgetting(kb), 0
    for run in reversed(list(_runs(forgetting))):
        if run.state == "applied" and run.reason == REASON:
            try:
                forgetting.restore(run.run_id, actor=actor, reason=REASON)
                restored += run.num_facts
            except Conflict as error:
                note(f"warning: forget run {run.run_id}, which a killed one left, is not undone: {error}")
    planted = [i for change in _inserts(kb) if change.reason == PLANTED for i in change.fact_ids]
    left = [i for i in planted if kb.facts.show(i).deleted_seq is None]
    if left:
        kb.facts.delete(left, actor=actor, reason=PLANTED)
    return restored, len(left)


def _runs(forgetting: Forgetting) -> Iterator[RunRecord]:
    return _paged(lambda after: forgetting.runs(after, PAGE), lambda run: run.run_id)


def _inserts(kb: KnowledgeBase) -> Iterator[ChangeRecord]:
    def page(after: int) -> list[ChangeRecord]:
        with kb.sessions() as session:
            return audit.list_changes(session, after, PAGE, kind="insert")

    return _paged(page, lambda change: change.seq)


def _paged(page: Callable[[int], Sequence[_Record]], key: Callable[[_Record], int]) -> Iterator[_Record]:
    after = 0
    while found := page(after):
        yield from found
        after = key(found[-1])
