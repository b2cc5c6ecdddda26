"""Keys predicted from another keyset's: used at once, told of, and replaced by true ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from colmlm.kb.errors import InvalidValue, NoActiveKeyset
from colmlm.kb.evidence.records import NewOutput, Splice
from colmlm.kb.keys.adapting import default_sample_size
from colmlm.kb.keys.records import GateLimits, KeysetRecord
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from colmlm.lab.bench.synthetic import make_release, synthetic_keys
from tests.fakes import FakeEncoder, TurnedEncoder, activated, measured
from tests.kb.corpora import best, ingest, numbered, values
from tests.refusals import raises_code

WHO = {"actor": "tester", "reason": "test"}
MANY, SAMPLE = 240, 120


@pytest.fixture
def old() -> FakeEncoder:
    return FakeEncoder()


@pytest.fixture
def new() -> TurnedEncoder:
    return TurnedEncoder()


@pytest.fixture
def adapted(kb: KnowledgeBase, old: FakeEncoder, new: TurnedEncoder) -> KeysetRecord:
    """A keyset of the newer checkpoint, of whose keys half are predicted; the older one's is active."""
    ingest(kb, *numbered(MANY))
    kb.keysets.rekey(old)
    return kb.keysets.adapt(new, sample=SAMPLE)[0]


def found(kb: KnowledgeBase, encoder: FakeEncoder, numbers: range = range(MANY)) -> float:
    """The share of these questions that find their own value."""
    got = values(kb, encoder, [f"Question {n}?" for n in numbers])
    return sum(value == f"value {n}" for n, value in zip(numbers, got, strict=True)) / len(got)


def spliced(kb: KnowledgeBase, encoder: FakeEncoder, n: int) -> int:
    """Stores an output that says the value of question `n`."""
    hit = best(kb, encoder, f"Question {n}?")
    splice = Splice(0, len(hit.value), "hit", hit.fact_id, hit.version, hit.score)
    seq, checkpoint_id = kb.log.head_seq(), encoder.checkpoint.checkpoint_id
    return kb.outputs.record(NewOutput(f"Question {n}?", hit.value, checkpoint_id, "auto", seq, (splice,)))


def test_a_sample_is_keyed_and_all_else_predicted_and_found(
    kb: KnowledgeBase, adapted: KeysetRecord, new: TurnedEncoder
):
    assert (adapted.state, adapted.num_keys, adapted.num_unkeyed) == ("ready", MANY, 0)
    assert sum(new.calls) == SAMPLE and adapted.num_predicted == MANY - SAMPLE
    (prediction,) = adapted.predictions
    assert (prediction.kind, prediction.from_keyset_id, prediction.sample) == ("context", 1, SAMPLE)
    assert prediction.recall_at_1 is not None and prediction.recall_at_1 > 0.9
    assert prediction.recall_at_1_old is not None and prediction.recall_at_1_old < 0.2
    assert prediction.recall_at_1_true == 1.0
    activated(kb, adapted.keyset_id)
    assert found(kb, new) > 0.95 and kb.upkeep.fsck().ok


def test_progress_and_estimates_count_the_sample_alone(
    kb: KnowledgeBase, old: FakeEncoder, new: TurnedEncoder
):
    ingest(kb, *numbered(MANY))
    kb.keysets.rekey(old)
    told: list[tuple[int, int]] = []
    kb.keysets.adapt(new, sample=SAMPLE, on_facts=lambda done, total: told.append((done, total)))
    assert (SAMPLE, SAMPLE) in told and all(total <= SAMPLE for _, total in told)


def test_true_keys_take_the_place_of_predicted_ones(
    kb: KnowledgeBase, adapted: KeysetRecord, new: TurnedEncoder
):
    activated(kb, adapted.keyset_id)
    assert kb.keysets.rekey(new).num_predicted == MANY - SAMPLE  # an edit's rekey leaves them
    keyset = kb.keysets.rekey(new, replace=True)
    assert (keyset.num_keys, keyset.num_predicted, keyset.predictions) == (MANY, 0, ())
    assert sum(new.calls) == MANY and found(kb, new) == 1.0
    assert kb.upkeep.fsck().ok and kb.log.verify().ok
    fact_ids, keys_ND = kb.keysets.keys(keyset.keyset_id)
    by_id = {fact.fact_id: fact.question or "" for fact in kb.facts.every()}
    true_ND = np.stack([new.vector(by_id[int(fact_id)]) for fact_id in fact_ids])
    assert np.abs(keys_ND - true_ND).max() < 1e-3


def test_facts_that_are_asked_for_get_true_keys_first(
    kb: KnowledgeBase, adapted: KeysetRecord, old: FakeEncoder, new: TurnedEncoder
):
    waiting = predicted_documents(kb, new)
    often, once = waiting[-1], waiting[-2]
    for n in (often, once, often):
        spliced(kb, old, n)
    order: list[str] = []

    class Watched(TurnedEncoder):
        def encode_documents(self, documents):
            order.extend(document.external_id for document in documents)
            return TurnedEncoder.encode_documents(self, documents)

    kb.keysets.rekey(Watched(), replace=True, batch=1)
    assert order[:2] == [f"d{often}", f"d{once}"] and len(order) == len(waiting)


def test_what_is_asked_while_true_keys_are_made_moves_to_the_front(
    kb: KnowledgeBase, adapted: KeysetRecord, new: TurnedEncoder
):
    activated(kb, adapted.keyset_id)
    waiting = predicted_documents(kb, new)
    asked = waiting[-1]
    order: list[str] = []

    class Asked(TurnedEncoder):
        """Is asked for the last of the documents while it makes keys of the second."""

        def encode_documents(self, documents):
            order.extend(document.external_id for document in documents)
            if len(order) == 2:
                spliced(kb, new, asked)
            return TurnedEncoder.encode_documents(self, documents)

    assert kb.keysets.rekey(Asked(), replace=True, batch=1).num_predicted == 0
    assert order[:4] == [f"d{n}" for n in (*waiting[:2], asked, waiting[2])]
    assert len(order) == len(set(order)) == len(waiting)


@pytest.mark.slow(reason="keys a corpus several times")
def test_questions_that_are_asked_for_get_true_keys_first(kb: KnowledgeBase, old: FakeEncoder):
    for n in range(MANY):
        kb.facts.add(f"Question {n}?", f"value {n}", **WHO)
    keyed: list[str] = []

    class Watched(TurnedEncoder):
        def encode_questions(self, questions):
            keyed.extend(questions)
            return TurnedEncoder.encode_questions(self, questions)

    kb.keysets.rekey(old)
    kb.keysets.adapt(Watched(), sample=SAMPLE)
    waiting = [n for n in range(MANY) if f"Question {n}?" not in keyed]
    *others, once, often = waiting
    for n in (often, once, often):
        spliced(kb, old, n)
    kb.keysets.rekey(Watched(), replace=True, batch=1)
    assert keyed[SAMPLE:] == [f"Question {n}?" for n in (often, once, *others)]


def predicted_documents(kb: KnowledgeBase, encoder: FakeEncoder) -> list[int]:
    """The numbers of the documents whose fact has no true key of the encoder."""
    keyset = next(k for k in kb.keysets.all() if k.checkpoint_id == encoder.checkpoint.checkpoint_id)
    fact_ids, keys_ND = kb.keysets.keys(keyset.keyset_id)
    questions = {fact.fact_id: fact.question or "" for fact in kb.facts.every()}
    off = [
        np.abs(key - encoder.vector(questions[int(one)])).max() > 1e-3
        for one, key in zip(fact_ids, keys_ND, strict=True)
    ]
    return sorted(
        int(questions[int(one)].split()[1].rstrip("?"))
        for one, is_off in zip(fact_ids, off, strict=True)
        if is_off
    )


def test_edits_meanwhile_hold(kb: KnowledgeBase, adapted: KeysetRecord, new: TurnedEncoder):
    activated(kb, adapted.keyset_id)
    gone, asked_otherwise, erased = predicted_documents(kb, new)[:3]
    ids = {fact.value: fact.fact_id for fact in kb.facts.every()}
    kb.facts.delete([ids[f"value {gone}"]], **WHO)
    kb.facts.edit(ids[f"value {asked_otherwise}"], question="What else?", **WHO)
    Erasure(kb).erase([ids[f"value {erased}"]], **WHO)
    ingest(kb, *numbered(MANY + 1)[MANY:], corpus="new")
    assert values(kb, new, [f"Question {gone}?", f"Question {erased}?"]) == [None, None]
    before = kb.keysets.rekey(new)
    assert before.num_predicted == MANY - SAMPLE - 3
    assert values(kb, new, ["What else?", f"Question {MANY}?"]) == [
        f"value {asked_otherwise}",
        f"value {MANY}",
    ]
    after = kb.keysets.rekey(new, replace=True)
    assert (after.num_predicted, after.num_unkeyed) == (0, 0) and kb.upkeep.fsck().ok
    kb.facts.restore([ids[f"value {gone}"]], **WHO)
    assert kb.keysets.rekey(new, replace=True).num_predicted == 0
    assert values(kb, new, [f"Question {gone}?"]) == [f"value {gone}"]


def test_what_was_cut_off_goes_on(kb: KnowledgeBase, old: FakeEncoder):
    class Failing(TurnedEncoder):
        """Fails at its fifth batch of documents."""

        def encode_documents(self, documents):
            if len(self.calls) == 5:
                raise RuntimeError("killed")
            return TurnedEncoder.encode_documents(self, documents)

    ingest(kb, *numbered(MANY))
    kb.keysets.rekey(old)
    with pytest.raises(RuntimeError, match="killed"):
        kb.keysets.adapt(Failing(), sample=SAMPLE, batch=10)
    new = TurnedEncoder()
    adapted, (kind,) = kb.keysets.adapt(new, sample=SAMPLE, batch=10)
    assert sum(new.calls) == SAMPLE - 50 and kind.facts == MANY and adapted.num_predicted == MANY - SAMPLE
    again, (kind,) = kb.keysets.adapt(new, sample=SAMPLE + 20, method="procrustes")
    assert (again.num_predicted, kind.facts, kind.predicted) == (MANY - SAMPLE, MANY, 0)
    assert (kind.seconds_true, kind.prediction) == (None, adapted.predictions[0]), "as they were predicted"
    with pytest.raises(RuntimeError, match="killed"):
        kb.keysets.rekey(Failing(), replace=True, batch=10)
    assert kb.keysets.show(adapted.keyset_id).num_predicted == MANY - SAMPLE - 50
    last = TurnedEncoder()
    assert kb.keysets.rekey(last, replace=True).num_predicted == 0
    assert sum(last.calls) == MANY - SAMPLE - 50 and kb.upkeep.fsck().ok


def test_a_trace_says_that_a_key_was_predicted_and_goes_on_saying_so(
    kb: KnowledgeBase, adapted: KeysetRecord, new: TurnedEncoder
):
    activated(kb, adapted.keyset_id)
    guessed = predicted_documents(kb, new)
    known = next(n for n in range(MANY) if n not in guessed)
    outputs = [spliced(kb, new, n) for n in (guessed[0], known)]

    def told() -> list[bool]:
        return [kb.outputs.trace(one).splices[0].key_predicted for one in outputs]

    assert told() == [True, False]
    kb.keysets.rekey(new, replace=True)
    assert told() == [True, False]
    assert not kb.outputs.trace(spliced(kb, new, guessed[0])).splices[0].key_predicted


def test_both_kinds_of_keys_are_predicted(kb: KnowledgeBase, old: FakeEncoder, new: TurnedEncoder):
    ingest(kb, *numbered(MANY))
    for n in range(60):
        kb.facts.add(f"Without a document {n}?", f"one {n}", **WHO)
    kb.keysets.rekey(old, kinds=("context", "question"))
    adapted, (context, question) = kb.keysets.adapt(new, sample=SAMPLE)
    assert (context.prediction.kind, question.prediction.kind) == ("context", "question")
    assert adapted.num_keys == 2 * MANY + 60 and adapted.num_unkeyed == 0
    assert {one.kind: one.left for one in adapted.predictions} == {
        "context": MANY - SAMPLE,
        "question": MANY - SAMPLE,
    }
    keyset = kb.keysets.rekey(new, replace=True)
    assert (keyset.num_keys, keyset.num_predicted) == (2 * MANY + 60, 0) and kb.upkeep.fsck().ok


def test_a_kind_of_too_few_facts_for_a_map_gets_true_keys(
    kb: KnowledgeBase, old: FakeEncoder, new: TurnedEncoder
):
    ingest(kb, *numbered(MANY))
    kb.facts.add("Without a document?", "one", **WHO)
    kb.keysets.rekey(old)
    adapted, (context, question) = kb.keysets.adapt(new, sample=SAMPLE)
    assert (question.facts, question.prediction.method, question.prediction.recall_at_1) == (1, "none", None)
    assert (context.facts, adapted.num_predicted) == (MANY, MANY - SAMPLE) and adapted.num_unkeyed == 0
    activated(kb, adapted.keyset_id)
    assert values(kb, new, ["Without a document?"]) == ["one"]


def test_what_cannot_be_predicted_from_is_refused(kb: KnowledgeBase, old: FakeEncoder, new: TurnedEncoder):
    with pytest.raises(NoActiveKeyset):
        kb.keysets.adapt(new)
    ingest(kb, *numbered(MANY))
    kb.keysets.rekey(old)
    with pytest.raises(InvalidValue, match="belongs to this checkpoint"):
        kb.keysets.adapt(old)
    with pytest.raises(InvalidValue, match="not one of auto, procrustes, ridge"):
        kb.keysets.adapt(new, method="magic")
    with pytest.raises(InvalidValue, match="too few"):
        kb.keysets.adapt(new, sample=5)
    assert len(kb.keysets.all()) == 1, "no keyset is left of what was refused"
    adapted, _ = kb.keysets.adapt(new, sample=SAMPLE)
    with pytest.raises(InvalidValue, match=f"colmlm keysets fill {adapted.keyset_id}"):
        kb.keysets.adapt(FakeEncoder("third"), from_keyset_id=adapted.keyset_id)
    with pytest.raises(InvalidValue, match="1 is active"):
        kb.keysets.adapt(old, from_keyset_id=kb.keysets.rekey(FakeEncoder("fourth")).keyset_id)


def test_keys_that_were_adopted_alone_are_not_predicted_from(
    kb: KnowledgeBase, new: TurnedEncoder, tmp_path: Path
):
    make_release(tmp_path / "release", synthetic_keys(600, 32, seed=1))
    adopted = kb.releases.take(tmp_path / "release", "wiki", **WHO).keyset_id
    assert adopted is not None
    kb.keysets.finish(adopted)
    with pytest.raises(InvalidValue, match=f"{adopted} has no keys that a checkpoint made"):
        kb.keysets.adapt(new)
    assert [one.keyset_id for one in kb.keysets.all()] == [adopted]


def test_a_keyset_that_is_activated_meanwhile_gets_no_predicted_keys(
    kb: KnowledgeBase, old: FakeEncoder, new: TurnedEncoder
):
    ingest(kb, *numbered(SAMPLE))
    kb.keysets.rekey(old)
    keyset_id = kb.keysets.rekey(new).keyset_id
    ingest(kb, *numbered(MANY)[SAMPLE:], corpus="new")
    kb.keysets.rekey(old)

    def activate(done: int, total: int) -> None:
        activated(kb, keyset_id)

    with pytest.raises(InvalidValue, match=f"{keyset_id} is active, so its keys must be true"):
        kb.keysets.adapt(new, sample=SAMPLE, on_facts=activate)
    keyset = kb.keysets.show(kb.keysets.active().keyset_id)
    assert (keyset.keyset_id, keyset.num_predicted) == (keyset_id, 0) and keyset.num_unkeyed > 0


def test_the_gate_sees_the_worst_of_the_maps_whose_keys_are_left(
    kb: KnowledgeBase, old: FakeEncoder, new: TurnedEncoder
):
    ingest(kb, *numbered(MANY))
    kb.keysets.rekey(old)
    first, (worse,) = kb.keysets.adapt(new, sample=20)
    ingest(kb, *numbered(2 * MANY)[MANY:], corpus="new")
    kb.keysets.rekey(old)
    second, (better,) = kb.keysets.adapt(new, sample=MANY)
    assert (worse.prediction.kept or 0) < (better.prediction.kept or 0)
    (told,) = second.predictions
    assert told == replace(first.predictions[0], left=second.num_predicted)
    assert better.predicted == second.num_predicted - first.num_predicted > 0
    ids = [fact.fact_id for fact in kb.facts.find(corpus="lands", limit=MANY)]
    kb.facts.delete(ids, **WHO)
    assert kb.keysets.show(second.keyset_id).predictions[0].kept == better.prediction.kept


def test_a_corpus_is_adapted_by_its_own_facts(kb: KnowledgeBase, old: FakeEncoder, new: TurnedEncoder):
    ingest(kb, *numbered(MANY))
    ingest(kb, *numbered(MANY + SAMPLE)[MANY:], corpus="small")
    kb.keysets.rekey(old)
    kb.keysets.adapt(new, corpus="lands", sample=SAMPLE)
    _, (kind,) = kb.keysets.adapt(new, corpus="small", sample=60)
    assert (kind.prediction.sample, kind.facts, kind.predicted) == (60, SAMPLE, SAMPLE - 60)


def test_the_usual_sample_is_a_hundredth_and_no_more_than_is_fitted():
    assert [default_sample_size(number) for number in (240, 100_000, 10**9)] == [250, 1000, 20_000]


def test_a_gate_that_saw_no_predicted_keys_lets_none_answer(
    kb: KnowledgeBase, old: FakeEncoder, new: TurnedEncoder
):
    ingest(kb, *numbered(SAMPLE))
    kb.keysets.rekey(old)
    keyset_id = kb.keysets.calibrate(kb.keysets.rekey(new).keyset_id, measured(0.5)).keyset_id
    assert kb.keysets.check(keyset_id, new, active_encoder=old).passed
    ingest(kb, *numbered(MANY)[SAMPLE:], corpus="new")
    kb.keysets.rekey(old)
    left = kb.keysets.adapt(new, sample=SAMPLE)[0].num_predicted
    assert 0 < left < MANY - SAMPLE  # some of the sample are new documents
    with raises_code("GateRefused", match="never checked"):
        kb.keysets.activate(keyset_id)
    report = kb.keysets.check(keyset_id, new, active_encoder=old)
    (told,) = [one for one in report.criteria if one.name == "recall kept by predicted context keys"]
    assert (
        told.passed and told.figure is not None and told.figure > 0.9 and f"{left} of 240 keys" in told.note
    )
    strict = kb.keysets.check(keyset_id, new, GateLimits(min_recall_kept=1.0), active_encoder=old)
    assert told.figure == 1.0 or "recall kept by predicted context keys" in strict.failed


def test_workers_share_the_predicted_keys(
    kb: KnowledgeBase, settings: Settings, adapted: KeysetRecord, new: TurnedEncoder
):
    class Helped(TurnedEncoder):
        """Lets another worker take what it has not claimed before its own first batch."""

        def encode_documents(self, documents):
            if not self.calls:
                self.calls.append(0)
                with KnowledgeBase.open(settings) as own:
                    helping = own.keysets
                    with pytest.raises(RuntimeError, match="killed"):
                        helping.rekey(Stopping(), replace=True, batch=10)
            return TurnedEncoder.encode_documents(self, documents)

    class Stopping(TurnedEncoder):
        """Encodes three batches."""

        def encode_documents(self, documents):
            if len(self.calls) == 3:
                raise RuntimeError("killed")
            return TurnedEncoder.encode_documents(self, documents)

    first = Helped()
    assert kb.keysets.rekey(first, replace=True, batch=10).num_predicted == 0
    assert sum(first.calls) == MANY - SAMPLE - 30 and kb.upkeep.fsck().ok
