"""Forgetting a set of facts: what a plan finds, what applying does at once, and that it can be undone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from colmlm.kb.corpus.format import read_annotated
from colmlm.kb.demo import DEMO_CORPUS
from colmlm.kb.errors import FactNotFound, KeysetMismatch
from colmlm.kb.evidence.records import NewOutput, Splice
from colmlm.kb.lookup.records import Lookup
from colmlm.kb.removal.forget import Forgetting
from colmlm.kb.removal.records import OUTCOMES, ForgetPlan
from colmlm.kb.removal.selector import Selector
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.tables import ChangeRow
from tests.fakes import FakeEncoder, Vectors, WordEncoder
from tests.kb.corpora import CAPITAL, CHILE, HEIGHT, PERU, RIVER, ask, best, document, fact_id, ingest
from tests.refusals import raises_code

WHO = {"actor": "tester", "reason": "test"}
OPENED = "In which year was the Eiffel Tower opened?"
REWORDED = "The Eiffel Tower was opened in which year?"
FRENCH = document("french", "The tower was opened in ", (" 1889", REWORDED), ".")
DOUBTFUL = document("doubtful", "Some say it was opened in ", ("1890", OPENED), ".")


@pytest.fixture
def demo(kb: KnowledgeBase) -> tuple[KnowledgeBase, WordEncoder]:
    """The demo corpus, and two documents more on the Eiffel Tower, with keys that words make."""
    encoder = WordEncoder()
    kb.corpora.ingest(read_annotated(DEMO_CORPUS), "demo", **WHO)
    ingest(kb, FRENCH, DOUBTFUL)
    keyset = kb.keysets.rekey(encoder)
    kb.keysets.set_threshold(keyset.keyset_id, 0.8)
    return kb, encoder


@pytest.fixture
def peru(kb: KnowledgeBase, encoder: FakeEncoder) -> KnowledgeBase:
    """Four facts with keys that have nothing to do with one another."""
    ingest(kb, PERU, CHILE)
    kb.keysets.rekey(encoder)
    return kb


def in_document(kb: KnowledgeBase, external_id: str, question: str) -> int:
    (found,) = [
        fact.fact_id
        for fact in kb.facts.find(text=question, limit=100)
        if fact.question == question and fact.source and fact.source.external_id == external_id
    ]
    return found


def test_a_fact_is_forgotten_with_all_that_restate_it_and_comes_back_as_it_was(
    demo: tuple[KnowledgeBase, WordEncoder], another_process: KnowledgeBase
):
    kb, encoder = demo
    tower, builders = in_document(kb, "eiffel-tower", OPENED), in_document(kb, "builders", OPENED)
    french, doubtful = in_document(kb, "french", REWORDED), in_document(kb, "doubtful", OPENED)
    questions = sorted({fact.question for fact in kb.facts.find(text="Eiffel", limit=50) if fact.question})
    before = ask(kb, encoder, *questions, k=5)
    forgetting = Forgetting(kb, encoder)

    plan = forgetting.plan(
        Selector(question=OPENED, document="demo/eiffel-tower"),
        equivalents="include",
        policy="successor",
        **WHO,
    )
    assert plan.fact_ids == tuple(sorted((tower, builders, french)))
    assert set(plan.equivalents) == {builders, french} and plan.conflicting == (doubtful,)
    assert plan.before["question"].leaks == plan.before["question"].probes == 3
    assert kb.facts.show(tower).deleted_seq is None and forgetting.drift(plan.run_id).stale == ()
    assert {s.asked_fact_id for s in plan.successors} == {tower, french} and plan.affected == 2
    for successor in plan.successors:
        assert (successor.successor_id, successor.outcome, successor.encoded) == (doubtful, "answers", True)
    assert plan.collateral.displaced >= 1, "the conflicting fact's question gets a forgotten fact first"

    edit = forgetting.apply(plan.run_id, **WHO)
    assert edit.kind == "forget" and kb.log.changes(after=edit.seq - 1)[0].num_facts == 3
    assert best(another_process, encoder, OPENED).value == "1890"
    found = forgetting.verify(plan.run_id, ["The year of the opening of the Eiffel Tower"])
    assert {"question", "prompt", "key", "paraphrase", "given"} <= set(found.probes)
    assert all(rates.leaks == rates.value_leaks == 0 for rates in found.probes.values())
    assert found.probes["question"].wrong_neighbours == 3, "the policy lets the runner-up answer"
    assert found.holds and found.level == 2 and found.keys_in_index == found.still_live == 0

    restored = forgetting.restore(plan.run_id, **WHO)
    assert restored.kind == "restore" and forgetting.run(plan.run_id)[0].state == "restored"
    after = ask(kb, encoder, *questions, k=5, min_seq=restored.seq)
    assert [[(hit.fact_id, hit.value, hit.score, hit.key_id) for hit in lookup.hits] for lookup in after] == [
        [(hit.fact_id, hit.value, hit.score, hit.key_id) for hit in lookup.hits] for lookup in before
    ]


@pytest.mark.parametrize("policy", ["successor", "abstain"])
@pytest.mark.parametrize("with_encoder", [True, False])
def test_a_preview_says_what_lookups_give_afterwards(
    demo: tuple[KnowledgeBase, WordEncoder], policy: str, with_encoder: bool
):
    kb, encoder = demo
    kb.keysets.set_threshold(kb.keysets.active().keyset_id, 0.6)
    earlier = Forgetting(kb).plan(Selector(text="bridge"), policy="abstain", **WHO)
    Forgetting(kb).apply(earlier.run_id, **WHO)
    forgetting = Forgetting(kb, encoder if with_encoder else None)
    plan = forgetting.plan(Selector(text="tower"), policy=policy, equivalents="exclude", **WHO)
    keys = dict(zip(*(side.tolist() for side in kb.keysets.keys(plan.keyset_id)), strict=True))
    asked = [
        encoder.encode_questions([kb.facts.show(s.asked_fact_id).question or ""])[0]
        if s.encoded
        else np.array(keys[s.asked_fact_id], dtype=np.float32)
        for s in plan.successors
    ]
    remaining = {fact: key for fact, key in keys.items() if fact not in plan.fact_ids}
    brute = np.array(list(remaining.values()), dtype=np.float32) @ np.stack(asked).T
    np.testing.assert_allclose([s.score for s in plan.successors], brute.max(axis=0), atol=1e-5)
    forgetting.apply(plan.run_id, **WHO)
    answers = kb.lookups.find(np.stack(asked), checkpoint_id=encoder.checkpoint.checkpoint_id)
    assert len(plan.successors) > 10 and all(s.encoded == with_encoder for s in plan.successors)
    for successor, answer in zip(plan.successors, answers, strict=True):
        outcome = "answers" if answer.hits else "no_match" if answer.abstained is None else "abstained"
        assert successor.outcome == outcome
        if answer.hits:
            assert successor.successor_id == answer.hits[0].fact_id and successor.would_answer
    said = {s.outcome for s in plan.successors}
    assert said == {"abstained"} if policy == "abstain" else {"answers", "no_match"} <= said


def test_abstaining_leaves_the_keys_and_gives_no_neighbour_to_any_probe(
    demo: tuple[KnowledgeBase, WordEncoder],
):
    kb, encoder = demo
    forgetting = Forgetting(kb, encoder)
    plan = forgetting.plan(Selector(question=OPENED), equivalents="include", policy="abstain", **WHO)
    forgetting.apply(plan.run_id, **WHO)
    found = forgetting.verify(plan.run_id)
    for name in ("question", "prompt", "key", "paraphrase"):
        rates = found.probes[name]
        assert rates.abstained == rates.probes > 0
    assert found.level == 1 and found.tombstones == found.keys_in_index == len(plan.fact_ids)
    assert not any(lookup.hits for lookup in ask(kb, encoder, OPENED))
    forgetting.restore(plan.run_id, **WHO)
    (lookup,) = ask(kb, encoder, OPENED, k=3)
    assert [hit.value for hit in lookup.hits[:2]] == ["1890", "1889"], "the newer first"


def test_stored_queries_of_outputs_are_asked_again(peru: KnowledgeBase, encoder: FakeEncoder):
    lima = fact_id(peru, "Lima")
    asked = (encoder.encode_questions([CAPITAL]).astype("<f2")).tobytes()
    hit = Splice(0, 4, "hit", lima, 1, 0.9, asked)
    missed = Splice(4, 4, "abstained", query=asked)
    other = NewOutput("P", "Lima", "fake", "auto", peru.log.head_seq(), (hit, missed))
    peru.outputs.record(other)
    peru.outputs.record(other)
    assert [s.outcome for s in peru.outputs.trace(1).splices] == ["hit", "abstained"]
    plan = Forgetting(peru).plan(Selector(text="Lima"), **WHO)
    assert (plan.collateral.generations, plan.collateral.splices) == (2, 2)
    assert set(plan.before) == {"key", "stored_query"} and plan.before["stored_query"].leaks == 2
    Forgetting(peru).apply(plan.run_id, **WHO)
    assert Forgetting(peru).verify(plan.run_id).probes["stored_query"].abstained == 2


def test_questions_that_were_read_are_not_asked_again_by_key(peru: KnowledgeBase, encoder: FakeEncoder):
    query = encoder.encode_questions(["Unheard of?"]).astype("<f2").tobytes()
    splice = Splice(0, 4, "hit", fact_id(peru, "Lima"), 1, 0.9, query)
    for mode, ranking in (("read", "reader"), ("read", "reader"), ("paper", "key")):
        peru.outputs.record(
            NewOutput("Q", "Lima", "fake", mode, peru.log.head_seq(), (splice,), ranking=ranking)
        )
    plan = Forgetting(peru).plan(Selector(text="Lima"), **WHO)
    assert plan.collateral.generations == 3 and plan.before["stored_query"].probes == 1


def test_stored_queries_whose_facts_were_not_found_by_key_are_not_asked_again(
    peru: KnowledgeBase, encoder: FakeEncoder
):
    asked = encoder.encode_questions([CAPITAL]).astype("<f2").tobytes()
    hit = Splice(0, 4, "hit", fact_id(peru, "Lima"), 1, 0.9, asked)
    for ranking in ("words", "reader"):
        peru.outputs.record(
            NewOutput("P", "Lima", "fake", "auto", peru.log.head_seq(), (hit,), ranking=ranking)
        )
    plan = Forgetting(peru).plan(Selector(text="Lima"), **WHO)
    assert plan.collateral.generations == 2 and set(plan.before) == {"key"}


def test_equivalents_left_alone_are_reported_as_leaks_of_the_value(demo: tuple[KnowledgeBase, WordEncoder]):
    kb, encoder = demo
    forgetting = Forgetting(kb, encoder)
    for pair in kb.comparisons.pairs("contradictions").pairs:
        kb.comparisons.note_both_right(pair.fact.fact_id, pair.other.fact_id, **WHO)
    plan = forgetting.plan(Selector(question=OPENED, document="demo/eiffel-tower"), **WHO)
    assert len(plan.fact_ids) == 1 and len(plan.equivalents) == 2 and not plan.included
    forgetting.apply(plan.run_id, **WHO)
    found = forgetting.verify(plan.run_id)
    assert found.probes["question"].value_leaks == 1 and found.probes["equivalent"].value_leaks == 2
    assert found.holds, "the fact that was to be forgotten is not found"


def test_a_fact_still_found_is_a_leak_of_level_0(peru: KnowledgeBase, encoder: FakeEncoder):
    forgetting = Forgetting(peru, encoder)
    plan = forgetting.plan(Selector(text="Lima"), **WHO)
    forgetting.apply(plan.run_id, **WHO)
    peru.facts.restore(plan.fact_ids, **WHO)
    found = forgetting.verify(plan.run_id)
    assert (found.level, found.holds, found.leaked, found.still_live) == (0, False, plan.fact_ids, 1)
    assert found.probes["question"].leaks == 1 and found.probes["question"].rate("leaks") == 1
    for rates in found.probes.values():
        assert sum(getattr(rates, outcome) for outcome in OUTCOMES) == rates.probes


def test_a_stale_plan_is_refused_and_does_nothing(peru: KnowledgeBase):
    forgetting = Forgetting(peru)
    plan = forgetting.plan(Selector(corpus="lands"), **WHO)
    lima, amazon = fact_id(peru, "Lima"), fact_id(peru, "Amazon")
    peru.facts.edit(lima, "Cusco", **WHO)
    peru.facts.delete([amazon], **WHO)
    assert forgetting.drift(plan.run_id).stale == (lima, amazon)
    with raises_code("PlanStale") as stale:
        forgetting.apply(plan.run_id, **WHO)
    assert stale.value.fact_ids == (lima, amazon)
    assert len(peru.facts.find()) == 3 and forgetting.run(plan.run_id)[0].state == "planned"


def test_facts_that_came_after_the_plan_are_reported_and_stay(peru: KnowledgeBase, encoder: FakeEncoder):
    forgetting = Forgetting(peru)
    plan = forgetting.plan(Selector(document="lands/peru"), equivalents="include", **WHO)
    again = peru.facts.add(CAPITAL, "Lima.", **WHO).fact_ids
    drift = forgetting.drift(plan.run_id)
    assert (drift.stale, drift.newly_selected, drift.newly_equivalent) == ((), (), again)
    listed = forgetting.plan(Selector(text="Lima"), **WHO)
    extra = peru.facts.add("Which town?", "lima la real", **WHO).fact_ids
    assert forgetting.drift(listed.run_id).newly_selected == extra
    forgetting.apply(plan.run_id, **WHO)
    assert {fact.fact_id for fact in peru.facts.find()} == {fact_id(peru, "Santiago"), *again, *extra}


def test_plans_are_worked_out_one_at_a_time(peru: KnowledgeBase):
    refused = []

    class Meanwhile(FakeEncoder):
        """Plans while it is asked for a plan."""

        def encode_questions(self, questions: Sequence[str]) -> Vectors:
            with raises_code("PlanUnderWay"):
                Forgetting(peru).plan(Selector(text="Lima"), **WHO)
            refused.append(len(questions))
            return super().encode_questions(questions)

    Forgetting(peru, Meanwhile()).plan(Selector(text="Lima"), **WHO)
    assert refused and len(Forgetting(peru).runs()) == 1
    Forgetting(peru).plan(Selector(text="Lima"), **WHO)
    assert len(Forgetting(peru).runs()) == 2


def test_a_base_too_large_for_a_servers_plan_is_told_so(peru: KnowledgeBase):
    live = len(peru.facts.find())
    plan = Forgetting(peru, largest=live).plan(Selector(text="Lima"), equivalents="include", **WHO)
    small = Forgetting(peru, largest=live - 1)
    for refused in (
        lambda: small.plan(Selector(text="Lima"), **WHO),
        lambda: small.drift(plan.run_id),
    ):
        with raises_code("PlanTooLarge", match=f"keys of {live} live facts"):
            refused()
    assert len(small.runs()) == 1
    listed = Forgetting(peru).plan(Selector(text="Lima"), **WHO)
    assert small.drift(listed.run_id).stale == (), "nothing has to be looked for"


def test_a_run_goes_one_way(peru: KnowledgeBase):
    forgetting = Forgetting(peru)
    plan = forgetting.plan(Selector(text="Lima"), **WHO)
    with raises_code("ForgetRunState"):
        forgetting.verify(plan.run_id)
    forgetting.apply(plan.run_id, **WHO)
    with raises_code("ForgetRunState"):
        forgetting.apply(plan.run_id, **WHO)
    with raises_code("ForgetRunState"):
        forgetting.drift(plan.run_id)
    forgetting.restore(plan.run_id, **WHO)
    with raises_code("ForgetRunState"):
        forgetting.restore(plan.run_id, **WHO)
    for unknown in (99, 2**70, -1):
        with raises_code("ForgetRunNotFound"):
            forgetting.run(unknown)
    assert [run.state for run in forgetting.runs()] == ["restored"]


def test_a_plan_is_discarded_and_the_log_keeps_who_did_it(peru: KnowledgeBase):
    forgetting = Forgetting(peru)
    kept, plan = (forgetting.plan(Selector(text=text), **WHO) for text in ("Amazon", "Lima"))
    live = peru.corpora.all()
    edit = forgetting.restore(plan.run_id, actor="ann", reason="made by mistake")
    assert (edit.kind, edit.fact_ids) == ("discard-plan", ())
    change = peru.log.change(edit.seq)
    assert (change.kind, change.actor, change.reason, change.num_facts) == (
        edit.kind,
        "ann",
        "made by mistake",
        0,
    )
    with peru.sessions() as session:
        payload = session.get_one(ChangeRow, edit.seq).payload
    assert (payload["run"], payload["planned_facts"]) == (plan.run_id, len(plan.fact_ids))
    assert [run.run_id for run in forgetting.runs()] == [kept.run_id] and peru.corpora.all() == live
    for late in (forgetting.restore, forgetting.apply):
        with raises_code("ForgetRunNotFound"):
            late(plan.run_id, **WHO)
    assert forgetting.plan(Selector(text="Lima"), **WHO).run_id > plan.run_id, "no number is given twice"
    assert peru.upkeep.fsck().ok


def test_a_plan_is_kept_as_it_was_given(demo: tuple[KnowledgeBase, WordEncoder]):
    kb, encoder = demo
    forgetting = Forgetting(kb, encoder)
    plan = forgetting.plan(Selector(text="Eiffel"), equivalents="include", **WHO)
    record, kept, checked = forgetting.run(plan.run_id)
    assert kept == plan and isinstance(kept, ForgetPlan) and checked is None
    assert record.num_facts == len(plan.fact_ids) and record.planned_seq == kb.log.head_seq()
    assert plan.previewed == len(plan.successors) == plan.affected


def test_a_run_that_a_later_release_planned_is_read_without_what_only_that_knows(
    demo: tuple[KnowledgeBase, WordEncoder],
):
    kb, encoder = demo
    forgetting = Forgetting(kb, encoder)
    plan = forgetting.plan(Selector(text="Eiffel"), **WHO)
    forgetting.apply(plan.run_id, **WHO)
    found = forgetting.verify(plan.run_id)
    later = "plan = plan || {0}, verification = verification || {0}".format(
        """CAST('{"depth": 3}' AS jsonb)"""
    )
    with kb.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE forget_run SET {later}")
    _, kept, checked = forgetting.run(plan.run_id)
    assert (kept, checked) == (plan, found)


def test_a_sample_bounds_what_is_previewed_and_not_what_is_forgotten(demo: tuple[KnowledgeBase, WordEncoder]):
    kb, encoder = demo
    forgetting = Forgetting(kb, encoder, sample=20)
    plan = forgetting.plan(Selector(corpus="demo"), policy="successor", **WHO)
    assert len(plan.fact_ids) > 2000 and len(plan.successors) <= 20 < plan.affected
    assert all(rates.probes <= 20 for rates in plan.before.values())
    assert len(forgetting.apply(plan.run_id, **WHO).fact_ids) == len(plan.fact_ids)
    assert forgetting.verify(plan.run_id).level == 2


def test_what_cannot_be_compared_is_refused(peru: KnowledgeBase):
    with pytest.raises(KeysetMismatch):
        Forgetting(peru, FakeEncoder("other")).plan(Selector(text="Lima"), **WHO)
    for wrong in ({"policy": "guess"}, {"equivalents": "perhaps"}, {"radius": 2.0}):
        with raises_code("InvalidSelector"):
            Forgetting(peru).plan(Selector(text="Lima"), **wrong, **WHO)
    with pytest.raises(FactNotFound):
        Forgetting(peru).plan(Selector(fact_ids=(999,)), **WHO)
    assert Forgetting(peru).runs() == []


class SwitchedWhileAsked:
    """A knowledge base on which another keyset becomes active just before a lookup."""

    def __init__(self, kb: KnowledgeBase, keyset_ids: list[int]) -> None:
        self.kb, self.keyset_ids = kb, keyset_ids

    def __getattr__(self, name: str) -> object:
        return getattr(self.kb, name)

    @property
    def lookups(self) -> Any:
        return LookupsWhileSwitched(self)


class LookupsWhileSwitched:
    def __init__(self, switched: SwitchedWhileAsked) -> None:
        self.switched = switched

    def __getattr__(self, name: str) -> object:
        return getattr(self.switched.kb.lookups, name)

    def find(self, *arguments: Any, **options: Any) -> list[Lookup]:
        if self.switched.keyset_ids:
            self.switched.kb.keysets.activate(self.switched.keyset_ids.pop(0), force=True)
        return self.switched.kb.lookups.find(*arguments, **options)


def test_a_switch_of_the_keyset_meanwhile_is_lived_with(peru: KnowledgeBase, encoder: FakeEncoder):
    first, other = peru.keysets.active().keyset_id, FakeEncoder("2")
    second = peru.keysets.rekey(other).keyset_id
    switched: Any = SwitchedWhileAsked(peru, [second])
    plan = Forgetting(switched).plan(Selector(text="Lima"), policy="successor", **WHO)
    assert plan.keyset_id == second and plan.before["key"].leaks == plan.before["key"].probes > 0
    Forgetting(peru).apply(plan.run_id, **WHO)
    switched.keyset_ids = [first]
    found = Forgetting(switched).verify(plan.run_id)
    assert (found.keyset_id, found.level) == (first, 2)
    switched.keyset_ids = [second]
    with pytest.raises(KeysetMismatch):
        Forgetting(switched, encoder).verify(plan.run_id)


def test_facts_without_a_key_are_forgotten_too(peru: KnowledgeBase, encoder: FakeEncoder):
    added = peru.facts.add("Which lake?", "Titicaca", **WHO).fact_ids
    plan = Forgetting(peru).plan(Selector(fact_ids=(*added, fact_id(peru, "Lima"))), **WHO)
    assert plan.unkeyed == 1 and plan.affected == 2 and plan.previewed == 1
    Forgetting(peru).apply(plan.run_id, **WHO)
    assert {fact.value for fact in peru.facts.find()} == {"Amazon", "6,768 m", "Santiago"}
    assert [v is None for v in (peru.facts.show(added[0]).deleted_seq,)] == [False]
    assert ask(peru, encoder, RIVER, HEIGHT)[0].hits
