"""The tools that edit: propose, correct, delete, restore and forget. Each wants a reason, and is a dry run first."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field

from colmlm.api.mcp.caller import Caller, Offer, facts_of, plain
from colmlm.api.mcp.reading import Id
from colmlm.kb.access.records import Right
from colmlm.kb.errors import Conflict, InvalidValue, refusals
from colmlm.kb.facts.records import Edit, FactRecord
from colmlm.kb.removal.records import DEFAULT_POLICY, SAMPLE, ForgetPlan
from colmlm.kb.removal.selector import Selector

Reason = Annotated[str, Field(min_length=1, max_length=1000, description="Why; the log keeps it for good")]
Confirm = Annotated[
    str, Field(description="Empty: a dry run that changes nothing. To do it: the `confirm` of that dry run")
]
Ids = Annotated[list[Id], Field(min_length=1, max_length=1000, description="Ids of facts")]
Anyway = Annotated[bool, Field(description="Also where another fact answers the question otherwise")]
Words = Annotated[str, Field(max_length=10_000)]


def propose_fact(
    caller: Caller,
    question: Annotated[str, Field(min_length=1, max_length=2000, description="What the fact answers")],
    value: Annotated[
        str, Field(min_length=1, max_length=10_000, description="The answer, as it is to be cited")
    ],
    reason: Reason,
    anyway: Anyway = False,
    confirm: Confirm = "",
) -> dict[str, Any]:
    """Propose a new fact that no document says. Until somebody accepts it, it is cited as unreviewed.

    Where only accepted facts answer, it does not answer before. The dry run shows the facts that answer this already.
    """
    alike = caller.base.facts.search(text=question, literally=True, limit=SHOWN).facts
    asked = [fact for fact in alike if fact.question == question]
    dry = DryRun(
        caller, "propose_fact", (question, value, anyway), reason, [], f"propose: {question} {value}", asked
    )
    return dry.or_done(
        confirm,
        lambda: caller.base.facts.add(
            question, value, proposed=True, anyway=anyway, actor=caller.actor, reason=reason
        ),
        answered_already=facts_of(asked),
    )


def correct_fact(
    caller: Caller,
    fact_id: Id,
    reason: Reason,
    value: Annotated[Words, Field(description="The new value; empty: as it is")] = "",
    question: Annotated[Words, Field(description="The new question; empty: as it is")] = "",
    anyway: Anyway = False,
    confirm: Confirm = "",
) -> dict[str, Any]:
    """Give a fact another value, another question, or both: from then on in every process. Its history is kept.

    The document's own text stays as it is. To take the correction back, correct it again.
    """
    if not value and not question:
        raise InvalidValue("correction", "it has neither a value nor a question; give one of them")
    fact = caller.base.facts.show(fact_id)
    _require_live([fact])
    would = " and ".join(
        f"change the {what} from {was!r} to {now!r}"
        for what, was, now in (("value", fact.value, value), ("question", fact.question, question))
        if now
    )
    return DryRun(caller, "correct_fact", (fact_id, value, question, anyway), reason, [fact], would).or_done(
        confirm,
        lambda: caller.base.facts.edit(
            fact_id,
            value or None,
            question=question or None,
            version=fact.version,
            anyway=anyway,
            actor=caller.actor,
            reason=reason,
        ),
    )


def delete_facts(caller: Caller, fact_ids: Ids, reason: Reason, confirm: Confirm = "") -> dict[str, Any]:
    """Delete facts, all of them in one change or none: from then on nothing is answered with them.

    `restore_facts` brings them back. The dry run names other facts that say the same, which stay.
    """
    facts = _each_once(caller, fact_ids)
    _require_live(facts)
    also_said = caller.base.comparisons.also_said([fact.fact_id for fact in facts])
    return DryRun(caller, "delete_facts", fact_ids, reason, facts, f"delete {len(facts)} facts").or_done(
        confirm,
        lambda: caller.base.facts.delete([fact.fact_id for fact in facts], actor=caller.actor, reason=reason),
        also_said_by_others=[plain(said) for said in also_said],
    )


def restore_facts(caller: Caller, fact_ids: Ids, reason: Reason, confirm: Confirm = "") -> dict[str, Any]:
    """Bring deleted facts back with the value they had last, all of them in one change or none."""
    facts = _each_once(caller, fact_ids)
    if live := [fact.fact_id for fact in facts if fact.deleted_seq is None]:
        raise refusals.fact_not_deleted(live)
    return DryRun(caller, "restore_facts", fact_ids, reason, facts, f"bring {len(facts)} facts back").or_done(
        confirm,
        lambda: caller.base.facts.restore(
            [fact.fact_id for fact in facts], actor=caller.actor, reason=reason
        ),
    )


def plan_forgetting(
    caller: Caller,
    reason: Reason,
    fact_ids: Annotated[list[Id], Field(max_length=1000, description="These facts; empty: any")] = [],  # noqa: B006
    text: Annotated[str, Field(description="Value or question holds this text, in either case")] = "",
    document: Annotated[str, Field(description="A document's id, or corpus/name")] = "",
    corpus: Annotated[str, Field(description="Facts of this corpus")] = "",
    equivalents: Annotated[
        Literal["include", "only-list", "exclude"], Field(description="Facts that say the same elsewhere")
    ] = "only-list",
    policy: Annotated[
        Literal["abstain", "successor"],
        Field(description="What a question gets then: nothing, or the next fact"),
    ] = DEFAULT_POLICY,
    with_model: Annotated[
        bool, Field(description="Encode and read the questions; else use stored keys")
    ] = True,
) -> dict[str, Any]:
    """Choose facts to forget (they must match every part given) and show what that would do. Forgets nothing.

    It says what their questions would get instead, and which other places would still answer. To forget them, call
    `forget` with the run's id.
    """
    selector = Selector(
        fact_ids=tuple(fact_ids), text=text or None, document=document or None, corpus=corpus or None
    )
    plan = caller.base.forgetting.plan(
        selector, model=with_model, sample=SAMPLE, actor=caller.actor, reason=reason,
        equivalents=equivalents, policy=policy,
    )  # fmt: skip
    return _planned(caller, plan)


def _planned(caller: Caller, plan: ForgetPlan) -> dict[str, Any]:
    shown = [*plan.fact_ids[:SHOWN], *plan.equivalents[:SHOWN], *plan.conflicting[:SHOWN]]
    texts = caller.base.forgetting.facts(shown)
    listed = {
        name: facts_of(texts[fact_id] for fact_id in fact_ids[:SHOWN] if fact_id in texts)
        for name, fact_ids in (
            ("facts", plan.fact_ids),
            ("equivalents", plan.equivalents),
            ("conflicting", plan.conflicting),
        )
    }
    return {
        "run_id": plan.run_id,
        "policy": plan.policy,
        "num_facts": len(plan.fact_ids),
        **listed,
        "equivalents_are_included": plan.included,
        "questions_answered_otherwise": [plain(one) for one in plan.successors[:SHOWN] if one.would_answer],
        "places_that_would_still_answer": [plain(one) for one in plan.survivors[:SHOWN]],
        "collateral": plain(plan.collateral),
        "next": "Nothing was forgotten. To forget these facts, call forget with this run_id.",
    }


def forget(caller: Caller, run_id: Id, reason: Reason, confirm: Confirm = "") -> dict[str, Any]:
    """Forget the facts of a plan of `plan_forgetting`: all of them in one change, or none.

    A plan whose facts were edited since is refused. `restore_facts` and `colmlm forget undo` undo it.
    """
    forgetting = caller.base.forgetting
    record, plan, _ = forgetting.run(run_id)
    known = forgetting.facts(plan.fact_ids)
    facts = [known[fact_id] for fact_id in plan.fact_ids if fact_id in known]
    would = f"forget {record.num_facts} facts of run {run_id}, which is {record.state}, with policy {record.policy}"
    return DryRun(caller, "forget", (run_id,), reason, facts, would).or_done(
        confirm,
        lambda: forgetting.apply(run_id, actor=caller.actor, reason=reason),
        since_the_plan=plain(forgetting.drift(run_id)),
    )


def _each_once(caller: Caller, fact_ids: Sequence[int]) -> list[FactRecord]:
    return caller.base.facts.show_many(list(dict.fromkeys(fact_ids)))


def _require_live(facts: Sequence[FactRecord]) -> None:
    if gone := [fact.fact_id for fact in facts if fact.deleted_seq is not None]:
        raise refusals.fact_deleted(gone)


OFFERS = (
    Offer(propose_fact, "Propose a fact", Right.edit, edits=True),
    Offer(correct_fact, "Correct a fact", Right.edit, edits=True, destroys=True),
    Offer(delete_facts, "Delete facts", Right.edit, edits=True, destroys=True),
    Offer(restore_facts, "Restore facts", Right.edit, edits=True),
    Offer(plan_forgetting, "Plan to forget facts", Right.edit, edits=True),
    Offer(forget, "Forget facts", Right.edit, edits=True, destroys=True),
)


# Dry runs: an edit is done by the code of its dry run alone, so that nothing is changed that was not shown
# before.
#
# The code is a keyed digest (HMAC) of who asks, what was asked for, and the facts as they stood. The key is a
# secret of the process, so that nobody can compute a code and skip the dry run. Where a fact was edited
# since, or anything else is asked for, the code no longer fits. Since the edit itself changes the facts, it
# is good for one edit: a call that is repeated because its answer was lost is refused. The process has to
# remember no code.

SHOWN = 50  # facts


@Conflict.coded("DryRunNeeded", "Dry run needed")
def dry_run_needed(tool: str) -> str:
    return (
        "This code is of no dry run that you made of this edit: a fact was edited since, something else is asked "
        "for now, or this process was started anew. "
        f"Nothing was done. Call {tool} without `confirm`, show what it says, and pass the code that it gives."
    )


@dataclass(frozen=True, slots=True)
class DryRun:
    """An edit before it is done: who asks which tool for what, the facts it is about, and what else to show.

    `beside` are facts that the edit leaves alone, and that decide whether it makes sense.
    """

    caller: Caller
    tool: str
    asked: Sequence[Any]
    reason: str
    facts: Sequence[FactRecord]
    would: str
    beside: Sequence[FactRecord] = ()

    @property
    def code(self) -> str:
        standing = [_standing(self.facts), _standing(self.beside)]
        who = str(self.caller.principal or self.caller.actor)
        asked = msgspec.json.encode((who, self.tool, self.asked, self.reason, standing))
        return hmac.digest(self.caller.secret, asked, "sha256").hex()[:16]

    def or_done(self, confirm: str, edit: Callable[[], Edit], **more: Any) -> dict[str, Any]:
        """Show the edit; where `confirm` is its code, does it. Raise `DryRunNeeded` where it is another."""
        if not confirm:
            return self._shown(more)
        if not hmac.compare_digest(confirm.encode(), self.code.encode()):
            raise dry_run_needed(self.tool)
        done = edit()
        told = {"dry_run": False, "change": done.seq, "kind": done.kind, "fact_ids": list(done.fact_ids)}
        said = {"also_said_by": list(done.also_said_by)} if done.also_said_by else {}
        unkeyed = {} if done.keyed else {"unkeyed": "Lookups find it after the next `colmlm keysets fill`."}
        return {**told, **said, **unkeyed, "reason": self.reason}

    def _shown(self, more: dict[str, Any]) -> dict[str, Any]:
        return {
            "dry_run": True,
            "would": self.would,
            "facts": facts_of(self.facts[:SHOWN]),
            "num_facts": len(self.facts),
            **more,
            "reason": self.reason,
            "confirm": self.code,
            "next": f"Nothing was done. To do it, call {self.tool} again with the same arguments and this `confirm`.",
        }


def _standing(facts: Iterable[FactRecord]) -> list[tuple[int, int, int | None, str]]:
    return [(fact.fact_id, fact.version, fact.deleted_seq, fact.review) for fact in facts]
