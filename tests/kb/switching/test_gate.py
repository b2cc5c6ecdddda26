"""The gate of a keyset: what it measures, what it refuses, and when activation and rollback may rely on it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from colmlm.kb.errors import InvalidValue, KeysetMismatch, NoFormerKeyset, QuestionSetNotFound
from colmlm.kb.evidence.records import NewOutput, Splice
from colmlm.kb.keys import keysets
from colmlm.kb.keys.records import RECALL, GateLimits, KeysetRecord
from colmlm.kb.lookup.in_process import perturb_keys
from colmlm.kb.questions.records import DraftQuestion
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.switching.gate import Criterion, GateReport
from tests.fakes import FakeEncoder, NearReader, Vectors, WordEncoder, measured
from tests.kb.corpora import CAPITAL, PERU, RIVER, ask, fact_id, ingest, lose_key, numbered, values
from tests.refusals import raises_code

WHO = {"actor": "tester", "reason": "test"}


@dataclass(slots=True)
class Confused(FakeEncoder):
    """A checkpoint that takes some questions and prefixes for others, though its keys are sound."""

    mistakes: dict[str, str] = field(default_factory=dict)

    def encode_questions(self, questions: Sequence[str]) -> Vectors:
        return FakeEncoder.encode_questions(self, [self.mistakes.get(q, q) for q in questions])

    def encode_contexts(self, texts: Sequence[str]) -> Vectors:
        return FakeEncoder.encode_contexts(self, [self.mistakes.get(t, t) for t in texts])


class Distant(FakeEncoder):
    """A checkpoint whose questions lie a long way from their keys."""

    def encode_questions(self, questions: Sequence[str]) -> Vectors:
        return perturb_keys(FakeEncoder.encode_questions(self, questions))


class Vague(FakeEncoder):
    """A checkpoint whose questions lie a little way from their keys, one farther than another."""

    def encode_questions(self, questions: Sequence[str]) -> Vectors:
        sure = FakeEncoder.encode_questions(self, questions)
        vague = sure + 0.05 * np.random.default_rng(0).standard_normal(sure.shape)
        return (vague / np.linalg.norm(vague, axis=1, keepdims=True)).astype(np.float32)


def ready(kb: KnowledgeBase, encoder: FakeEncoder) -> KeysetRecord:
    """The encoder's keyset, keyed and with a threshold of its own."""
    return kb.keysets.calibrate(kb.keysets.rekey(encoder).keyset_id, measured(0.6))


def criterion(report: GateReport, name: str) -> Criterion:
    (found,) = [one for one in report.criteria if one.name == name]
    return found


def record(kb: KnowledgeBase, encoder: FakeEncoder, question: str, value: str, ranking: str = "key") -> None:
    prompt, of = f"Question: {question} Answer:", encoder.checkpoint.checkpoint_id
    splice = Splice(1, 1 + len(value), "hit", fact_id(kb, value), 1, 1.0)
    kb.outputs.record(
        NewOutput(prompt, f" {value}.", of, "auto", kb.log.head_seq(), (splice,), ranking=ranking)
    )


@pytest.fixture
def two(kb: KnowledgeBase, encoder: FakeEncoder) -> tuple[KeysetRecord, KeysetRecord]:
    """An active keyset and a ready one, of 40 facts and Peru's three, one of which abstains."""
    ingest(kb, *numbered(40), PERU)
    kb.facts.delete([fact_id(kb, "Lima")], **WHO, abstain=True)
    old = ready(kb, encoder)
    return old, ready(kb, FakeEncoder(salt="2"))


def test_a_sound_keyset_passes_and_its_figures_are_stored(kb: KnowledgeBase, encoder: FakeEncoder, two):
    record(kb, encoder, RIVER, "Amazon")
    for ranking in ("words", "reader"):  # no keyset has to find by key what was found otherwise
        record(kb, encoder, RIVER, "Amazon", ranking)
    heard: list[tuple[int, int]] = []
    report = kb.keysets.check(
        two[1].keyset_id,
        FakeEncoder(salt="2"),
        active_encoder=encoder,
        on_texts=lambda *at: heard.append(at),
    )
    assert report.passed and report.failed == () and report.seq == kb.log.head_seq()
    assert {c.name: c.figure for c in report.criteria} == {
        "index recall@1": 1,
        "index recall@10": 1,
        "index ids wrong": 0,
        "facts lost": 0,
        "tombstones ignored": 0,
        "question recall@1": 1,
        "question MRR": 1,
        "share answered": 1,
        "agreement@1": 1,
        "threshold calibrated": 1,
    }
    assert (report.num_questions, report.num_contexts, heard[-1]) == (42, 1, (85, 85))
    assert report.mean_scores["genuine"] > 0.999 > report.mean_scores["impostor"]
    assert report.drift.active_genuine is not None and len(report.drift.active_genuine) == 42
    standing = kb.keysets.standing(two[1].keyset_id)
    assert (standing.passed, standing.seq, standing.edits_since) == (True, report.seq, 0)
    assert standing.criteria == tuple(report.to_json()["criteria"])
    kept = json.loads(json.dumps(report.to_json()))
    assert kept["criteria"][0]["name"] == "index recall@1"
    assert [plot["title"] for plot in kept["histograms"]] == ["checked keyset", "active keyset"]
    for plot in kept["histograms"]:
        assert sum(plot["genuine"]) == sum(plot["impostor"]) == 42
        assert plot["genuine"][-1] == 42 and plot["low"] < plot["threshold"] < plot["high"]


def test_answers_to_questions_are_no_prefixes(kb: KnowledgeBase, encoder: FakeEncoder, two):
    splice = Splice(0, 6, "hit", fact_id(kb, "Amazon"), 1, 1.0)
    for mode in ("read", "paper"):
        kb.outputs.record(
            NewOutput(RIVER, "Amazon", encoder.checkpoint.checkpoint_id, mode, kb.log.head_seq(), (splice,))
        )
    report = kb.keysets.check(two[1].keyset_id, FakeEncoder(salt="2"), active_encoder=encoder)
    assert criterion(report, "agreement@1").figure is None


def test_each_fault_fails_its_own_criterion(kb: KnowledgeBase, encoder: FakeEncoder, two):
    record(kb, encoder, RIVER, "Amazon")
    mistakes = {f"Question {n}?": f"Question {n + 1}?" for n in range(0, 40, 2)}
    mistakes |= {f"Question: {RIVER} Answer: ": CAPITAL}
    kb.facts.add("Not keyed?", "lost", **WHO)
    kb.facts.delete([fact_id(kb, "6,768 m")], **WHO, abstain=True)
    new = two[1].keyset_id
    with kb.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE keyset SET calibrated = false WHERE id = {new}")
        grave = fact_id(kb, "6,768 m")
        connection.exec_driver_sql(f"DELETE FROM fact_key WHERE keyset_id = {new} AND fact_id = {grave}")
    report = kb.keysets.check(new, Confused(salt="2", mistakes=mistakes), active_encoder=encoder)
    assert not report.passed
    assert report.failed == (
        "index ids wrong",
        "facts lost",
        "tombstones ignored",
        "question recall@1",
        "question MRR",
        "agreement@1",
        "threshold calibrated",
    )
    lost = criterion(report, "facts lost")
    assert lost.figure == 1 and str(fact_id(kb, "lost")) in lost.note
    assert criterion(report, "question recall@1").figure == pytest.approx(21 / 41)
    with raises_code("GateRefused", match=r"failed at change \d+: index ids wrong, facts lost"):
        kb.keysets.activate(new)


def test_an_index_that_approximates_too_coarsely_fails(kb: KnowledgeBase):
    ingest(kb, *numbered(300))
    coarse = FakeEncoder()
    kb.keysets.create(coarse.checkpoint, index_spec="IVF200,PQ1x1")
    keyset = ready(kb, coarse)
    kb.keysets.build(keyset.keyset_id)
    report = kb.keysets.check(keyset.keyset_id, coarse, GateLimits(min_recall_at_10=0.99))
    assert report.failed == ("index recall@10",) and criterion(report, "question recall@1").figure == 1
    assert kb.keysets.check(keyset.keyset_id, coarse, GateLimits(min_recall_at_10=0.5)).passed


def test_the_gate_lets_lookups_read_as_many_lists_as_the_questions_need(
    kb: KnowledgeBase, encoder: FakeEncoder
):
    ingest(kb, *numbered(300))
    keyset_id = kb.keysets.create(encoder.checkpoint, index_spec="IVF64,Flat").keyset_id
    ready(kb, encoder)
    few = replace(kb.keysets.build(keyset_id).fit, lists_read=1)
    with kb.sessions.begin() as session:
        keysets.note_fit(session, keyset_id, few)
    report = kb.keysets.check(keyset_id, Distant(), GateLimits(min_recall_at_10=0))
    fit = kb.keysets.show(keyset_id).index_fit
    assert fit is not None and fit.lists_read > 1 and fit.recall is not None and fit.recall >= RECALL
    assert criterion(report, "index recall@1").figure >= RECALL
    assert f"{fit.lists_read} of 64 lists read" in criterion(report, "index recall@1").note
    opened = kb.searcher.of_keyset(keyset_id).current()
    assert opened.candidates.fit.lists_read == fit.lists_read


def test_without_an_encoder_of_the_active_keyset_its_own_gate_is_compared_with(
    kb: KnowledgeBase, encoder: FakeEncoder, two
):
    newer = FakeEncoder(salt="2")
    alone = kb.keysets.check(two[1].keyset_id, newer)
    assert alone.failed == ("question recall@1", "question MRR", "share answered")
    assert "was not measured" in criterion(alone, "question MRR").note
    assert kb.keysets.check(two[0].keyset_id, encoder).passed
    assert kb.keysets.check(two[1].keyset_id, newer).passed
    of_new = rf"keyset {two[1].keyset_id} from .* with --checkpoint or COLMLM_CHECKPOINT\.$"
    with pytest.raises(KeysetMismatch, match=of_new):
        kb.keysets.check(two[1].keyset_id, encoder)
    with pytest.raises(KeysetMismatch):
        kb.keysets.check(two[1].keyset_id, newer, active_encoder=newer)


def test_a_keyset_that_answers_fewer_questions_fails(kb: KnowledgeBase, encoder: FakeEncoder, two):
    new, newer = two[1].keyset_id, Vague(salt="2")
    scores = kb.keysets.check(new, newer, active_encoder=encoder).drift.genuine
    kb.keysets.calibrate(new, measured(float(np.sort(scores)[21])))  # half of the 42 questions are below it
    report = kb.keysets.check(new, newer, active_encoder=encoder)
    assert report.failed == ("share answered",), "every question still finds its own fact first"
    answered = criterion(report, "share answered")
    assert (answered.figure, answered.limit) == (pytest.approx(21 / 42), pytest.approx(0.98))
    assert answered.note == "active keyset: 1.000"
    with raises_code("GateRefused", match="share answered"):
        kb.keysets.activate(new)
    assert kb.keysets.check(new, newer, GateLimits(max_question_loss=0.5), active_encoder=encoder).passed


def test_a_gate_of_before_the_share_answered_is_not_compared_with(
    kb: KnowledgeBase, encoder: FakeEncoder, two
):
    kb.keysets.check(two[0].keyset_id, encoder)
    with kb.sessions.begin() as session:
        gate = keysets.gate_of(session, two[0].keyset_id)
        assert gate is not None
        former = [one for one in gate["criteria"] if one["name"] != "share answered"]
        keysets.note_gate(session, two[0].keyset_id, {**gate, "criteria": former})
    report = kb.keysets.check(two[1].keyset_id, FakeEncoder(salt="2"))
    assert report.failed == ("question recall@1", "question MRR", "share answered")
    assert "was not measured" in criterion(report, "share answered").note


def test_a_base_without_questions_is_measured_by_its_keys(kb: KnowledgeBase, encoder: FakeEncoder):
    with raises_code("KeysetNotReady"):
        kb.keysets.check(kb.keysets.create(encoder.checkpoint).keyset_id, encoder)
    empty = kb.keysets.check(kb.keysets.rekey(encoder).keyset_id, encoder)
    assert empty.passed and criterion(empty, "index recall@1").figure is None


def test_activation_needs_a_gate_that_passed_lately_or_force(kb: KnowledgeBase, encoder: FakeEncoder, two):
    new, retraining = two[1].keyset_id, kb.keysets
    with raises_code("GateRefused", match="never checked"):
        retraining.activate(new)
    with raises_code("KeysetNotFound"):
        retraining.activate(77)
    with raises_code("KeysetNotReady"):
        retraining.activate(kb.keysets.create(FakeEncoder(salt="3").checkpoint).keyset_id)
    assert kb.keysets.check(new, FakeEncoder(salt="2"), active_encoder=encoder).passed
    for n in range(3):
        kb.facts.edit(fact_id(kb, "value 1" if n == 0 else f"other {n - 1}"), f"other {n}", **WHO)
    with raises_code("GateRefused", match="3 edits of facts ago"):
        retraining.activate(new, max_edits=2)
    assert kb.keysets.active().keyset_id == two[0].keyset_id
    assert retraining.activate(new, max_edits=3, **WHO).state == "active"
    assert _payload(kb)["forced"] is False and _payload(kb)["was"] == two[0].keyset_id
    kb.facts.edit(fact_id(kb, "value 2"), "other", **WHO)
    assert retraining.activate(two[0].keyset_id, force=True).state == "active"
    assert _payload(kb) | {"forced": True, "gate_seq": None} == _payload(kb) and kb.upkeep.fsck().ok


def test_a_forced_activation_keeps_what_spoke_against_it(
    kb: KnowledgeBase, encoder: FakeEncoder, two: tuple[KeysetRecord, KeysetRecord]
) -> None:
    new, retraining = two[1].keyset_id, kb.keysets
    retraining.activate(new, force=True)
    assert _payload(kb)["refusal"] == "its gate was never checked" and _payload(kb)["failed"] == []
    retraining.rollback()
    assert kb.keysets.check(new, FakeEncoder(salt="2"), active_encoder=encoder).passed
    kb.keysets.set_threshold(new, 0.1)
    assert retraining.standing(new).failed == ("threshold calibrated",)
    with raises_code("GateRefused", match="threshold calibrated"):
        retraining.activate(new)
    retraining.activate(new, force=True)
    assert _payload(kb)["failed"] == [
        {"name": "threshold calibrated", "figure": "0.0", "limit": "1.0", "note": ""}
    ]
    notes = [change.note for change in kb.log.changes() if change.kind == "activate"][-3:]
    assert notes == [
        "forced: its gate was never checked",
        "rollback",
        f"forced: {_payload(kb)['refusal']}; threshold calibrated 0.0, limit 1.0",
    ]
    assert kb.upkeep.fsck().chain_ok


def test_limits_that_were_eased_are_named_with_the_activation(
    kb: KnowledgeBase, encoder: FakeEncoder, two: tuple[KeysetRecord, KeysetRecord]
) -> None:
    new, limits = two[1].keyset_id, GateLimits(sample=60, max_question_loss=0.15, min_recall_at_10=0.99)
    report = kb.keysets.check(new, FakeEncoder(salt="2"), limits, active_encoder=encoder)
    assert report.passed and report.eased_limits == ("sample 60", "max_question_loss 0.15")
    kb.keysets.activate(new)
    told = [change.note for change in kb.log.changes() if change.kind == "activate"]
    assert told == [None, "eased limit sample 60; eased limit max_question_loss 0.15"]
    assert kb.upkeep.fsck().chain_ok


def test_a_threshold_set_by_hand_does_not_pass(kb: KnowledgeBase, encoder: FakeEncoder) -> None:
    ingest(kb, PERU)
    keyset_id = kb.keysets.rekey(encoder).keyset_id
    kb.keysets.set_threshold(keyset_id, 0.6)
    assert kb.keysets.check(keyset_id, encoder).failed == ("threshold calibrated",)
    kb.keysets.calibrate(keyset_id, measured(0.6))
    assert kb.keysets.check(keyset_id, encoder).passed


def test_force_that_nothing_spoke_against_is_none(
    kb: KnowledgeBase, encoder: FakeEncoder, two: tuple[KeysetRecord, KeysetRecord]
) -> None:
    assert kb.keysets.check(two[1].keyset_id, FakeEncoder(salt="2"), active_encoder=encoder).passed
    kb.keysets.activate(two[1].keyset_id, force=True)
    assert _payload(kb)["forced"] is False and "failed" not in _payload(kb)


def _payload(kb: KnowledgeBase) -> dict[str, object]:
    with kb.engine.connect() as connection:
        statement = "SELECT payload FROM change WHERE kind = 'activate' ORDER BY seq DESC LIMIT 1"
        return connection.exec_driver_sql(statement).scalar_one()


def test_rollback_goes_back_at_once_and_answers_for_all_that_is_keyed(
    kb: KnowledgeBase, encoder: FakeEncoder, two
):
    retraining, newer = kb.keysets, FakeEncoder(salt="2")
    with pytest.raises(NoFormerKeyset):
        retraining.rollback()
    retraining.activate(two[1].keyset_id, force=True)
    kb.facts.add("Since then?", "new", **WHO)
    kb.facts.delete([fact_id(kb, "value 5")], **WHO)
    kb.keysets.rekey(newer)
    back = retraining.rollback(**WHO)
    assert (back.keyset_id, back.state, back.num_unkeyed) == (two[0].keyset_id, "active", 1)
    asked = ["Since then?", "Question 5?", "Question 6?"]
    assert values(kb, encoder, asked) == [None, None, "value 6"]
    (forgotten,) = ask(kb, encoder, CAPITAL)
    assert forgotten.abstained == fact_id(kb, "Lima")
    assert retraining.rollback().keyset_id == two[1].keyset_id
    assert values(kb, newer, asked) == ["new", None, "value 6"]


def test_a_built_index_is_on_disk_and_whole(kb: KnowledgeBase, encoder: FakeEncoder):
    ingest(kb, *numbered(300))
    kb.keysets.create(encoder.checkpoint, index_spec="IVF4,Flat")
    keyset = kb.keysets.rekey(encoder, batch=300)
    built = kb.keysets.build(keyset.keyset_id)
    assert (built.num_keys, built.index_spec, built.seq) == (300, "IVF4,Flat", kb.log.head_seq())
    lose_key(kb, "value 8")
    assert values(kb, encoder, ["Question 7?"]) == ["value 7"]
    assert len(kb.searcher.current().candidates) == 300, "it was to be on disk"


def test_kept_questions_are_asked_as_with_the_keyset_active(kb: KnowledgeBase) -> None:
    ingest(kb, *numbered(40), PERU)
    ready(kb, WordEncoder())
    better = ready(kb, WordEncoder(salt="2"))
    kept = [DraftQuestion(CAPITAL, ("Lima",)), DraftQuestion(RIVER, ("Orinoco",))]
    kb.questions.add("lands", kept, actor="tester")
    lenient = GateLimits(
        max_question_loss=1, min_recall_at_1=0, questions="lands", min_right=0.5, max_wrong=0.5
    )
    told: list[tuple[int, int]] = []
    report = kb.keysets.check(
        better.keyset_id,
        WordEncoder(salt="2"),
        lenient,
        active_encoder=WordEncoder(),
        on_texts=lambda done, total: told.append((done, total)),
        reader=NearReader,
    )
    right, wrong = criterion(report, "questions right"), criterion(report, "questions wrong")
    assert (right.figure, right.passed, wrong.figure, wrong.passed) == (0.5, True, 0.5, True)
    assert (
        right.note == "2 questions of lands" and report.questions == "lands" and told[:2] == [(1, 2), (2, 2)]
    )
    assert kb.questions.runs("lands") == [], "a gate is no run"
    strict = replace(lenient, max_wrong=0.4)
    encoders = {"encoder": WordEncoder(salt="2"), "active_encoder": WordEncoder()}
    report = kb.keysets.check(better.keyset_id, limits=strict, reader=NearReader, **encoders)
    assert report.failed == ("questions wrong",)
    with raises_code("GateRefused", match="questions wrong"):
        kb.keysets.activate(better.keyset_id)


def test_a_gate_with_questions_needs_a_limit_and_a_reader(
    kb: KnowledgeBase, two: tuple[KeysetRecord, KeysetRecord]
) -> None:
    kb.questions.add("lands", [DraftQuestion(CAPITAL, ("Lima",))], actor="tester")
    second, other = two[1].keyset_id, FakeEncoder(salt="2")
    with pytest.raises(InvalidValue, match="needs a limit"):
        kb.keysets.check(second, other, GateLimits(questions="lands"), reader=NearReader)
    with pytest.raises(InvalidValue, match="this server has none"):
        kb.keysets.check(second, other, GateLimits(questions="lands", min_right=0.5))
    with pytest.raises(QuestionSetNotFound):
        kb.keysets.check(second, other, GateLimits(questions="none", min_right=0.5), reader=NearReader)


def test_an_activation_may_require_that_its_gate_asked_a_set(
    kb: KnowledgeBase, two: tuple[KeysetRecord, KeysetRecord]
) -> None:
    second = two[1].keyset_id
    kb.keysets.check(second, FakeEncoder(salt="2"), active_encoder=FakeEncoder())
    with raises_code("GateRefused", match="did not ask the questions 'lands'"):
        kb.keysets.activate(second, questions="lands")
    assert kb.keysets.activate(second).state == "active"
